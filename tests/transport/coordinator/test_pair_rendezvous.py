"""The coordinator of a run that goes by pairs: what it plans, attests, compares and shows."""

import hashlib
import itertools

import pytest

from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import CLOCKS
from swarmtrain_transport.ledger.fold import slice_root
from swarmtrain_transport.ledger.pairing import contributors_of, order_of, partner_in
from swarmtrain_transport.ledger.transfers import content_name
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Attest, Commit, Freeze, Plan, Rewind, Skip
from tests.transport.coordinator.ops.gather_table import hashes_of, published_by
from tests.transport.hall import Hall, held, opened, root_of
from tests.transport.rig import A, B, C, D, E

PEERS = (A, B, C, D)


def own(peer: PeerId, op: int) -> bytes:
    """Return a peer's state after an op."""
    return root_of(0) if op == 0 else hashlib.sha256(peer + bytes([op])).digest()


class PairHall:
    """A coordinator whose peers each have a state of their own."""

    def __init__(self, *peers: PeerId, **terms) -> None:
        self.hall = opened(*(peers or PEERS), kind="pair", min_contributors=2, **terms)

    def ready(self, op: int, *peers: PeerId) -> Plan:
        for peer in peers:
            self.hall.say(peer, m.Ready(op, 8, op - 1, own(peer, op - 1)))
        return self.hall.plan()

    def cross(self, *peers: PeerId, operation: OpDecider | None = None) -> None:
        """These publish, and hold what their partners give."""
        operation = operation or self.hall.machine.first.operation
        view = operation.view
        for peer in peers:
            self.hall.say(peer, published_by(view, peer))
        for peer in peers:
            other = partner_in(contributors_of(view.plan), peer)
            if other in peers:
                hashes, index = hashes_of(view, other), view.owners.index(other)
                name = content_name(slice_root(hashes))
                self.hall.say(peer, m.Have(view.plan_id, index, 0, name, (True,) * len(hashes)))

    def apply(self, op: int, *peers: PeerId) -> None:
        view = self.hall.machine.view
        for peer in peers:
            chain = view.first.links[op].get(peer, (b"", b""))[1]
            self.hall.say(peer, m.Applied(op, own(peer, op), chain))

    def run_op(self, op: int, *peers: PeerId) -> None:
        self.ready(op, *peers)
        self.cross(*peers)
        self.apply(op, *peers)


def test_partners_stand_as_drawn_and_an_odd_one_last():
    hall = PairHall(A, B, C)
    plan = hall.ready(1, A, B, C)
    view = hall.hall.machine.view
    assert list(contributors_of(plan)) == order_of(view.run_tag, 1, (), (A, B, C))
    assert (plan.kind, plan.exact, plan.min_contributors) == ("pair", False, 2)
    assert {(spec.start, spec.stop) for spec in plan.slices} == {(0, 48)}


def test_the_odd_one_need_not_be_in_a_pair_that_it_cannot_be_in():
    whole = opened(A, B, C, kind="pair", min_contributors=3)
    for peer in (A, B, C):
        whole.say(peer, m.Ready(1, 8, 0, root_of(0)))
    assert whole.plan().min_contributors == 2


def test_nobody_is_planned_alone():
    hall = opened(A, kind="pair", start_peers=1)
    hall.say(A, m.Ready(1, 8, 0, root_of(0)))
    assert not hall.bodies(Plan)
    assert hall.machine.status(0.0).waiting_for == "1 more peer"
    hall.join(B)
    hall.say(B, m.Applied(0, root_of(0)), m.Ready(1, 8, 0, root_of(0)))
    hall.ack(A), hall.ack(B)
    assert len(hall.plan().slices) == 2


def test_where_it_may_one_steps_alone_until_another_comes():
    hall = PairHall(A, start_peers=1, steps_alone=True)
    plan = hall.ready(1, A)
    assert (contributors_of(plan), plan.min_contributors) == ((A,), 1)
    (commit,) = hall.hall.bodies(Commit)
    assert commit.contributors == () and not hall.hall.bodies(Skip)
    assert hall.hall.bodies(Freeze)[0].excluded == {A: "alone"}
    hall.apply(1, A)
    assert hall.hall.bodies(Attest)[-1].roots == ((A, own(A, 1)),)
    hall.hall.join(B)
    hall.hall.say(B, m.Applied(1, own(A, 1)))
    hall.hall.ack(A), hall.hall.ack(B)
    for peer in (B, A):
        hall.hall.say(peer, m.Ready(2, 8, 1, own(A, 1)))
    assert set(contributors_of(hall.hall.plan())) == {A, B}


def test_expected_pairs_of_which_both_are_ready_stand():
    hall = PairHall(rounds=9, wait_ready_s=1.0)
    for op in range(1, 5):
        hall.run_op(op, *PEERS)
    plans = hall.hall.bodies(Plan)
    tag = hall.hall.machine.view.run_tag
    for before, plan in itertools.pairwise(plans):
        assert list(contributors_of(plan)) == order_of(tag, plan.op, contributors_of(before), PEERS)
    assert len({contributors_of(plan) for plan in plans}) > 1


def test_hashes_go_to_the_pair_alone():
    hall = PairHall()
    plan = hall.ready(1, *PEERS)
    first, second, *others = contributors_of(plan)
    hall.hall.say(first, published_by(hall.hall.machine.first.operation.view, first))
    told = {p for p in PEERS if any(isinstance(x, m.Hashes) for x in hall.hall.sent[p])}
    assert told == {first, second} and not told & set(others)


def test_states_differ_and_the_run_goes_on():
    hall = PairHall()
    hall.run_op(1, *PEERS)
    (_, attest) = hall.hall.bodies(Attest)
    assert attest.op == 1 and len(attest.roots) == 3, "more than half have reported"
    assert set(attest.roots) <= {(peer, own(peer, 1)) for peer in PEERS}
    assert attest.state_root in dict(attest.roots).values()
    hall.run_op(2, *PEERS)
    assert [body.contributors for body in hall.hall.bodies(Commit)] == [tuple(sorted(PEERS))] * 2
    status = hall.hall.machine.status(0.0)
    assert (status.phase, status.wanted_root, status.waiting_for) == ("training", "", "")
    assert not [event for event in status.events if event.event == "differs"]


def test_before_the_first_pair_a_false_state_is_not_planned_with():
    hall = PairHall()
    hall.hall.say(A, m.Ready(1, 8, 0, b"x" * 32))
    for peer in (B, C, D):
        hall.hall.say(peer, m.Ready(1, 8, 0, root_of(0)))
    hall.hall.tick(hall.hall.now_s + 4.0)
    for peer in PEERS:
        hall.hall.ack(peer)
    assert A not in {p for plan in hall.hall.bodies(Plan) for p in contributors_of(plan)}


def test_status_shows_chains_and_a_false_one_is_told():
    hall = PairHall()
    hall.ready(1, *PEERS)
    hall.cross(*PEERS)
    hall.apply(1, A, B, C)
    hall.hall.say(D, m.Applied(1, own(D, 1), b"x" * 32))
    status = hall.hall.machine.status(0.0)
    chains = {bytes.fromhex(one.peer): one.chain for one in status.peers}
    view = hall.hall.machine.view
    assert {peer: chains[peer] for peer in (A, B, C)} == {
        p: view.first.chains[p].hex() for p in (A, B, C)
    }
    assert chains[D] == (b"x" * 32).hex()
    told = [(event.peer, event.reason) for event in status.events if event.event == "differs"]
    assert told == [(D.hex(), "chain")]
    for wrong in (b"short", b"x" * 33):
        with pytest.raises(RemoteFault, match="hash"):
            hall.hall.say(A, m.Applied(1, own(A, 1), wrong))


def test_one_pair_that_fails_does_not_hold_up_the_others():
    hall = PairHall()
    plan = hall.ready(1, *PEERS)
    first, second, third, fourth = contributors_of(plan)
    hall.cross(first, second, third)
    hall.hall.say(fourth, m.Leave())
    (commit,) = hall.hall.bodies(Commit)
    assert set(commit.contributors) == {first, second}


def test_without_any_pair_the_op_is_skipped_and_the_next_draws_anew():
    hall = PairHall(A, B)
    hall.ready(1, A, B)
    hall.hall.say(B, m.Leave())
    assert [body.reason for body in hall.hall.bodies(Skip)] == ["too few pairs are left"]


def test_when_all_who_were_named_are_gone_the_others_states_are_named_too():
    hall = PairHall(A, B, C, E, rounds=9)
    plan = hall.ready(1, A, B, C, E)
    hall.cross(*contributors_of(plan))
    hall.apply(1, A, B, C)
    assert {peer for peer, _ in hall.hall.bodies(Attest)[-1].roots} == {A, B, C}
    hall.apply(1, E)
    assert len(hall.hall.bodies(Attest)) == 2
    for peer in (A, B, C):
        hall.hall.say(peer, m.Leave())
    named = hall.hall.bodies(Attest)[-1]
    assert len(hall.hall.bodies(Attest)) == 3 and dict(named.roots) == {E: own(E, 1)}


def test_when_all_are_stranded_the_run_goes_back_to_the_newest_state_that_somebody_has():
    hall = PairHall(A, B)
    for op in (1, 2, 3):
        hall.run_op(op, A, B)
    records = tuple(hall.hall.records)
    again = Hall(records, term=2, kind="pair", min_contributors=2, start_peers=2)
    newest = len(records) - 1
    head = again.machine.writer.ledger.head_hash
    for peer, boot, op in ((A, b"a2", 1), (B, b"b2", 2)):
        again.join(
            peer, boot=boot, head_index=newest, head_hash=head, **held(op, own(peer, op)),
        )  # fmt: skip
    again.alive(7.0, A, B)
    again.say(A, m.Stranded(2))
    assert not again.bodies(Rewind), "B might hold what A needs"
    again.say(B, m.Stranded(3))
    (rewind,) = again.bodies(Rewind)
    assert rewind.op == 2
    assert again.machine.view.first.last_op == 2


def by_clocks(**terms) -> PairHall:
    return PairHall(A, B, C, D, graph=CLOCKS, buffer=2, start_peers=4, rounds=9, **terms)


def plans(hall: PairHall) -> list[tuple[PeerId, ...]]:
    return [contributors_of(plan) for plan in hall.hall.bodies(Plan)]


def of_pair(hall: PairHall, op: int) -> None:
    """The two of this op publish, hold each other's half and go on from it."""
    machine = hall.hall.machine
    operation = next(one for one in machine.first.operations.values() if one.view.plan.op == op)
    hall.cross(*contributors_of(operation.view.plan), operation=operation)
    hall.apply(op, *contributors_of(operation.view.plan))


def test_by_clocks_as_many_pairs_begin_as_are_ready():
    hall = by_clocks()
    hall.ready(1, A, B, C, D)
    assert sorted(peer for pair in plans(hall) for peer in pair) == sorted((A, B, C, D))
    assert [plan.op for plan in hall.hall.bodies(Plan)] == [1, 2]


def test_by_clocks_nobody_waits_for_another_pair():
    hall = by_clocks()
    hall.ready(1, A, B, C, D)
    of_pair(hall, 2)
    assert [body.op for body in hall.hall.bodies(Commit)] == [2]
    second = plans(hall)[1]
    for peer in second:
        hall.hall.say(peer, m.Ready(3, 8, 2, own(peer, 2)))
    assert set(plans(hall)[2]) == set(second)  # they meet again, and op 1 is still under way
    of_pair(hall, 3)
    of_pair(hall, 1)
    assert [body.op for body in hall.hall.bodies(Commit)] == [2, 3, 1]
    assert hall.hall.machine.view.first.last_op == 3


def test_by_clocks_a_word_of_before_a_plan_counts_for_the_next_op():
    hall = by_clocks()
    hall.ready(1, A, B, C, D)
    of_pair(hall, 1), of_pair(hall, 2)
    first, second = plans(hall)[0]
    hall.hall.say(first, m.Ready(2, 8, 1, own(first, 1)))  # it has not heard of op 2 yet
    hall.hall.say(second, m.Ready(3, 8, 2, own(second, 1)))
    assert set(plans(hall)[2]) == {first, second}
    hall.hall.say(first, m.Ready(3, 8, 2, own(first, 1)))  # as after a reconnection: of op 3 itself
    assert len(plans(hall)) == 3


@pytest.mark.parametrize("op", [1, 2, 3, 7])
def test_by_clocks_nobody_talks_itself_into_a_second_op(op: int):
    hall = by_clocks()
    hall.ready(1, A, B, C, D)
    of_pair(hall, 2)
    liar, honest = plans(hall)[0][0], plans(hall)[1][0]
    hall.hall.say(liar, m.Applied(op - 1, own(liar, 1)), m.Ready(op, 8, op - 1, own(liar, 1)))
    hall.hall.say(honest, m.Ready(3, 8, 2, own(honest, 2)))
    assert len(plans(hall)) == 2  # the liar's op is under way, and one alone is no pair
