"""The rules that keep one member's word and idleness from costing much, broken one at a time."""

from broken_rules import Mutant, any_case, replaced

from swarmtrain.simulate.faults.troubles import DRAG, HOSTILE_WORDS
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.ledger.standing import Standing, Words


def one_refusal_is_believed():
    """Treat a contributor that any one owner refuses as if it had withdrawn."""

    def make(receive):
        def credulous(self, owner, message, now_s):
            receive(self, owner, message, now_s)
            if self._is_owner(owner, message):
                for peer in message.refused.keys() & self.view.weights.keys():
                    self.withdrawn.setdefault(peer, "refused:by one")

        return credulous

    return replaced(Reports, "_receive", make)


def who_is_missing_at_one_owner_is_left_out():
    return replaced(Words, "needed", lambda needed: lambda self, peer: 1)


def a_drag_is_never_barred():
    return replaced(Standing, "barred_until", lambda until: lambda self, peer, op: -1)


WORD_MUTANTS = {
    "M15": Mutant(
        "one owner's refusal is believed",
        one_refusal_is_believed, (("fair", ""), ("L3", "")), any_case, (HOSTILE_WORDS,),
    ),
    "M16": Mutant(
        "who is missing at one owner is left out",
        who_is_missing_at_one_owner_is_left_out, (("fair", ""), ("L3", "")), any_case,
        (HOSTILE_WORDS,),
    ),
    "M17": Mutant(
        "a peer that gives nothing is waited for in every op",
        a_drag_is_never_barred, (("drag", ""),), any_case, (DRAG,),
    ),
}  # fmt: skip
