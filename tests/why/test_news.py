"""A run as it goes by, in sentences, from the ledger's newest records."""

import pytest

from swarmtrain.why.news import News
from swarmtrain_transport.wire.records import (
    Attest,
    Books,
    Conviction,
    Freeze,
    Gone,
    Rewind,
    Skip,
    Unban,
)
from tests.transport.rig import LAYOUT, A, B, C, Chain, commit_of, plan_body, run_body
from tests.why.test_why import named, run_of


def heard(chain: Chain, news: News) -> list[str]:
    return news.of_records(chain.records[news.next_record :])


def test_joins_rounds_and_farewells_are_told_once_and_in_order() -> None:
    chain = run_of("otter", "lynx", "crane")
    news = News(100, term=1)
    assert heard(chain, news) == [
        "otter is in, 1 peer now", "lynx is in, 2 peers now", "crane is in, 3 peers now",
    ]  # fmt: skip
    chain.add(chain.plan())
    chain.add(Freeze(1, (A, B), {C: "late"}))
    assert heard(chain, news) == []
    chain.commit()
    chain.add(Gone(C, evicted=False, reason="asked to stop"))
    chain.add(Gone(B, evicted=True, reason="silent"))
    assert heard(chain, news) == [
        "round 1 of 100: averaged over 2 peers",
        "round 1 of 100: without crane, its contribution came too late",
        "crane has left (asked to stop), 2 peers now",
        "lynx is gone (nothing was heard of it any more), 1 peer now",
    ]
    chain.add(named(C, "crane"))
    chain.add(Gone(A, True, "wrong sum", Conviction(1, 0, 0, b"p" * 32)))
    assert heard(chain, news) == [
        "crane is back, 2 peers now",
        "otter is out for good (an audit found that it had summed wrongly), 1 peer now",
    ]
    assert heard(chain, news) == []


@pytest.mark.parametrize("frozen_first", [1, 2])
def test_who_was_left_out_is_told_with_its_round_though_two_are_under_way(frozen_first) -> None:
    joins = [named(peer, name) for peer, name in ((A, "otter"), (B, "lynx"), (C, "crane"))]
    chain = Chain(run_body(), *joins, Attest(0, b"R" * 32, 24, LAYOUT, fragments=(8, 16)))
    begun = chain.view.first.last_outcome
    for op in (1, 2):
        chain.add(plan_body(op=op, previous_outcome=begun))
    freezes = {1: Freeze(1, (A, B, C), {}), 2: Freeze(2, (A, B), {C: "late"})}
    chain.add(freezes.pop(frozen_first))
    chain.add(*freezes.values())
    ops = list(chain.view.first.ops.values())
    chain.add(commit_of(ops[0]))
    chain.add(plan_body(op=3, previous_outcome=chain.view.first.last_outcome))
    chain.add(commit_of(ops[1]))
    told = [text for text in News(100, term=1).of_records(chain.records) if "without" in text]
    assert told == ["round 2 of 100: without crane, its contribution came too late"]


def test_a_ban_and_its_end_are_told() -> None:
    chain = run_of("otter", "lynx", "crane")
    news = News(100, term=1)
    heard(chain, news)
    chain.add(Gone(B, evicted=True, reason="banned"))
    chain.add(Unban(B))
    assert heard(chain, news) == [
        "lynx is gone (the organiser has banned it), 2 peers now",
        "lynx may come again: the organiser has lifted its ban",
    ]


def test_a_round_of_one_peer_a_skip_and_a_way_back_say_so() -> None:
    chain = run_of("otter", "lynx", "crane")
    news = News(100, term=1)
    heard(chain, news)
    chain.add(chain.plan())
    chain.add(Freeze(1, (A,), {B: "late", C: "late"}))
    chain.commit()
    assert heard(chain, news)[0] == "round 1 of 100: the work of one peer alone"
    chain.add(Rewind(0, "nobody who is here holds op 1"))
    chain.add(chain.plan())
    chain.add(Skip(1, "deadline"))
    assert heard(chain, news) == [
        "the run goes back to the state after round 0: nobody who is here holds op 1",
        "round 1 of 100 was skipped: deadline; all train on from where they are",
    ]


def test_what_an_earlier_life_has_decided_is_not_told_again_but_names_are_known() -> None:
    chain = run_of("otter", "lynx", "crane")
    news = News(100, term=2)
    assert heard(chain, news) == []
    chain.add(Gone(B, evicted=False, reason=""), term=2)
    assert heard(chain, news) == ["lynx has left, 2 peers now"]


def test_losses_are_told_as_they_come() -> None:
    news = News(100, term=1)
    assert news.of_losses({"0": 5.53}) == ["before training: validation loss 5.530"]
    assert news.of_losses({"0": 5.53, "1": 3.0, "2": 2.5}) == [
        "round 1: validation loss 3.000", "round 2: validation loss 2.500",
    ]  # fmt: skip
    assert news.of_losses({"1": 3.0, "2": 2.5}) == []
    later = News(100, term=2, losses=("1", "2"))
    assert later.of_losses({"1": 3.0, "2": 2.5, "3": 2.25}) == ["round 3: validation loss 2.250"]


def test_a_round_of_a_model_in_stages_is_told_once_with_its_micro_batches() -> None:
    chain = run_of("otter", "lynx", "crane")
    news = News(6, term=1)
    heard(chain, news)
    chain.add(Books(0, 480, 470, (470, 474, 480), (), 3, bytes(32), lost={"late": 10}))
    assert heard(chain, news) == []
    chain.add(chain.plan())
    chain.add(Freeze(1, (A, B, C), {}))
    chain.commit()
    assert heard(chain, news) == [
        "round 1 of 6: 3 stages have learnt from 470 of 480 micro-batches, 10 lost"
    ]
