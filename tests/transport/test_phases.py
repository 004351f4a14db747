"""Phases: a step that the table does not name is a bug, and stops the machine that takes it."""

from enum import Enum, auto

import pytest

from swarmtrain_transport.collective import exchange, publisher, reducer
from swarmtrain_transport.collective import taker as receiver
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.phases import entered
from tests.transport.collective.bench import Bench
from tests.transport.rig import A


class Light(Enum):
    RED = auto()
    GREEN = auto()
    OFF = auto()


NEXT = {Light.RED: {Light.GREEN, Light.OFF}, Light.GREEN: {Light.RED}}


def test_only_what_the_table_names_can_follow() -> None:
    assert entered(Light.GREEN, Light.RED, NEXT) is Light.GREEN
    for now, to in ((Light.GREEN, Light.OFF), (Light.OFF, Light.RED), (Light.RED, Light.RED)):
        with pytest.raises(LocalFault, match=f"{now.name} cannot become {to.name}"):
            entered(to, now, NEXT)


@pytest.mark.parametrize(
    ("phases", "table"),
    [
        (exchange.Giving, exchange._NEXT),
        (publisher.Publishing, publisher._NEXT),
        (receiver.Taking, receiver._NEXT),
        (reducer.Reducing, reducer._NEXT),
    ],
)
def test_every_phase_of_a_machine_is_a_first_one_or_can_be_reached(phases, table) -> None:
    reached = {to for targets in table.values() for to in targets}
    never = [phase for phase in phases if phase not in reached]
    assert set(never) <= {exchange.Giving.NOTHING, exchange.Giving.ENCODING, next(iter(phases))}


def test_an_exchange_is_closed_once() -> None:
    bench = Bench().begin()
    bench.peers[A].close()
    with pytest.raises(LocalFault, match="CLOSED cannot become CLOSED"):
        bench.peers[A].close()
