"""Budget of a member's requests: enough for whoever keeps to the protocol, and no more."""

import pytest

from swarmtrain.coordinator.door.budget import (
    BLOCKED_FIRST_S,
    BLOCKED_MAX_S,
    BYTES_IN,
    BYTES_OUT,
    FEW,
    HELLO_WAIT_MAX_S,
    HELLOS,
    KEYS_MAX,
    PATIENCE_S,
    PLENTY,
    Budget,
    Budgets,
)

OP_OF_64 = {"got": 65, "have": 64, "progress": 8, "ready": 1, "roots": 1, "slice_done": 1,
            "applied": 2}  # fmt: skip


class Sender:
    """Says something as fast as it is heard."""

    def __init__(self) -> None:
        self.budget = Budget(0.0)
        self.now_s = 0.0
        self.heard = 0

    def flood(self, kind: str, until_s: float, size: int = 10, pause_s: float = 1e-4) -> None:
        """Until then, or until it is cut."""
        while self.now_s < until_s and not self.budget.is_spent(self.now_s):
            self.now_s += pause_s + self.budget.hear(kind, size, self.now_s)
            self.heard += 1


def test_an_honest_member_of_64_never_waits() -> None:
    budget = Budget(0.0)
    for op in range(200):  # five ops a second, all messages of one in the same instant
        for kind, count in OP_OF_64.items():
            assert not any(budget.hear(kind, 2000, op / 5) for _ in range(count))
        assert not budget.hear("lease_request", 20, op / 5)


def test_two_peers_on_one_machine_may_go_at_fifty_ops_a_second() -> None:
    budget = Budget(0.0)
    for op in range(5000):
        for kind in ("got", "have", "ready", "roots", "slice_done", "applied", "progress"):
            assert not budget.hear(kind, 200, op / 50)


@pytest.mark.parametrize(
    ("kind", "rate"), [("lease_request", FEW), ("got", PLENTY), ("websocket ping", FEW)]
)
def test_who_floods_is_held_to_the_rate_and_then_cut(kind: str, rate: object) -> None:
    assert isinstance(rate, type(FEW))
    sender = Sender()
    sender.flood(kind, 3600.0)
    assert PATIENCE_S < sender.now_s < 3 * PATIENCE_S + rate.at_once / rate.per_s
    assert sender.heard <= rate.at_once + rate.per_s * sender.now_s + 1
    assert sender.budget.is_spent(sender.now_s)


def test_who_stays_just_above_is_only_slowed() -> None:
    sender = Sender()
    sender.flood("lease_request", 600.0, pause_s=1.03 / FEW.per_s)
    assert not sender.budget.is_spent(600.0)


def test_bytes_count_as_messages_do() -> None:
    sender = Sender()
    sender.flood("have", 3600.0, size=4 << 20)
    assert sender.budget.is_spent(sender.now_s)
    assert sender.heard * (4 << 20) <= BYTES_IN.at_once + BYTES_IN.per_s * sender.now_s + (8 << 20)


def test_who_was_cut_waits_longer_each_time_and_is_forgiven_in_the_end() -> None:
    budget, waits = Budget(0.0), []
    now_s = 0.0
    for _ in range(12):
        budget.cut(now_s)
        assert not budget.is_spent(now_s)
        waits.append(budget.knock(now_s))
        now_s += waits[-1]
        assert budget.knock(now_s) == 0.0
    assert waits[:3] == [BLOCKED_FIRST_S, 2 * BLOCKED_FIRST_S, 4 * BLOCKED_FIRST_S]
    assert max(waits) == BLOCKED_MAX_S
    budget.cut(now_s + 100 * BLOCKED_MAX_S)
    assert budget.knock(now_s + 100 * BLOCKED_MAX_S) == BLOCKED_FIRST_S


def test_a_line_that_keeps_breaking_is_let_in_more_slowly_and_never_sent_away() -> None:
    budget, now_s, waits = Budget(0.0), 0.0, []
    for _ in range(200):
        waits.append(budget.knock(now_s))
        now_s += waits[-1] + 0.3
    assert not any(waits[: int(HELLOS.at_once)])
    assert 1.0 < waits[-1] < HELLO_WAIT_MAX_S


def test_many_connections_at_once_are_sent_away_and_cost_the_key_no_more() -> None:
    budget = Budget(0.0)
    waits = [budget.knock(0.0) for _ in range(1000)]
    assert sum(wait <= HELLO_WAIT_MAX_S for wait in waits) <= HELLOS.at_once + 3
    assert budget.knock(HELLO_WAIT_MAX_S + 5.0) <= HELLO_WAIT_MAX_S


def test_who_reads_without_end_is_slowed_and_not_cut() -> None:
    budget, now_s, sent = Budget(0.0), 0.0, 0
    while now_s < 600.0:
        now_s += 1e-3 + budget.answer(1 << 20, now_s)
        sent += 1 << 20
    assert sent <= BYTES_OUT.at_once + BYTES_OUT.per_s * now_s + (2 << 20)
    assert not budget.is_spent(now_s)
    assert budget.knock(now_s) <= HELLO_WAIT_MAX_S


def test_members_are_remembered_and_their_number_is_bounded() -> None:
    budgets = Budgets()
    first = budgets.of(b"a", 0.0)
    for number in range(KEYS_MAX - 1):
        budgets.of(number.to_bytes(4, "big"), 0.0)
    assert budgets.of(b"a", 0.0) is first
    budgets.of(b"b", 0.0)
    assert len(budgets) == KEYS_MAX and budgets.of(b"a", 0.0) is first
