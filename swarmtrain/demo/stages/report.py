"""The result of a demo whose model is in stages: what `Report` says, and the books. Pure."""

from collections.abc import Iterable, Iterator

from swarmtrain.console.lines import fact
from swarmtrain.console.units import human_bytes
from swarmtrain.demo.report import PeerRoot, Report, ending, heading, no_progress
from swarmtrain.demo.setting import STAGES
from swarmtrain.demo.story import Facts
from swarmtrain.pipeline.costs import span_words
from swarmtrain_transport.wire.records import AnyBody, Books, Join, Move, Record, bodies_of


class StagesReport(Report, frozen=True, kw_only=True):
    """The last line of `swarmtrain demo --pipeline --json`; in `state_roots` are those who serve
    all stages, with the root of the first.

    Attributes:
        spans: first and last stage of each peer.
        micro_batches: micro-batches that sources have made.
        counted: number of these in each stage's steps.
        redone: number of times that one was sent to yet another peer.
        lost_micro_batches: micro-batches that did not come back to their source.
        moves: peers' moves to other stages after they came.
        stage_roots: state roots of each stage, of those who lived.
    """

    stages: int
    spans: dict[str, tuple[int, int]]
    micro_batches: int
    counted: tuple[int, ...]
    redone: int
    lost_micro_batches: int
    moves: int
    stage_roots: tuple[tuple[PeerRoot, ...], ...]


def stages_report(report: Report, facts: Facts, records: Iterable[Record]) -> StagesReport:
    """Add what the ledger's books and the peers' last words say.

    Args:
        records: all records of the coordinator's ledger.
    """
    bodies = bodies_of(records)
    books = [body for body in bodies if isinstance(body, Books)]
    whole = {peer for peer, span in facts.spans.items() if len(span) == STAGES}
    known = {name: getattr(report, name) for name in report.__struct_fields__}
    known["state_roots"] = tuple(one for one in report.state_roots if one.peer in whole)
    return StagesReport(
        **known,
        stages=STAGES,
        spans={peer: (span[0], span[-1]) for peer, span in facts.spans.items()},
        micro_batches=sum(one.made for one in books),
        counted=tuple(sum(one.counted[stage] for one in books) for stage in range(STAGES)),
        redone=sum(sum(one.redone.values()) for one in books),
        lost_micro_batches=sum(sum(one.lost.values()) for one in books),
        moves=_num_moves(bodies),
        stage_roots=tuple(
            tuple(
                PeerRoot(peer, left.roots[str(stage)])
                for peer, left in sorted(facts.left.items())
                if str(stage) in left.roots
            )
            for stage in range(STAGES)
        ),
    )


def _num_moves(bodies: Iterable[AnyBody]) -> int:
    """Count how often a peer was given other stages than when it came."""
    served: dict[bytes, tuple[int, ...]] = {}
    num_moves = 0
    for body in bodies:
        if isinstance(body, Join):
            served.pop(body.peer, None)
        elif isinstance(body, Move):
            num_moves += served.get(body.peer, body.groups) != body.groups
            served[body.peer] = body.groups
    return num_moves


def shortcoming(report: StagesReport) -> str:
    """Say why the demo did not show what it promises, "" if it did."""
    for stage, roots in enumerate(report.stage_roots):
        if len({one.root for one in roots}) > 1:
            return (
                f"The peers of stage {stage} do NOT hold the same weights: their state roots "
                "differ. This must never happen; please report it with the logs."
            )
        if not roots:
            return f"Nobody was left to say which weights stage {stage} ended with."
    return no_progress(report)


def in_words(report: StagesReport, written: str) -> Iterator[str]:
    """The report as lines for people."""
    yield from heading(report)
    yield fact("rounds", f"{report.rounds} in {report.seconds:.0f} s{_coming_and_going(report)}")
    yield fact(
        "micro-batches",
        f"{report.micro_batches} made; sent to another peer {report.redone} times, "
        f"lost {report.lost_micro_batches}",
    )
    for stage, (count, roots) in enumerate(zip(report.counted, report.stage_roots, strict=True)):
        names = ", ".join(one.peer for one in roots)
        same = "the same bits" if len({one.root for one in roots}) == 1 else "DIFFERENT"
        yield fact(f"stage {stage}", f"counted {count}; {names} hold {same}")
        for root in sorted({one.root for one in roots}):
            yield fact("", root[:32])
    yield fact("bytes sent", f"{human_bytes(report.bytes_up_per_peer)} per peer")
    yield from ending(report, written)


def _coming_and_going(report: StagesReport) -> str:
    words = ""
    if report.killed is not None:
        words += f"; {report.killed.peer} was killed in round {report.killed.round}"
    for found in report.joined:
        first, last = report.spans.get(found.peer, (0, 0))
        words += (
            f"; {found.peer} joined in round {found.round} and was given "
            f"{span_words(range(first, last + 1))}"
        )
    return words
