"""An overlapped op's outcome waits for its step, and everything behind it waits too."""

import queue
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swarmtrain.config.settings import ExchangeSection, OuterSection, RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout, ParameterSpec
from swarmtrain.peer.training import session as session_module
from swarmtrain.peer.training.rounds import RoundReport
from swarmtrain.peer.training.session import Hooks, Session
from swarmtrain.peer.wishes import Wishes
from swarmtrain.strategies import strategy_of
from swarmtrain_transport import actions as do
from swarmtrain_transport.wire.messages import Waiting

LAYOUT = Layout.from_parameters(
    tuple(ParameterSpec(name, (64,), "float32") for name in ("embed", "h.0.w", "h.1.w")), 16
)


def config_of(**outer: Any) -> RunConfig:
    return RunConfig(
        run=RunSection(name="t"), outer=OuterSection(**outer), exchange=ExchangeSection(block=16)
    )


class Overlapped:
    """A driver whose result has its place three steps after the contribution."""

    def __init__(self) -> None:
        self.op, self.steps, self.given, self.skipped = 0, 0, -1, list[int]()
        self.fragments = ()
        self.keeps_pace = False
        self.overlaps = True
        self.has_steps = True

    def known_ahead(self) -> None:
        """Nothing is."""

    @property
    def is_waiting(self) -> bool:
        return self.given >= 0

    @property
    def is_at_place(self) -> bool:
        return self.is_waiting and self.steps - self.given >= 3

    @property
    def is_due(self) -> bool:
        return not self.is_waiting and self.steps % 5 == 0

    def stepped(self, samples: int) -> None:
        self.steps += 1

    def contribute(self) -> Any:
        self.given = self.steps
        return SimpleNamespace(op=self.op + 1, contribution=None, samples=1)

    def skip(self, op: int) -> None:
        self.skipped.append(self.steps)
        self.op, self.given = op, -1

    def settle(self) -> None:
        pass


class Network:
    """Stand-in for the network thread that the session needs; outcomes are put by the test."""

    is_connected = True
    is_exchanging = True
    num_others = 1

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.shell = self
        self.wishes = Wishes(time.monotonic)

    def machine(self, action: Any) -> None:
        pass

    def text_at(self, op: int, group: int) -> None:
        pass

    def note(self, note: Any) -> None:
        pass


def session_of(
    reports: list[RoundReport], clock: Callable[[], float] = time.monotonic
) -> tuple[Session, Overlapped, Network]:
    driver, network = Overlapped(), Network()
    hooks = Hooks(on_round=reports.append)
    config = config_of(inner_steps=5)
    unchecked: Any = Session
    made = unchecked(b"me", network, SimpleNamespace(group=0), config, driver, LAYOUT, hooks, clock)
    return made, driver, network


def test_an_outcome_that_is_here_before_its_step_waits_for_it():
    session, driver, network = session_of([])
    for _ in range(5):
        session.stepped(1, None, 1)
    network.inbox.put(do.OpSkipped(1, "early"))
    network.inbox.put(do.RunFinished(1))
    for _ in range(2):
        session.stepped(1, None, 1)
        assert driver.skipped == [] and not session.is_finished
    session.stepped(1, None, 1)
    assert driver.skipped == [8] and session.is_finished


def test_a_peer_that_is_about_to_leave_waits_for_no_step():
    session, driver, network = session_of([])
    for _ in range(5):
        session.stepped(1, None, 1)
    network.inbox.put(do.OpSkipped(1, "early"))
    session.finish_round()
    assert driver.skipped == [5] and session.should_stop


def test_a_peer_that_leaves_a_run_that_stands_still_waits_for_nobody():
    """With too few peers no round comes: their time to get ready would pass in silence."""
    session, driver, network = session_of([])
    network.is_exchanging = False
    network.inbox.put(Waiting("1 more peer"))
    for _ in range(5):
        session.stepped(1, None, 1)
    session.request_stop()
    session.stepped(1, None, 1)
    driver.steps += 3
    session.stepped(1, None, 1)
    assert session.should_stop


@pytest.mark.parametrize(("overlaps", "times"), [(True, 3), (False, 27)])
def test_memory_is_seldom_given_back_where_the_next_step_takes_it_again(
    monkeypatch: pytest.MonkeyPatch, overlaps: bool, times: int
) -> None:
    """It was done twice a round, and the steps after it had to fetch their pages anew."""
    given, now_s = list[float](), [0.0]
    monkeypatch.setattr(session_module, "give_back", lambda: given.append(now_s[0]))
    monkeypatch.setattr(session_module, "_LARGE_VALUES", LAYOUT.padded)
    session, driver, network = session_of([], lambda: now_s[0])
    driver.overlaps = overlaps
    for step in range(72):
        now_s[0] = float(step)
        was_waiting = driver.is_waiting
        session.stepped(1, None, 1)
        if driver.is_waiting and not was_waiting:
            network.inbox.put(do.OpSkipped(driver.op + 1, "early"))
    assert len(given) == times, given


def test_an_error_is_told_at_once():
    session, _, network = session_of([])
    for _ in range(5):
        session.stepped(1, None, 1)
    network.inbox.put(do.OpSkipped(1, "early"))
    network.inbox.put(UserError("SWT-E901", "broken"))
    with pytest.raises(UserError):
        session.stepped(1, None, 1)


@pytest.mark.parametrize("name", ["diloco", "delayed", "eager", "co2"])
def test_the_run_file_names_the_strategy(name: str):
    strategy = strategy_of(config_of(strategy=name, inner_steps=7), LAYOUT)
    assert type(strategy).__name__.lower() == name and strategy.inner_steps == 7
    assert strategy.num_values == LAYOUT.padded


def test_streaming_moves_fragments_of_the_models_layers():
    config = config_of(strategy="streaming", inner_steps=6, fragments=3, delay_steps=1, mixing=0.5)
    strategy = strategy_of(config, LAYOUT)
    assert [strategy.exchange(op).ranges for op in (1, 2, 3)] == [
        ((0, 64),), ((64, 128),), ((128, 192),)
    ]  # fmt: skip
    assert config.steps_per_round == strategy.inner_steps == 2


def test_more_fragments_than_the_model_has_layers_are_refused_in_words():
    config = config_of(strategy="streaming", inner_steps=8, fragments=4)
    with pytest.raises(UserError) as caught:
        strategy_of(config, LAYOUT)
    assert caught.value.code == "SWT-E605" and "outer.fragments is 4" in caught.value.what


def test_the_weights_of_all_strategies_start_as_given():
    for name in ("diloco", "delayed", "eager", "co2"):
        strategy = strategy_of(config_of(strategy=name), LAYOUT)
        weights = torch.arange(LAYOUT.padded, dtype=torch.float32)
        strategy.set_initial(weights)
        assert torch.equal(dict(strategy.state_arrays())["anchor"], weights)
