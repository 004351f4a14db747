"""Lines for people: broken between words where a terminal ends, stamped with the time of day.

Nothing is broken where no terminal is: there a line is an event, for whatever reads it. All that is
said goes through `show`, which takes out what a terminal would obey: names, paths, errors and texts
of others are among it, and a pipe often ends at a terminal too.
"""

import os
import re
import sys
import textwrap
import time
import unicodedata
from datetime import datetime
from typing import Any, TextIO

from swarmtrain.foundation.signals import tell

COLUMNS_MIN = 40
"""A narrower terminal breaks lines by itself."""

_HEAD = re.compile(r"\s*(?:\S+(?: \S+)* {2,})?")
"""Start of a line: its indentation, and a first column with its gap. It sets the hanging indent."""

_PICTURES = 0x2400
"""First of Unicode's pictures of the 32 control characters."""

_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of others, by which text may seem to be another one."""


def show(text: str, stream: TextIO | None = None, *, end: str = "\n") -> None:
    """Write text for people, without what their terminal would obey or cannot show.

    Args:
        stream: to write to; None for standard output.
    """
    stream = sys.stdout if stream is None else stream
    encoding = getattr(stream, "encoding", None) or "utf-8"
    tell(harmless(text).encode(encoding, "replace").decode(encoding), stream, end=end)


def show_json(value: Any) -> None:
    """Write a value to standard output as one line of JSON."""
    from swarmtrain.foundation.events import json_line  # --help needs no msgspec

    tell(json_line(value), sys.stdout)


def harmless(text: str) -> str:
    """The text with control characters as pictures, and without what turns or ends lines
    unseen."""
    return text if text.isascii() and text.isprintable() else "".join(map(_harmless, text))


def _harmless(character: str) -> str:
    if character in "\n\t" or (character.isprintable() and character not in _TURNS):
        return character
    if character == "\r":  # of line ends; alone it would go back and write over the line
        return ""
    kind, number = unicodedata.category(character), ord(character)
    if kind == "Cc" and number < 0x20:
        return chr(_PICTURES + number)
    is_obeyed = kind in ("Cc", "Cs", "Zl", "Zp") or character in _TURNS
    return "\N{REPLACEMENT CHARACTER}" if is_obeyed else character


def columns(stream: TextIO) -> int:
    """Return how wide the terminal behind a stream is, 0 where there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


def wrapped(text: str, width: int) -> str:
    """The text with lines of at most `width`, as far as words allow it.

    A line goes on under its own first column, or further left where a word needs the room. Words
    stay whole, so that a path or an invite can be copied; a quoted line, after "| ", stays.

    Args:
        width: width of the terminal; less than COLUMNS_MIN for none.
    """
    if width < COLUMNS_MIN:
        return text
    return "\n".join(_broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    if len(line) <= width or line.lstrip().startswith("| "):
        return line
    head = _HEAD.match(line)
    indent = min(len(head[0]) if head is not None else 0, width // 2)
    room = max(0, width - max(map(len, line.split())))
    return textwrap.fill(
        line, width, subsequent_indent=" " * min(indent, room),
        break_long_words=False, break_on_hyphens=False, replace_whitespace=False,
    )  # fmt: skip


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: 1 peer, 3 peers, 3 batches."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"


def timed(text: str, seconds: float) -> str:
    """The text after the minutes and seconds since the start."""
    return f"{int(seconds) // 60:3d}:{int(seconds) % 60:02d}  {text}"


def fact(name: str, text: object) -> str:
    """A line of a sheet of facts: the name, and under all others what it is."""
    return f"{name:<16} {' '.join(str(text).splitlines())}"


def stamped(text: str, stream: TextIO) -> str:
    """The text after the time: of day for who watches, date and zone for what keeps it."""
    if stream.isatty():
        return f"{time.strftime('%H:%M:%S')}  {text}"
    return f"{datetime.now().astimezone().isoformat(timespec='seconds')}  {text}"
