"""Judgement of a trained model by a text: loss, bits per byte, perplexity.

Every document is read in windows that follow each other; each begins with the last token of the one
before, so that every token but a document's first is foretold once. Within a window a token sees
what stands before it there, so the loss is a little above that of a window that slides. A long
document is read in parts.

Legend of shapes: B windows, T tokens, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from swarmtrain.data.documents import Document, Kind, documents, find, text_digest
from swarmtrain.data.tokenizer import Tokenizer
from swarmtrain.foundation.errors import UserError, no_numbers

WINDOWS_AT_ONCE = 16

LOGITS_MAX = 1 << 27
"""Logits of the windows that are judged at once, where several are: half a gigabyte."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The measure of a model on a text.

    Attributes:
        loss: nats per token.
        bits_per_byte: the same by the text's bytes, which compares tokenizers.
        perplexity: exp of the loss.
        tokens: number of tokens that were foretold.
        windows: number of windows in which they were.
        documents: number of documents that were read, in whole or in part.
        bytes: length of their text, in UTF-8.
    """

    loss: float
    bits_per_byte: float
    perplexity: float
    tokens: int
    windows: int
    documents: int
    bytes: int


def text_at(place: str, field: str = "text") -> tuple[Iterator[Document], int]:
    """Documents of a file, a folder or a dataset, and how many files there are none.

    Args:
        place: file, folder or dataset, as a run file's data.source has it.
        field: field of JSONL and datasets that has the text.

    Raises:
        UserError: SWT-E820, nothing is there; E821, nothing of it is text.
    """
    source = find(place)
    skipped = source.skipped
    if source.kind is Kind.TEXT:
        files = tuple(one for one in source.files if text_digest(one.path) is not None)
        skipped += len(source.files) - len(files)
        source = replace(source, files=files)
    if source.kind is Kind.TOKENS or (source.kind is Kind.TEXT and not source.files):
        raise UserError(
            "SWT-E821", f"Nothing at {place} is text in UTF-8.", "Nothing was judged.",
            "Name a file of text or JSONL, or a folder with some.",
        )  # fmt: skip
    return documents(source, field), skipped


def judged(
    model: nn.Module, tokenizer: Tokenizer, context: int, texts: Iterable[Document],
    most_windows: int = 0,
) -> Judgement:  # fmt: skip
    """Judge a model by documents.

    Args:
        model: gives (B, T, V) logits.
        tokenizer: tokenizer of the model.
        context: longest T that it takes.
        texts: the documents.
        most_windows: stop after so many, 0 for all.

    Raises:
        UserError: SWT-E452, there is no token to foretell; E455, the losses are no numbers.
    """
    device = next(model.parameters()).device
    at_once = max(1, min(WINDOWS_AT_ONCE, LOGITS_MAX // (context * tokenizer.vocabulary)))
    nats, tokens, windows, documents_read, num_bytes = 0.0, 0, 0, 0, 0.0
    for parts in texts:
        last: list[int] = []
        for part in parts:
            if most_windows and windows >= most_windows:
                break
            ids = last + tokenizer.encode(part)
            last = ids[-1:]
            if len(ids) < 2:
                continue
            foretold = 0
            for batch in _batches(
                ids, context, most_windows - windows if most_windows else 0, at_once
            ):
                nats += _nats(model, batch, device)
                windows += len(batch)
                foretold += sum(len(one) - 1 for one in batch)
            tokens += foretold
            num_bytes += len(part.encode()) * foretold / (len(ids) - 1)
        documents_read += bool(last)
        if most_windows and windows >= most_windows:
            break
    if not tokens:
        raise UserError(
            "SWT-E452", "The text has no token that could be foretold.",
            "A document must have at least two.", "Name more text with --data.",
        )  # fmt: skip
    if not math.isfinite(nats):
        raise no_numbers("The losses of the text")
    loss = nats / tokens
    bits = nats / math.log(2) / num_bytes
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return Judgement(loss, bits, perplexity, tokens, windows, documents_read, round(num_bytes))


def _batches(
    ids: Sequence[int], context: int, most: int, at_once: int
) -> Iterator[list[Sequence[int]]]:
    """Windows of a document with the token after each; only the last one may be shorter, and is a
    batch of its own."""
    starts = range(0, len(ids) - 1, context)
    windows = [ids[start : start + context + 1] for start in starts[: most or len(starts)]]
    whole = [one for one in windows if len(one) == context + 1]
    for first in range(0, len(whole), at_once):
        yield whole[first : first + at_once]
    if len(whole) < len(windows):
        yield windows[len(whole) :]


def _nats(model: nn.Module, batch: list[Sequence[int]], device: torch.device) -> float:
    both_BT = torch.tensor(batch, device=device)
    with torch.inference_mode():
        logits_BTV = model(both_BT[:, :-1]).float()
        total = F.cross_entropy(logits_BTV.flatten(0, 1), both_BT[:, 1:].flatten(), reduction="sum")
    return float(total)
