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
from swarmtrain.peer.training.rounds import RoundReport
from swarmtrain.peer.training.session import Hooks
from swarmtrain.peer.training.trainer import BuiltinTrainer
from swarmtrain.peer.wishes import Wishes
from tests.peer.test_trainer import CONFIG

OUTER = {
    "diloco": (OuterSection(inner_steps=10), 30),
    "streaming": (OuterSection(strategy="streaming", inner_steps=10, fragments=2), 15),
    "ddp": (OuterSection(strategy="ddp"), 3),
}


def made(outer: OuterSection) -> tuple[BuiltinTrainer, Hooks]:
    """A trainer, and what its session tells it by."""
    config = msgspec.structs.replace(CONFIG, outer=outer)
    told: list[Hooks] = []
    driver = SimpleNamespace(root=b"", round_steps=outer.inner_steps)
    membership: Any = SimpleNamespace(
        config=config,
        storage=SimpleNamespace(directory=Path()),
        thread=SimpleNamespace(send=lambda message: None, wishes=Wishes(lambda: 0.0)),
        own_seed=lambda: 1,
        session=lambda trainer, layout, hooks, group: (
            told.append(hooks) or SimpleNamespace(driver=driver)
        ),
    )
    events = Telling(lambda line: None, None)
    options: Any = SimpleNamespace(threads=1, ways=AS_WRITTEN, data=None)
    trainer = _Peer(membership, options, events).trainer
    (hooks,) = told
    return trainer, hooks


@pytest.mark.parametrize("name", OUTER)
def test_who_comes_back_continues_at_the_step_of_its_state_and_ramps_up(name: str):
    outer, step = OUTER[name]
    trainer, hooks = made(outer)
    hooks.on_state(3)
    assert trainer.step == step
    ramped = trainer.rate()
    hooks.on_state(0)  # the run's first state: its own warm-up is ramp enough
    assert trainer.step == 0
    trainer.step = step
    assert ramped == pytest.approx(trainer.rate() / CONFIG.inner.warmup_steps)


def test_a_peer_in_some_of_the_run_s_ops_has_the_rate_of_the_run():
    trainer, hooks = made(OuterSection(strategy="gossip", inner_steps=10))
    trainer.step = 20  # two rounds of its own, in which others met as often
    hooks.on_round(RoundReport(8, "merged", 2))
    assert trainer.step == 80
    trainer.step = 95  # it trains on, and takes a result that came late
    hooks.on_round(RoundReport(9, "merged", 2))
    assert trainer.step == 95


def test_rounds_without_an_exchange_count_for_a_newcomer():
    outer = OuterSection(strategy="local", inner_steps=1, last_merge=True, budget=2)
    trainer, hooks = made(outer)
    hooks.on_state(1)
    assert trainer.step == trainer._config.run.rounds - 2
