"""How well a trained model foretells a text: loss, bits per byte, perplexity.

Every document is read in windows that follow each other; each window begins with the last token of
the one before, so that every token but a document's first is foretold once. Within a window a token
sees what stands before it there, so the loss is a little above that of a window that slides.

Legend of shapes: B windows, T tokens, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from swarmtrain.data.documents import find, text_digest
from swarmtrain.errors import UserError
from swarmtrain.trained.tokens import Tokenizer

WINDOWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Judgement:
    """The measure of a model on a text.

    Attributes:
        loss: nats per token.
        bits_per_byte: the same by the text's bytes, which compares tokenizers.
        perplexity: exp of the loss.
        tokens: that were foretold.
        windows: in which they were.
        documents: that had at least two tokens.
        bytes: of their text, in UTF-8.
    """

    loss: float
    bits_per_byte: float
    perplexity: float
    tokens: int
    windows: int
    documents: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Text:
    """Documents of a place.

    Attributes:
        paths: those that are text.
        skipped: files that are none.
    """

    paths: tuple[str, ...]
    skipped: int


def text_at(place: str) -> Text:
    """The text of a file, or of all files in a folder.

    Raises:
        UserError: SWT-E820, nothing is there; E821, nothing of it is text.
    """
    files = find(place).files
    paths = tuple(one.path for one in files if text_digest(one.path) is not None)
    if not paths:
        raise UserError(
            "SWT-E821", f"Nothing at {place} is text in UTF-8.", "Nothing was judged.",
            "Name a file of text, or a folder with some.",
        )  # fmt: skip
    return Text(paths, len(files) - len(paths))


def judged(
    model: nn.Module, tokenizer: Tokenizer, context: int, texts: Iterable[str],
    most_windows: int = 0,
) -> Judgement:  # fmt: skip
    """Judge a model by texts, each a document.

    Args:
        model: gives (B, T, V) logits.
        context: longest T that it takes.
        most_windows: stop after so many, 0 for all.

    Raises:
        UserError: SWT-E452, there is no token to foretell.
    """
    device = next(model.parameters()).device
    nats, tokens, windows, documents, num_bytes = 0.0, 0, 0, 0, 0.0
    for text in texts:
        if most_windows and windows >= most_windows:
            break
        ids = tokenizer.encode(text)
        if len(ids) < 2:
            continue
        documents += 1
        foretold = 0
        for batch in _batches(ids, context, most_windows - windows if most_windows else 0):
            nats += _nats(model, batch, device)
            windows += len(batch)
            foretold += sum(len(one) - 1 for one in batch)
        tokens += foretold
        num_bytes += len(text.encode()) * foretold / (len(ids) - 1)
    if not tokens:
        raise UserError(
            "SWT-E452", "The text has no token that could be foretold.",
            "A document must have at least two.", "Name more text with --data.",
        )  # fmt: skip
    loss = nats / tokens
    bits = nats / math.log(2) / num_bytes
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return Judgement(loss, bits, perplexity, tokens, windows, documents, round(num_bytes))


def _batches(ids: Sequence[int], context: int, most: int) -> Iterator[list[Sequence[int]]]:
    """Windows of a document with the token after each; only the last one may be shorter, and is a
    batch of its own."""
    starts = range(0, len(ids) - 1, context)
    windows = [ids[start : start + context + 1] for start in starts[: most or len(starts)]]
    whole = [one for one in windows if len(one) == context + 1]
    for first in range(0, len(whole), WINDOWS_AT_ONCE):
        yield whole[first : first + WINDOWS_AT_ONCE]
    if len(whole) < len(windows):
        yield windows[len(whole) :]


def _nats(model: nn.Module, batch: list[Sequence[int]], device: torch.device) -> float:
    both_BT = torch.tensor(batch, device=device)
    with torch.inference_mode():
        logits_BTV = model(both_BT[:, :-1]).float()
        total = F.cross_entropy(logits_BTV.flatten(0, 1), both_BT[:, 1:].flatten(), reduction="sum")
    return float(total)
