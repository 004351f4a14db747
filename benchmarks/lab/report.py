"""Rows into a table for people, and each bar beside what was measured. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

TITLES = {
    "unshaped-10": "Unshaped, 4 peers, 10 M values",
    "unshaped-25": "Unshaped, 4 peers, 25 M values",
    "100-4": "100 Mbit/s, 4 peers, 10 M values",
    "100-50ms-4": "100 Mbit/s, round trip 50 ms, 4 peers, 10 M values",
    "100-8": "100 Mbit/s, 8 peers, 10 M values",
    "100-50ms-8": "100 Mbit/s, round trip 50 ms, 8 peers, 10 M values",
    "mixed": "Two links of 200, four of 50, two of 10 Mbit/s, 10 M values",
    "death": "One of 8 killed in mid-exchange, 100 Mbit/s, 10 M values",
    "death-cut": "The same, and its link with it",
    "joining": "A joiner of a 50 M-value model, four donors",
}

SHAPED = ("100-4", "100-8", "100-50ms-4", "100-50ms-8")


def newest(rows: Iterable[Row]) -> dict[str, Row]:
    """The last row of each command; one that failed does not displace one that did not."""
    found: dict[str, Row] = {}
    for row in rows:
        old = found.get(row["command"])
        if old is None or "failed" in old or "failed" not in row:
            found[row["command"]] = row
    return found


def markdown(rows: Mapping[str, Row], blocks: Mapping[str, Sequence[str]]) -> str:
    """The exchanges, the deaths, the joiner, the bars; what was not measured is not in it."""
    lines: list[str] = []
    for name, commands in blocks.items():
        here = [rows[command] for command in commands if command in rows]
        if here:
            lines += ["", f"**{TITLES[name]}**", ""]
            tool = commands[0].split()[0]
            lines += list(_exchanges(here) if tool == "bench" else _facts(here, tool))
    bars = list(_bars(rows))
    if bars:
        lines += ["", "**Asked and measured**", "", "| asked | measured | |", "|---|---|---|"]
        lines += [f"| {asked} | {found} | {verdict} |" for asked, found, verdict in bars]
    first = next(iter(rows.values()), None)
    if first is not None:
        days = sorted({row["date"][:10] for row in rows.values()})
        revisions = sorted({row["revision"] for row in rows.values()})
        lines += ["", f"{', '.join(days)}; {first['machine']}, TCP {first['tcp']}; "]
        lines[-1] += f"revision {', '.join(revisions)}."
    return "\n".join(lines).strip()


def _exchanges(rows: Sequence[Row]) -> Iterator[str]:
    yield "| system | seconds | of the limit of its bytes | MB sent | CPU s per peer | error |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        name = f"{row['system']} {row['mode']}"
        if "failed" in row:
            told = f"failed: {row['failed']}".replace("|", "/")
            yield f"| {name} | {told} | | | | {_short(row.get('err'))} |"
            continue
        seconds = f"{row['t']:.3g} ({row['t_min']:.3g} to {row['t_max']:.3g})"
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else ""
        yield (
            f"| {name} | {seconds} | {ratio} | {row['tx_mb']:.1f} | {row['cpu_s']:.2f} "
            f"| {_short(row['err'])} |"
        )


_DEATH = {
    "undisturbed": "undisturbed, s",
    "killed_at": "killed after, s",
    "detect": "until it was decided, s",
    "t": "the op, s",
    "ratio": "(op - detection) / undisturbed",
    "ratio_max": "the worst of them",
    "slice_mb": "the dead owner's slice, MB",
    "parts_twice_mb": "parts sent twice per survivor, MB",
    "results_twice_mb": "results sent twice or void per survivor, MB",
}
_JOINING = {
    "state_mb": "state, MB",
    "state_s": "downloaded in, s",
    "link": "of its link's rate",
    "join_s": "from the call to the weights, s",
    "round": "others' round before, s",
    "round_joining": "others' round meanwhile, s",
    "round_joining_max": "the longest of them, s",
    "slower": "slower by",
    "share": "exchange's share of a round",
}


def _facts(rows: Sequence[Row], tool: str) -> Iterator[str]:
    words = _DEATH if tool == "death" else _JOINING
    for row in rows:
        if "failed" in row:
            yield f"failed: {row['failed']}"
            continue
        yield "| | |"
        yield "|---|---|"
        for key, word in words.items():
            yield f"| {word} | {_short(row[key])} |"


def _bars(rows: Mapping[str, Row]) -> Iterator[tuple[str, str, str]]:
    """Yield what the project asks of itself, what was measured, and whether it is met."""

    def of(block: str, system: str, mode: str = "") -> Row | None:
        for row in rows.values():
            is_it = row["block"] == block and row["system"] == system and "failed" not in row
            # Without a mode any will do, but none of those that force something on it.
            if is_it and (mode == row["mode"] if mode else ", " not in row.get("mode", "")):
                return row
        return None

    def bar(asked: str, value: float, limit: float, words: str, *, least: bool = False) -> Any:
        is_met = value >= limit if least else value <= limit
        return asked, words, "met" if is_met else "**missed**"

    for block in SHAPED:
        ours, gloo = of(block, "swarmtrain"), of(block, "gloo")
        if ours:
            limit = 1.20 if "50ms" in block else 1.10
            asked = f"{TITLES[block]}: at most {limit:.2f} of the limit of its own bytes"
            yield bar(asked, ours["ratio"], limit, f"{ours['ratio']:.2f}")
        if ours and gloo:
            times = gloo["t"] / ours["t"]
            asked = f"{TITLES[block]}: at least 3.8 x faster than gloo float32"
            yield bar(asked, times, 3.8, f"{times:.2f} x", least=True)
    for block in ("unshaped-10", "unshaped-25"):
        ours, gloo = of(block, "swarmtrain"), of(block, "gloo")
        if ours and gloo:
            found = f"{ours['t']:.3g} s against {gloo['t']:.3g} s"
            asked = f"{TITLES[block]}: no slower than gloo float32"
            yield bar(asked, ours["t"], gloo["t"], found)
    measured, equal = of("mixed", "swarmtrain", "int8"), of("mixed", "swarmtrain", "int8, equal")
    if measured and equal:
        times = equal["t"] / measured["t"]
        asked = f"{TITLES['mixed']}: at least 1.6 x faster than equal slices"
        yield bar(asked, times, 1.6, f"{times:.2f} x", least=True)
    for block in ("death", "death-cut"):
        row = of(block, "swarmtrain")
        if row:
            asked = f"{TITLES[block]}: within 1.3 x the undisturbed time, plus detection"
            yield bar(asked, row["ratio"], 1.3, f"{row['ratio']:.2f} x")
            twice = row["parts_twice_mb"] + row["results_twice_mb"]
            asked = f"{TITLES[block]}: sent twice at most the dead owner's slice"
            found = f"{twice:.2f} MB per survivor, the slice {row['slice_mb']:.2f} MB"
            yield bar(asked, twice, row["slice_mb"], found)
    row = of("joining", "swarmtrain")
    if row:
        asked = f"{TITLES['joining']}: at least 0.90 of its link"
        yield bar(asked, row["link"], 0.9, f"{row['link']:.3f}", least=True)
        asked = "the others' rounds meanwhile: at most 5 % longer, exchange at most 20 % of a round"
        found = f"{100 * row['slower']:.1f} %, exchange {100 * row['share']:.0f} %"
        yield bar(asked, max(row["slower"] / 0.05, row["share"] / 0.20), 1.0, found)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str("" if value is None else value)
