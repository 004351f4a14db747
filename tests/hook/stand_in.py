"""A member of a run without the run: what it was told is remembered."""

from collections.abc import Callable

import torch
from torch import nn

from swarmtrain.hook.members import Member
from swarmtrain.hook.swarm import HOOK, STEP


class StandIn:
    """Takes the place of session, driver and membership, and remembers what it was told."""

    def __init__(self) -> None:
        self.driver = self.thread = self.shell = self
        self.op = 3
        self.root = b"\xab"
        self.is_finished = False
        self.result = ""
        self.num_others = 2
        self.stepped_with: list[tuple[int, float | None]] = []
        self.left: list[str] = []
        self.is_held = True
        self.closed: list[str] = []
        self.trouble: Exception | None = None

    def stepped(self, samples: int, loss: float | None, tokens: int) -> None:
        assert tokens == samples
        self.stepped_with.append((samples, loss))
        if self.trouble is not None:
            raise self.trouble

    def finish_round(self) -> None:
        self.left.append("the round")

    def leave(self, reason: str, waits: Callable[[], None] = lambda: None) -> bool:
        self.left.append(reason)
        return self.is_held

    def close(self, reason: str) -> None:
        self.closed.append(reason)


def member_of(
    optimizer: torch.optim.Optimizer | None, *, strict: bool = False, when: str = HOOK
) -> tuple[Member, StandIn]:
    """As after joining, with 4 samples a step."""
    member = Member(optimizer, 4, strict=strict, when=when)
    session = StandIn()
    member._session = member._membership = session
    if optimizer is not None and when != STEP:
        member._hook = optimizer.register_step_post_hook(member._stepped)
    return member, session


def made(*, strict: bool = False, fused: bool = False):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    member, session = member_of(optimizer, strict=strict)
    return member, session, model, optimizer
