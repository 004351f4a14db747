"""The result of a chaos, as one object and as lines for people. Pure."""

from collections.abc import Iterator

import msgspec

from swarmtrain.chaos.invariants import Violation
from swarmtrain.console.lines import fact


class PeerRoot(msgspec.Struct, frozen=True):
    """The state root, in hex, that a peer held."""

    peer: str
    root: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run that was broken on purpose, whatever was done to it.

    Attributes:
        seconds: time from the first state to the end of the last peer.
        seed: seed of the plan and of the run.
        peers: number of peers at the start.
        commits: ops that were committed.
        skips: ops that were skipped.
        rewinds: number of times that outcomes were cancelled.
        restarts: processes of honest peers that were started again.
        state_roots: roots of the honest peers alive at the end, after the newest round that all
            have ended.
        equal: True if these are there and the same.
        state_dir: run.toml, coordinator/, peers/NAME/ and logs/; "" if it was removed.
    """

    seconds: float
    seed: int
    peers: int
    commits: int
    skips: int
    rewinds: int
    restarts: int
    state_roots: tuple[PeerRoot, ...]
    equal: bool
    violations: tuple[Violation, ...]
    state_dir: str = ""

    def in_words(self) -> Iterator[str]:
        """Word it for people: states, violations, the verdict."""
        for entry in self.state_roots:
            yield fact("state root", f"{entry.root[:16]}  {entry.peer}")
        for found in self.violations:
            yield fact("VIOLATION", f"{found.invariant}: {found.story}")
        verdict = "everything holds" if not self.violations else "look into the state directory"
        yield f"seed {self.seed}, {self.seconds:.0f} s: {verdict}"
        if self.state_dir:
            yield fact("all files", self.state_dir)


class Report(Outcome, frozen=True, kw_only=True):
    """The last line of `swarmtrain chaos --json`.

    Attributes:
        rounds: ops with an outcome that stands.
        deeds: number of times that each was done.
        passed_over: deeds that were due while too few peers were well, so they were left out.
    """

    rounds: int
    deeds: dict[str, int]
    passed_over: int

    def in_words(self) -> Iterator[str]:
        """See Outcome."""
        deeds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.deeds.items()))
        yield fact("deeds", f"{deeds or 'none'}; {self.passed_over} passed over")
        outcomes = f"{self.commits} committed, {self.skips} skipped, {self.rewinds} rewinds"
        again = f"{self.restarts} processes started again"
        yield fact("rounds", f"{self.rounds}: {outcomes}, {again}")
        yield from super().in_words()
