"""The rules of who is in, who leaves and who is kept out, broken one at a time as in
`broken_rules`.

| what is broken | mutant: seed, invariant |
|---|---|
| who is left out, who is planned | D1: 0, fair; D5: 15, ZAP |
| how long an op may take | D3: 4, T9 |
| who may go, who is kept out | D6: 12, RELEASED; D7: 84, ban |
"""

import dataclasses

from broken_rules import Mutant, any_case, replaced

from swarmtrain.simulate.faults.troubles import BAN, COLLUSION, HAND_OVER
from swarmtrain_transport.coordinator.group import GroupCoordinator
from swarmtrain_transport.coordinator.ops import planning
from swarmtrain_transport.coordinator.ops.timers import Timers
from swarmtrain_transport.ledger import snapshots
from swarmtrain_transport.ledger.standing import Words


def one_voice_less_is_enough():
    return replaced(Words, "needed", lambda needed: lambda self, peer: needed(self, peer) - 1)


def a_new_owner_has_no_more_time():
    def make(reassigned):
        def strict(self, slice_index, now_s):
            self.assigned_s[slice_index] = now_s

        return strict

    return replaced(Timers, "reassigned", make)


def a_key_need_not_be_known():
    return replaced(planning, "_known_to_all", lambda known: lambda join_index, present: present)


def whoever_leaves_may_go_at_once():
    return replaced(GroupCoordinator, "needs", lambda needs: lambda self, peer: False)


def a_snapshot_forgets_bans():
    def make(image_of):
        return lambda view, reader: image_of(dataclasses.replace(view, banned=set()), reader)

    return replaced(snapshots, "image_of", make)


MEMBERSHIP_MUTANTS = {
    "D1": Mutant(
        "one voice less is enough to leave a contributor out",
        one_voice_less_is_enough, (("fair", ""), ("L3", "")), any_case, (COLLUSION,), peers=6,
    ),
    "D3": Mutant(
        "a slice's new owner has no more time", a_new_owner_has_no_more_time,
        (("T9", ""),), any_case, ("stop", "death", "double death", "one-way cut", "lost frames"),
    ),
    "D5": Mutant(
        "PLAN names whose key is not known to all",
        a_key_need_not_be_known, (("ZAP", ""),), any_case, ("newcomer", "stalled control"),
    ),
    "D6": Mutant(
        "whoever leaves may go at once",
        whoever_leaves_may_go_at_once, (("RELEASED", ""),), any_case, (HAND_OVER,),
    ),
    "D7": Mutant(
        "a snapshot forgets bans",
        a_snapshot_forgets_bans, (("ban", ""),), any_case, (BAN, "newcomer", "death"),
    ),
}  # fmt: skip
