"""Sources that a run's bits depend on, as digests that belong into its key.

A run that was made by other code is made again; a change of comments or docstrings is none. Digests
are over syntax trees, so they hold for one version of Python. For a strategy that a package brings:
its distribution's version, and what of the package its module imports. Nothing is run here.
"""

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import swarmtrain
import swarmtrain_optimizers
import swarmtrain_transport
from swarmtrain.compare.plan import Plan
from swarmtrain.config.inner import is_class
from swarmtrain_optimizers.strategies.registry import brought, facts_named

_HOUSE = Path(swarmtrain.__file__).parent
_LIBRARIES = tuple(
    Path(str(library.__file__)).parent for library in (swarmtrain_optimizers, swarmtrain_transport)
)

_FIRST = ("swarmtrain.compare.swarm", "swarmtrain.compare.pipeline_swarm")

_NO_BITS = frozenset({
    "swarmtrain.compare.html", "swarmtrain.compare.table", "swarmtrain.compare.request",
    "swarmtrain.foundation.errors", "swarmtrain.foundation.error_table",
    "swarmtrain.foundation.dirs",
})  # fmt: skip
"""Modules that only read, show and refuse settings. The settings themselves are in a plan."""

_NO_FACTS = frozenset({"about", "paper", "rates", "swept", "demo", "description"})
"""Facts of a strategy that no bit depends on: rates are in a plan."""

_DIGITS = 16


def sources() -> list[Path]:
    """Every file that a run's bits depend on: swarmtrain_optimizers, swarmtrain_transport, and what
    of swarmtrain one run imports."""
    return sorted(_trees())


@functools.cache
def code_digest() -> str:
    """Digest the sources as they are when it is first asked for: those that are running."""
    trees = _trees()
    return digest_of((path.name, trees[path]) for path in sorted(trees))


def code_of(strategy: str, digest: str) -> str:
    """Return the digest of the code that makes a run of this strategy, for its key.

    Args:
        strategy: name of the strategy; if a package brings it, the package counts too.
        digest: `code_digest`, made once for all strategies.
    """
    return " ".join([digest, *(_brought_code(strategy, point) for point in brought(strategy))])


def key_of(plan: Plan, versions: str, code: str) -> str:
    """Hex name of the run. Labels are not in it: what is the same run is run once.

    Args:
        plan: plan of the run.
        versions: torch and the text, as `swarmtrain.compare.sweep.versions` says them.
        code: `code_of` the plan's strategy.
    """
    inner = f" inner {_optimizer_code(plan.inner)}" if is_class(plan.inner) else ""
    return replace(plan, label="").key(f"{versions} code {code}{inner}")


def digest_of(trees: Iterable[tuple[str, ast.Module]]) -> str:
    """Hex digest of modules, by name, without their comments and docstrings."""
    total = hashlib.sha256()
    for name, tree in trees:
        for part in ast.walk(tree):
            body = getattr(part, "body", None)
            if isinstance(body, list):
                body[:] = [line for line in body if not _is_text(line)]
            if isinstance(part, ast.Call):
                part.keywords[:] = [word for word in part.keywords if word.arg not in _NO_FACTS]
        total.update(f"{name}\n{ast.dump(tree)}\n".encode())
    return total.hexdigest()[:_DIGITS]


def _is_text(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


# ---- which files


def _trees() -> dict[Path, ast.Module]:
    found = {path: _parsed(path) for library in _LIBRARIES for path in library.rglob("*.py")}
    for first in _FIRST:
        found |= reached(first, _HOUSE.parent)
    return found


def reached(first: str, root: Path, *, with_faces: bool = False) -> Mapping[Path, ast.Module]:
    """Files of one package that a module's import brings in, itself included.

    Args:
        first: the module's dotted name.
        root: directory that its topmost package, or itself, lies in. Its other contents, as all
            that is installed may be, are not looked at.
        with_faces: True if ``__init__.py`` counts; those of swarmtrain hold nothing.
    """
    found: dict[Path, ast.Module] = {}
    waiting, seen = [first], set(_NO_BITS)
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] != first.partition(".")[0]:
            continue
        seen.add(name)
        place = root.joinpath(*name.split("."))
        face = place / "__init__.py"
        is_face = with_faces and face.is_file()
        path = face if is_face else place.with_name(f"{place.name}.py")
        if not path.is_file():
            continue  # a package without a face, or a name in a module
        found[path] = _parsed(path)
        waiting += _imports(found[path], name if is_face else name.rpartition(".")[0])
    return found


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Names that may be modules, with the packages that they lie in."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Import):
            for alias in part.names:
                yield from _with_parents(alias.name)
        elif isinstance(part, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - part.level + 1]
            parts = [*(above if part.level else []), *([part.module] if part.module else [])]
            for alias in part.names:
                yield from _with_parents(".".join([*parts, alias.name]))


def _with_parents(name: str) -> Iterator[str]:
    words = name.split(".")
    yield from (".".join(words[:count]) for count in range(len(words), 0, -1))


def _brought_code(strategy: str, point: EntryPoint) -> str:
    """Distribution, version and digest of what makes a strategy and of what that imports."""
    words = [] if point.dist is None else [point.dist.name, point.dist.version]
    return " ".join([*words, _code_of_module(facts_named(strategy).maker.partition(":")[0])])


@functools.cache
def _optimizer_code(inner: str) -> str:
    """Digest of what makes a package's optimizer; torch's own version is in every key."""
    module = inner.partition(":")[0]
    return module if module == "torch.optim" else _code_of_module(module)


def _code_of_module(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of the package above it
        spec = None
    if spec is None or spec.origin is None:
        return module
    path = Path(spec.origin)
    if path.suffix != ".py":  # compiled
        return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
    is_face = spec.submodule_search_locations is not None
    root = path.parents[module.count(".") + is_face]
    trees = reached(module, root, with_faces=True)
    names = ((str(place.relative_to(root)), trees[place]) for place in sorted(trees))
    return digest_of(names)
