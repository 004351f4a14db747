"""Records go to a peer at the pace at which it takes them, however long the ledger is."""

import pytest

from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.records import Gone, Record
from tests.transport.hall import Hall, hello_of, opened
from tests.transport.rig import STRANGER, A, B, C, Chain, run_body
from tests.transport.swarm import Member

RECORD_BYTES = 100_000


@pytest.fixture(autouse=True)
def no_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have newcomers read records alone, as those do who come back after long."""
    monkeypatch.setattr(limits, "SNAPSHOT_EVERY_BYTES", 1 << 40)


def long_ledger(num_bytes: int) -> tuple[Record, ...]:
    """A run that lasts: comings and goings stand for its ops."""
    chain = Chain(run_body())
    for _ in range(-(-num_bytes // RECORD_BYTES)):
        chain.add(Gone(STRANGER, False, "x" * RECORD_BYTES))
    return tuple(chain.records)


class Joiner:
    """One who comes into such a run, and reads what it is sent as the test has it read."""

    def __init__(self, hall: Rendezvous, peer: PeerId) -> None:
        self.hall, self.now_s = hall, 100.0
        self.machine = Member(peer, b"boot", self.now_s).machine
        self.sent: list[m.CoordinatorMessage] = []
        self._hear(hall.connected(peer, hello_of(peer), self.now_s))

    def _hear(self, actions: tuple[do.CoordinatorAction, ...]) -> None:
        self.sent += [action.message for action in actions if isinstance(action, do.SendToPeer)]

    def read(self, count: int) -> None:
        """Take so many messages in, and say what follows; no time passes."""
        told, self.sent = self.sent[:count], self.sent[count:]
        for message in told:
            for action in self.machine.control(message, self.now_s):
                if isinstance(action, do.SendControl):
                    self._hear(self.hall.received(self.machine.card.peer_id, action.message, 100.0))

    @property
    def unread_bytes(self) -> int:
        lists = [message.records for message in self.sent if isinstance(message, m.Records)]
        return sum(len(raw) for records in lists for raw in records)


def machine_of(records: tuple[Record, ...]) -> Rendezvous:
    hall = Hall(records, term=2)
    hall.tick(100.0)  # nobody has brought a longer ledger
    return hall.machine


def test_a_long_run_lets_a_newcomer_in_and_queues_no_more_than_a_window_for_it() -> None:
    """Else its connection would be cut for what it could not read yet: the door would be shut. And
    it need not wait for its next PROGRESS to be sent more."""
    hall = machine_of(long_ledger(70 << 20))
    joiner = Joiner(hall, B)
    most = 0
    while joiner.sent:
        most = max(most, joiner.unread_bytes)
        joiner.read(1)
    assert joiner.machine.view == hall.view
    assert most >= limits.RECORDS_WINDOW_BYTES
    assert most <= limits.RECORDS_WINDOW_BYTES + limits.RECORDS_BATCH_BYTES


def test_a_record_larger_than_the_window_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORDS_WINDOW_BYTES", RECORD_BYTES // 2)
    monkeypatch.setattr(limits, "RECORDS_BATCH_BYTES", RECORD_BYTES // 4)
    hall = machine_of(long_ledger(5 * RECORD_BYTES))
    joiner = Joiner(hall, B)
    while joiner.sent:
        assert joiner.unread_bytes < 1.1 * RECORD_BYTES
        joiner.read(1)
    assert joiner.machine.view == hall.view


def test_who_is_up_to_date_hears_a_decision_at_once_though_another_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RECORDS_WINDOW_BYTES", 20_000)
    hall = opened(A, B, C)
    deaf_from = len(hall.heard(C))
    for op in range(1, 40):
        hall.run_op(op, A, B, C)
        hall.ack(A)
        hall.ack(B)
        assert hall.heard(A) == hall.heard(B) == hall.records
    unread = hall.heard(C)[deaf_from:]
    assert 20_000 <= sum(len(record.to_bytes()) for record in unread) < 25_000
    hall.ack(C, index=unread[-1].index)
    assert len(hall.heard(C)) > deaf_from + len(unread)
