"""The result of an emulation: one object, and lines for people. Pure."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from swarmtrain.console.lines import counted, fact
from swarmtrain.console.units import human_bytes
from swarmtrain.emulate.course import Course, PeerFacts


class PeerReport(msgspec.Struct, frozen=True):
    """One peer at the end.

    Attributes:
        round: newest round whose outcome it had.
        roots: state root then, in hex; of a model in stages by stage.
        loss_first: first training loss that it told, None if it told none.
        loss_last: last training loss that it told.
        bytes_up: all protocol bytes of both lanes, of all its lives.
        bytes_down: all that came, likewise.
    """

    peer: str
    round: int
    roots: dict[str, str]
    loss_first: float | None
    loss_last: float | None
    bytes_up: int
    bytes_down: int
    kills: int


class Report(msgspec.Struct, frozen=True):
    """The last line of `swarmtrain emulate --json`.

    Attributes:
        rounds: number of committed rounds.
        is_finished: True if the run's last round is among them.
        equal: True if peers of the same round hold the same bits; None where each has its own.
        kills: number of kills of all peers.
        loss_first: mean of the peers' first training losses, None if none was told.
        loss_last: mean of the last ones.
        seconds: time from the start to the end of the last process.
        state_dir: holds run.toml, coordinator/, peers/NAME/ and logs/.
    """

    peers: tuple[PeerReport, ...]
    rounds: int
    is_finished: bool
    equal: bool | None
    kills: int
    loss_first: float | None
    loss_last: float | None
    links: str
    seconds: float
    state_dir: str


def make_report(
    course: Course, *, is_paired: bool, links: str, seconds: float, state_dir: Path
) -> Report:
    """Report on an emulation that has ended.

    Args:
        is_paired: True if rounds go by pairs, so that each peer has a state of its own.
    """
    peers = tuple(
        PeerReport(
            peer.name, peer.round, peer.roots, peer.loss_first, peer.loss_last, peer.bytes_up,
            peer.bytes_down, peer.kills,
        )
        for peer in course.peers.values()
    )  # fmt: skip
    told = [peer for peer in peers if peer.loss_first is not None]
    return Report(
        peers=peers,
        rounds=course.rounds,
        is_finished=course.is_finished,
        equal=None if is_paired else are_equal(tuple(course.peers.values())),
        kills=sum(peer.kills for peer in peers),
        loss_first=_mean([peer.loss_first for peer in told]),
        loss_last=_mean([peer.loss_last for peer in told]),
        links=links,
        seconds=round(seconds, 1),
        state_dir=str(state_dir),
    )


def are_equal(peers: Sequence[PeerFacts]) -> bool:
    """Return False if two peers hold different states of the same round, and of the same stage."""
    found: dict[tuple[int, str], str] = {}
    return all(
        found.setdefault((peer.round, stage), root) == root
        for peer in peers
        for stage, root in peer.roots.items()
    )


def _mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return round(sum(known) / len(known), 6) if known else None


def in_words(report: Report) -> Iterator[str]:
    """The report as lines for people."""
    yield ""
    yield fact("rounds", _rounds(report))
    yield fact("training loss", _losses(report))
    yield fact("links", report.links)
    yield fact("state roots", _verdict(report))
    for peer in report.peers:
        roots = ", ".join(
            f"{f'stage {stage} ' if stage else ''}{root[:16]}" for stage, root in peer.roots.items()
        )
        yield f"  {peer.peer:<14} round {peer.round:<4} {roots or 'none':<18} {_more(peer)}"
    yield fact("the rest is in", f"{report.state_dir} (peers, logs, coordinator)")


def _more(peer: PeerReport) -> str:
    loss = f"loss {peer.loss_last:.3f}, " if peer.loss_last is not None else ""
    moved = f"{human_bytes(peer.bytes_up)} up, {human_bytes(peer.bytes_down)} down"
    kills = f", killed {peer.kills} x" if peer.kills else ""
    return f"{loss}{moved}{kills}"


def _rounds(report: Report) -> str:
    end = "" if report.is_finished else "; the programs ended before the run's last one"
    kills = f"; {counted(report.kills, 'peer')} killed on the way" if report.kills else ""
    return f"{report.rounds} in {report.seconds:.0f} s{kills}{end}"


def _losses(report: Report) -> str:
    if report.loss_first is None or report.loss_last is None:
        return "none was told; swarm.log(loss=loss) tells it"
    told = [peer for peer in report.peers if peer.loss_first is not None]
    of = "in the mean" if len(told) > 1 else f"of {told[0].peer}, the only one to tell any"
    if all(peer.loss_first == peer.loss_last for peer in told):
        # Of a script that logs now and then, no peer has told two.
        mean = f"{report.loss_last:.3f} {of}, and no other was told"
        return f"{mean}; swarm.log(loss=loss) after each step shows its course"
    return f"{report.loss_first:.3f} at the first, {report.loss_last:.3f} at the last, {of}"


def _verdict(report: Report) -> str:
    if report.equal is None:
        return "each peer has its own, as rounds go by pairs"
    if not any(peer.roots for peer in report.peers):
        return "none, as nobody has ended a round"
    return "equal where rounds are" if report.equal else "DIFFERENT: please report it with the logs"
