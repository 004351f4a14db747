"""The view of a run, from the machine's own status and ledger."""

import msgspec

from swarmtrain.page import metrics
from swarmtrain.page.api import OPENAPI
from swarmtrain.page.history import NORMS_MAX, ROUNDS_MAX, History
from swarmtrain.page.view import Viewed, event_rows, numbers_of, round_columns, run_view
from swarmtrain_transport.ledger.fold import LedgerView
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import BodyReader, Books, Commit, Rewind, Skip
from tests.transport.hall import Hall, opened, root_of
from tests.transport.rig import A, B, C

FACTS = Viewed(step_tokens=5, value_bytes=1.0)
TOKENS = 100


def history_of(hall: Hall) -> History:
    history = History(TOKENS, 100)
    history.read(hall.records)
    return history


def seen(hall: Hall):
    return run_view(hall.machine.status(hall.now_s), history_of(hall), FACTS, 1_800_000_000.0)


def test_an_empty_run_says_so():
    view = seen(Hall())
    assert (view.state, view.headline, view.peers) == ("empty", "Nobody is here yet", ())
    assert view.exchange is None and view.left_s is None and view.traffic.fewer is None


def test_a_run_that_lacks_peers_says_for_whom_it_waits():
    hall = Hall(start_peers=3)
    hall.join(A)
    view = seen(hall)
    assert view.state == "waiting" and "2 more peers" in view.waiting_for
    assert view.headline.startswith("Waiting, round 1 of 100, 1 peer")


def test_rounds_contributions_and_the_exchange_are_the_ledgers():
    hall = opened(A, B, C)
    for op in (1, 2):
        hall.tick(hall.now_s + 5.0)
        hall.run_op(op, A, B, C)
    for peer in (A, B, C):
        hall.ack(peer, tokens=2 * TOKENS, bytes_out=96)
    view = seen(hall)
    assert (view.round, view.committed, view.tokens) == (2, 2, 6 * TOKENS)
    assert [(one.rounds, one.tokens) for one in view.contributions] == [(2, 2 * TOKENS)] * 3
    assert view.left_s == 98 * 5.0
    assert [one.fewer for one in view.peers] == [80.0] * 3
    assert [one.parallel_up for one in view.peers] == [40 * 2 * 4 * 24] * 3
    assert view.traffic.fewer == 80.0  # 40 steps of 2 x 4 bytes of 24 values, by 96 bytes sent
    assert view.exchange is not None and view.exchange.kind == "mean"
    assert len(view.exchange.edges) == 6 and {moved for *_, moved in view.exchange.edges} == {16}
    columns = round_columns(history_of(hall), {0: 5.5, 2: 3.0})
    assert columns.round == [0, 1, 2] and columns.outcome == ["", "merged", "merged"]
    assert columns.tokens == [0, 3 * TOKENS, 6 * TOKENS] and columns.loss == [5.5, None, 3.0]
    assert columns.seconds[-1] == 10.0


def test_the_timeline_tells_who_was_ready_when_and_where_the_cut_was():
    hall = opened(A, B, C)
    hall.run_op(1, A, B, C)
    hall.alive(hall.now_s + 2.0, A, B, C)
    hall.ready(2, A)
    hall.alive(hall.now_s + 3.0, A, B, C)
    hall.ready(2, B, C)
    newest = seen(hall).timeline[-1]
    assert newest.round == 2 and newest.planned == 5.0 and newest.ended is None
    assert newest.ready == {A.hex(): 2.0, B.hex(): 5.0, C.hex(): 5.0}
    hall.alive(hall.now_s + 1.0, A, B, C)
    hall.exchange(A, B, C)
    newest = seen(hall).timeline[-1]
    assert (newest.frozen, newest.ended, newest.outcome) == (6.0, 6.0, "merged")


def test_a_skipped_round_is_a_state_and_loses_no_token():
    hall = opened(A, B, C, deadline_floor_s=10.0, deadline_cap_s=10.0)
    hall.run_op(1, A, B, C)
    hall.ready(2, A, B, C)
    hall.alive(hall.now_s + 21.0, A, B, C)
    for peer in (A, B, C):
        hall.say(peer, m.Applied(2, root_of(1)))
    view = seen(hall)
    assert view.state == "skipped" and view.tokens == 3 * TOKENS
    assert any(one.kind == "skipped" and one.round == 2 for one in view.notices)


def test_a_rewind_takes_its_rounds_back():
    hall = opened(A, B)
    hall.run_op(1, A, B)
    history = history_of(hall)
    assert [one.contributed for one in history.peers.of.values()] == [1, 1]
    history._fold(Rewind(5, "of no round"))
    history._fold(Rewind(0, "lost", group=1))
    assert history.rounds
    history._fold(Rewind(0, "lost"))
    assert not history.rounds
    assert [(one.contributed, one.streak) for one in history.peers.of.values()] == [(0, 0)] * 2


def test_what_is_kept_of_a_long_run_is_bounded_and_reaches_back_to_its_beginning():
    history = History(TOKENS, 10)
    for op in range(1, 3 * ROUNDS_MAX):
        history._fold(Skip(op, "nobody", took=1000))
    assert len(history.rounds) <= ROUNDS_MAX
    assert history.rounds[0].number == 1 and history.rounds[-1].number == 3 * ROUNDS_MAX - 1
    columns = round_columns(history, {}, points=100)
    assert len(columns.round) <= 100 and columns.round[-1] == 3 * ROUNDS_MAX - 1


def test_events_are_sentences_of_the_records_and_come_in_portions():
    hall = opened(A, B)
    hall.run_op(1, A, B)
    history = history_of(hall)
    every = event_rows(history)
    assert every[0].text.startswith("otter is in") and "round 1" in every[-1].text
    assert event_rows(history, every[-2].index) == every[-1:]
    assert event_rows(history, -1, 1) == every[-1:] and not event_rows(history, -1, 0)


def test_what_a_peer_says_of_itself_is_bounded():
    hall = Hall()
    hall.join(A, name="<script>" + "x" * 500)
    assert len(seen(hall).peers[0].name) < 100


def test_prometheus_is_told_the_same_numbers_and_no_names():
    hall = opened(A, B)
    hall.run_op(1, A, B)
    text = metrics.text_of(seen(hall)).decode()
    assert "swarmtrain_round 1.0" in text and "swarmtrain_tokens 200.0" in text
    assert "otter" not in text and A.hex()[:8] not in text


def test_the_description_names_every_path_and_its_answer():
    assert set(OPENAPI["paths"]) == {
        "/api/v1/run", "/api/v1/peers", "/api/v1/rounds", "/api/v1/rounds/{number}",
        "/api/v1/events",
    }  # fmt: skip
    assert "RunView" in OPENAPI["components"]["schemas"]
    msgspec.json.encode(OPENAPI)


def test_who_leaves_is_told_as_gone():
    hall = opened(A, B, C)
    hall.run_op(1, A, B, C)
    hall.say(C, m.Leave("bed"))
    given = {one.peer: one for one in seen(hall).contributions}
    assert not given[C.hex()[:16]].is_in and given[A.hex()[:16]].is_in


def test_where_the_model_is_in_stages_tokens_are_those_of_the_books():
    history = History(TOKENS, 10, micro_tokens=7)
    for op in (1, 2):
        history._fold(Books(op, 12, 10, (12, 10), (), 0, b""))
        history._fold(Commit(op, b"", (A,), (), b"", group=1))
        history._fold(Commit(op, b"", (A, B), (), b""))
    assert [one.tokens for one in history.rounds] == [70, 140]


def test_all_experts_tokens_are_the_runs():
    history = History(TOKENS, 10)
    history._fold(Commit(1, b"", (A, B), (), b"", group=1))
    history._fold(Commit(1, b"", (C,), (), b""))
    assert history.rounds[-1].tokens == 3 * TOKENS


def test_a_ledger_whose_beginning_is_not_there_is_read_from_the_fold_of_it():
    hall = opened(A, B)
    hall.run_op(1, A, B)
    index = len(hall.records)
    view, reader = LedgerView(), BodyReader()
    for record in hall.records:
        view.apply(record, reader.read(record))
    hall.run_op(2, A, B)
    history = History(TOKENS, 100)
    history.begins(view, reader, index)
    history.read(hall.records[index:])
    assert [one.number for one in history.rounds] == [2]
    assert {one.name for one in history.peers.of.values()} == {"otter"}
    assert "round 2" in event_rows(history)[-1].text


def test_bytes_of_who_has_left_stay_counted():
    history = History(TOKENS, 100)
    history.saw({"a": (100, 10), "b": (50, 5)}, ())
    history.saw({"a": (150, 15)}, ())
    history.saw({"a": (20, 2), "b": (60, 6)}, ())  # another process of a, and b is back
    assert (history.up, history.down) == (100 + 50 + 50 + 20 + 10, 10 + 5 + 5 + 2 + 1)


def test_norms_are_kept_for_some_rounds_of_those_who_are_in():
    history = History(TOKENS, 100)
    for op in range(1, 2 * NORMS_MAX):
        history._fold(Commit(op, b"", (A, B), (), b""))
        history.saw({"a": (1, 1), "b": (1, 1)}, (), {"a": op / 3})
        history.saw({"a": (1, 1), "b": (1, 1)}, (), {"a": 9.0})  # the same round
    assert len(history.norms["a"]) == NORMS_MAX and history.norms["a"][-1] == 13.0
    history._fold(Commit(99, b"", (B,), (), b""))
    history.saw({"b": (1, 1)}, (), {})
    assert not history.norms


def test_status_is_told_the_views_numbers():
    hall = opened(A, B)
    hall.run_op(1, A, B)
    view = seen(hall)
    numbers = numbers_of(view)
    assert (numbers.tokens, numbers.loss_round) == (2 * TOKENS, None)
    assert numbers.traffic == view.traffic


def test_a_model_in_stages_is_drawn_as_seats_and_routes():
    from tests.browser.scenes import staged

    scene = staged()
    history = History(TOKENS, 100, micro_tokens=7)
    history.read(scene.hall.records)
    view = run_view(scene.status(), history, Viewed(5, 1.0, hop_bytes=1000), 0.0)
    assert view.exchange is not None and not view.exchange.corners
    assert [(one.stage, one.counted) for one in view.exchange.seats] == [
        (0, 3), (0, 1), (1, 3), (1, 1), (2, 1), (2, 3)
    ]  # fmt: skip
    edges = {(a, b): moved for a, b, moved in view.exchange.edges}
    assert edges[0, 2] == 3 * 3 * 1000 // 4 and edges[2, 5] == 3 * 3 * 1000 // 4
    assert (3, 4) not in edges, "a peer of two stages sends itself nothing"
    assert sum(moved for (a, b), moved in edges.items() if b in (2, 3)) == 4000
    assert all(one.parallel_up is None for one in view.peers) and view.traffic.fewer is None


def test_peers_of_other_experts_are_told_apart():
    hall = Hall(experts=3, start_peers=1)
    hall.join(A, B)
    hall.take(hall.machine.place(B, (2,), hall.now_s))
    view = seen(hall)
    assert view.experts == 3
    assert {one.peer: one.expert for one in view.peers} == {A.hex()[:16]: 0, B.hex()[:16]: 2}
    assert seen(opened(A)).experts == 0
