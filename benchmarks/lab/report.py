"""Rows into a table for people, and each bar beside what was measured. Pure."""

import statistics
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
    **{
        f"wire-{rtt}-{numel}": f"100 Mbit/s, round trip {rtt} ms, 4 peers, {numel} M values"
        for rtt in (0, 50, 150)
        for numel in (1, 10, 40)
    },
    "wire-0-8": "100 Mbit/s, 8 peers, 10 M values",
    "wire-lossy": "20 Mbit/s, round trip 100 ms, 1 % loss, 4 peers, 4 M values",
    "death": "One of 8 killed in mid-exchange, 100 Mbit/s, 10 M values",
    "death-cut": "The same, and its link with it",
    "joining": "A joiner of a 50 M-value model, four donors",
}

SHAPED = ("100-4", "100-8", "100-50ms-4", "100-50ms-8")


def newest(rows: Iterable[Row]) -> dict[str, Row]:
    """The last row of each command, or the medians of those of its last session; one that failed
    does not displace one that did not."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        old = found.setdefault(row["command"], [])
        if old and "failed" in row and "failed" not in old[0]:
            continue
        goes_on = old and "failed" not in old[0] and row.get("session", 0) == old[0].get("session")
        found[row["command"]] = [*old, row] if goes_on else [row]
    return {command: _medians(same) for command, same in found.items()}


def _medians(rows: Sequence[Row]) -> Row:
    """One row of several of the same command."""
    if len(rows) == 1 or "t" not in rows[0]:
        return rows[-1]
    row = dict(rows[-1])
    for key in ("t", "ratio", "tx_mb", "cpu_s", "load"):
        if rows[0].get(key) is not None:
            row[key] = statistics.median(one[key] for one in rows)
    row["t_min"], row["t_max"] = min(r["t_min"] for r in rows), max(r["t_max"] for r in rows)
    return row | {"err": max(one["err"] for one in rows)}


def ceiling(row: Row, rows: Iterable[Row]) -> Row | None:
    """The plain sockets' row of the same peers, values and net."""

    def place(one: Row) -> tuple[object, ...]:
        control = one["mode"].partition(", ")[2]
        return one["n"], one["numel"], one["net"], control

    found = (one for one in rows if one.get("system") == "raw" and "failed" not in one)
    return next((one for one in found if place(one) == place(row)), None)


def markdown(rows: Mapping[str, Row], blocks: Mapping[str, Sequence[str]]) -> str:
    """The exchanges, the deaths, the joiner, the bars; what was not measured is not in it."""
    lines: list[str] = []
    for name, commands in blocks.items():
        here = [rows[command] for command in commands if command in rows]
        if here:
            lines += ["", f"**{TITLES[name]}**", ""]
            tool = commands[0].split()[0]
            is_exchange = tool == "bench"
            lines += list(_exchanges(here, rows.values()) if is_exchange else _facts(here, tool))
    bars = list(_bars(rows, blocks))
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


def _exchanges(rows: Sequence[Row], all_rows: Iterable[Row]) -> Iterator[str]:
    yield (
        "| system | seconds | of the limit of its bytes | of the ceiling | MB sent "
        "| CPU s per peer | error |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        name = f"{row['system']} {row['mode']}"
        if "failed" in row:
            told = f"failed: {row['failed']}".replace("|", "/")
            yield f"| {name} | {told} | | | | | {_short(row.get('err'))} |"
            continue
        seconds = f"{row['t']:.3g} ({row['t_min']:.3g} to {row['t_max']:.3g})"
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else ""
        raw = ceiling(row, all_rows) if row["system"] == "swarmtrain" else None
        share = f"{row['t'] / raw['t']:.2f}" if raw else ""
        if row.get("way"):
            name = f"plain sockets, {row['way']}"
        yield (
            f"| {name} | {seconds} | {ratio} | {share} | {row['tx_mb']:.1f} | {row['cpu_s']:.2f} "
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


def _bars(
    rows: Mapping[str, Row], blocks: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield what the project asks of itself, what was measured, and whether it is met."""

    def of(block: str, system: str, mode: str = "") -> Row | None:
        for command, row in rows.items():
            if row["block"] != block and command not in blocks.get(block, ()):
                continue  # two blocks may have one command
            is_it = row["system"] == system and "failed" not in row
            # Without a mode any will do, but none of those that force something on it.
            if is_it and (mode == row["mode"] if mode else ", " not in row.get("mode", "")):
                return row
        return None

    def bar(asked: str, value: float, limit: float, words: str, *, least: bool = False) -> Any:
        is_met = value >= limit if least else value <= limit
        return asked, words, "met" if is_met else "**missed**"

    for block in blocks:
        ours = of(block, "swarmtrain") if block.startswith("wire-") else None
        raw = ceiling(ours, rows.values()) if ours else None
        if not ours or not raw or block == "wire-0-8":
            continue
        rtt_ms, *loss = (float(word) for word in ours["net"].split(":")[1:])
        if loss:
            for one in (rows[c] for c in blocks[block] if c in rows and "swarmtrain" in c):
                asked = f"{TITLES[block]}, {one['mode']}: at least half of the link"
                yield bar(asked, 1 / one["ratio"], 0.5, f"{100 / one['ratio']:.0f} %", least=True)
            continue
        if not rtt_ms:
            asked = f"{TITLES[block]}: the ceiling is at most 1.10 of its bytes' time"
            yield bar(asked, raw["ratio"], 1.1, f"{raw['ratio']:.2f}")
        limit = 1.1 * raw["t"] + 2 * rtt_ms / 1e3
        found = f"{ours['t']:.3f} s, ceiling {raw['t']:.3f} s, bar {limit:.3f} s"
        yield bar(f"{TITLES[block]}: 1.10 of the ceiling, 2 round trips", ours["t"], limit, found)
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
