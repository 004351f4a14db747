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
without an invite too. Weather is not: what goes wrong later
(unless `strict`) is said once, in the log and in `Swarm.error`, and the loop trains on alone.
"""

import atexit
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from swarmtrain import dirs
from swarmtrain.caps import Caps, parse_caps
from swarmtrain.config.pipeline import refuse_stages
from swarmtrain.environment import INVITE, Surroundings
from swarmtrain.errors import UserError, misuse, render, translate
from swarmtrain.events import Event, In, Left, RoundEnded, StateInPlace
from swarmtrain.models.tensors import Layout
from swarmtrain.options import (
    check_name,
    default_endpoint,
    parse_advertised,
    parse_endpoint,
)
from swarmtrain.peer.hook_log import HookLog, logger, speak_up
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.ranks.job import Job, View, error_of, trouble_of
from swarmtrain.peer.ranks.layout import is_a_job
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.rounds import RoundReport
from swarmtrain.peer.training.session import Hooks, Session
from swarmtrain_transport.wire.invite import Invite
from swarmtrain_transport.wire.messages import OWN, Brings

_HOOKS = "_optimizer_step_post_hooks"
"""Attribute that `register_step_post_hook` needs; Optimizer's own constructor makes it."""

_WRAPPERS_MAX = 8
"""Optimizers within optimizers; real chains have two or three."""

LOOK_EVERY_S = 1.0
"""Pause between two looks at losses on a device."""

HOOK, STEP = "hook", "step"
"""Ways to say that a step was made: the optimizer's hook does, or the loop by `Swarm.step`."""


class Swarm:
    """The run as a training loop sees it. This one is the exact no-op that `join` gives without an
    invite.

    Attributes:
        error: the swarm's trouble, if it had any; the loop has trained alone since.
    """

    error: Exception | None = None

    def __init__(self, when: str = HOOK) -> None:
        self._when = when

    @property
    def round(self) -> int:
        """Newest round whose outcome is in the weights; 0 at the start and without a run."""
        return 0

    @property
    def state_root(self) -> str:
        """Hex hash of the state after `round`: the same at every peer, but where peers exchange in
        pairs (noloco) each has its own; "" without a run."""
        return ""

    @property
    def peers(self) -> int:
        """Number of other peers in the run now."""
        return 0

    @property
    def should_stop(self) -> bool:
        """True if the run's last round is in the weights, so that the loop may end."""
        return False

    @property
    def seed(self) -> int:
        """A seed of this peer's own in this run, below 2**56; the same after a restart, 0 without
        a run. Peers that shuffle the same data by it read them in different orders."""
        return 0

    def step(self) -> None:
        """Count one step, and exchange if a round is due: for loops that joined with `when="step"`.

        Call it after each step of the optimizer, outside of compiled or captured regions, and not
        after one that was skipped. It takes the place of the hook.

        Raises:
            UserError: SWT-E610, the hook counts the steps already.
        """
        if self._when != STEP:
            raise misuse(
                "swarm.step() was called, but the optimizer's hook counts the steps already.",
                'Join with when="step", or leave swarm.step() out.',
            )

    def log(self, *, loss: Tensor | float | None = None, samples: int | None = None) -> None:
        """Say what the steps from now on are like.

        Args:
            loss: of the newest step, shown to people; of several their mean.
            samples: per step, which give this peer its weight in the mean.
        """

    def finish_round(self) -> None:
        """At the end of a loop: give the steps since the last round, wait for it, and leave.

        Without it, leaving in mid-round says goodbye at once, and those steps stay local.
        """

    def leave(self) -> None:
        """Leave the run now; the loop may go on alone. Leaving twice is allowed."""

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the run, whatever ended the block."""


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
        model: what has `requires_grad` now is exchanged, such as the adapters alone of a frozen
            model (examples/adapters.py); names, shapes and types must be those of the other peers'
            models. Buffers and frozen parameters stay your own, and nobody compares them. Of a
            wrapper (torch.compile, DistributedDataParallel) the model inside is meant.
        optimizer: whose steps count, also within a wrapper such as accelerate's. Its state stays
            your own; only what it remembers of a parameter that has become NaN or infinite, or is
            so itself, is dropped when the run's weights replace it. Another optimizer of the same
            loop is the loop's own affair: that its state outlives a NaN is not seen here. None
            where there is none, with `when="step"` alone.
        invite: ``swarm://host:port/run#secret``; None reads SWARMTRAIN_INVITE.
        when: "hook" counts the optimizer's steps by itself; "step" leaves that to the loop, which
            calls `Swarm.step` after each.
        name: shown to others; "" for one drawn from the peer's key.
        listen: ``HOST:PORT`` for the other peers; "" for a free port, on loopback if the invite is.
        state_dir: keys, ledger and checkpoints; None for the run's place on this machine, which is
            that of its name, or without one the first that no running copy uses. A peer that comes
            back with it goes on from what it holds.
        up: ``10mbit``, ``2MB/s``: send no faster than this; "" for no cap.
        down: as `up`, for what is taken in.
        daily: ``20GB``: leave between two rounds when so much was moved today, both ways; "" for
            no limit.
        samples_per_step: weight of a step in the mean, relative to that of other peers.
        strict: raise what goes wrong later instead of training on alone.

    What is left out of name, state_dir, up and down is read from the environment, see
    `swarmtrain.environment`.

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
            return _Follower(job, inside, inner, when, strict=strict)
    here = Surroundings.read()
    member = _Member(inner, samples_per_step, strict=strict, when=when, emit=here.emit(), job=job)
    with in_words(), job.joining() if job is not None else nullcontext():
        caps = parse_caps(up or here.up, down or here.down, daily)
        layout = _layout_of(inside, block=1)
        _check_trains(inner, inside)
        told = replace(
            here, name=name or here.name, state_dir=str(state_dir or here.state_dir)
        )  # fmt: skip
        member.enter(_come_in(text, told, listen, caps, layout), inside)
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


def _layout_of(model: nn.Module, block: int) -> Layout:
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
        return Layout.of(model, block)
    except ValueError as error:
        text = str(error)
        raise UserError("SWT-E631", text[0].upper() + text[1:]) from error


def _check_free(optimizer: torch.optim.Optimizer | None) -> None:
    hooks = getattr(optimizer, _HOOKS, {}).values()
    if any(isinstance(getattr(hook, "__self__", None), _Member) for hook in hooks):
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


def _come_in(text: str, told: Surroundings, listen: str, caps: Caps, layout: Layout) -> Membership:
    parsed = Invite.parse(text)
    address = parse_endpoint(listen) if listen else default_endpoint(parsed)
    check_name(told.name)
    chosen = (Path(told.state_dir),) if told.state_dir else ()
    places = chosen or dirs.peer_dirs(parsed.run, told.name, "hook")
    advertise = parse_advertised(told.advertise) if told.advertise else None
    brings = Brings(model=OWN, layout=layout.digest, num_values=layout.num_values, data=OWN)
    return Membership.enter(
        parsed, places, told.name, address.host, address.port, advertise=advertise, caps=caps,
        brings=brings,
    )  # fmt: skip


class _Member(Swarm):
    """A swarm with a run behind it."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        samples_per_step: int,
        *,
        strict: bool,
        when: str = HOOK,
        emit: Callable[[Event], None] = lambda event: None,
        job: Job | None = None,
    ) -> None:
        super().__init__(when)
        self.error = None
        self._emit = emit
        self._job = job
        self._optimizer = optimizer
        self._samples = samples_per_step
        self._strict = strict
        self._loss: Tensor | float | None = None
        self._looked_s = -math.inf
        self._session: Session | None = None
        self._membership: Membership | None = None
        self._hook: Any = None
        self._log: HookLog | None = None
        self._round = 0
        self._state_root = ""
        self._seed = 0
        self._run_is_over = False

    def enter(self, membership: Membership, model: nn.Module) -> None:
        """Find the run's state, put it into the model, and begin to count steps."""
        self._membership = membership
        log = self._log = HookLog(
            membership.config.run.name, membership.name, lambda: membership.thread.bytes_moved
        )
        key, port = membership.identity.peer_id.hex(), membership.thread.listening_port
        try:
            self._emit(In(key, membership.name, port))
            refuse_stages(membership.config)
            layout = Layout.of(model, membership.config.exchange.block)
            hooks = Hooks(on_round=self._round_ended, on_waiting=log.waiting)
            if self._job is not None:
                session = self._job.session(membership, model, self._optimizer, layout, hooks)
            else:
                weights = ModelWeights(model, layout, self._optimizer)
                session = membership.session(weights, layout, hooks)
            self._session = session
            self._session.start()
        except BaseException:
            self._drop("could not begin")
            raise
        self._seed = membership.own_seed()
        # A loop without `with` that fails would leave the others to find out that it is gone.
        atexit.register(self._go, "its program ended")
        if self._optimizer is not None and self._when == HOOK:
            self._hook = self._optimizer.register_step_post_hook(self._stepped)
        log.joined(self.peers, max(0, self._session.driver.op))
        self._emit(StateInPlace(max(0, self._session.driver.op)))
        self._look_round()
        self._let_go()

    # ---- what the loop sees

    @property
    def round(self) -> int:
        """As Swarm.round; after leaving, the last one."""
        return self._round

    @property
    def state_root(self) -> str:
        """As Swarm.state_root."""
        return self._state_root

    @property
    def peers(self) -> int:
        """As Swarm.peers."""
        return self._session.num_others if self._session is not None else 0

    @property
    def should_stop(self) -> bool:
        """As Swarm.should_stop."""
        return self._run_is_over

    @property
    def seed(self) -> int:
        """As Swarm.seed."""
        return self._seed

    def step(self) -> None:
        """As Swarm.step."""
        super().step()
        self._count()

    def log(self, *, loss: Tensor | float | None = None, samples: int | None = None) -> None:
        """As Swarm.log."""
        if loss is not None:
            # On its device until somebody looks; of one per sample the mean.
            self._loss = loss.detach().float().mean() if isinstance(loss, Tensor) else loss
        if samples is not None:
            self._samples = max(1, int(samples))

    def finish_round(self) -> None:
        """As Swarm.finish_round."""
        session = self._session
        if session is not None:
            self._guarded(session.finish_round)
            self._look_round()
            self._go("finished")

    def leave(self) -> None:
        """As Swarm.leave."""
        self._go("asked to leave")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """As Swarm.__exit__. An error of the block is not hidden by one of leaving."""
        if self._job is not None and error is not None:
            # The other ranks are somewhere else: nothing can be saved with them.
            self._job.abandon()
            self._drop(f"its loop failed: {type(error).__name__}")
        try:
            self._go("finished" if error is None else f"its loop failed: {type(error).__name__}")
        except Exception:
            if error is None:
                raise
            logger.warning("Leaving the run failed too.", exc_info=True)

    # ---- inside

    def _stepped(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """The optimizer's step hook."""
        if self._session is not None and not _was_skipped(optimizer):
            self._count()
        else:
            self._let_go()

    def _count(self) -> None:
        """One step was made: exchange if a round is due."""
        session = self._session
        if session is None:
            return
        loss = self._shown_loss(LOOK_EVERY_S)
        self._guarded(lambda: session.stepped(self._samples, loss, self._samples))
        self._look_round()
        self._let_go()

    def _let_go(self) -> None:
        """Let the other ranks of a job make their next step."""
        if self._job is not None and self._session is not None:
            self._job.go(self._view())

    def _view(self) -> View:
        told = () if self.error is None else trouble_of(self.error)
        return View(
            self._round, self._state_root, self.peers, self._seed, self._run_is_over, told
        )  # fmt: skip

    def _shown_loss(self, every_s: float = 0.0) -> float | None:
        """The newest loss, None if it is no number; one on a device is looked at only if that was
        not done for so long, because looking waits for all that the device has yet to do."""
        loss = self._loss
        if loss is None:
            return None
        if isinstance(loss, Tensor) and loss.device.type != "cpu":
            now_s = monotonic()
            if now_s - self._looked_s < every_s:
                return None
            self._looked_s = now_s
        value = float(loss)
        return value if math.isfinite(value) else None

    def _round_ended(self, report: RoundReport) -> None:
        session, loss = self._session, self._shown_loss()
        if self._log is not None:
            self._log.round_ended(report, loss)
        root = session.driver.root.hex() if session is not None else ""
        self._emit(
            RoundEnded(
                report.round, report.outcome, report.contributors, root, report.partner.hex(),
                report.chain.hex(), loss=loss,
            )
        )  # fmt: skip

    def _look_round(self) -> None:
        """Note where the run is, for when it is left; leave it when it is over."""
        session = self._session
        if session is None:
            return
        self._round = max(0, session.driver.op)
        self._state_root = session.driver.root.hex()
        if session.is_finished:
            self._run_is_over = True
            self._go("run finished")

    def _guarded(self, act: Callable[[], None]) -> None:
        """Keep the swarm's trouble from the loop, unless the loop asked for it."""
        try:
            act()
        except Exception as error:
            told = translate(error) or error
            self.error = told
            self._drop("failed")
            if self._strict or (self._job is not None and self._job.is_broken):
                raise told from error
            words = render(told) if isinstance(told, UserError) else repr(told)
            logger.warning("The swarm is gone, training goes on alone.\n%s", words)

    def _go(self, reason: str) -> None:
        """Leave with a checkpoint and a goodbye."""
        session = self._session
        if session is not None:
            self._guarded(lambda: session.leave(reason))
            if self._log is not None and self._session is session:
                self._log.left(reason, self._round, session.result)
                self._tell_left(session.result)
            self._drop(reason)

    def _tell_left(self, result: str) -> None:
        if self._membership is not None:
            up, down = self._membership.thread.bytes_moved
            self._emit(Left(self._round, self._state_root, up, down, result))

    def _drop(self, reason: str) -> None:
        """End all that `enter` began. The weights stay as they are."""
        hook, membership = self._hook, self._membership
        self._hook = self._membership = self._session = None
        atexit.unregister(self._go)
        if hook is not None:
            hook.remove()
        if membership is not None:
            membership.close(reason)
        if self._job is not None:
            self._job.over(self._view())


class _Follower(Swarm):
    """The swarm as a rank of a job sees it that is not rank 0."""

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        when: str,
        *,
        strict: bool,
    ) -> None:
        super().__init__(when)
        self.error = None
        self._job, self._strict = job, strict
        self._hook: Any = None
        self._view = job.follow(model, optimizer)
        if optimizer is not None and when == HOOK and not job.is_over:
            self._hook = optimizer.register_step_post_hook(lambda *_: self._listen())

    @property
    def round(self) -> int:
        """As Swarm.round."""
        return self._view.round

    @property
    def state_root(self) -> str:
        """As Swarm.state_root."""
        return self._view.state_root

    @property
    def peers(self) -> int:
        """As Swarm.peers."""
        return 0 if self._job.is_over else self._view.peers

    @property
    def should_stop(self) -> bool:
        """As Swarm.should_stop."""
        return self._view.is_over

    @property
    def seed(self) -> int:
        """As Swarm.seed: one for all ranks of a job."""
        return self._view.seed

    def step(self) -> None:
        """As Swarm.step."""
        super().step()
        self._listen()

    def finish_round(self) -> None:
        """As Swarm.finish_round."""
        self.leave()

    def leave(self) -> None:
        """Leave with rank 0."""
        while not self._job.is_over:
            self._listen()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave with rank 0; where the loop has failed torchrun ends the job."""
        if error is None:
            self.leave()

    def _listen(self) -> None:
        """Do what rank 0 tells, until it lets the loop go on."""
        if self._job.is_over:
            return
        self._view = self._job.served()
        if self._job.is_over and self._hook is not None:
            self._hook.remove()
        if self._view.trouble:
            self.error = error_of(self._view.trouble)
            if self._strict:
                raise self.error


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a GradScaler had this step skipped inside the optimizer, as fused ones do: it
    then hands them its findings, and calls `step` all the same."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found.any())
