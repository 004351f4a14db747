import pytest

from swarmtrain_transport.coordinator.members.validation import genesis_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.plan_rules import values_of
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Attest, Plan
from tests.transport.hall import LAYOUT, Hall, root_of
from tests.transport.rig import A, B, C, Chain, join_body, run_body, verify

BLOCK = 4
FRAGMENTS = (8, 4, 12)


def hall_with(fragments: tuple[int, ...]) -> Hall:
    hall = Hall()
    hall.join(A, B, C)
    hall.say(A, m.Offer(root_of(0), 24, LAYOUT, fragments))
    return hall


def test_without_fragments_every_op_moves_the_padded_vector():
    genesis = genesis_of(m.Offer(root_of(0), 21, LAYOUT), BLOCK)
    assert [values_of(genesis, op, BLOCK) for op in (1, 2, 9)] == [24, 24, 24]


def test_ops_move_the_fragments_in_turn():
    genesis = genesis_of(m.Offer(root_of(0), 22, LAYOUT, FRAGMENTS), BLOCK)
    assert [values_of(genesis, op, BLOCK) for op in range(1, 8)] == [8, 4, 12, 8, 4, 12, 8]


def test_one_fragment_may_be_shorter_than_the_vector_and_every_op_moves_it():
    genesis = genesis_of(m.Offer(root_of(0), 22, LAYOUT, (8,)), BLOCK)
    assert [values_of(genesis, op, BLOCK) for op in (1, 2, 3)] == [8, 8, 8]


@pytest.mark.parametrize(
    "fragments",
    [
        (28,),
        (8, 4),  # not all of the vector
        (8, 4, 16),  # more than it
        (11, 13),  # not on whole blocks
        (24, 0),
        (28, -4),
        (4,) * 5000,
    ],
)
def test_fragments_that_are_not_the_vector_are_refused(fragments: tuple[int, ...]):
    with pytest.raises(RemoteFault) as caught:
        genesis_of(m.Offer(root_of(0), 24, LAYOUT, fragments), BLOCK)
    assert caught.value.reason == "offer"
    with pytest.raises(RemoteFault):
        hall_with(fragments)


def test_a_plan_covers_the_fragment_whose_turn_it_is():
    hall = hall_with((4, 2, 18))
    for peer in (A, B, C):
        hall.ack(peer)
    hall.ready(1, A, B, C)
    (plan,) = hall.bodies(Plan)
    assert plan.slices[-1].stop == 4
    assert hall.bodies(Attest)[0].fragments == (4, 2, 18)


def test_a_peer_refuses_a_plan_that_moves_another_part():
    chain = Chain(run_body(), join_body(A), Attest(0, root_of(0), 24, LAYOUT, (4, 20)))
    copy = LedgerCopy(verify, chain.records)
    copy.take(chain.next_record(chain.plan((A,), 4)).to_bytes())
    copy = LedgerCopy(verify, chain.records)
    with pytest.raises(RemoteFault, match="slices do not cover the vector"):
        copy.take(chain.next_record(chain.plan((A,), 24)).to_bytes())
