"""Files of tokens made of a source once, where what it holds is not what peers train on.

Documents are told apart by the hash of their beginning, so that equal ones are on one side.
Tokens that others have prepared are taken as they lie, where their width is the run's: those of
nanoGPT (16-bit ids and nothing else) and of llm.c (the same after a header, or 32-bit ids).
"""

import hashlib
import struct
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from swarmtrain.config.built_in import vocabulary_of, width_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.data.documents import BLOCK_BYTES, Document, File, Source, documents, is_judged
from swarmtrain.data.stretches import Extent, Parts, is_drawn
from swarmtrain.data.tokenizer import Tokenizer, packed, unpacked
from swarmtrain.foundation.errors import UserError

LLM_C = {(20240520, 1): 2, (20240801, 7): 4}
"""Magic number and version of llm.c's files of tokens, and the width of their ids."""

LLM_C_HEADER = 1024
"""256 numbers of 32 bits; the third one counts the tokens."""

NANO_GPT = 2
"""Width of nanoGPT's ids; its files have no header."""

_TOGETHER = 64
"""Texts that are made into tokens side by side."""


def text(
    config: RunConfig,
    source: Source,
    tokenizer: Tokenizer,
    file: Path,
    share: float,
    most: int,
) -> Parts:
    """Write the tokens of all documents to two files.

    Args:
        config: the settled run file.
        source: source of the text.
        tokenizer: tokenizer of the run.
        file: beginning of both files' names.
        share: share of the documents that is set aside.
        most: documents to read, 0 for all.

    Raises:
        UserError: as `documents`.
        OSError: the disk.
    """
    width = width_of(config)
    paths = [file.with_name(f"{file.name}-{part}.bin") for part in ("train", "validation")]
    texts = _marked(documents(source, config.data.field, most), share)
    with ExitStack() as stack:
        outs = [stack.enter_context(path.open("wb")) for path in paths]
        while batch := list(islice(texts, _TOGETHER)):
            made = tokenizer.encode_all([part for part, _, _ in batch])
            for ids, (_, drawn, is_last) in zip(made, batch, strict=True):
                outs[drawn].write(packed([*ids, *tokenizer.end] if is_last else ids, width))
    train, validation = ([Extent(str(path), 0, path.stat().st_size)] for path in paths)
    return Parts(train, [one for one in validation if one.length])


def _marked(found: Iterator[Document], share: float) -> Iterator[tuple[str, bool, bool]]:
    """Parts of documents, each with its document's side and True at its end."""
    for document in found:
        parts = iter(document)
        part = next(parts, "")
        drawn = is_drawn(hashlib.sha256(part.encode(errors="replace")).digest(), share)
        for following in parts:
            yield part, drawn, False
            part = following
        if part:
            yield part, drawn, True


def tokens(config: RunConfig, source: Source, file: Path) -> Parts:
    """Take files of tokens, or write them with the run's width.

    Args:
        config: the settled run file.
        source: files of tokens.
        file: beginning of the names of files that must be made.

    Raises:
        UserError: SWT-E825, a file is none, is cut off, or has ids that the model does not know.
        OSError: the disk.
    """
    parts, width = Parts([], [], is_given=True), width_of(config)
    for number, one in enumerate(source.files):
        found, offset = _form(one)
        ids = Extent(one.path, offset, one.size - offset)
        made = file.with_name(f"{file.name}-{number}.bin")
        with ExitStack() as stack:
            out = stack.enter_context(made.open("wb")) if found != width else None
            _copy(one, offset, found, vocabulary_of(config), width, out)
        if out is not None:
            ids = Extent(str(made), 0, made.stat().st_size)
        judged = is_judged(one.path) and len(source.files) > 1
        (parts.validation if judged else parts.train).append(ids)
    return parts


def _form(file: File) -> tuple[int, int]:
    """Width of a file's ids, and where they begin."""
    with open(file.path, "rb") as stream:
        head = stream.read(12)
    magic, version, count = struct.unpack("<iii", head.ljust(12, b"\0"))
    if (magic, version) in LLM_C:
        width = LLM_C[magic, version]
        if file.size != LLM_C_HEADER + count * width:
            raise _not_tokens(
                f"{file.path} says that it holds {count} tokens, and its length is another one"
            )
        return width, LLM_C_HEADER
    if any(magic == known for known, _ in LLM_C):
        raise _not_tokens(f"{file.path} is of llm.c's version {version}, which is not known here")
    if file.size % NANO_GPT:
        raise _not_tokens(f"{file.path} does not hold whole tokens of 16 bits")
    return NANO_GPT, 0


def _copy(
    file: File, offset: int, found: int, vocabulary: int, width: int, out: BinaryIO | None
) -> None:
    """Check all ids of a file, and write them with another width if asked to."""
    with open(file.path, "rb") as stream:
        stream.seek(offset)
        while block := stream.read(BLOCK_BYTES):
            ids: array[int] = unpacked(block, found)
            if (largest := max(ids)) >= vocabulary:
                raise _not_tokens(
                    f"{file.path} has the token {largest}, and the model's vocabulary is"
                    f" {vocabulary}"
                )
            if out is not None:
                out.write(packed(ids, width))


def _not_tokens(what: str) -> UserError:
    return UserError(
        "SWT-E825",
        f"{what}.",
        "A .bin file holds token ids: of nanoGPT or of llm.c, made by the run's tokenizer.",
        "Name that tokenizer as data.tokenizer, or its size as model.vocabulary, as with"
        " GPT-2's 50257; or make the file anew.",
    )
