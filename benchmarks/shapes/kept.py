"""Finished runs: one line of JSON each, under a key over settings and code.

The key holds every setting of the plan, torch, the text and a digest of the sources that the bits
depend on (`swarmtrain.compare.sources`). A line that was cut off in writing is left out.
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from estimate import seconds_of

from swarmtrain.compare.plan import Plan
from swarmtrain.compare.results import Point, RunResult


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
            result["route_shares"] = tuple(tuple(part) for part in result["route_shares"])
            result["stage_spreads"] = tuple(result["stage_spreads"])
            result["losses_without"] = tuple(result.get("losses_without", ()))
            cost = (float(found["seconds"]), float(found["estimated_s"]))
            self._results[found["key"]] = RunResult(**result)
            self._costs[found["key"]] = cost
        except (ValueError, TypeError, KeyError):
            return  # cut off in writing, or of an older form: it is made again
