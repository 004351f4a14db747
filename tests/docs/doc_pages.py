"""The project's pages as a reader meets them: blocks of code by kind, command lines, links."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

OUTPUT, PYTHON, TOML = "text", "python", "toml"
SHELL = ("", "sh", "bash")
"""Kinds of blocks, by the word behind the fence. Without a word it is what one types."""


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: its file, from the root of the repository.
        line: of the opening fence.
        kind: the word behind the fence.
        text: between the fences.
    """

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a block.

    Attributes:
        block: where it stands.
        environment: assignments before it.
        words: program and arguments, without comments.
    """

    block: Block
    environment: tuple[str, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.block} {shlex.join(self.words)}"


@cache
def pages() -> tuple[Path, ...]:
    """Every page but the changelog, which tells of commands that may be gone."""
    folders = (".", "docs", "compose", "benchmarks", "benchmarks/lab", "examples/*")
    found = {path for folder in folders for path in ROOT.glob(f"{folder}/*.md")}
    return tuple(sorted(found - {ROOT / "CHANGELOG.md"}))


@cache
def blocks(*kinds: str) -> tuple[Block, ...]:
    """All blocks of these kinds, or all, in the order of the pages."""
    found = (block for page in pages() for block in _blocks_of(page))
    return tuple(block for block in found if not kinds or block.kind in kinds)


def _blocks_of(page: Path) -> Iterator[Block]:
    name = page.relative_to(ROOT).as_posix()
    opened, kind, lines = 0, "", list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence is None:
            lines.append(line)
        elif not opened:
            opened, kind, lines = number, fence[1].strip(), []
        else:
            assert not fence[1], f"{name}:{number} closes the block of line {opened} with words"
            yield Block(name, opened, kind, "\n".join(lines) + "\n")
            opened = 0
    assert not opened, f"{name}:{opened} opens a block that never ends"


def commands(block: Block) -> Iterator[Command]:
    """Commands of a block of shell lines, or those that a block of output shows behind a $."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.kind == OUTPUT:
            if not line.startswith("$ "):
                continue
            line = line[2:]
        words = shlex.split(line, comments=True)
        for part in _parts(words):
            split = next((i for i, word in enumerate(part) if not _assigns(word)), len(part))
            yield Command(block, tuple(part[:split]), tuple(part[split:]))


def _assigns(word: str) -> bool:
    return re.match(r"[A-Z_]+=", word) is not None


def _parts(words: list[str]) -> Iterator[list[str]]:
    """Commands between `&&` and `&`, without where their output goes."""
    part: list[str] = []
    for word in [*words, "&&"]:
        if word in ("&&", "&"):
            if part:
                yield part
            part = []
        elif not word.startswith(">"):
            part.append(word)


def all_commands() -> list[Command]:
    """Every command of every page."""
    return [command for block in blocks(*SHELL, OUTPUT) for command in commands(block)]


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Line and target of each link to another place of the project."""
    for number, line in enumerate(_without_code(page).splitlines(), start=1):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if "://" not in target:
                yield number, target


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ +(.+?) *$", _without_code(page), re.MULTILINE)
    words = (re.sub(r"\]\([^)]*\)", "", head) for head in heads)
    return {re.sub(r"[^\w\- ]", "", word.lower()).replace(" ", "-") for word in words}


def _without_code(page: Path) -> str:
    """The page with empty lines in place of its blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(
        r"^\s*```.*?^\s*```", lambda found: "\n" * found[0].count("\n"), text,
        flags=re.MULTILINE | re.DOTALL,
    )  # fmt: skip
