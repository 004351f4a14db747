"""Centre that a rule begins from: which result that is, and when PLAN may name it."""

import math

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.blocks.blobs import Blobs
from swarmtrain_transport.collective.rule_inputs import has_centre
from swarmtrain_transport.coordinator.members.failure_detector import LifeLine
from swarmtrain_transport.coordinator.members.group_peers import GroupPeer
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.coordinator.ops.planning import next_plan
from swarmtrain_transport.coordinator.ops.slicing import Slicing
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger import inner_products
from swarmtrain_transport.ledger.fold import GroupView
from swarmtrain_transport.ledger.inner_products import CENTRE, CENTRED, PRODUCTS, Table
from swarmtrain_transport.ledger.plan_rules import centre_of, check_plan
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.ledger_copy import LedgerCopy
from swarmtrain_transport.wire.messages import Hello, Ready
from swarmtrain_transport.wire.records import Attest
from tests.transport.rig import (
    BOOT,
    LAYOUT,
    A,
    B,
    C,
    Chain,
    begun_chain,
    join_body,
    plan_body,
    run_body,
    terms_of,
    verify,
    view_of,
)

PEERS = (A, B, C)
ROOT = b"R" * 32


def test_a_centre_is_an_earlier_op_of_a_rule_that_has_one():
    fitting = {"rule": "centered-clip", "exact": False, "op": 3}
    check_plan(plan_body(PEERS, **fitting, scalars=CENTRED, centre=2), 24)
    check_plan(plan_body(PEERS, **fitting, scalars=CENTRED), 24)
    for scalars_of, centre in ((CENTRED, 3), (CENTRED, -1), (PRODUCTS, 2)):
        with pytest.raises(RemoteFault, match="centre"):
            check_plan(plan_body(PEERS, **fitting, scalars=scalars_of, centre=centre), 24)


def viewed(*commits: int, fragments: tuple[int, ...] = ()) -> GroupView:
    view = GroupView(genesis=Attest(0, bytes(32), 24, bytes(32), fragments))
    for op in commits:
        view.commits[op] = view_of(plan_body(PEERS, op=op))
    return view


def test_the_centre_is_the_newest_result_of_the_same_values():
    assert centre_of(viewed(), 1) == 0
    assert centre_of(viewed(1, 2), 3) == 2
    assert centre_of(viewed(1, 2), 5) == 2  # 3 and 4 were skipped
    assert centre_of(viewed(1, 2, 3, 4, fragments=(8, 8, 8)), 5) == 2
    assert centre_of(viewed(1, 2, 3, 4, fragments=(8, 8, 8)), 7) == 4
    assert centre_of(viewed(1, 3, 4, fragments=(8, 8, 8)), 5) == 0


def test_a_peer_refuses_a_plan_whose_rule_would_begin_from_other_values():
    chain = Chain(run_body(), join_body(A), Attest(0, ROOT, 24, LAYOUT, (4, 20)))
    for num_values in (4, 20):
        chain.add(chain.plan((A,), num_values))
        chain.commit(A)
    for centre, is_refused in ((0, False), (1, False), (2, True)):
        copy = LedgerCopy(verify, chain.records)
        plan = chain.plan(
            (A,), 4, rule="centered-clip", exact=False, scalars=CENTRED, centre=centre
        )
        raw = chain.next_record(plan).to_bytes()
        if is_refused:
            with pytest.raises(RemoteFault, match="no rule begins from"):
                copy.take(raw)
        else:
            assert copy.take(raw) is not None


def test_a_result_that_peers_may_forget_amid_the_op_is_no_centre():
    kept = limits.RESULT_KEEP_OPS
    assert centre_of(viewed(1), kept) == 1
    assert centre_of(viewed(1), kept + 1) == 0


def test_nobody_says_that_it_has_a_centre_where_no_rule_has_one():
    view = viewed(1)
    view.op = view_of(plan_body(PEERS, rule="flag", scalars=PRODUCTS, exact=False))
    assert not has_centre(view, Blobs(), 2)
    view.op = None
    assert not has_centre(view, Blobs(), 2)


@pytest.mark.parametrize("square", [-1.0, 1e101, math.nan])
def test_an_owner_whose_centre_has_no_possible_length_has_nobody_complete(square: float):
    named = inner_products.vectors(PEERS, centre=1)
    assert named == (*PEERS, CENTRE)
    table = Table(CENTRED, named)
    rows = {CENTRE: {CENTRE: square}, A: {A: 4.0, CENTRE: 1.0}}
    table.report({peer: inner_products.pack_row(row, named) for peer, row in rows.items()})
    assert table.fits(A, 4.0, ()) and not table.fits(A, 4.0, (CENTRE,))


def ready_line(peer: PeerId, has_centre: bool) -> GroupPeer:
    """Connected, alive and ready for op 2."""
    hello = Hello(BOOT, "name", peer, "127.0.0.1", 1, -1, b"", 1 << 30)
    line = PeerLine(hello, LifeLine(0.0), acked_index=1 << 20)
    ready = Ready(2, 8, 1, ROOT, None, has_centre)
    return GroupPeer(line, applied_op=1, state_root=ROOT, ready=ready, active=True)


@pytest.mark.parametrize("told", [(True,) * 3, (True, False, True), (False,) * 3])
def test_a_plan_names_the_centre_once_all_contributors_have_said_that_they_have_it(
    told: tuple[bool, ...],
):
    view = begun_chain(PEERS).view
    view.first.commits[1], view.first.last_op = view_of(plan_body(PEERS)), 1
    view.first.attests[1] = ROOT
    lines = {peer: ready_line(peer, has) for peer, has in zip(PEERS, told, strict=True)}
    for asked, wanted in ((CENTRED, int(all(told))), (PRODUCTS, 0)):
        terms = terms_of(rule="centered-clip", scalars=asked, exact=False)
        plan = next_plan(
            terms, view.first, lines, set(lines), 100.0, 0.0, Slicing(), view.join_index
        )
        assert plan is not None and plan.centre == wanted
        check_plan(plan, 24)
