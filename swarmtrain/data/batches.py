"""Text pieces as batches of token ids: random windows to train on, fixed windows to judge by.

Randomness is an argument, so a seed gives the same batches on every machine. Pieces are joined
before windows are drawn: a window may span two pieces that were not neighbours, which happens to
about one window in five hundred and saves every special case for short pieces.

Pieces hold token ids of one width (`tokenizer.width_of`); of width 1 they are the text's bytes.

Legend of shapes: B windows, T tokens of context.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from swarmtrain.config.built_in import width_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.data.walk import Walk
from swarmtrain_transport.wire.messages import Leased

VALIDATION_WINDOWS = 128
"""Windows of one evaluation: 16 KiB at a context of 128, the cost of about five inner steps."""


_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Types of pieces by width. torch has indexing for these, and hardly for uint16."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows of text and, for each token, the token that follows it.

    Attributes:
        x_BT: token ids, int64.
        y_BT: the same windows one token later, int64.
    """

    x_BT: Tensor
    y_BT: Tensor


class ByteStream:
    """Endless training batches: windows drawn uniformly over all pieces held.

    Args:
        pieces: token ids, together at least ``context + 1`` of them.
        batch: windows in one batch.
        context: tokens in one window.
        rng: source of the draws; seed it per peer, so that peers read different windows.
        width: bytes of one token id.

    Raises:
        ValueError: the text is shorter than one window and its target.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        batch: int,
        context: int,
        rng: random.Random,
        width: int = 1,
    ) -> None:
        self._batch, self._context, self._rng = batch, context, rng
        self._text = _joined(pieces, context, width)

    @classmethod
    def of(cls, config: RunConfig, pieces: Sequence[bytes], seed: int) -> "ByteStream":
        """Batches as a run file wants them, from text that a peer has all at once."""
        return cls(
            pieces, batch=config.inner.batch, context=config.model.context,
            rng=random.Random(seed), width=width_of(config),
        )  # fmt: skip

    def next_batch(self) -> Batch:
        """The next `batch` windows."""
        last = len(self._text) - self._context - 1
        starts = [self._rng.randint(0, last) for _ in range(self._batch)]
        return _windows(self._text, torch.tensor(starts, device="cpu"), self._context)


class LeasedStream:
    """Endless training batches: every window of what is held once, as a `Walk` goes.

    Args:
        batch: windows in one batch.
        context: tokens in one window.
        rng: source of the draws; seed it per peer.
        width: bytes of one token id.

    Attributes:
        walk: tells what is done, and when more is wanted.
    """

    def __init__(self, *, batch: int, context: int, rng: random.Random, width: int) -> None:
        self.walk = Walk(context, rng)
        self._batch, self._context, self._width = batch, context, width
        self._pieces: dict[bytes, Tensor] = {}
        self._places: dict[bytes, int] = {}
        self._text = torch.empty(0, device="cpu")

    @property
    def has_text(self) -> bool:
        """True if there is a window to read."""
        return any(len(piece) > self._context for piece in self._pieces.values())

    def hold(self, granted: Mapping[Leased, bytes]) -> None:
        """Go on with these pieces and no others; where none of them has a window, with the old ones
        beside them."""
        pieces = {leased.piece: _tokens(data, self._width) for leased, data in granted.items()}
        if not any(len(piece) > self._context for piece in pieces.values()):
            pieces = self._pieces | pieces
        self._pieces = pieces
        places = accumulate(map(len, pieces.values()), initial=0)
        self._places = dict(zip(pieces, places, strict=False))
        self._text = torch.cat(list(pieces.values())) if pieces else torch.empty(0, device="cpu")
        self.walk.hold(tuple(granted), {piece: len(ids) for piece, ids in pieces.items()})

    def next_batch(self) -> Batch:
        """The next `batch` windows."""
        starts = [self._places[piece] + first for piece, first in self.walk.next(self._batch)]
        return _windows(self._text, torch.tensor(starts, device="cpu"), self._context)


def validation_batches(
    pieces: Sequence[bytes], *, windows: int, batch: int, context: int, width: int = 1
) -> tuple[Batch, ...]:
    """Return the same `windows` windows every time, spread evenly over the text.

    Every peer that evaluates the same weights on the same pieces gets the same loss, up to
    rounding that differs between machines.

    Args:
        pieces: token ids of the validation text, in its order.
        windows: number of windows in all.
        batch: windows in one batch; the last batch may be smaller.
        context: tokens in one window.
        width: bytes of one token id.

    Raises:
        ValueError: the text is shorter than one window, or `windows` is not positive.
    """
    if windows < 1:
        raise ValueError(f"windows must be at least 1, not {windows}")
    text = _joined(pieces, context, width)
    last = len(text) - context - 1
    starts = torch.arange(windows, dtype=torch.int64, device="cpu") * last // max(1, windows - 1)
    return tuple(
        _windows(text, starts[first : first + batch], context) for first in range(0, windows, batch)
    )


def _joined(pieces: Sequence[bytes], context: int, width: int) -> Tensor:
    text = b"".join(pieces)
    tokens = len(text) // width
    if tokens < context + 1:
        kind = "bytes" if width == 1 else "tokens"
        raise ValueError(
            f"the text has {tokens} {kind}, one window needs {context + 1} (context + 1)"
        )
    return _tokens(text, width)


def unknown_token(text: bytes, width: int, vocabulary: int) -> int | None:
    """Return a token id of a piece that a model of this vocabulary does not know."""
    if width == 1 and vocabulary >= 1 << 8:
        return None
    ids = _tokens(text, width).long() & ((1 << 8 * width) - 1)
    unknown = ids[ids >= vocabulary]
    return int(unknown[0]) if len(unknown) else None


def _tokens(text: bytes, width: int) -> Tensor:
    """(num_tokens,), without a torn one at the end."""
    if len(text) < width:
        return torch.empty(0, dtype=_TYPES[width], device="cpu")
    # A bytearray, because torch warns about tensors over read-only memory.
    return torch.frombuffer(bytearray(text), dtype=_TYPES[width], count=len(text) // width)


def _windows(text: Tensor, starts: Tensor, context: int) -> Batch:
    index = starts[:, None] + torch.arange(context + 1, device="cpu")  # (B, T + 1)
    window = text[index].long()
    if text.dtype is torch.int16:
        window &= 0xFFFF  # ids above 32767 look negative
    return Batch(window[:, :-1], window[:, 1:])
