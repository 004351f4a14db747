"""What a chaos has shown, as one object and as lines for people. Pure."""

from collections.abc import Iterator

import msgspec

from swarmtrain.chaos.invariants import Violation


class PeerRoot(msgspec.Struct, frozen=True):
    """The state root, in hex, that a peer held."""

    peer: str
    root: str


class Report(msgspec.Struct, frozen=True):
    """The last line of `swarmtrain chaos --json`.

    Attributes:
        seconds: from the first state to the end of the last peer.
        seed: of the plan.
        peers: at the start.
        rounds: ops with an outcome that stands.
        commits: of those, how many were committed.
        skips: the others.
        rewinds: how often outcomes were cancelled.
        deeds: how often each was done.
        passed_over: deeds that were due while too few peers were well, so they were left out.
        restarts: processes that were started again.
        state_roots: of the peers alive at the end, after the newest round that all have ended.
        equal: whether these are there and the same.
        violations: what must not be.
        state_dir: run.toml, coordinator/, peers/NAME/ and logs/; "" if it was removed.
    """

    seconds: float
    seed: int
    peers: int
    rounds: int
    commits: int
    skips: int
    rewinds: int
    deeds: dict[str, int]
    passed_over: int
    restarts: int
    state_roots: tuple[PeerRoot, ...]
    equal: bool
    violations: tuple[Violation, ...]
    state_dir: str


def in_words(report: Report) -> Iterator[str]:
    """The same for people."""
    deeds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.deeds.items()))
    yield f"deeds        {deeds or 'none'}; {report.passed_over} passed over"
    yield (
        f"rounds       {report.rounds}: {report.commits} committed, {report.skips} skipped,"
        f" {report.rewinds} rewinds, {report.restarts} processes started again"
    )
    for entry in report.state_roots:
        yield f"state root   {entry.root[:16]}  {entry.peer}"
    for found in report.violations:
        yield f"VIOLATION    {found.invariant}: {found.story}"
    verdict = "everything holds" if not report.violations else "look into the state directory"
    yield f"seed {report.seed}, {report.seconds:.0f} s: {verdict}"
    if report.state_dir:
        yield f"all files    {report.state_dir}"
