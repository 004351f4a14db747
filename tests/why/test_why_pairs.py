"""A round that goes by pairs is told: who exchanged with whom, and who stepped alone and why."""

import pytest

from swarmtrain.why.story import story_of
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.ledger.transfers import outcome_of
from swarmtrain_transport.wire.records import Attest, Commit, Freeze, SignedRoot, Skip, Times
from tests.transport.coordinator.ops.pair_table import pair_plan
from tests.transport.rig import A, B, C, Chain, D, E, genesis_body, join_body, run_body

NAMES = {A: "otter", B: "lynx", C: "crane", D: "heron", E: "vole"}
TIMES = Times(0, 1, -1.0, 6.5, 10.0, 10.0)


def run_of() -> Chain:
    joins = []
    for peer, name in NAMES.items():
        body = join_body(peer)
        joins.append(type(body)(peer, body.boot, name, body.curve_key))
    return Chain(run_body(), *joins, genesis_body(24))


def committed(chain: Chain, given: tuple[bytes, ...], whole: tuple[bytes, ...], excluded) -> None:
    chain.add(pair_plan((A, B, C, D, E), op=1, previous_outcome=chain.view.first.last_outcome))
    view = chain.view.first.in_progress
    roots = {peer: SignedRoot(peer, b"s") for peer in given}
    times = {peer: TIMES for peer in excluded}
    chain.add(Freeze(1, given, excluded, times, roots))
    outcome = outcome_of(view.owners, roots, whole)
    chain.add(Commit(1, view.plan_hash, whole, outcome, b"r" * 32))


def told(chain: Chain) -> str:
    return "\n".join(story_of(chain.records, 1).lines)


def test_a_round_of_two_whole_pairs_and_an_odd_one():
    chain = run_of()
    committed(chain, (A, B, C, D), (A, B, C, D), {E: "alone"})
    chain.add(Attest(1, b"a" * 32, roots=((A, b"a" * 32), (B, b"b" * 32))))
    story = told(chain)
    for words in (
        "Each exchanges with one other: otter with lynx; crane with heron; vole had no partner.",
        "Committed: result 7272727272727272. Exchanged: otter with lynx; crane with heron.",
        "vole stepped alone: it had no partner.",
        "2 of them reported states, each its own; newcomers are sent first to that of otter, 6161",
    ):
        assert words in story
    assert "left out" not in story and "was not" not in story


def test_a_round_of_one_peer_without_a_partner():
    chain = run_of()
    last = chain.view.first.last_outcome
    chain.add(pair_plan((E,), op=1, previous_outcome=last, min_contributors=1))
    view = chain.view.first.in_progress
    chain.add(Freeze(1, (), {E: "alone"}, {E: TIMES}, {}))
    chain.add(Commit(1, view.plan_hash, (), outcome_of(view.owners, {}, ()), b"r" * 32))
    story = told(chain)
    assert "There was nobody to exchange with." in story
    assert "Committed: result 7272727272727272.\nvole stepped alone: it had no partner." in story


def test_a_pair_of_which_one_is_silent_and_one_whose_halves_do_not_cross():
    chain = run_of()
    committed(chain, (A, B, C), (A, B), {D: "lost", E: "alone"})
    story = told(chain)
    assert "heron was left out (lost): nothing was heard of it any more." in story
    assert "It had published nothing; last heard of at 6.5 s" in story and "owners" not in story
    assert (
        "crane and heron, as far as they were still there, stepped alone: heron had published "
        "nothing." in story
    )
    other = run_of()
    committed(other, (A, B, C, D), (C, D), {E: "alone"})
    assert "stepped alone: not both held in time what the other had given." in told(other)


def test_a_round_that_is_skipped():
    chain = run_of()
    chain.add(pair_plan((A, B), op=1, previous_outcome=chain.view.first.last_outcome))
    chain.add(Skip(1, "too few pairs are left"))
    assert "otter with lynx." in told(chain)
    assert "Skipped: too few pairs are left. Nobody lost anything" in told(chain)


@pytest.mark.parametrize("num_known", [1, 2])
def test_a_copy_that_begins_within_a_round_tells_of_all_of_it(num_known: int):
    chain = run_of()
    committed(chain, (A, B, C), (A, B), {D: "lost", E: "alone"})
    cut = len(chain.records) - 3 + num_known  # behind PLAN, behind FREEZE
    before = Chain()
    for record in chain.records[:cut]:
        before.view.apply(record, before.ledger.append(record))
    image = image_of(before.view, before.ledger.reader)
    whole = story_of(chain.records, 1).lines
    assert story_of(chain.records[cut:], 1, known=from_image(image)).lines == whole
    assert "Exchanged: otter with lynx." in whole[-3]
    so_far = story_of([], 1, known=from_image(image)).lines
    assert so_far == [*whole[: len(so_far) - 1], "It is still in progress."]
