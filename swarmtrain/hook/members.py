"""Swarms with a run behind them: of a peer, and of a job's ranks that follow its first one.

A member hears of steps by the optimizer's hook or by `step`, lets its session exchange, and keeps
the swarm's trouble from the loop unless that is strict. Not here: joining (`api`), and what happens
in a round (`peer.training`).
"""

import atexit
import math
import os
import weakref
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from swarmtrain.config.pipeline import refuse_stages
from swarmtrain.foundation.errors import UserError, render, translate
from swarmtrain.foundation.events import Event, In, Left, StateInPlace
from swarmtrain.hook.swarm import HOOK, Swarm
from swarmtrain.models.tensors import Layout
from swarmtrain.peer.hook_log import HookLog, logger
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.ranks.job import Job, View, error_of, trouble_of
from swarmtrain.peer.telling import unheld
from swarmtrain.peer.training.model_weights import ModelWeights
from swarmtrain.peer.training.rounds import RoundReport
from swarmtrain.peer.training.session import Hooks, Session

LOOK_EVERY_S = 1.0
"""Pause between two looks at losses on a device."""


class Member(Swarm):
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
        self._is_copy = False
        os.register_at_fork(after_in_child=partial(_forked, weakref.ref(self)))

    def enter(self, membership: Membership, model: nn.Module) -> None:
        """Find the run's state, put it into the model, and begin to count steps."""
        self._membership = membership
        shell = membership.thread.shell
        log = self._log = HookLog(
            membership.config.run.name, membership.name, lambda: shell.bytes_moved
        )
        key, port = membership.identity.peer_id.hex(), shell.listening_port
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
        except BaseException:  # Ctrl+C too: the network thread would go on
            self._drop("could not begin")
            raise
        self._seed = membership.own_seed()
        # A loop without `with` that fails would leave the others to find out that it is gone.
        atexit.register(self._ends)
        if self._optimizer is not None and self._when == HOOK:
            self._hook = self._optimizer.register_step_post_hook(self._stepped)
        log.joined(self.peers, max(0, self._session.driver.op))
        self._emit(StateInPlace(max(0, self._session.driver.op)))
        self._look_round()
        self._let_go()

    # ---- what the loop sees

    @property
    def peers(self) -> int:
        """See Swarm.peers."""
        return self._membership.thread.shell.num_others if self._membership is not None else 0

    def step(self) -> None:
        """See Swarm.step."""
        super().step()
        self._count()

    def log(self, *, loss: Tensor | float | None = None, samples: int | None = None) -> None:
        """See Swarm.log."""
        super().log(loss=loss, samples=samples)
        if loss is not None:
            # On its device until somebody looks; of one per sample the mean.
            self._loss = loss.detach().float().mean() if isinstance(loss, Tensor) else loss
        if samples is not None:
            self._samples = max(1, int(samples))

    def finish_round(self) -> None:
        """See Swarm.finish_round."""
        session = self._own_session()
        if session is not None:
            self._guarded(session.finish_round)
            self._look_round()
            self._go("finished")

    def leave(self) -> None:
        """See Swarm.leave."""
        self._go("asked to leave")

    def _exit(self, error: BaseException | None) -> None:
        """An error of the block is not hidden by one of leaving."""
        reason = "finished" if error is None else f"its loop failed: {type(error).__name__}"
        if error is not None:
            self._abandon(reason)
        try:
            self._go(reason)
        except Exception:  # whatever it is, it must not take the place of the loop's own
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
        was_in = self._session is not None
        session = self._own_session()
        if session is None:
            if was_in:
                logger.warning(
                    "This process was forked off the peer's: it trains alone, and the peer goes "
                    "on where it joined. Join in the process that trains."
                )
            return
        loss = self._newest_loss(LOOK_EVERY_S)
        self._guarded(lambda: session.stepped(self._samples, loss, self._samples))
        self._look_round()
        self._let_go()

    def _let_go(self) -> None:
        """Let the other ranks of a job make their next step."""
        if self._job is not None and self._session is not None:
            self._job.go(self._view())

    def _view(self) -> View:
        told = () if self.error is None else trouble_of(self.error)
        return View(self._round, self._state_root, self.peers, self._seed, self._is_over, told)

    def _newest_loss(self, every_s: float = 0.0) -> float | None:
        """The newest loss that was told; one on a device is looked at only if that was not done for
        so long, because looking waits for all that the device has yet to do."""
        loss = self._loss
        if loss is None:
            return None
        if isinstance(loss, Tensor) and loss.device.type != "cpu":
            now_s = monotonic()
            if now_s - self._looked_s < every_s:
                return None
            self._looked_s = now_s
        return float(loss)

    def _round_ended(self, report: RoundReport) -> None:
        session, loss = self._session, self._newest_loss()
        loss = loss if loss is not None and math.isfinite(loss) else None
        if self._log is not None:
            self._log.round_ended(report, loss)
        self._emit(report.event(session.driver.root if session is not None else b"", loss=loss))

    def _look_round(self) -> None:
        """Note where the run is, for when it is left; leave it when it is over."""
        session = self._session
        if session is None:
            return
        self._round = max(0, session.driver.op)
        self._state_root = session.driver.root.hex()
        if session.is_finished:
            self._is_over = True
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
            words = render(told, ends=False) if isinstance(told, UserError) else repr(told)
            logger.warning("This peer has left the run, and training goes on alone.\n%s", words)

    def _go(self, reason: str) -> None:
        """Leave with a checkpoint and a goodbye."""
        session = self._own_session()
        if session is not None:
            self._guarded(lambda: self._part_from(session, reason))
            if self._log is not None and self._session is session:
                self._log.left(reason, self._round, session.result)
                if self._membership is not None:
                    up, down = self._membership.thread.shell.bytes_moved
                    self._emit(Left(self._round, self._state_root, up, down, session.result))
            self._drop(reason)

    def _part_from(self, session: Session, reason: str) -> None:
        def waits() -> None:
            logger.info("Others take over the weights after round %d.", self._round)

        if words := unheld(session.leave(reason, waits=waits), self._round):
            logger.warning("%s", words)

    def _ends(self) -> None:
        """The program has come to its end, and nobody has left the run."""
        if self._own_session() is not None:
            self._abandon("its program ended")
            self._go("its program ended")

    def _abandon(self, reason: str) -> None:
        """Let a job say goodbye without its ranks: they are somewhere else, or gone, and nothing
        can be saved with them."""
        if self._job is not None and self._session is not None:
            self._job.abandon()
            self._drop(reason)

    def _own_session(self) -> Session | None:
        """The session in the process that has joined. One that was forked off has neither the
        network thread nor a right to the directory, and forgets both."""
        if self._is_copy and self._session is not None:
            hook, self._hook, self._session, self._membership = self._hook, None, None, None
            atexit.unregister(self._ends)
            if hook is not None:
                hook.remove()
        return self._session

    def _drop(self, reason: str) -> None:
        """End all that `enter` began. The weights stay as they are."""
        hook, membership = self._hook, self._membership
        self._hook = self._membership = self._session = None
        atexit.unregister(self._ends)
        if hook is not None:
            hook.remove()
        if membership is not None:
            membership.close(reason)
        if self._job is not None:
            self._job.over(self._view())


class Follower(Swarm):
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
        self._take(job.follow(model, optimizer))
        if optimizer is not None and when == HOOK and not job.is_over:
            self._hook = optimizer.register_step_post_hook(self._stepped)

    @property
    def peers(self) -> int:
        """See Swarm.peers."""
        return 0 if self._job.is_over else self._peers

    def step(self) -> None:
        """See Swarm.step."""
        super().step()
        self._listen()

    def finish_round(self) -> None:
        """See Swarm.finish_round."""
        self.leave()

    def leave(self) -> None:
        """Leave with rank 0."""
        while not self._job.is_over:
            self._listen()

    def _exit(self, error: BaseException | None) -> None:
        """Leave with rank 0; where the loop has failed torchrun ends the job."""
        if error is None:
            self.leave()

    def _stepped(self, *_: object) -> None:
        """The optimizer's step hook."""
        self._listen()

    def _listen(self) -> None:
        """Do what rank 0 tells, until it lets the loop go on."""
        if self._job.is_over:
            return
        view = self._job.served()
        self._take(view)
        if self._job.is_over and self._hook is not None:
            self._hook.remove()
        if view.trouble:
            self.error = error_of(view.trouble)
            if self._strict:
                raise self.error

    def _take(self, view: View) -> None:
        """See the run as rank 0 tells of it; the seed is one for all ranks of a job."""
        self._round, self._state_root, self._seed = view.round, view.state_root, view.seed
        self._is_over, self._peers = view.is_over, view.peers


def _forked(copied: "weakref.ref[Member]") -> None:
    """A process was forked off, and its member is no peer. It is not told by the process's id, for
    which a compiled step has no place."""
    member = copied()
    if member is not None:
        member._is_copy = True


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a GradScaler had this step skipped inside the optimizer, as fused ones do: it
    then hands them its findings, and calls `step` all the same."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found.any())
