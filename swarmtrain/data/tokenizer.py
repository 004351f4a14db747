"""Text as token ids: bytes, ids that somebody else has made, or a `tokenizer.json`.

A `tokenizer.json` is read by the tokenizers library (extra `hf`), which is loaded when one is
needed and never otherwise. Settings name it by its SHA-256; the file travels as a piece of text
does, so what it says is bounded and nothing of it is executed.

Pieces hold ids of one width, little endian: 1 byte where 256 values are enough, else 2 or 4.
"""

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence

from swarmtrain.config.settings import BYTES, IDS, DataSection
from swarmtrain.foundation.errors import UserError, cleaned

FILE = "tokenizer.json"
"""Name of the file in state directories."""

FILE_BYTES_MAX = 32 << 20
"""The largest in use have 17 MB."""

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot|>", "[SEP]")
"""Tokens that end a text, by what known tokenizers call theirs."""

_TYPES = {1: "B", 2: "H", 4: "I"}


class Bytes:
    """Tokens are the bytes of UTF-8; a zero byte ends a document.

    Attributes:
        vocabulary: ids are from 0 to below it.
        sha256: hex, of a tokenizer's file; "" where there is none.
        end: ids that stand after a document.
    """

    vocabulary = 256
    sha256 = ""
    end: Sequence[int] = (0,)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text: its bytes."""
        return list(text.encode())

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of several texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text; ids that are no bytes become replacement marks."""
        return bytes(one if 0 <= one < 256 else 0xFF for one in ids).decode(errors="replace")


class JsonTokenizer:
    """A tokenizer of the tokenizers library, in the form of `Bytes`.

    Args:
        file: contents of a `tokenizer.json`.

    Raises:
        UserError: SWT-E824, it is none; SWT-E102, the library is not installed.
    """

    def __init__(self, file: bytes) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise UserError(
                "SWT-E102",
                "A tokenizer.json needs the tokenizers library, which is not installed.",
                "Text as bytes, the default, works without it.",
                'Install it with: pip install "swarmtrain[hf]"',
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(file.decode())
        except BaseException as error:  # the library raises Exception itself, and panics
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise UserError(
                "SWT-E824",
                f"The tokenizer cannot be read: {cleaned(str(error))[:200]}.",
                "A tokenizer.json is what the tokenizers library saves.",
                "Take the file of that name from the model whose tokenizer it shall be.",
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        known = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(known.values(), default=0) + 1
        self.sha256 = hashlib.sha256(file).hexdigest()
        self.end_name = next((name for name in _ENDS if name in known), "")
        self.end: Sequence[int] = (known[self.end_name],) if self.end_name else ()

    def encode(self, text: str) -> list[int]:
        """Return the ids, without what the tokenizer puts around a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each, made on all cores."""
        made = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [one.ids for one in made]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text, without tokens that stand for no text."""
        return str(self._tokenizer.decode(list(ids)))


Tokenizer = Bytes | JsonTokenizer


def tokenizer_of(data: DataSection, file: bytes | None) -> Tokenizer:
    """Make the tokenizer of a run.

    Args:
        data: settings that travel.
        file: contents of its `tokenizer.json`, None if there is none here.

    Raises:
        UserError: SWT-E824, the file is missing or another one, or ids have no text; and as
            `JsonTokenizer`.
    """
    if data.tokenizer == BYTES:
        return Bytes()
    if data.tokenizer == IDS:
        raise UserError(
            "SWT-E824",
            "The run trains on token ids, and nobody has said which tokenizer made them.",
            "Text cannot become tokens here, nor tokens text.",
            "The organiser may name it in a new run: data.tokenizer.",
        )
    if file is None or hashlib.sha256(file).hexdigest() != data.tokenizer:
        what = "is missing here" if file is None else "here is another one"
        raise UserError(
            "SWT-E824",
            f"The run's tokenizer {what}.",
            f"Its SHA-256 is {data.tokenizer}; with another one the model would read other words.",
            f"Take {FILE} from a peer's or the coordinator's state directory.",
        )
    return JsonTokenizer(file)


def packed(ids: Iterable[int], width: int) -> bytes:
    """Token ids as pieces hold them.

    Raises:
        OverflowError: an id does not fit.
    """
    made = array(_TYPES[width], ids)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tobytes()


def unpacked(data: bytes, width: int) -> "array[int]":
    """Token ids of a piece; a torn one at the end is left out."""
    made = array(_TYPES[width], data[: len(data) // width * width])
    if sys.byteorder == "big":
        made.byteswap()
    return made
