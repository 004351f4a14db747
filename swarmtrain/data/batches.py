"""Text pieces as batches of token ids: random windows to train on, fixed windows to judge by.

Randomness is an argument, so a seed gives the same batches on every machine. Pieces are joined
before windows are drawn: a window may span two pieces that were not neighbours, which happens to
about one window in five hundred and saves every special case for short pieces.

Pieces hold token ids of one width (`tokenizer.width_of`); of width 1 they are the text's bytes.

Legend of shapes: B windows, T tokens of context.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
        self._batch = batch
        self._context = context
        self._rng = rng
        self._width = width
        self._text = _joined(pieces, context, width)

    def replace_pieces(self, pieces: Sequence[bytes]) -> None:
        """Draw from these pieces from now on, as when a new lease came.

        Raises:
            ValueError: the text is shorter than one window; the old pieces stay.
        """
        self._text = _joined(pieces, self._context, self._width)

    def next_batch(self) -> Batch:
        """The next `batch` windows."""
        last = len(self._text) - self._context - 1
        starts = [self._rng.randint(0, last) for _ in range(self._batch)]
        return _windows(self._text, torch.tensor(starts), self._context)


def validation_batches(
    pieces: Sequence[bytes], *, windows: int, batch: int, context: int, width: int = 1
) -> tuple[Batch, ...]:
    """The same `windows` windows every time, spread evenly over the text.

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
    starts = torch.arange(windows, dtype=torch.int64) * last // max(1, windows - 1)
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
    # A bytearray, because torch warns about tensors over read-only memory.
    return torch.frombuffer(bytearray(text), dtype=_TYPES[width], count=tokens)  # (num_tokens,)


def _windows(text: Tensor, starts: Tensor, context: int) -> Batch:
    index = starts[:, None] + torch.arange(context + 1)  # (B, T + 1)
    window = text[index].long()
    if text.dtype is torch.int16:
        window &= 0xFFFF  # ids above 32767 look negative
    return Batch(window[:, :-1], window[:, 1:])
