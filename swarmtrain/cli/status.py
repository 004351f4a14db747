"""`swarmtrain status`: ask the process of a state directory how it is."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose
from swarmtrain.console.lines import columns, fact, show, show_json, wrapped
from swarmtrain.console.units import human_bytes, human_seconds

_COLUMNS = (
    ("name", "peer"),
    ("state", "state"),
    ("stages", "stages"),
    ("round", "round"),
    ("step", "step"),
    ("loss", "loss"),
    ("tokens_per_s", "{unit}/s"),
    ("bytes_up", "up"),
    ("bytes_down", "down"),
    ("norm", "norm"),
    ("cosine", "cosine"),
    ("left_out", "left out"),
    ("reached", "reached"),
    ("state_root", "state root"),
    ("chain", "chain"),
)
"""Columns of a peer. `norm` is the length of what it gave by the median's, `cosine` its likeness to
what the others gave, `reached` by which ways they send to it."""

_SPARE = ("step", "tokens_per_s", "bytes_down", "bytes_up")
"""Columns that a narrow terminal goes without, in this order."""

_ROWS = 32
"""Peers that fit on a screen. Of more those are shown that are not as most are."""

_QUARRELS = _MOVES = 3
"""Newest rounds that are shown; `swarmtrain why` tells of every round."""

_NOT_SHOWN = ("waiting_seen_s", "rounds", "unit", "relayed")
"""Facts that stand in the words of another."""

_LABELS = {
    "phase": "state", "term": "coordinator", "wanted_root": "state root", "num_values": "model",
    "checkpoint_op": "checkpoint", "committed": "with a result", "connected": "coordinator",
    "peer": "id", "step": "inner step", "loss": "training loss", "tokens_per_s": "speed",
    "tokens": "trained on", "today": "moved today", "bytes_up": "sent", "bytes_down": "received",
    "door": "newcomers",
}  # fmt: skip
"""Labels of facts for people; --json uses the keys."""

DIALLED = "dialled"
"""The way that needs no words."""

_PLACES = {"loss": 3, "tokens_per_s": 0}
"""Decimal places of facts, where they are not one."""

_PHASES = {
    "scatter": "exchanging: peers send what they have learnt",
    "gather": "exchanging: the result is spread",
    "disputed": "stopped: peers hold different states",
}


def status(
    everybody: Annotated[
        bool, typer.Option("--all", help="A row for each peer, however many there are.")
    ] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show how a coordinator or a peer is doing.

    Without --state-dir the newest one on this machine is asked. Of hundreds of peers it shows those
    that are not as most are.
    """
    from swarmtrain.status import NotRunning, ask, newest_state_dir, no_sense

    directory = state_dir or newest_state_dir()
    try:
        view = ask(directory)
    except NotRunning:
        from swarmtrain.verify.coordinator_state import check_readable

        check_readable(directory)
        raise
    if as_json:
        show_json(view)
        return
    width = columns(sys.stdout)
    try:
        rows = None if everybody else _ROWS
        lines = [*describe({"directory": str(directory), **view}, width, rows)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise no_sense(directory) from error  # a folder of somebody else's may say anything
    for line in lines:
        show(wrapped(line, width))


def describe(view: Mapping[str, Any], width: int = 0, most: int | None = None) -> Iterator[str]:
    """The answer as lines for people: facts, then a row per peer. Empty facts are left out.

    Args:
        width: width of the terminal, 0 for none.
        most: number of peers that get a row, None for all.
    """
    from swarmtrain.status import waiting_words

    for key, value in view.items():
        if isinstance(value, list | dict) or value in ("", None) or key in _NOT_SHOWN:
            continue
        if key == "waiting_for":
            text = waiting_words(str(value), view.get("waiting_seen_s"), time.time())
        else:
            text = _in_words(key, value, view)
        if text:
            yield fact(_LABELS.get(key, key.replace("_", " ")), text)
    yield from _numbers(view)
    yield from _pipeline(view)
    yield from _relays(view)
    yield from _floods(view)
    yield from _quarrels(view)
    peers = view.get("peers")
    if isinstance(peers, list) and peers:
        yield ""
        known = [peer for peer in peers if isinstance(peer, dict)]
        reached = _reached(known)
        shown = _outstanding(known, most)
        rows = [{**peer, "reached": _ways_to(peer, reached)} for peer in shown]
        yield from _table(rows, width, str(view.get("unit", "tokens")))
        if len(shown) < len(known):
            yield _left_out(known, shown)
        for peer in shown:
            if peer.get("rests") and "group" not in view:  # the run tells it of all
                yield f"{peer.get('name', '')} {peer['rests']}"
    # Each stage of a model has its line.
    for group in (view.get("groups") or ()) if "pipeline" not in view else ():
        yield ""
        yield from describe(group, width, most)


def _numbers(view: Mapping[str, Any]) -> Iterator[str]:
    """Yield numbers that the run's page shows as well: they are computed there."""
    losses, told = view.get("losses"), view.get("numbers")
    if isinstance(told, dict):
        unit, moved = view.get("unit", "tokens"), told["traffic"]
        if told["loss_round"] is not None:
            yield _loss(told["loss"], told["loss_round"])
        if told["tokens"]:
            yield fact("in results", f"{told['tokens']:,} {unit}".replace(",", " "))
        if told["tokens_per_s"]:
            yield fact("speed of all", f"{told['tokens_per_s']:.0f} {unit}/s")
        if told["left_s"]:
            yield fact("left", f"about {human_seconds(told['left_s'])}")
        if moved["up"]:
            fewer = f", {moved['fewer']} times less than data-parallel" if moved["fewer"] else ""
            yield fact("sent by all", f"{human_bytes(moved['up'])}{fewer}")
    elif losses:  # of a group, or of a run whose long ledger is still being read
        newest = max(losses, key=int)
        yield _loss(losses[newest], newest)


def _loss(loss: float, op: object) -> str:
    return fact("validation loss", f"{loss:.3f} nats after round {op}")


def _pipeline(view: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said of a model in stages."""
    told = view.get("pipeline")
    if not isinstance(told, dict):
        return
    for number, (stage, group) in enumerate(zip(told["stages"], _stages(view), strict=True)):
        served = _names(view, stage["peers"]) or "nobody"
        kept = f", kept by {_names(view, stage['keepers'])}" if stage["keepers"] else ""
        root = _shown("state_root", group["wanted_root"])
        state = f"; state root {root} after round {group['round']}" if root else ""
        count = f"; {stage['counted']} micro-batches in the newest round" if told["made"] else ""
        yield fact(f"stage {number}", f"{served}{kept}{state}{count}")
    for event in [one for one in view.get("events") or () if one["event"] == "moved"][-_MOVES:]:
        who = _names(view, [event["peer"]])
        yield fact("moved", f"{who} {event['reason']} (round {event['round']})")
    if told["made"]:
        text = f"{told['made']} made, {told['whole']} counted in all stages, {told['lost']} lost"
        some = told["made"] - told["whole"] - told["lost"]
        part = f", {some} counted in some stages only" if some > 0 else ""
        yield fact("micro-batches", f"{text}{part}, {told['redone']} times sent or made again")
    for source, suspect in told["suspects"].items():
        text = f"{_names(view, [source])} compares routes and suspects {_names(view, [suspect])}"
        yield fact("at odds", text)


def _outstanding(known: list[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """Choose the peers that get a row: all of a few, of many those first that are not as most are,
    in the order in which they came."""
    if most is None or len(known) <= most:
        return known
    common = Counter(_kind(peer) for peer in known)
    chosen = sorted(known, key=lambda peer: common[_kind(peer)])[:most]
    places = {id(peer) for peer in chosen}
    return [peer for peer in known if id(peer) in places]


def _kind(peer: Mapping[str, Any]) -> tuple[str, bool]:
    return str(peer.get("state", "")), bool(peer.get("rests"))


def _left_out(known: list[dict[str, Any]], shown: list[dict[str, Any]]) -> str:
    """Say who has no row."""
    counts = Counter(str(peer.get("state", "")) for peer in known)
    counts -= Counter(str(peer.get("state", "")) for peer in shown)
    states = ", ".join(f"{count} {state}".strip() for state, count in counts.most_common())
    return f"and {states}; --all shows them, `swarmtrain peers ls` lists everybody by pages"


def _reached(known: Iterable[Mapping[str, Any]]) -> Mapping[str, Counter[str | None]]:
    """Count by which ways the others send to each peer, by its name."""
    found = defaultdict[str, Counter[str | None]](Counter)
    for other in known:
        for name, way in (other.get("ways") or {}).items():
            found[name][way] += 1
    return found


def _ways_to(peer: Mapping[str, Any], reached: Mapping[str, Counter[str | None]]) -> str:
    """By which ways the others send to a peer, "" if all of them simply dial it."""
    label = f"{peer.get('name')} ({str(peer.get('peer'))[:8]})"
    none = Counter[str | None]()
    ways = reached.get(str(peer.get("name")), none) + reached.get(label, none)
    if ways.keys() <= {DIALLED}:
        return ""
    return ", ".join(f"{count} {way or 'not'}" for way, count in ways.most_common())


def _relays(view: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was passed on from peer to peer, and by whom."""
    carried = {relay["name"]: relay["carried"] for relay in view.get("relays") or ()}
    carried["the coordinator"] = view.get("relayed")
    told = [f"{human_bytes(count)} by {name}" for name, count in carried.items() if count]
    if told:
        yield fact("relayed", ", ".join(told))


def _names(view: Mapping[str, Any], peers: Iterable[str]) -> str:
    known = {peer["peer"]: peer["name"] for peer in view.get("peers") or ()}
    return ", ".join(sorted(known.get(peer, peer[:8]) for peer in peers))


def _stages(view: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Groups of a run in stages, of the first as well."""
    return [view, *(view.get("groups") or ())]


def _span(stages: list[int]) -> str:
    """Stages that follow each other: 1, or 1-2."""
    return f"{stages[0]}-{stages[-1]}" if len(stages) > 1 else str(stages[0])


def _quarrels(view: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each of the newest accusations of one peer by another, and for those whose
    contributions are unlike the others'."""
    events = view.get("events")
    known = [event for event in events or () if isinstance(event, dict)]
    for kind, says in ("at odds", " "), ("apart", ": "):
        for event in [event for event in known if event.get("event") == kind][-_QUARRELS:]:
            who = f"peer {str(event.get('peer', ''))[:8]}{says}{event.get('reason', '')}"
            yield fact(kind, f"{who} (round {event.get('round', 0)})")


_CUT_FOR = {"flood": "for too many messages", "fault": "for what is no message of the protocol"}
"""Events for which a peer was cut off, in words."""


def _floods(view: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each peer that was cut off for what it sent."""
    events = view.get("events")
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and (kind := event.get("event")) in _CUT_FOR:
            times = event.get("times", 1)
            often = "once" if times == 1 else f"{times} times"
            who = f"peer {str(event.get('peer', ''))[:8]} was cut off {often}"
            yield fact(kind, f"{who} {_CUT_FOR[kind]} ({event.get('reason', '')})")


def _in_words(key: str, value: Any, view: Mapping[str, Any]) -> str:
    """One fact for people, "" where it is as it ever is."""
    match key:
        case "round" if "rounds" in view:
            return f"{value} of {view['rounds']}"
        case "committed":
            return f"{value} rounds; the others were skipped" if value != view.get("round") else ""
        case "term":
            return f"started {value} times" if value > 1 else ""
        case "phase":
            return _PHASES.get(value, str(value))
        case "wanted_root" if "pipeline" in view:
            return ""  # each stage has its own
        case "num_values" if "pipeline" in view:
            values = sum(group["num_values"] for group in _stages(view))
            known = f"{values:,} parameters in ".replace(",", " ") if values else ""
            return f"{known}{len(_stages(view))} stages"
        case "wanted_root":
            return f"{_shown(key, value)} after round {view.get('round', 0)}"
        case "num_values":
            return f"{value:,} parameters".replace(",", " ") if value else ""
        case "checkpoint_op":
            return f"after round {value}" if value >= 0 else ""
        case "connected" if "process" in view:
            return ""  # nobody looks for it any more
        case "connected":
            return "connected" if value else "does not answer; it is looked for"
        case "tokens_per_s":
            return f"{value:.0f} {view.get('unit', 'tokens')}/s"
        case "tokens":
            return f"{value:,} {view.get('unit', 'tokens')}".replace(",", " ")
        case "state" if "process" in view and value == "has left":
            return "has left the run; the command that joined it comes back"
        case "today":
            daily = (view.get("caps") or {}).get("daily")
            return f"{human_bytes(value)} of {human_bytes(daily)}" if daily else ""
        case "step":
            return f"{value} of this round"
        case "text":
            return f"pass {value['pass']}, {value['used']} of {value['pieces']} pieces used"
        case "door":
            return {"open": "are let in", "closed": "are not let in"}.get(value, str(value))
    return _shown(key, value)


def _is_said(peer: Mapping[str, Any], key: str) -> bool:
    value = peer.get(key)
    return value not in ("", None, []) and (key not in ("left_out", "loss") or bool(value))


def _table(peers: list[dict[str, Any]], width: int, unit: str) -> Iterator[str]:
    """A row per peer; a narrow terminal goes without what matters least."""
    from swarmtrain.console.table import plain_lines, table_of

    present = [named for named in _COLUMNS if any(_is_said(peer, named[0]) for peer in peers)]
    for spared in range(len(_SPARE) + 1):
        columns = [(key, title) for key, title in present if key not in _SPARE[:spared]]
        rows = [[_shown(key, peer.get(key, "")) for key, _ in columns] for peer in peers]
        titles = [title.format(unit="tok" if unit == "tokens" else unit) for _, title in columns]
        lines = plain_lines(table_of(titles, rows))
        if not width or max(map(len, lines)) <= width:
            break
    yield from lines


def _shown(key: str, value: object) -> str:
    """One value for people: units on bytes, hashes cut to what can be compared by eye."""
    if key.startswith("bytes_") and isinstance(value, int):
        return human_bytes(value)
    if (key.endswith("_root") or key == "chain") and isinstance(value, str):
        return value[:16]
    if key in ("norm", "cosine") and isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list):
        return _span(value) if value else ""
    if value is None:
        return ""
    if key == "loss" and not value:
        return ""  # a peer that serves no last stage sees none
    if isinstance(value, float):
        return f"{value:.{_PLACES.get(key, 1)}f}"
    return str(value)
