"""Text as tokens and back, a token at a time."""

from collections.abc import Sequence

from swarmtrain.data.tokenizer import Tokenizer

_LOST = "\N{REPLACEMENT CHARACTER}"
"""Stands for bytes that are not, or not yet, a character."""

_CHARACTER_TOKENS_MAX = 8
"""Tokens of one character at most; what makes no sense for longer never will."""


class TextStream:
    """Tokens that come one by one, as text that never changes afterwards.

    A character may take several tokens, and a token's text may depend on the one before. So a few
    tokens are decoded together, and what ends in half a character waits.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before[-_CHARACTER_TOKENS_MAX:])
        self._said = len(self._ids)

    def take(self, token: int) -> str:
        """The text that is certain now, which may be none."""
        self._ids.append(token)
        waiting = len(self._ids) - self._said
        text = self._text()
        if not text or (text.endswith(_LOST) and waiting < _CHARACTER_TOKENS_MAX):
            return ""
        self._ids = self._ids[self._said :]
        self._said = len(self._ids)
        return text

    def rest(self) -> str:
        """Text that has waited to the end."""
        return self._text()

    def _text(self) -> str:
        known = self._tokenizer.decode(self._ids[: self._said])
        return self._tokenizer.decode(self._ids)[len(known) :]
