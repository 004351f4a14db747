"""Memory and disk that a peer's owner gives are told at the door."""

from swarmtrain.config.owner_limits import NO_LIMITS, Limits
from swarmtrain.peer.membership import _as_limited
from swarmtrain_transport.wire.messages import Brings


def test_memory_and_disk_of_the_limits_go_before_what_was_found_here():
    brings = Brings(run="tests", disk_bytes=7)
    assert _as_limited(brings, NO_LIMITS) == brings
    told = _as_limited(brings, Limits(memory=2_000, disk=0))
    assert (told.memory_bytes, told.disk_bytes, told.run) == (2_000, 0, "tests")
