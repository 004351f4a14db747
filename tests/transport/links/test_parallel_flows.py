"""More flows only where one is the limit, and only as long as more are of use."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.links.parallel_flows import ParallelFlows, Path
from tests.transport.rig import A, B

LONG_S = 0.2
STEP_S = 0.1


def path(
    acked: int,
    *,
    rtt_s: float = LONG_S,
    least_s: float = LONG_S,
    unsent: int = 1,
    by_loss: bool = True,
) -> Path:
    return Path(acked, rtt_s, least_s, unsent, yields_to_loss=by_loss)


class Way:
    """An exchange after the other with peer A, at a rate per flow."""

    def __init__(self) -> None:
        self.widths = ParallelFlows()
        self.width = 1
        self.acked = 0
        self.now_s = 0.0

    def exchange(self, bytes_per_look: int, looks: int = 20, **facts: float) -> int:
        """Exchange, and return how many flows there are after it."""
        for _ in range(looks):
            self.now_s += STEP_S
            self.acked += bytes_per_look
            share = self.acked // self.width
            self.widths.looked({A: [path(share, **facts)] * self.width}, self.now_s)
        self.width = self.widths.ended().get(A, self.width)
        return self.width


def test_a_flow_that_is_the_limit_gets_company_as_long_as_that_helps():
    way = Way()
    assert [way.exchange(1000 * 2**n) for n in range(6)] == [2, 4, 8, 16, 16, 16]
    assert way.width == limits.FLOWS_MAX


def test_flows_that_made_nothing_faster_are_the_last():
    way = Way()
    widths = [way.exchange(1000) for _ in range(12)]
    assert widths == [2, 2, 2] + [4] * 9, "one exchange of a single flow says little, three say it"


def test_one_exchange_that_went_well_does_not_keep_flows_few():
    way = Way()
    assert [way.exchange(rate) for rate in (2500, 2000, 2100, 2000, 4000)] == [2, 2, 2, 4, 8]


def test_exchanges_in_which_flows_were_not_the_limit_say_nothing_of_their_rate():
    way = Way()
    assert way.exchange(1000) == 2
    assert way.exchange(10, looks=200, rtt_s=0.4) == 2  # others of the same uplink made a queue
    assert way.exchange(10, looks=limits.FLOW_LOOKS_MIN) == 2  # too short to tell
    assert way.exchange(2000) == 4


def test_flows_that_were_not_made_are_not_multiplied():
    """A way that two have met by, a relay for instance, stays one connection."""
    way, widths = Way(), []
    for _ in range(8):
        for _ in range(20):
            way.now_s += STEP_S
            way.acked += 1000
            way.widths.looked({A: [path(way.acked)]}, way.now_s)
        widths.append(way.widths.ended())
    assert widths == [{A: 2}] + [{}] * 7


def test_a_flow_that_breaks_is_not_taken_for_its_neighbour():
    way, low, high = Way(), 0, 10**9
    assert way.exchange(1000) == 2
    widths = []
    for _ in range(6):
        for look in range(20):
            way.now_s += STEP_S
            low, high = low + 500, high + 500
            found = [path(low), path(high)] if look != 10 else [path(high)]
            way.widths.looked({A: found}, way.now_s)
        widths.append(way.widths.ended().get(A))
    assert widths == [None, None, 4, None, None, None], "half each: known after three exchanges"


def test_flows_that_have_nothing_left_to_carry_do_not_count():
    way, second = Way(), 0
    assert way.exchange(1000) == 2
    for look in range(40):
        way.now_s += STEP_S
        way.acked += 1000
        second += 1000 * (look < 10)
        found = [path(way.acked), path(second, unsent=int(look < 10))]
        way.widths.looked({A: found}, way.now_s)
    assert way.widths.ended() == {A: 4}


@pytest.mark.parametrize(
    "facts",
    [
        {"rtt_s": 0.4},  # a queue on the way: the link is full
        {"rtt_s": 0.001, "least_s": 0.001},  # a short way
        {"unsent": 0},  # nothing waits: the exchange is the limit
        {"by_loss": False},  # bbr: it holds bytes back on purpose
    ],
)
def test_where_a_flow_is_not_the_limit_there_is_one(facts: dict[str, float]):
    way = Way()
    assert [way.exchange(1000, **facts) for _ in range(3)] == [1, 1, 1]


def test_a_few_looks_say_nothing():
    way = Way()
    assert way.exchange(1000, looks=limits.FLOW_LOOKS_MIN) == 1
    assert way.exchange(1000, looks=limits.FLOW_LOOKS_MIN + 1) == 2


def test_looks_in_which_nothing_waits_do_not_count_against_a_flow():
    way = Way()
    way.exchange(0, looks=1, unsent=0)
    for _ in range(30):
        way.now_s += STEP_S
        way.widths.looked({A: [path(way.acked, unsent=0)]}, way.now_s)
    assert way.exchange(1000) == 2


def test_many_looks_must_find_it_so():
    way = Way()
    for rtt_s, looks in ((LONG_S, 8), (2 * LONG_S, 22)):
        for _ in range(looks):
            way.now_s += STEP_S
            way.acked += 1000
            way.widths.looked({A: [path(way.acked, rtt_s=rtt_s)]}, way.now_s)
    assert way.widths.ended() == {}


def test_peers_are_told_apart_and_one_that_comes_back_begins_anew():
    widths = ParallelFlows()
    for look in range(20):
        fast = path(look * 10**6, rtt_s=0.001, least_s=0.001)
        widths.looked({A: [path(look * 1000)], B: [fast]}, look * STEP_S)
    assert widths.ended() == {A: 2}
    widths.forget(A)
    for look in range(20):
        widths.looked({A: [path(look * 1000)]}, look * STEP_S)
    assert widths.ended() == {A: 2}


def test_a_connection_made_anew_counts_from_nothing():
    way = Way()
    way.exchange(10_000)
    way.acked = 0
    assert way.exchange(20_000) == 4
