"""`swarmtrain.join`: an existing training loop becomes a peer of a run, in three lines.

    with swarmtrain.join(model, optimizer) as swarm:
        for x, y in loader:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if swarm.should_stop:
                break

Without an invite nothing happens at all: no hook, no thread, no file, the same bits. With one, the
optimizer's step hook counts steps; when a round is due it exchanges, between two steps, and
replaces the trainable parameters in place. Loss, gradients and learning rates are never touched.
A loop whose steps are inside a compiled or captured region joins with `when="step"` and calls
`Swarm.step` itself.

Mistakes are loud: whatever goes wrong while joining raises, and a call that cannot be meant raises
without an invite too. Weather is not: what goes wrong later is said once, in the log and in
`Swarm.error`, and the loop trains on alone, unless it is `strict`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from swarmtrain.foundation.errors import UserError, misuse, translate
from swarmtrain.hook.environment import INVITE, Surroundings
from swarmtrain.hook.members import Follower, Member
from swarmtrain.hook.swarm import HOOK, STEP, Swarm
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.hook_log import speak_up
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.ranks.job import Job
from swarmtrain.peer.ranks.layout import is_a_job
from swarmtrain_transport.wire.messages import OWN, Brings

_HOOKS = "_optimizer_step_post_hooks"
"""Attribute that `register_step_post_hook` needs; Optimizer's own constructor makes it."""

_WRAPPERS_MAX = 8
"""Optimizers within optimizers; real chains have two or three."""


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    invite: str | None = None,
    *,
    when: str = HOOK,
    name: str = "",
    listen: str = "",
    state_dir: str | Path | None = None,
    up: str = "",
    down: str = "",
    daily: str = "",
    samples_per_step: int = 1,
    strict: bool = False,
) -> Swarm:
    """Become a peer of a run with a model and an optimizer of your own.

    Returns when the run's present weights are in the model. Called without an invite, it returns
    a swarm that does nothing. Joining, rounds and the end are lines of the logger `swarmtrain`; a
    program that has set no logging up sees them on stderr, unless that logger's level is WARNING.

    Args:
        model: model whose parameters with `requires_grad` are exchanged, such as the adapters alone
            of a frozen one (examples/adapters.py); names, shapes and types must be those of the
            other peers' models. Buffers and frozen parameters stay your own, and nobody compares
            them. Of a wrapper (torch.compile, DistributedDataParallel) the model inside is meant.
        optimizer: optimizer whose steps count, also within a wrapper such as accelerate's. Its
            state stays your own; only what it remembers of a parameter that has become NaN or
            infinite, or is so itself, is dropped when the run's weights replace it. Another
            optimizer of the same loop is the loop's own affair: that its state outlives a NaN is
            not seen here. None where there is none, with `when="step"` alone.
        invite: ``swarm://host:port/run#secret``; None reads SWARMTRAIN_INVITE.
        when: "hook" counts the optimizer's steps by itself; "step" leaves that to the loop, which
            calls `Swarm.step` after each.
        name: shown to others; "" for one drawn from the peer's key.
        listen: ``HOST:PORT`` for the other peers; "" for a free port, on loopback if the invite is.
        state_dir: keys, ledger and checkpoints; None for the run's place on this machine, which is
            that of its name, or without one the first that no running copy uses. A peer that comes
            back with it goes on from what it holds.
        up: ``10mbit``, ``2MB/s``: send no faster than this; "" for no cap.
        down: limit of what is taken in; see `up`.
        daily: ``20GB``: leave between two rounds when so much was moved today, both ways; "" for
            no limit.
        samples_per_step: weight of a step in the mean, relative to that of other peers.
        strict: raise what goes wrong later instead of training on alone.

    A name, state_dir, up or down that is left out is read from the environment, see
    `swarmtrain.hook.environment`.

    Raises:
        UserError: the invite, key, model, machine, directory or a cap does not do, or the
            coordinator does not answer. `swarmtrain.errors.render` words it, `exit_status` is its
            status.
    """
    if samples_per_step < 1:
        raise misuse(f"samples_per_step must be at least 1, not {samples_per_step}.")
    if when not in (HOOK, STEP):
        raise misuse(f'join has when="{HOOK}" or when="{STEP}", not {when!r}.')
    inner = None if optimizer is None and when == STEP else hookable(optimizer)
    text = invite if invite is not None else os.environ.get(INVITE, "")
    if not text.strip():
        return Swarm(when)
    _check_free(inner)
    speak_up()
    inside = bare(model)
    job = Job() if is_a_job() else None
    if job is not None and not job.leads:
        with in_words():
            return Follower(job, inside, inner, when, strict=strict)
    here = Surroundings.read()
    member = Member(inner, samples_per_step, strict=strict, when=when, emit=here.emit(), job=job)
    with in_words(), job.joining() if job is not None else nullcontext():
        options = here.options(
            text, "hook", name=name, listen=listen, state_dir=state_dir, up=up, down=down,
            daily=daily,
        )  # fmt: skip
        layout = _layout_of(inside)
        _check_trains(inner, inside)
        brings = Brings(model=OWN, layout=layout.digest, num_values=layout.num_values, data=OWN)
        member.enter(Membership.enter(options, brings=brings), inside)
    return member


def bare(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile and of data-parallel training, whose names
    for its parameters nobody else has."""
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):
            model = inner
        else:
            return model


def _layout_of(model: nn.Module) -> Layout:
    """The layout as the door compares it: padding plays no part in that."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (is_lazy(parameter) or parameter.is_meta):
            raise UserError(
                "SWT-E631",
                f"Parameter `{name}` has no values yet.",
                "A lazy layer gets them with its first batch, a model on the meta device when its "
                "weights are loaded.",
                "Do that before joining.",
            )
    try:
        return Layout.of(model, block=1)
    except ValueError as error:
        text = str(error)
        raise UserError("SWT-E631", text[0].upper() + text[1:]) from error


def _check_free(optimizer: torch.optim.Optimizer | None) -> None:
    hooks = getattr(optimizer, _HOOKS, {}).values()
    if any(isinstance(getattr(hook, "__self__", None), Swarm) for hook in hooks):
        raise misuse(
            "This optimizer's steps are counted by a swarm already.",
            "Leave that one first, or join once: by a callback or by swarmtrain.join.",
        )


def _check_trains(optimizer: torch.optim.Optimizer | None, model: nn.Module) -> None:
    if optimizer is None:
        return
    own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not any(id(one) in own for group in optimizer.param_groups for one in group["params"]):
        raise UserError(
            "SWT-E630",
            "The optimizer holds none of the model's trainable parameters.",
            "Its steps would not move what is exchanged: the model was copied, or replaced by a "
            "library, after the optimizer was made, or the optimizer keeps copies of its own.",
            "Join with the model whose parameters() the optimizer was made of.",
        )


def hookable(optimizer: object) -> torch.optim.Optimizer:
    """The torch optimizer that makes the step: what was given, or what it wraps.

    Accelerate's is an Optimizer that was never initialised as one, and has no hooks; Lightning's
    shows those of another; others are none at all. Each keeps the real one as `optimizer`. One that
    is whole is not looked into.

    Raises:
        UserError: SWT-E610, there is none.
    """
    found = optimizer
    for _ in range(_WRAPPERS_MAX):
        # Its own: some wrappers show those of the one inside as theirs.
        if isinstance(found, torch.optim.Optimizer) and _HOOKS in vars(found):
            return found
        # A learning rate schedule has an `optimizer` too, and is none.
        found = getattr(found, "optimizer", None) if hasattr(found, "param_groups") else None
    if optimizer is None:
        raise misuse(
            "swarmtrain.join was given None in place of a torch optimizer.",
            "A transformers Trainer makes its optimizer in train(), Lightning in fit(): use "
            "swarmtrain.integrations.transformers.SwarmCallback, or that of .lightning. A loop "
            'without an optimizer joins with when="step" and calls swarm.step().',
        )
    raise misuse(
        f"swarmtrain.join takes a torch optimizer, not {type(optimizer).__name__}.",
        "Give it the optimizer whose step() the loop calls, or the one that it wraps.",
    )


@contextmanager
def in_words() -> Iterator[None]:
    """Errors of all parts as a person can use them; bugs as they are."""
    try:
        yield
    except Exception as error:
        told = translate(error)
        if told is None or told is error:
            raise
        raise told from error
