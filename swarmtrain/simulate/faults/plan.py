"""Faults of a simulated world, and the messages at which they strike."""

from dataclasses import dataclass

COORDINATOR = -1
"""Stands for the coordinator in a fault plan."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Faults at boundary `boundary`, before that message is heard.

    Attributes:
        boundary: number of the message.
        victims: peers that die together, for ever; COORDINATOR is restarted after a moment.
        returners: peers that die and are started again soon, with their ledger and a new boot id.
        leavers: peers that say goodbye and end.
        blinkers: peers whose control connection breaks and is made again.
        cuts: (source, target): from now on frames of the one do not reach the other.
        newcomers: number of new peers that come.
    """

    boundary: int
    victims: tuple[int, ...] = ()
    returners: tuple[int, ...] = ()
    leavers: tuple[int, ...] = ()
    blinkers: tuple[int, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    newcomers: int = 0

    def story(self) -> str:
        """In words."""
        names = ["the coordinator" if v == COORDINATOR else f"peer {v}" for v in self.victims]
        happens = [f"death of {' and '.join(names)}"] if names else []
        happens += [f"restart of peer {number}" for number in self.returners]
        happens += [f"goodbye of peer {number}" for number in self.leavers]
        happens += [f"broken control connection of peer {number}" for number in self.blinkers]
        happens += [
            f"frames of peer {one} no longer reach peer {other}" for one, other in self.cuts
        ]
        happens += ["arrival of a newcomer"] * self.newcomers
        return f"at message {self.boundary}: {', '.join(happens)}"


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault of a weather, enough to let it happen again whatever else is drawn.

    Attributes:
        boundary: number of the message before which it struck.
        kind: name of the kind, in `--json` too.
        seed: seed of the draw of whom it hit and for how long.
    """

    boundary: int
    kind: str
    seed: int
