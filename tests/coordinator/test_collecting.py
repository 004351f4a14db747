import gc
import weakref

from swarmtrain.coordinator.collecting import ALL_S, ENDED_MAX, seldom_collected


class Connection:
    def __init__(self) -> None:
        self.handler = self


def set_aside() -> "weakref.ref[Connection]":
    """A connection that has ended after a search found it alive."""
    connection = Connection()
    gc.collect()
    assert gc.get_freeze_count() > 0
    return weakref.ref(connection)


def test_what_was_looked_at_once_is_set_aside_until_many_connections_have_ended() -> None:
    before = gc.get_threshold()
    with seldom_collected() as ended:
        gone = set_aside()
        for _ in range(ENDED_MAX - 1):
            ended()
        gc.collect()
        assert gone() is not None, "nobody has looked"
        ended()
        gc.collect()
        assert gone() is None and gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == before


def test_all_is_looked_at_after_a_while_though_nobody_has_gone() -> None:
    now = [0.0]
    with seldom_collected(lambda: now[0]):
        gone = set_aside()
        now[0] = ALL_S - 1.0
        gc.collect()
        assert gone() is not None
        now[0] = ALL_S
        gc.collect()
        assert gone() is None


def test_what_is_new_is_looked_at_every_time() -> None:
    with seldom_collected():
        gc.collect()
        gone = weakref.ref(Connection())
        gc.collect()
        assert gone() is None
