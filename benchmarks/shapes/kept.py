"""Finished runs: one line of JSON each, under a key over settings and code.

The key holds every setting of the plan, torch, the text and a digest of the sources that the bits
depend on; so a run made by other code is made again, and a change of comments is none. A line that
was cut off in writing is left out. Labels are not in the key: what is the same run is run once.
"""

import ast
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from estimate import seconds_of

import swarmtrain
import swarmtrain_optimizers
from swarmtrain.compare.plan import Plan
from swarmtrain.compare.results import Point, RunResult

_HOUSE = Path(swarmtrain.__file__).parent
_OPTIMIZERS = Path(swarmtrain_optimizers.__file__).parent

_FIRST = "swarmtrain.compare.swarm"

_NO_BITS = frozenset({
    "swarmtrain.compare.html", "swarmtrain.compare.table", "swarmtrain.compare.request",
    "swarmtrain.compare.tuned", "swarmtrain.errors", "swarmtrain.error_table", "swarmtrain.dirs",
})  # fmt: skip
"""What reads, shows and refuses settings. Those themselves are in a plan."""


def sources() -> list[Path]:
    """Every file that a run's bits depend on: swarmtrain_optimizers, and what of swarmtrain one
    run imports. Not the transport, of which a comparison uses what protocols fix."""
    found: set[Path] = set(_OPTIMIZERS.rglob("*.py"))
    waiting = [_FIRST]
    while waiting:
        name = waiting.pop()
        path = _HOUSE.parent.joinpath(*name.split(".")).with_suffix(".py")
        if name in _NO_BITS or path in found or not path.is_file():
            continue  # a package, a name in a module, or of another house
        found.add(path)
        waiting += _imports(ast.parse(path.read_text(encoding="utf-8")))
    return sorted(found)


def _imports(tree: ast.Module) -> Iterator[str]:
    for part in ast.walk(tree):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom) and part.module:
            yield part.module
            yield from (f"{part.module}.{alias.name}" for alias in part.names)


def digest_of(texts: Iterator[tuple[str, str]]) -> str:
    """Hex digest of modules (name, source) without their comments and docstrings."""
    total = hashlib.sha256()
    for name, text in texts:
        tree = ast.parse(text)
        for part in ast.walk(tree):
            body = getattr(part, "body", None)
            if isinstance(body, list):
                body[:] = [line for line in body if not _is_text(line)]
        total.update(f"{name}\n{ast.dump(tree)}\n".encode())
    return total.hexdigest()[:16]


def _is_text(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


def code_digest() -> str:
    """Of the sources as they are."""
    return digest_of((path.name, path.read_text(encoding="utf-8")) for path in sources())


def key_of(plan: Plan, versions: str, code: str) -> str:
    """Hex name of the run.

    Args:
        plan: what is run.
        versions: torch and the text, as `swarmtrain.compare.sweep.versions` says them.
        code: `code_digest`.
    """
    return replace(plan, label="").key(f"{versions} code {code}")


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished run and what it took.

    Attributes:
        seconds: of one process, with another beside it.
    """

    key: str
    seconds: float
    plan: Plan
    result: RunResult


class Results:
    """The file of finished runs.

    Args:
        path: made when the first run is kept.

    Raises:
        OSError: it is there and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[str, RunResult] = {}
        self._costs: dict[str, tuple[float, float]] = {}
        self._needs_newline = False
        if path.exists():
            text = path.read_text(encoding="utf-8")
            self._needs_newline = bool(text) and not text.endswith("\n")
            for line in text.splitlines():
                self._read(line)

    def find(self, key: str, label: str) -> RunResult | None:
        """The run of this key under the label that is asked for."""
        found = self._results.get(key)
        return None if found is None else replace(found, strategy=label)

    @property
    def costs(self) -> list[tuple[float, float]]:
        """Seconds of every run, and what was estimated."""
        return list(self._costs.values())

    def keep(self, kept: Kept) -> None:
        """Append one line; it is on the disk when this returns.

        Raises:
            OSError: it cannot be written.
        """
        line = {
            "key": kept.key,
            "seconds": round(kept.seconds, 2),
            "estimated_s": round(seconds_of(kept.plan), 2),
            "plan": json.loads(kept.plan.as_json()),
            "result": asdict(kept.result),
        }
        with open(self._path, "a", encoding="utf-8") as file:
            file.write("\n" * self._needs_newline + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._needs_newline = False
        self._results[kept.key] = kept.result
        self._costs[kept.key] = (kept.seconds, seconds_of(kept.plan))

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
            result = found["result"]
            result["curve"] = tuple(Point(**point) for point in result["curve"])
            result["state_roots"] = tuple(result["state_roots"])
            cost = (float(found["seconds"]), float(found["estimated_s"]))
            self._results[found["key"]] = RunResult(**result)
            self._costs[found["key"]] = cost
        except (ValueError, TypeError, KeyError):
            return  # cut off in writing, or of an older form: it is made again
