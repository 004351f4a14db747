"""Draws from a seed when a hostile member does what. Pure.

First nothing happens, so that the undisturbed rate of rounds is known. Then every offence has a
phase of its own, in drawn order and with a breath after it, then all come together, and the end is
calm again, so that everybody can catch up before states are compared.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from swarmtrain.chaos.plan import calm_from_s
from swarmtrain.chaos.siege.offences import Offence, Order

_UNDISTURBED_SHARE = 0.2
_TOGETHER_SHARE = 0.2
"""Share of the time before the calm. With one offence there is no phase of all."""

_BREATH_SHARE = 0.15
"""Share of an offence's own time: the others go on without being disturbed, and it is trusted
again."""

_ALL_SHARE = 0.5
"""Half of the phases have all others for their victims, the other half one."""

_VICTIMS = 64


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with one order.

    Attributes:
        at_s: seconds after all hold the first state.
        order: order to the hostile member.
    """

    name: str
    at_s: float
    lasts_s: float
    order: Order

    @property
    def ends_s(self) -> float:
        """Time at which the next one begins."""
        return self.at_s + self.lasts_s


UNDISTURBED = "undisturbed"
TOGETHER = "together"
BREATH = "breath"
CALM = "calm"


def draw_phases(seed: int, seconds: float, offences: Sequence[Offence]) -> tuple[Phase, ...]:
    """All phases in order, without gaps.

    Args:
        seed: seed of the order of offences, of victims and of what comes together.
        seconds: time from the first state to the end.
        offences: offences to commit, at least one, each once.
    """
    rng = random.Random(seed)
    calm_s = calm_from_s(seconds)
    undisturbed_s = _UNDISTURBED_SHARE * calm_s
    together_s = _TOGETHER_SHARE * calm_s if len(offences) > 1 else 0.0
    each_s = (calm_s - undisturbed_s - together_s) / len(offences)
    found = [Phase(UNDISTURBED, 0.0, undisturbed_s, Order())]
    for offence in rng.sample(sorted(offences), len(offences)):
        order = Order((offence,), _victim(rng), False, rng.randrange(1 << 32))
        _then(found, offence, (1.0 - _BREATH_SHARE) * each_s, order)
        _then(found, BREATH, _BREATH_SHARE * each_s, Order())
    if together_s:
        order = Order(tuple(sorted(offences)), _victim(rng), True, rng.randrange(1 << 32))
        _then(found, TOGETHER, together_s, order)
    _then(found, CALM, seconds - calm_s, Order())
    return tuple(found)


def _victim(rng: random.Random) -> int:
    victim = rng.randrange(_VICTIMS)
    return -1 if rng.random() < _ALL_SHARE else victim


def _then(found: list[Phase], name: str, lasts_s: float, order: Order) -> None:
    found.append(Phase(name, found[-1].ends_s, lasts_s, order))
