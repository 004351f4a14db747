"""Optimizers inside others, as libraries hand them out: the torch optimizer within counts steps."""

from typing import Any

import pytest
import torch
from torch import nn

from swarmtrain.foundation.errors import UserError
from swarmtrain.hook.api import hookable


class Delegating(torch.optim.Optimizer):
    """As accelerate's AcceleratedOptimizer: an Optimizer by name, never initialised as one, and all
    that it has is another one's. It steps when gradients are in sync alone."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.is_in_sync = True

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @property
    def defaults(self) -> Any:
        return self.optimizer.defaults

    def step(self, closure: Any = None) -> None:
        if self.is_in_sync:
            self.optimizer.step(closure)


class LookingAhead(torch.optim.SGD):
    """A torch optimizer in its own right that drives another one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, lr=0.1)
        self.optimizer = optimizer


class Engine:
    """No Optimizer at all, as those of DeepSpeed."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


def plain() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)


def test_the_hook_sits_on_the_optimizer_that_steps() -> None:
    inner = plain()
    wrapped = Delegating(inner)
    for group in inner.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    counted = []
    hookable(wrapped).register_step_post_hook(lambda *_: counted.append(1))
    wrapped.step()
    wrapped.is_in_sync = False
    wrapped.step()
    assert counted == [1], "of two steps one was accumulation"


def test_wrappers_are_opened_as_deep_as_need_be_and_no_deeper() -> None:
    inner = plain()
    assert hookable(inner) is inner
    assert hookable(Delegating(inner)) is inner
    assert hookable(Delegating(Engine(Delegating(inner)))) is inner
    ahead = LookingAhead(inner)
    assert hookable(Delegating(ahead)) is ahead, "its step is the whole step"


@pytest.mark.parametrize("given", [None, object(), nn.Linear(2, 1), "schedule", "circle", "empty"])
def test_what_is_no_optimizer_is_told_before_anything_is_made(given: Any) -> None:
    if given == "schedule":  # it has an optimizer, and is none
        given = torch.optim.lr_scheduler.StepLR(plain(), 1)
    elif given == "circle":
        given = Engine(plain())
        given.optimizer = given
    elif given == "empty":
        given = Delegating(None)
    with pytest.raises(UserError, match="torch optimizer") as caught:
        hookable(given)
    assert caught.value.code == "SWT-E610"
