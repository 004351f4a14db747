"""The rules that find a hostile owner, broken one at a time as in `broken_rules`."""

from broken_rules import Mutant, any_case, replaced

from swarmtrain.simulate.faults.troubles import HOSTILE_OWNER
from swarmtrain_transport.collective.auditing import Auditing
from swarmtrain_transport.coordinator.members.convictions import Convictions
from swarmtrain_transport.ledger.audit import draw
from swarmtrain_transport.wire.records import Conviction


def auditors_find_everything_right():
    def make(judge):
        def blind(self, case, now_s):
            self._end("right")
            return []

        return blind

    return replaced(Auditing, "_judge", make)


def a_proof_convicts_nobody():
    return replaced(Convictions, "hear", lambda hear: lambda *known: {})


def an_auditors_word_convicts():
    def make(hear):
        def credulous(self, peer, message, now_s):
            view = self._view.commits.get(message.op)
            drawn = draw(view) if view is not None else None
            if drawn is None or drawn.auditor != peer or drawn.owner in self._writer.view.convicted:
                return {}
            place = (drawn.slice_index, drawn.chunk)
            return {drawn.owner: Conviction(message.op, *place, message.proof_hash)}

        return credulous

    return replaced(Convictions, "hear", make)


AUDIT_MUTANTS = {
    "A1": Mutant(
        "auditors find every sum right",
        auditors_find_everything_right, (("audit", ""),), any_case, (HOSTILE_OWNER,),
    ),
    "A2": Mutant(
        "a proof convicts nobody",
        a_proof_convicts_nobody, (("audit", "nobody"),), any_case, (HOSTILE_OWNER,),
    ),
    "A3": Mutant(
        "an auditor's word convicts without anybody who has checked it",
        an_auditors_word_convicts, (("audit", "has not made"),), any_case, (HOSTILE_OWNER,),
    ),
}  # fmt: skip
