"""A peer that gives nothing, or fetches nothing, must become rare in plans (protocol.md STANDING).

It is checked from the ledger alone.
"""

from collections import Counter

from swarmtrain.simulate.ground.scene import Scene
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import AnyBody, Commit, Freeze, Plan, Rewind, Skip

_IN_ROW = 3


def _silent(body: Freeze | Skip) -> set[PeerId]:
    """Return those left out by their own word or silence."""
    out = body.excluded.items()
    return {peer for peer, why in out if why != "alone" and peer not in body.accusers}


class IdleMembers:
    """Count of each peer's faults in a row.

    Args:
        scene: the place where violations are told.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._under_way: dict[int, tuple[Plan, set[PeerId]]] = {}
        self._row: Counter[PeerId] = Counter()

    def logged(self, body: AnyBody) -> None:
        """A peer that was at fault three times in a row is not planned with for a while, unless the
        others are too few."""
        if isinstance(body, Plan):
            self._under_way[body.op] = body, set()
            self._check_plan(body)
        elif isinstance(body, Freeze):
            self._under_way[body.op][1].update(_silent(body))
        elif isinstance(body, Skip):
            _, at_fault = self._under_way.pop(body.op)
            self._row.update(at_fault | _silent(body))
        elif isinstance(body, Commit):
            plan, at_fault = self._under_way.pop(body.op)
            at_fault |= set(body.behind) if plan.kind != PAIR else set()
            self._row = Counter(
                {
                    member.peer: self._row[member.peer] + 1
                    for member in plan.members
                    if member.peer in at_fault
                }
            )
        elif isinstance(body, Rewind):
            self._row.clear()

    def _check_plan(self, plan: Plan) -> None:
        given = {member.peer for member in plan.members if member.weight}
        drags = {peer for peer in given if self._row[peer] >= _IN_ROW}
        # Its bar may be one round long, be it that this op is skipped, or that it is in it because
        # there is nobody else: then it may be tried again.
        self._row = Counter({p: n for p, n in self._row.items() if n < _IN_ROW})
        if drags and len(given - drags) >= max(plan.min_contributors, 2):
            names = ", ".join(sorted(self._scene.name_of(peer) for peer in drags))
            story = f"op {plan.op} waits for {names} after three faults in a row"
            self._scene.violation("drag", story)
