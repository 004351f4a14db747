"""Checks left out and decisions taken in haste, one at a time as in `broken_rules`.

Each is a line that a reader might hold for superfluous. What finds it stands beside it: a check of
what peers really hold (`swarmtrain.simulate.checks.rules`), or a fault that other worlds have not.

| what is broken | mutant: seed, invariant |
|---|---|
| too few holders; COMMIT does not wait | N1: 0, T8; N14: 0, T8 |
| weights | N2: 0, rule 2; N25: 0, I3 |
| attested by any; by the dead | N3: 10, attest; N26: 0, attest |
| a differing state | N5: 0, T15; N6: 0, T15 |
| REWIND in haste, too far, on one word | N7: 103, T12; N8: 3, T12; N9: 36, T12 |
| bytes, results, roots unchecked | N10: 34, I2; N11: 0, I3; N15: 10, I3; N17: 0, root |
| PLAN, the window's lower end | N12: 0, rule 1; N13: 6, I5 |
| what is kept, restored, dropped | N16: 0; N18: 6; N21: 5; N22 to N24: 0, 0, 1 |
| fences, credit, disk, backup | N19: 10, fault; N27: 5, T2; N4: 2, I1; N20: 0, halt |
| windows of records, snapshots | N28: 5, L2; N29: 5, L2 |
| groups; who comes back, or comes late | N30: 2, L2; N31: 0, L3; N32: 18, L2; N33: 0, I2 |
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import msgspec
from broken_rules import Mutant, any_case, commit_with_holders, replaced

from swarmtrain.peer.arithmetic import CodecArithmetic
from swarmtrain.peer.training.driver import Driver
from swarmtrain.simulate.faults.troubles import DRAG, FLIP, FORGERY, LATE
from swarmtrain.simulate.processes.coordinator import SimCoordinator
from swarmtrain_optimizers.error_feedback import ErrorFeedback
from swarmtrain_optimizers.exclusions import Exclusions
from swarmtrain_optimizers.strategies.anchored import Anchored
from swarmtrain_optimizers.strategies.synchronous import Synchronous
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.blocks import blobs
from swarmtrain_transport.collective.sender import Sender
from swarmtrain_transport.collective.taker import Taker
from swarmtrain_transport.coordinator.ledger_recovery import LedgerRecovery
from swarmtrain_transport.coordinator.members.group_peers import GroupPeers
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.coordinator.ops import agreement, planning, policies
from swarmtrain_transport.coordinator.ops.agreement import Agreement
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.kinds import GATHER
from swarmtrain_transport.ledger import snapshots
from swarmtrain_transport.peer import ledger_copy
from swarmtrain_transport.peer.catchup import CatchUp
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.peer.progression import Progression
from swarmtrain_transport.peer.state_finder import StateFinder
from swarmtrain_transport.wire.frames import FrameKind


def contributors_weigh_the_same():
    return replaced(
        planning, "weights_of", lambda _: lambda samples, *_: dict.fromkeys(samples, 255)
    )


def one_report_is_attested():
    return replaced(
        agreement, "_agreed_root", lambda _: lambda held, voters: next(iter(held.values()), None)
    )


def a_differing_state_is_kept():
    return replaced(Progression, "attested", lambda attested: lambda self: None)


@contextlib.contextmanager
def nobody_compares_states() -> Iterator[None]:
    """Neither the coordinator, in HELLO or later, nor the peer itself."""
    blind = replaced(Agreement, "_check_state", lambda check: lambda self, peer, one: None)
    synced = replaced(
        planning, "is_synced", lambda _: lambda view, root, one: one.applied_op == view.last_op
    )
    with a_differing_state_is_kept(), blind, synced:
        yield


def the_run_goes_back_at_once():
    """Wait for nobody who has lost its connection for a moment, or is still to come back."""

    def make(rewind_due):
        def hasty(view, lines, *, all_heard):
            here = {peer: one for peer, one in lines.items() if one.line.connected}
            return rewind_due(view, here, all_heard=True)

        return hasty

    return replaced(agreement, "rewind_due", make)


def the_run_goes_back_too_far():
    def make(rewind_due):
        def wasteful(view, lines, *, all_heard):
            due = rewind_due(view, lines, all_heard=all_heard)
            if due is None or due.op < 1:
                return due
            return msgspec.structs.replace(due, op=due.op - 1)

        return wasteful

    return replaced(agreement, "rewind_due", make)


def one_word_strands_the_run():
    """One peer that cannot have a result is enough to go back."""

    def make(rewind_due):
        def hasty(view, lines, *, all_heard):
            stranded = {peer: one for peer, one in lines.items() if one.stranded_op >= 0}
            return rewind_due(view, stranded, all_heard=all_heard)

        return hasty

    return replaced(agreement, "rewind_due", make)


def pushed_bytes_are_not_hashed():
    def make(pushed):
        def credulous(self, peer, frame, now_s):
            index, chunk = frame.slice_index, frame.chunk
            named = self._slices[index].named if index < len(self._slices) else None
            if named is not None and chunk < len(named.chunk_hashes):
                frame = dataclasses.replace(frame, digest=named.chunk_hashes[chunk])
            return pushed(self, peer, frame, now_s)

        return credulous

    return replaced(Taker, "pushed", make)


def results_are_not_looked_at():
    return replaced(CodecArithmetic, "check_result", lambda check: lambda *known: None)


@contextlib.contextmanager
def no_plan_is_looked_at() -> Iterator[None]:
    """And the planner lets the window reach one power of two lower than sums can."""

    def make_floor(window_floor):
        return lambda e_max, total: max(limits.E_MIN_FLOOR, window_floor(e_max, total) - 1)

    with (
        replaced(ledger_copy, "check_plan", lambda check: lambda plan, num_values: None),
        replaced(planning, "window_floor", make_floor),
    ):
        yield


def the_windows_lower_end_is_not_looked_at():
    def make(check):
        def lax(self, body, num_values, window):
            lower = dataclasses.replace(window, e_min=limits.E_MIN_FLOOR)
            check(self, body, num_values, lower)

        return lax

    return replaced(CodecArithmetic, "check", make)


def commit_does_not_wait_for_the_living():
    return commit_with_holders(3)


def what_came_need_not_be_what_was_signed():
    def make(compare):
        def credulous(self, peer, slice_try, now_s):
            signed = self.signed.get(peer)
            if signed is not None:
                index, roots = slice_try[0], list(signed.slice_roots)
                roots[index] = self._claims[slice_try][peer]
                self.signed[peer] = msgspec.structs.replace(signed, slice_roots=tuple(roots))
            compare(self, peer, slice_try, now_s)

        return credulous

    return replaced(Reports, "_compare", make)


def pending_work_is_never_dropped():
    def make(record):
        def patient(self, outcomes):
            record(self, outcomes)
            return ()

        return patient

    return replaced(Exclusions, "record", make)


def any_result_root_will_do():
    return replaced(policies, "result_root", lambda root: lambda commit: bytes(32))


def what_was_restored_is_not_taken_back():
    return replaced(Driver, "_drop_taken_back", lambda drop: lambda self, result: None)


def frames_are_not_fenced():
    """A part or a result of any plan and any attempt counts for this one."""

    def make(on_frame):
        def lax(self, peer, frame):
            exchange = self.first.exchange
            if exchange is not None and frame.kind in (FrameKind.PART, FrameKind.RESULT):
                attempts = exchange.view.attempts
                if frame.slice_index < len(attempts):
                    frame = dataclasses.replace(
                        frame, plan_id=exchange.view.plan_id, attempt=attempts[frame.slice_index]
                    )
            return on_frame(self, peer, frame)

        return lax

    return replaced(Participant, "_on_frame", make)


def a_restored_coordinator_asks_nobody():
    return replaced(LedgerRecovery, "is_open", lambda _: property(lambda self: False))


def a_skip_is_forgotten():
    """A peer remembers no SKIP but the newest."""

    def make(advance):
        def forgetful(self, *, connected):
            skips = self._view.skips
            for op in [op for op in skips if op < self._view.last_op]:
                del skips[op]
            return advance(self, connected=connected)

        return forgetful

    return replaced(Progression, "advance", make)


# ---- five more


def error_feedback_outlives_its_state():
    """A state that is loaded leaves the error feedback as it was."""

    def make(forget):
        def keeps(self):
            kept = self._feedback.residual.clone() if self._feedback is not None else None
            forget(self)
            if self._feedback is not None:
                self._feedback.residual = kept

        return keeps

    return replaced(Synchronous, "_forget", make)


def error_feedback_is_sent_twice():
    def make(correct_):
        return lambda self, delta, places=slice(None): (
            correct_(self, delta, places) + self.residual[places]
        )

    return replaced(ErrorFeedback, "correct_", make)


def momentum_is_nobodys_state():
    """Begin with momentum 0 whenever a state is taken over."""

    def make(load_state):
        def forgetful(self, arrays):
            load_state(self, arrays)
            for buffer in self._state:
                buffer.zero_()

        return forgetful

    return replaced(Anchored, "load_state", make)


def gathered_contributions_weigh_the_same():
    def make(collect):
        def level(self, op, *, replayed):
            result = collect(self, op, replayed=replayed)
            if result is None or result.weights is None:
                return result
            return dataclasses.replace(result, weights=(1,) * len(result.weights))

        return level

    return replaced(CatchUp, "collect", make)


def told_before_it_is_on_the_disk():
    """Peers hear of a record while it is being written, and a crash may lose it."""

    def make_carry(carry_out):
        def early(self):
            for action in self._to_do:
                if isinstance(action, do.SendToPeer):
                    self._control.to_peer(action.peer, action.message)
            carry_out(self)

        return early

    return replaced(SimCoordinator, "_carry_out", make_carry)


# ---- windows, snapshots, groups


def the_dead_have_votes():
    """A state is attested by most of all members, those who have died included."""

    def make(attest):
        def patient(self, op, now_s):
            named = self._view.commits.get(op)
            members = set(named.boots) if named is not None else set()
            with replaced(GroupPeers, "alive_of", lambda real: lambda self, peers, now_s: members):
                attest(self, op, now_s)

        return patient

    return replaced(Agreement, "attest", make)


def credit_is_not_looked_at():
    def make(next_for):
        def generous(self, owner, now_s):
            if owner in self._owners:
                self._owners[owner].credit_bytes = 1 << 40
            return next_for(self, owner, now_s)

        return generous

    return replaced(Sender, "_next_for", make)


def a_window_of_records_never_opens_again():
    def make(acknowledged):
        def closed(self, index, now_s):
            under_way = self._under_way.copy(), self._under_way_bytes
            acknowledged(self, index, now_s)
            self._under_way, self._under_way_bytes = under_way

        return closed

    return replaced(PeerLine, "acknowledged", make)


@contextlib.contextmanager
def an_image_lacks_skips_and_is_compared_with_nothing() -> Iterator[None]:
    def make(image_of):
        def short(view, reader):
            whole = {number: group.skips for number, group in view.groups.items()}
            for group in view.groups.values():
                group.skips = {}
            image = image_of(view, reader)
            for number, skips in whole.items():
                view.groups[number].skips = skips
            return image

        return short

    with replaced(snapshots, "image_of", make):
        yield


def the_group_of_a_message_is_not_looked_at():
    """Count in the first group whatever peers say of a later one."""

    def make(on_group):
        def deaf(self, group, peer, message):
            first = self.groups[0]
            on_group(self, first if peer in first.group_peers.here else group, peer, message)

        return deaf

    return replaced(Rendezvous, "_on_group", make)


def ready_outlives_its_process():
    """A READY of a peer's earlier life counts for the process that came back."""

    def make(enter):
        def credulous(self, peer, line):
            old = self.here.get(peer) or self._gone.get(peer)
            enter(self, peer, line)
            if old is not None:
                self.here[peer].ready, self.here[peer].ready_s = old.ready, old.ready_s

        return credulous

    return replaced(GroupPeers, "enter", make)


def results_go_with_their_op():
    """Nobody keeps a result for those who come late."""
    return replaced(blobs.limits, "RESULT_KEEP_OPS", lambda kept: 1)


def any_state_on_disk_will_do():
    """A peer that comes back goes on from its own state, attested or not."""
    return replaced(StateFinder, "_is_own_good", lambda check: lambda self, op, root: True)


WHO_DIES = ("death", "double death", "restart", "lost frames", "one-way cut", "coordinator crash")

UNCHECKED_MUTANTS = {
    "N1": Mutant(
        "a result is committed that two hold, while three could",
        lambda: commit_with_holders(2), (("I8", ""), ("T8", "")),
    ),
    "N2": Mutant(
        "contributors weigh the same, whatever they have trained on",
        contributors_weigh_the_same, (("rule 2", ""),),
    ),
    "N3": Mutant(
        "the first report of a state is attested",
        one_report_is_attested, (("attest", ""),), any_case, (FLIP,),
    ),
    "N4": Mutant(
        "peers hear of a record before it is on the disk",
        told_before_it_is_on_the_disk, (("I1", ""), ("halt", "")), any_case,
        ("coordinator crash", "slow disk"),
    ),
    "N5": Mutant(
        "a peer keeps a state that differs",
        a_differing_state_is_kept, (("T15", "not healed"), ("L2", "")), any_case, (FLIP,),
    ),
    "N6": Mutant(
        "a state is not compared with what is attested: not in HELLO, not later, not by its peer",
        nobody_compares_states, (("T15", "contributes"),), any_case, (FLIP,),
    ),
    "N7": Mutant(
        "REWIND does not wait for who has lost its connection or is to come back",
        the_run_goes_back_at_once, (("T12", "without hearing"), ("T12", "is here")),
        any_case, ("double death", "death", "restart", "broken control", "coordinator crash"),
    ),
    "N8": Mutant(
        "REWIND goes back one op further than it must",
        the_run_goes_back_too_far, (("T12", "is here"),), any_case, ("death", "double death"),
    ),
    "N9": Mutant(
        "one peer that finds a result with nobody is enough for REWIND",
        one_word_strands_the_run, (("T12", ""),), any_case,
        ("death", "double death", "one-way cut", "restart"),
    ),
    "N10": Mutant(
        "pushed bytes are taken for those that were named",
        pushed_bytes_are_not_hashed, (("I2", ""), ("I3", "")), any_case, (FORGERY, "one-way cut"),
    ),
    "N11": Mutant(
        "nobody looks at a result before keeping it",
        results_are_not_looked_at, (("I3", ""), ("raised", "")), any_case, (FORGERY,),
    ),
    "N12": Mutant(
        "peers look at no PLAN, and the planner lets sums be inexact",
        no_plan_is_looked_at, (("rule 1", ""),),
    ),
    "N13": Mutant(
        "scales below the window are taken",
        the_windows_lower_end_is_not_looked_at, (("I5", ""), ("I3", "")), any_case, (FORGERY,),
    ),
    "N14": Mutant(
        "COMMIT does not wait for the living once three hold the result",
        commit_does_not_wait_for_the_living, (("T8", "does not wait"),),
    ),
    "N15": Mutant(
        "what came need not be what its contributor has signed",
        what_came_need_not_be_what_was_signed, (("I3", ""),), any_case, (FORGERY,),
    ),
    "N16": Mutant(
        "work that was left out three times is never dropped",
        pending_work_is_never_dropped, (("rule 9", "not dropped"),), any_case,
        (DRAG, "one-way cut"),
    ),
    "N17": Mutant("any result root will do", any_result_root_will_do, (("root", ""),)),
    "N18": Mutant(
        "error feedback that was restored is kept though a later op had it",
        what_was_restored_is_not_taken_back, (("rule 9", "restored"),), any_case,
        ("restart",),
    ),
    "N19": Mutant(
        "a frame of any plan and attempt counts for this one",
        frames_are_not_fenced, (("I3", ""), ("I2", ""), ("fault", ""), ("raised", "")),
        any_case, (LATE,),
    ),
    "N20": Mutant(
        "a coordinator whose disk is a backup asks nobody",
        a_restored_coordinator_asks_nobody, (("halt", ""), ("I1", "")), any_case,
        ("restored backup",),
    ),
    "N21": Mutant("a peer forgets SKIPs", a_skip_is_forgotten, (("rule 9", "load"), ("L2", ""))),
    "N22": Mutant(
        "error feedback outlives the state that it belongs to",
        error_feedback_outlives_its_state, (("I9", ""),), any_case, (FLIP,),
    ),
    "N23": Mutant("error feedback is sent twice", error_feedback_is_sent_twice, (("I9", ""),)),
    "N24": Mutant(
        "who takes a state over begins with momentum 0",
        momentum_is_nobodys_state, (("I2", "state root"),),
    ),
    "N25": Mutant(
        "gathered contributions weigh the same",
        gathered_contributions_weigh_the_same, (("I3", ""),), kind=GATHER,
    ),
    "N26": Mutant(
        "a state is attested by most of all members, those who have died included",
        the_dead_have_votes, (("attest", "is not attested"),), any_case,
        ("death", "double death", "one-way cut"),
    ),
    "N27": Mutant("credit is not looked at", credit_is_not_looked_at, (("T2", ""),)),
    "N28": Mutant(
        "the window of a peer's records never opens again",
        a_window_of_records_never_opens_again, (("L1", ""), ("L2", ""), ("L3", "")),
    ),
    "N29": Mutant(
        "the image of a SNAPSHOT lacks the SKIPs",
        an_image_lacks_skips_and_is_compared_with_nothing,
        (("fault", ""), ("halt", ""), ("L2", ""), ("rule 9", ""), ("raised", "")),
    ),
    "N30": Mutant(
        "what is said of a second group counts in the first",
        the_group_of_a_message_is_not_looked_at,
        (("fault", ""), ("L1", ""), ("L2", ""), ("T15", ""), ("I2", ""), ("halt", "")),
        groups=2,
    ),
    "N31": Mutant(
        "a READY counts for the process that came back without it",
        ready_outlives_its_process, (("fair", ""), ("L3", ""), ("rule 2", ""), ("L1", "")),
        any_case, ("restart",),
    ),
    "N32": Mutant(
        "nobody keeps a result for those who come late",
        results_go_with_their_op, (("T12", ""), ("L2", ""), ("I8", "")), any_case,
        ("restart", "one-way cut"),
    ),
    "N33": Mutant(
        "a peer goes on from any state that it finds on its disk",
        any_state_on_disk_will_do, (("T15", ""), ("I2", ""), ("L2", "")), any_case,
        (FLIP, "restart", "double death"),
    ),
}  # fmt: skip
