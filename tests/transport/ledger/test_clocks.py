"""Pairs that meet by clocks of their own: many ops under way at once, in the fold."""

import msgspec
import pytest

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.kinds import CLOCKS, PAIRS_AT_ONCE
from swarmtrain_transport.ledger.plan_rules import check_plan
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Attest, Rewind, Skip, SliceSpec
from tests.transport.rig import A, B, C, Chain, begun_chain

PAIR = {"kind": "pair", "exact": False, "min_contributors": 2, "graph": CLOCKS, "vectors": 1}


def met(chain: Chain, *peers: PeerId, op: int) -> None:
    """PLAN of an op of these."""
    slices = tuple(SliceSpec(0, 24, peer) for peer in peers)
    chain.add(chain.plan(peers, op=op, slices=slices, **PAIR))


def two_pairs() -> Chain:
    """Op 1 is of A and B, and op 2, beside it, of C and a newcomer."""
    chain = begun_chain()
    met(chain, A, B, op=1)
    met(chain, C, b"d" * 32, op=2)
    return chain


def test_a_younger_op_may_end_first_and_both_count():
    chain = two_pairs()
    view = chain.view.first
    assert (view.next_op, view.last_op, len(view.ops)) == (3, 0, 2)
    chain.add(Skip(2, "deadline"))
    assert (view.next_op, view.last_op, view.early) == (3, 0, {2})
    met(chain, C, b"e" * 32, op=3)  # C need not wait for A and B
    chain.add(Skip(1, "deadline"))
    assert (view.next_op, view.last_op, view.early) == (4, 2, set())


def test_no_two_ops_under_way_have_a_peer_in_common():
    chain = two_pairs()
    with pytest.raises(RemoteFault, match="under way") as caught:
        met(chain, B, b"e" * 32, op=3)
    assert caught.value.reason == "order"


def test_no_more_ops_are_under_way_than_the_rules_say():
    chain = begun_chain()
    for op in range(1, PAIRS_AT_ONCE + 1):
        met(chain, bytes([2 * op]) * 32, bytes([2 * op + 1]) * 32, op=op)
    with pytest.raises(RemoteFault) as caught:
        met(chain, b"y" * 32, b"z" * 32, op=PAIRS_AT_ONCE + 1)
    assert caught.value.reason == "order"


def test_an_op_is_nothing_to_whom_it_does_not_name():
    view = two_pairs().view.first
    assert [view.passed(peer, 0) for peer in (A, C)] == [0, 0]  # both have a part to come
    assert view.passed(b"e" * 32, 0) == 2
    assert view.passed(A, 1) == 2  # its own op is over for it, the other is none of its
    assert view.passed(A, -1) == -1  # who has no state is nowhere
    assert view.gives_to(A, 1) and not view.gives_to(A, 2)


def test_elsewhere_nobody_passes_anything():
    chain = begun_chain()
    chain.add(chain.plan())
    assert chain.view.first.passed(b"e" * 32, 0) == 0


def test_an_image_holds_what_has_ended_early():
    chain = two_pairs()
    chain.add(Skip(2, "deadline"))
    image = image_of(chain.view, chain.ledger.reader)
    again, reader = from_image(image)
    assert again.first.early == {2} and again.first.named == chain.view.first.named
    assert image_of(again, reader) == image


def test_a_rewind_waits_for_all_and_takes_back_who_was_named():
    chain = two_pairs()
    chain.add(Skip(2, "deadline"))
    with pytest.raises(RemoteFault):
        chain.add(Rewind(0, "nobody holds it"))
    chain.add(Skip(1, "deadline"))
    chain.add(Rewind(0, "nobody holds it"))
    view = chain.view.first
    assert (view.next_op, view.early, set(view.named.values())) == (1, set(), {0})


def test_nobody_attests_what_has_no_result():
    with pytest.raises(RemoteFault, match="before its COMMIT"):
        two_pairs().add(Attest(2, b"r" * 32, roots=((C, b"r" * 32),)))


def test_two_meet_and_nobody_looks_on():
    plan = two_pairs().view.first.op.plan
    check_plan(plan, 24)
    looked_at = msgspec.structs.replace(
        plan, members=(*plan.members, msgspec.structs.replace(plan.members[0], peer=A, weight=0))
    )
    with pytest.raises(RemoteFault, match="two meet by clocks"):
        check_plan(looked_at, 24)
