"""The comparison as one HTML file that needs nothing else: curves on three axes, and the table.

plotly brings the script that draws; it is put into the file, so that the
report can be opened anywhere and offline. Figures are plain data until then.
"""

import errno
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryFile

from swarmtrain.compare.frontier import BYTES, Search
from swarmtrain.compare.plan import NETS
from swarmtrain.compare.results import Point, RunResult, rows
from swarmtrain.compare.table import legend, table_lines
from swarmtrain.foundation import atomic_file

_AXES = (
    ("tokens", "tokens, all peers together", "linear"),
    ("bytes_up_per_peer", "bytes that a peer has sent", "log"),
    ("modelled_seconds", "modelled seconds", "log"),
)
"""Strategies differ in bytes and time by factors of hundreds, which only a logarithm shows. Zero
has none: a curve begins with its first exchange, and without any there is none over bytes."""

_COSTS = (
    (BYTES, "bytes that a peer has sent"),
    *((net, f"modelled seconds over {net}") for net in NETS),
)


def page(
    results: Sequence[RunResult], command: str, script: str, found: Search | None = None
) -> str:
    """The whole file.

    Args:
        results: runs of all strategies and seeds.
        command: command that made them, shown on top.
        script: source of plotly.
        found: findings of a search, drawn first.
    """
    figures = "".join(
        _figure(f"of {cost}", cost, _places(found, cost), _layout(title, "log", type="log"))
        for cost, title in (_COSTS if found is not None else ())
    )
    figures += "".join(
        _figure(axis, title, _traces(results, axis, scale), _layout(title, scale))
        for axis, title, scale in _AXES
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>swarmtrain compare'
        "</title><style>body{font:16px/1.5 sans-serif;max-width:70rem;margin:2rem auto;"
        "padding:0 1rem}table{border-collapse:collapse}td,th{padding:.2rem .8rem;"
        "text-align:right;border-bottom:1px solid #ccc}td:first-child,th:first-child"
        "{text-align:left}.figure{height:28rem}code{overflow-wrap:anywhere}</style>"
        f"<script>{script}</script></head><body><h1>swarmtrain compare</h1>"
        f"<p><code>{escape(command)}</code></p>{_table(results)}"
        f"<p>{escape(legend(rows(results)))}</p>{figures}"
        "</body></html>\n"
    )


def _figure(
    name: str, title: str, traces: list[dict[str, object]], layout: dict[str, object]
) -> str:
    return (
        f'<h2>Loss against {escape(title)}</h2><div id="{name}" class="figure"></div>'
        f"<script>Plotly.newPlot({json.dumps(name)}, {_json(traces)}, "
        f"{_json(layout)}, {{responsive: true}});</script>"
    )


def _places(found: Search | None, cost: str) -> list[dict[str, object]]:
    """Every point of a search, and a line through those of the frontier."""
    if found is None:
        return []
    groups = {"all points": found.points, "frontier": found.frontier(cost)}
    return [
        {
            "x": [one.costs[cost] for one in points],
            "y": [one.loss for one in points],
            "text": [one.words for one in points],
            "name": name,
            "mode": "markers" if name == "all points" else "lines+markers",
        }
        for name, points in groups.items()
    ]


def write(path: Path, text: str) -> None:
    """Write the file, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    atomic_file.write(path, text.encode())


def try_place(path: Path) -> None:
    """See whether `write` could work, and leave nothing there.

    Raises:
        OSError: it could not.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    with TemporaryFile(dir=path.parent):
        pass


def _json(value: object) -> str:
    # Inside a script element nothing may look like its end.
    return json.dumps(value).replace("<", "\\u003c")


def _traces(results: Sequence[RunResult], axis: str, scale: str) -> list[dict[str, object]]:
    """A line per strategy: the mean over seeds at each point, and how far seeds are apart."""
    traces: list[dict[str, object]] = []
    for kind in dict.fromkeys((result.strategy, result.codec) for result in results):
        runs = [r for r in results if (r.strategy, r.codec) == kind]
        columns = list(zip(*(run.curve for run in runs), strict=False))
        places = [_mean([float(getattr(p, axis)) for p in column]) for column in columns]
        if scale == "log":
            first = next((i for i, place in enumerate(places) if place > 0), len(places))
            columns, places = columns[first:], places[first:]
        if not columns:
            continue
        low, middle, high = zip(*(_losses(column) for column in columns), strict=True)
        traces.append(
            {
                "x": places,
                "y": middle,
                "name": f"{kind[0]} ({kind[1]})",
                "mode": "lines+markers",
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [_apart(a, b) for a, b in zip(high, middle, strict=True)],
                    "arrayminus": [_apart(b, a) for a, b in zip(low, middle, strict=True)],
                    "thickness": 1,
                },
            }
        )
    return traces


def _losses(column: Sequence[Point]) -> tuple[float | None, float | None, float | None]:
    found = [point.val_loss for point in column if point.val_loss is not None]
    if len(found) < len(column):
        return None, None, None
    return min(found), _mean(found), max(found)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _apart(more: float | None, less: float | None) -> float:
    return more - less if more is not None and less is not None else 0.0


def _layout(title: str, scale: str, **losses: str) -> dict[str, object]:
    return {
        "xaxis": {"title": {"text": title}, "type": scale, "exponentformat": "SI"},
        "yaxis": {"title": {"text": "held-out loss, nats per byte"}, **losses},
        "margin": {"t": 10},
        "legend": {"orientation": "h", "y": -0.2},
    }


def _table(results: Sequence[RunResult]) -> str:
    lines = table_lines(rows(results))
    marked = [
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line)
        for tag, line in zip(["th", *["td"] * len(lines)], lines, strict=False)
    ]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in marked)}</table>"
