"""Training in one group, checked as it happens (protocol.md I1, I2, I3, I7, I9).

Results that are applied are made again with plain sums, and each peer's work is accounted for.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.simulate.checks.decided import Decided
from swarmtrain.simulate.checks.demands import Demands
from swarmtrain.simulate.checks.exclusions import Exclusions
from swarmtrain.simulate.checks.holding import state_of
from swarmtrain.simulate.checks.lies import Lies
from swarmtrain.simulate.checks.pair_checks import PairChecks
from swarmtrain.simulate.checks.sums import NamedSums, same_bits
from swarmtrain.simulate.checks.work_balance import Books
from swarmtrain.simulate.processes.swarm import Swarm
from swarmtrain.simulate.processes.watched_driver import Learner
from swarmtrain_optimizers.strategies.base import KeepsBase
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.kinds import CLOCKS, PAIR
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.records import Commit, Plan, Skip


class TrainingChecks:
    """Checks the training in one group.

    Args:
        swarm: coordinator and peers.
        decided: decisions of the group that were logged.
        demands: peers that may be left out.
        lies: deeds of a hostile owner in the group.
        healed: hears who takes over shared state.

    Attributes:
        sums: results made again.
        pairs: checks where ops go by pairs.
    """

    def __init__(
        self, swarm: Swarm, decided: Decided, demands: Demands, lies: Lies,
        healed: Callable[[PeerId], None] = lambda peer: None,
    ) -> None:  # fmt: skip
        self.sums = NamedSums(swarm.decode)
        self.pairs = PairChecks(swarm, decided, demands, self.sums)
        self._scene = swarm.scene
        self._decided, self._lies, self._healed = decided, lies, healed
        conditions, is_later = swarm.scene.conditions, decided.group > 0
        self._num_values = conditions.stage_values if is_later else conditions.num_values
        self._keeps_books = is_later or conditions.keeps_books
        self._is_lossy = not (is_later or conditions.error_feedback)
        self._results: dict[int, tuple[Buffer, ...]] = {}
        self._books: dict[PeerId, Books] = {}
        self._given: set[tuple[int, PeerId]] = set()
        self._exclusions: dict[PeerId, Exclusions] = {}
        self._restored: set[PeerId] = set()

    def begun(self, plan: Plan) -> None:
        """An op begins: what no result can name any more is forgotten."""
        if plan.graph == CLOCKS:
            self.sums.brought_up(plan)
        if plan.kind == PAIR:
            self.pairs.begun(plan)
        self.sums.forget(self._decided.newest[0] - 2 * limits.RESULT_KEEP_OPS)

    def rewound(self, op: int) -> None:
        """Later ops are cancelled."""
        for later in [key for key in self._results if key > op]:
            del self._results[later]
        self.sums.rewound(op)
        self.pairs.rewound(op)

    def contributed(self, learner: Learner, part: OwnPart) -> None:
        """A peer gave its part to an op."""
        self.sums.parts[(part.op, learner.peer_id, learner.machine.card.boot)] = part
        self._given.add((part.op, learner.peer_id))
        if learner.driver.is_paired:
            self.pairs.contributed(learner)
        self._check_books(learner)

    def loaded(self, learner: Learner, *, takes_back: bool) -> None:
        """A peer took over shared state; its books begin anew."""
        self._healed(learner.peer_id)
        self.pairs.loaded(learner)
        self._given = {given for given in self._given if given[1] != learner.peer_id}
        if not self._keeps_books:
            return
        is_lossy = learner.driver.is_paired or self._is_lossy
        self._exclusions[learner.peer_id] = Exclusions(self._num_values)
        self._restored.discard(learner.peer_id)
        moved = learner.trainer.moved
        if takes_back:  # what it has kept was done in an earlier life
            residual, _ = self._kept(learner)
            moved = moved - residual.double()
            self._restored.add(learner.peer_id)
        self._books[learner.peer_id] = Books(moved, is_lossy=is_lossy)

    def state_of(self, learner: Learner) -> list[Tensor]:
        """A copy of what no SKIP may change."""
        return state_of(learner)

    def skipped(self, learner: Learner, op: int, before: list[Tensor]) -> None:
        """I1 and I7: SKIP changes nothing: neither what is shared nor what is kept."""
        is_skipped = isinstance(self._decided.outcomes.get(op), Skip)
        if not is_skipped and not self._decided.is_past(learner):
            self._violated("I1", f"peer {learner.number} skips op {op} without a SKIP")
        after = state_of(learner)
        if not all(same_bits(old, new) for old, new in zip(before, after, strict=True)):
            self._violated("I7", f"peer {learner.number}: op {op} was skipped but changed state")
        self._check_books(learner)

    def applying(self, learner: Learner, result: OpResult) -> None:
        """I1, I2, I3: the result is the commit's, the same everywhere, and the exact sum."""
        if self._decided.is_past(learner):
            return
        commit = self._decided.outcomes.get(result.op)
        if not isinstance(commit, Commit):
            self._violated("I1", f"peer {learner.number} applies op {result.op} without a COMMIT")
            return
        if result.kind == PAIR:
            self.pairs.applying(learner, result, commit)
            return
        content = tuple(chunk for piece in result.slices for chunk in piece.chunks)
        if result.op not in self._results:
            self._results[result.op] = content
            self._check_sum(commit, result)
        elif self._results[result.op] != content:
            self._violated("I2", f"peer {learner.number} applies other bytes for op {result.op}")

    def _check_sum(self, commit: Commit, result: OpResult) -> None:
        """I3, but for what a hostile owner has made of its slice: that is the audits' affair."""
        wrong = self.sums.wrong_chunks(commit, self._decided.plans[commit.op], result)
        for index in sorted({place[0] for place in self._lies.unexplained(commit.op, wrong)}):
            self._violated("I3", f"op {commit.op} slice {index} is not its named sum")

    def applied(self, learner: Learner, result: OpResult) -> None:
        """I9: what was sent and what was kept add up to what was done."""
        books = self._books.get(learner.peer_id)
        if books is None:
            return
        if self._decided.is_past(learner):
            del self._books[learner.peer_id]  # it will load another state
            return
        if result.kind == PAIR:
            self.pairs.applied(learner, result, books)
            self._check_books(learner)
            return
        plan = self._decided.plans[result.op]
        # Parts given before the state was loaded are of no account.
        has_given = (result.op, learner.peer_id) in self._given
        took_part = has_given and self._decided.is_planned(learner, result.op)
        sent = [took_part and learner.peer_id in named for _, _, named in result.ranges]
        decoded = self.sums.decoded(result.op, learner.peer_id, plan) if any(sent) else None
        ranges = learner.strategy.exchange(result.op).ranges
        if decoded is not None and all(sent):
            books.send(ranges, 0, result.num_values, decoded)
        elif decoded is not None:
            for (start, stop, _), here in zip(result.ranges, sent, strict=True):
                if here:
                    books.send(ranges, start, stop, decoded)
        if self._is_spent(learner, result):
            # All its work begins anew, what it gave to this op included: nothing waits for long.
            self._exclusions[learner.peer_id] = Exclusions(self._num_values)
        elif has_given and not isinstance(learner.strategy, KeepsBase):
            parts = zip(result.ranges, sent, strict=True)
            included = [(start, stop, here) for (start, stop, _), here in parts]
            if self._exclusions[learner.peer_id].ended(learner, ranges, included):
                story = f"peer {learner.number}: work that was left out three times is not dropped"
                self._violated("rule 9", f"{story} in op {result.op}, or other work is")
        self._take_back(learner, result, books)
        for start, stop in getattr(learner.strategy, "dropped", ()):
            books.write_off(start, stop, learner.trainer.moved, *self._kept(learner))
        self._check_books(learner)

    def _is_spent(self, learner: Learner, result: OpResult) -> bool:
        """Return True if an earlier life gave what this one has restored."""
        is_named = any(learner.peer_id in named for _, _, named in result.ranges)
        return learner.peer_id in self._restored and is_named and result.replayed

    def _take_back(self, learner: Learner, result: OpResult, books: Books) -> None:
        """Error feedback that was restored is spent if a later op had this peer's part."""
        if learner.peer_id not in self._restored:
            return
        is_spent = self._is_spent(learner, result)
        if is_spent or not result.replayed:
            self._restored.discard(learner.peer_id)
        if is_spent:
            residual, _ = self._kept(learner)
            if residual.any():
                story = f"error feedback was restored that op {result.op} had"
                self._violated("rule 9", f"peer {learner.number}: {story}")
            books.write_off(0, residual.numel(), learner.trainer.moved, *self._kept(learner))

    def _kept(self, learner: Learner) -> tuple[Tensor, Tensor]:
        """Return the values still to be sent: the error feedback, and the weights' lead."""
        strategy = learner.strategy
        local = dict(strategy.local_arrays())
        if isinstance(strategy, Delayed):
            return local["held"], strategy.base - learner.trainer.read_weights()
        ahead = strategy.anchor - learner.trainer.read_weights()
        residual = local.get("error_feedback")
        return torch.zeros_like(ahead) if residual is None else residual, ahead

    def _check_books(self, learner: Learner) -> None:
        books = self._books.get(learner.peer_id)
        if books is None or learner.nonfinite_op:
            return
        error = books.error(learner.trainer.moved, *self._kept(learner))
        if not error < books.tolerance:
            self._violated(
                "I9", f"peer {learner.number}: sent plus kept misses what was done by {error:.1e}"
            )

    def _violated(self, invariant: str, story: str) -> None:
        self._decided.violated(invariant, story)
