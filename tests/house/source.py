"""Reading the house's own source: which modules there are, and what each imports."""

import ast
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGE_ROOTS = {
    "swarmtrain_transport": ROOT / "transport" / "swarmtrain_transport",
    "swarmtrain_optimizers": ROOT / "optimizers" / "swarmtrain_optimizers",
    "swarmtrain": ROOT / "swarmtrain",
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module. `typing_only` stands under ``if TYPE_CHECKING``."""

    name: str
    line: int
    typing_only: bool


@dataclass(frozen=True)
class Module:
    """One source file of the three packages, parsed."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]

    @property
    def place(self) -> str:
        """The name inside its part: ``codecs.int8``; "" for the part's own face."""
        return self.name.partition(".")[2]

    def at(self, line: int) -> str:
        """Return how a finding is told."""
        return f"{self.path.relative_to(ROOT)}:{line}"


@functools.cache
def modules() -> dict[str, Module]:
    """Every module of the three packages by its name."""
    names: dict[str, Path] = {}
    for part, base in PACKAGE_ROOTS.items():
        for path in sorted(base.rglob("*.py")):
            words = path.relative_to(base).with_suffix("").parts
            if words[-1] == "__init__":
                words = words[:-1]
            names[".".join((part, *words))] = path
    found = {}
    for name, path in names.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        found[name] = Module(name, path, text, tree, tuple(_imports(tree, set(names))))
    return found


def _imports(tree: ast.Module, own: set[str]) -> Iterator[Import]:
    typing_only = {
        id(inner)
        for part in ast.walk(tree)
        if isinstance(part, ast.If) and "TYPE_CHECKING" in ast.unparse(part.test)
        for inner in ast.walk(part)
    }
    for part in ast.walk(tree):
        if isinstance(part, ast.Import):
            for alias in part.names:
                yield Import(alias.name, part.lineno, id(part) in typing_only)
        elif isinstance(part, ast.ImportFrom):
            base = part.module or ""
            for alias in part.names:
                name = f"{base}.{alias.name}"
                yield Import(name if name in own else base, part.lineno, id(part) in typing_only)


def reached_from(prefix: str) -> dict[str, tuple[str, ...]]:
    """Every module, the house's own and foreign, that those under `prefix` import at any depth.

    Each comes with the way there. Imports inside functions count, those for type checkers alone do
    not. Importing ``a.b`` runs the faces of its parents too.
    """
    known = modules()
    ways = {name: (name,) for name in known if name == prefix or name.startswith(prefix + ".")}
    waiting = list(ways)
    while waiting:
        name = waiting.pop()
        for found in known[name].imports:
            words = found.name.split(".")
            for depth in range(1, len(words) + 1):
                target = ".".join(words[:depth])
                if not found.typing_only and target not in ways:
                    ways[target] = (*ways[name], target)
                    if target in known:
                        waiting.append(target)
    return ways


def circles() -> list[list[str]]:
    """Modules that import each other, directly or by way of others; for type checkers too.

    Returns:
        one sorted list for each circle (a strongly connected component of more than one module).
    """
    known = modules()
    ways = {
        name: {found.name for found in module.imports if found.name in known and found.name != name}
        for name, module in known.items()
    }

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in ways[waiting.pop()] - seen:
                seen.add(target)
                waiting.append(target)
        return seen

    far = {name: reached(name) for name in known}
    found = {
        tuple(sorted(other for other in far[name] if name in far[other]))
        for name in known
        if name in far[name]
    }
    return [list(circle) for circle in sorted(found)]


def text_files() -> Iterator[tuple[Path, str]]:
    """Every text file of the repository, without what tools made."""
    made = {".git", ".venv", ".hypothesis", "build", "dist", "__pycache__"}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            name for name in folders if name not in made and not name.endswith(("-info", "_cache"))
        )
        for path in (Path(folder, name) for name in sorted(names) if name not in made):
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, however deep."""
    for part in ast.walk(tree):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part


def report(found: list[str]) -> None:
    """Fail with every finding on its own line; pass when there is none."""
    assert not found, "\n" + "\n".join(found)
