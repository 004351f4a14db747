"""The tie of the built-in trainer to its session: where its schedule goes on. No network."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swarmtrain.config.options import AS_WRITTEN
from swarmtrain.config.settings import OuterSection
from swarmtrain.peer.run import _Peer
from swarmtrain.peer.telling import Telling
from swarmtrain.peer.training.session import Hooks
from tests.peer.test_trainer import CONFIG

OUTER = {
    "diloco": (OuterSection(inner_steps=10), 30),
    "streaming": (OuterSection(strategy="streaming", inner_steps=10, fragments=2), 15),
    "ddp": (OuterSection(strategy="ddp"), 3),
}


@pytest.mark.parametrize("name", OUTER)
def test_who_comes_back_continues_at_the_step_of_its_state_and_ramps_up(name: str):
    outer, step = OUTER[name]
    config = msgspec.structs.replace(CONFIG, outer=outer)
    told: list[Hooks] = []
    membership: Any = SimpleNamespace(
        config=config,
        storage=SimpleNamespace(directory=Path()),
        thread=SimpleNamespace(send=lambda message: None),
        own_seed=lambda: 1,
        session=lambda trainer, layout, hooks, group: told.append(hooks),
    )
    events = Telling(lambda line: None, None)
    options: Any = SimpleNamespace(threads=1, ways=AS_WRITTEN, data=None)
    trainer = _Peer(membership, options, events).trainer
    (hooks,) = told
    hooks.on_state(3)
    assert trainer.step == step
    ramped = trainer.rate()
    hooks.on_state(0)  # the run's first state: its own warm-up is ramp enough
    assert trainer.step == 0
    trainer.step = step
    assert ramped == pytest.approx(trainer.rate() / CONFIG.inner.warmup_steps)
