"""Bad frames are counted each, and told in sentences."""

import logging

import pytest

from swarmtrain.peer.network.complaints import Complaints
from swarmtrain_transport.errors import RemoteFault


def test_a_flood_is_counted_and_not_written_down(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(lambda: 0.0)
    with caplog.at_level(logging.INFO):
        for _ in range(1000):
            complaints.count(b"p" * 32, "length", "a CREDIT of 3 bytes")
            complaints.mention(None, RemoteFault("key", "not allowed here"))
    assert [record.getMessage() for record in caplog.records] == [
        "The peer 70707070 sent what was refused: a CREDIT of 3 bytes",
        "A connection was refused: not allowed here",
    ]
    assert complaints.counts == {"length": 1000}
