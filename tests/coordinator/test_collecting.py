import gc
import weakref

from swarmtrain.coordinator.collecting import ENDED_MAX, seldom_collected


class Connection:
    def __init__(self) -> None:
        self.handler = self


def test_what_was_looked_at_once_is_set_aside_until_many_connections_have_ended() -> None:
    before = gc.get_threshold()
    with seldom_collected() as ended:
        connection = Connection()
        gone = weakref.ref(connection)
        gc.collect()
        assert gc.get_freeze_count() > 0
        del connection
        for _ in range(ENDED_MAX - 1):
            ended()
        gc.collect()
        assert gone() is not None, "nobody has looked"
        ended()
        gc.collect()
        assert gone() is None and gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == before


def test_what_is_new_is_looked_at_every_time() -> None:
    with seldom_collected():
        gc.collect()
        connection = Connection()
        gone = weakref.ref(connection)
        del connection
        gc.collect()
        assert gone() is None
