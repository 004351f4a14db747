"""Bad frames are counted each, and logged as far as nobody's disk fills with them."""

import logging

from swarmtrain.peer.complaints import LOGGED_PER_S, Complaints
from swarmtrain_transport.errors import RemoteFault


def test_a_flood_is_counted_and_not_written_down(caplog):
    now_s = [0.0]
    complaints = Complaints(lambda: now_s[0])
    with caplog.at_level(logging.INFO):
        for _ in range(1000):
            complaints.count(b"p" * 32, "length", "a CREDIT of 3 bytes")
            complaints.mention(None, RemoteFault("key", "not allowed here"))
        assert len(caplog.records) == LOGGED_PER_S + 1
        assert "More is refused" in caplog.records[-1].getMessage()
        now_s[0] = 1.5
        complaints.mention(b"p" * 32, RemoteFault("frame", "not a frame"))
    assert caplog.records[0].getMessage().startswith("The peer 70707070 sent what was refused: ")
    assert caplog.records[1].getMessage() == "Somebody unknown was refused: not allowed here"
    assert caplog.records[-1].getMessage() == "The peer 70707070 was refused: not a frame"
    assert complaints.counts == {"length": 1000}
