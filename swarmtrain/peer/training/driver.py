"""Steps a strategy through the ops of the exchange; the same for a process and a simulation.

It turns what the exchange asks (load this state, apply this result, this op was skipped) into
calls of a Strategy, and what the trainer did into contributions. It runs on the training thread,
between two inner steps, so weights never change under a step. Not here: sockets, files, time.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from swarmtrain.peer.arithmetic import (
    TensorContribution,
    contributions_of,
    decode_result,
    mean_of,
)
from swarmtrain.peer.training.own_work import (
    Known,
    OwnContribution,
    OwnPart,
    decoded_own,
    is_lost,
    without_broken,
)
from swarmtrain.peer.training.state_image import (
    Put,
    StateImage,
    anchor_of,
    arrays_of,
    forget_own,
    image_of,
)
from swarmtrain_optimizers.exclusions import EXCLUSIONS_MAX
from swarmtrain_optimizers.strategies.base import (
    ActsBetween,
    Direction,
    HearsOfSwarm,
    KeepsBase,
    KeepsPace,
    KnowsAhead,
    Moved,
    OpKind,
    Probing,
    StepsAlone,
    StepsInPlace,
    Strategy,
    SwarmFacts,
    Values,
)
from swarmtrain_optimizers.strategies.checks import is_finite
from swarmtrain_transport.actions import LoadState
from swarmtrain_transport.blocks.manifest import StateManifest
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.records import Turn

logger = logging.getLogger(__name__)


class Weights(Protocol):
    """The live weights of whoever trains."""

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """(padded,) float32 on the CPU."""

    def write_weights(self, vector: Tensor) -> None:
        """Go on from these weights, (padded,) float32; only read, and not kept."""


@runtime_checkable
class ReadsInParts(Protocol):
    """Weights that need not be copied as a whole to be looked at."""

    def live_weights(self) -> Values:
        """(padded,) float32 on the CPU; to be asked before they change. A tensor is a copy."""


@runtime_checkable
class WritesInParts(Protocol):
    """Weights of which a part can be replaced."""

    def write_moved(self, moved: Moved) -> None:
        """Go on from these weights where they are others; only read, and not kept."""


@runtime_checkable
class LiesFlat(Protocol):
    """Weights that can be one vector, which is then all there is of them in memory."""

    def lie_flat(self) -> Tensor | None:
        """(padded,) float32 on the CPU: the live weights themselves from now on; None if they can
        not be that."""


@dataclass(slots=True)
class _Given:
    """Our part of an op that has no outcome yet.

    Attributes:
        part: part that was given.
        values: values that it was made of.
        steps: inner steps at that moment, counted as `Driver.steps`.
        samples: likewise.
    """

    part: OwnPart
    values: Values
    steps: int
    samples: int


class Driver:
    """One peer's strategy and its place in the run.

    Args:
        me: own id.
        strategy: decides what is exchanged and uses the result.
        weights: the trainer's live weights.
        layout: digest of the model's parameter names and shapes, 32 bytes.
        num_values: values of the model without padding.
        snapshot_rounds: state is copied for joiners after every so many ops, and after every one
            where ops go by pairs.
        contribution: makes what is given to an op from its values.
        decode: the mean of a committed result; None decodes it as the strategy takes it.
        read_gradient: (padded,) float32, of the step that was made last; only a strategy that
            takes gradients needs it, and then that step has left the weights alone.
        seed_of: seed of stochastic rounding in an op; None rounds to nearest.
        put: takes copies of the state; None for memory.
        steps_alone: inner steps before the round that ends with an op, by the op's number.
        confine: brings (padded,) weights back to where they may be, in place, by operations that
            give the same bits everywhere; done to the anchor after each outer step.

    Attributes:
        op: newest op whose outcome is in the strategy, -1 before the first state and while one
            takes the place of another.
        steps: inner steps since the last READY that had an outcome; since that READY's own
            steps where the strategy's results have a later place.
        included: True if our part was in the last committed op, for people.
        is_alone: True if it ended with a step of a group of one.
        root: state root after `op`.
        flat: (padded,) the live weights as one vector that is also the anchor, where they lie so.
        samples_so_far: samples of all peers in committed results up to `op`; 0 where the run does
            not count them.
        round_samples: samples in the newest of these, 0 before one was seen.

    Raises:
        ValueError: the strategy takes gradients, and nobody gives them.
    """

    def __init__(
        self,
        me: PeerId,
        strategy: Strategy,
        weights: Weights,
        *,
        layout: bytes,
        num_values: int,
        snapshot_rounds: int,
        contribution: Callable[[Values], OwnContribution] = TensorContribution,
        decode: Callable[[OpResult], Tensor] | None = None,
        read_gradient: Callable[[], Tensor] | None = None,
        seed_of: Callable[[int], int] | None = None,
        put: Put | None = None,
        steps_alone: Callable[[int], int] = lambda op: 0,
        confine: Callable[[Tensor, tuple[Turn, ...]], None] | None = None,
    ) -> None:
        if strategy.takes_gradients and read_gradient is None:
            raise ValueError("this strategy takes gradients, and its trainer gives weights only")
        self.op = -1
        self.steps = 0
        self.included = False
        self.is_alone = False
        self._me = me
        self._strategy = strategy
        self._weights = weights
        self._layout = layout
        self._num_values = num_values
        self._snapshot_rounds = max(1, snapshot_rounds)
        self._put = put
        self._steps_alone, self._confine = steps_alone, confine
        self.root = b""
        self._manifest: StateManifest | None = None
        self.samples_so_far = self.round_samples = 0
        self._contribution = contribution
        self._decode = decode
        # Reads the values that a contribution is made of.
        self._read: Callable[[], Tensor] = weights.read_weights
        if strategy.takes_gradients and read_gradient is not None:
            self._read = read_gradient
        self.flat: Tensor | None = None
        self._seed_of = seed_of
        self._moments: Mapping[str, Tensor] = {}
        self._kept: tuple[int, bytes, dict[str, Tensor]] | None = None
        self._has_kept = False
        self._samples = 0
        self._began = -1  # op of the anchor that the round began from
        self._stale = 0  # results since then
        self._seen: dict[PeerId, int] = {}  # op that had a peer's part last
        self._given: deque[_Given] = deque()  # parts under way, oldest first: those after `op`
        if isinstance(strategy, Probing):
            self._read = self._anchor  # which is where the weights are, between ops and in them
            self.flat = weights.lie_flat() if isinstance(weights, LiesFlat) else None
            if self.flat is not None:
                strategy.live_in(self.flat)

    @property
    def strategy(self) -> Strategy:
        """The strategy that is driven."""
        return self._strategy

    @property
    def is_paired(self) -> bool:
        """True if ops go by pairs: then state is each peer's own, and no result can be replayed."""
        return self._strategy.exchange(1).kind is OpKind.PAIR

    @property
    def _seeks_partner(self) -> bool:
        """True if an op without a partner is no step: who has none seeks one in the next op."""
        return self.is_paired and not isinstance(self._strategy, StepsAlone)

    @property
    def is_waiting(self) -> bool:
        """True if our part is given and its op has no outcome yet."""
        return bool(self._given)

    @property
    def is_due(self) -> bool:
        """True if the inner steps of the next op are done, and it may be under way beside those
        that are."""
        if self.op < 0 or len(self._given) >= self.ops_at_once:
            return False
        made = self.steps - (self._given[-1].steps if self._given else 0)
        return self._strategy.is_due(made - self._steps_alone(self.op + len(self._given) + 1))

    @property
    def ops_at_once(self) -> int:
        """Number of ops that may be under way at once, each on a fragment of its own.

        After a restart it is 1 until an outcome tells if the restored work was used before.
        """
        rounds = -(-self._delay(self.op + 1) // max(1, self._strategy.inner_steps))
        if rounds <= 1 or self._has_kept:
            return 1
        return min(rounds, max(1, len(self.fragments)))

    @property
    def has_steps(self) -> bool:
        """True if inner steps were made that no part holds yet."""
        return self.steps > (self._given[-1].steps if self._given else 0)

    @property
    def round_steps(self) -> int:
        """Own inner steps from one contribution to the next."""
        strategy = self._strategy
        most = strategy.inner_steps
        return next((steps for steps in range(1, most) if strategy.is_due(steps)), most)

    @property
    def overlaps(self) -> bool:
        """True if inner steps go on while a result is under way."""
        return self._delay(self.op) > 0

    @property
    def is_at_place(self) -> bool:
        """True if our part is given and its result's place is reached: an outcome that came earlier
        waits for this, and one that has not come is waited for. Of several parts it is the oldest
        one's."""
        if not self._given:
            return False
        oldest = self._given[0]
        return self.steps - oldest.steps >= self._delay(oldest.part.op)

    @property
    def fragments(self) -> tuple[int, ...]:
        """Numbers of values that ops move in turn of each vector; empty where each moves all."""
        first = self._strategy.exchange(1)
        sizes = [first.num_values // first.vectors]
        while (now := self._strategy.exchange(1 + len(sizes))).ranges != first.ranges:
            sizes.append(now.num_values // now.vectors)
        return () if sizes == [self._strategy.num_values] else tuple(sizes)

    def begin_with(self, vector: Tensor, moments: Mapping[str, Tensor] | None = None) -> None:
        """Take these weights, (padded,) float32, in place of the trainer's own, and these arrays
        likewise for `offer`, in place of zeros."""
        self._weights.write_weights(vector)
        self._moments = moments or {}

    def offer(self) -> StateImage:
        """The trainer's own weights as op 0, in case this peer is the first."""
        if self.flat is None:
            self._strategy.set_initial(self._weights.read_weights())
        moments, self._moments = self._moments, {}
        if moments:
            self._strategy.load_state({**dict(self._strategy.state_arrays()), **moments})
        return self._image(0, copy=True)

    def restored(
        self, op: int, arrays: dict[str, Tensor], own: dict[str, Tensor] | None = None
    ) -> StateImage:
        """A checkpoint's state after `op`, to be attached; the ledger says whether it counts.

        Args:
            op: op of the part.
            arrays: (padded,) float32 by name.
            own: the strategy's own arrays as they were then; they come back with that state.
        """
        self._strategy.load_state(arrays)
        image = self._image(op, copy=True)
        self._kept = None if own is None else (op, image.manifest.root, own)
        return image

    def stepped(self, samples: int) -> None:
        """Count an inner step over so many samples, and let a strategy that does so act on it."""
        self.steps += 1
        self._samples += samples
        if isinstance(self._strategy, ActsBetween):
            self._weights.write_weights(self._strategy.between().add_(self._read()))

    @property
    def _next_op(self) -> int:
        return self.op + len(self._given) + 1

    def direction(self) -> Direction | None:
        """The direction that the next inner step looks in; None where steps move the weights."""
        strategy = self._strategy
        if not isinstance(strategy, Probing):
            return None
        return strategy.direction(self._next_op, self._me)

    def heard(self, ahead: float, behind: float) -> None:
        """Hear the losses of that step; `stepped` counts it."""
        assert isinstance(self._strategy, Probing)
        self._strategy.heard(ahead, behind)

    def contribute(self) -> OwnPart:
        """Take the difference for the next op; it stays until `end_op` or `skip`."""
        op = self._next_op
        values: Values
        if isinstance(self._strategy, StepsInPlace):
            values = self._strategy.difference(self._live(), op)
        else:
            values = self._strategy.pseudo_gradient(self._read(), op)
        meanwhile = self._strategy.weights_under_way()
        if meanwhile is not None:
            self._weights.write_weights(meanwhile)
        samples = self._samples - (self._given[-1].samples if self._given else 0)
        since = self._began if isinstance(self._strategy, KeepsBase) else -1
        part = OwnPart(op, self._contributed(values, op), samples, since)
        self._given.append(_Given(part, values, self.steps, self._samples))
        return part

    def known_ahead(self) -> tuple[int, Known] | None:
        """Return the next op and the known part of our contribution to it before its inner steps,
        None without one.

        Where rounding is drawn anew for each op, other bytes would be published than were sent.
        """
        strategy = self._strategy
        is_drawn = self._seed_of is not None
        if self.op < 0 or is_drawn or not isinstance(strategy, KnowsAhead):
            return None
        start, values = strategy.known_ahead()
        return self.op + 1, Known(start, TensorContribution(values))

    def _contributed(self, values: Values, op: int) -> OwnContribution:
        if self._seed_of is None:
            return self._contribution(values)
        return TensorContribution(values, seed=self._seed_of(op))

    @property
    def keeps_pace(self) -> bool:
        """True if the strategy lets a slow peer make fewer inner steps, so that nobody waits."""
        return isinstance(self._strategy, KeepsPace)

    def keep_pace(self, own_steps_per_s: float, fastest_steps_per_s: float) -> None:
        """Say how fast this peer and the fastest are; 0 where that is not known."""
        if isinstance(self._strategy, KeepsPace) and min(own_steps_per_s, fastest_steps_per_s) > 0:
            self._strategy.keep_pace(min(own_steps_per_s, fastest_steps_per_s), fastest_steps_per_s)

    def load(self, action: LoadState) -> StateImage:
        """Put a downloaded or restored state in place; local work is dropped.

        Raises:
            RemoteFault: reason ``manifest``: the state's arrays are not this strategy's.
        """
        self.op = -1  # whatever ends this in the middle, a torn state is nobody's
        self._strategy.load_state(self._arrays(action))
        self._take_back(action)
        self._weights.write_weights(self._anchor())
        self.samples_so_far, self.round_samples = action.samples, 0
        self._seen.clear()
        self._reset(action.op)
        return self._image(action.op, copy=True)

    def _arrays(self, action: LoadState) -> dict[str, Tensor]:
        strategy = self._strategy
        in_place = isinstance(strategy, StepsInPlace | Probing)
        return arrays_of(strategy, action, self._num_values, in_place=in_place)

    def _anchor(self) -> Tensor:
        return anchor_of(self._strategy)

    def _is_lost(self, values: Values, included: Sequence[tuple[int, int, bool]] = ()) -> bool:
        return is_lost(values, included)

    def _without_broken(self, weights: Tensor) -> Tensor:
        return without_broken(self._strategy, weights)

    def _take_back(self, action: LoadState) -> None:
        """Own arrays come back with the very state that they were saved with (rule 9)."""
        kept, self._kept = self._kept, None
        self._has_kept = kept is not None and kept[:2] == (action.op, action.manifest.root)
        if kept is not None and self._has_kept:
            try:
                self._strategy.load_local(kept[2])
            except ValueError:  # another version's: going on without is always right
                self._has_kept = False

    def _drop_taken_back(self, result: OpResult) -> bool:
        """A later op had our part after all: what came back was spent there (rule 9), and what was
        given since was made with it. True if that is so."""
        named = any(self._me in piece.contributors for piece in result.slices)
        is_spent = self._has_kept and result.replayed and named
        if is_spent:
            forget_own(self._strategy)
        if named or not result.replayed:
            self._has_kept = False
        return is_spent

    def end_op(self, result: OpResult) -> StateImage:
        """Outer step with a committed result, and weights by protocol.md rules 9 and 10.

        Of a pair op it is the partner's half; where it holds none, who has given a half steps
        alone, and for everybody else nothing changes.
        """
        self.round_samples = result.samples
        self.samples_so_far = result.samples_before + result.samples
        if isinstance(self._strategy, HearsOfSwarm):
            spans = self._spans(result)
            self._strategy.hear_of_swarm(
                SwarmFacts(
                    result.samples_before, result.shares,
                    sum(spans.values()) / len(spans) if spans else 1.0, spans.get(self._me, 1),
                )
            )  # fmt: skip
        self.is_alone = self.is_paired and not result.slices and self.is_waiting
        if self.is_paired and not result.slices:
            return self._end_without_partner(result)
        is_spent = self._drop_taken_back(result)
        given = self._given[0] if self._given else None
        # A replayed op had no part of this process: what bears our name there was given by an
        # earlier life of this peer, and our own difference still waits.
        included = [
            (start, stop, not result.replayed and self._me in named)
            for start, stop, named in result.ranges
        ]
        is_broken = given is not None and self._is_lost(given.values, included)
        weights = self._stepped(result, included, given, is_dropped=is_spent)
        if is_broken:
            weights = self._without_broken(self._all_of(weights))
        self._go_on_from(weights, result)
        self.included = given is not None and any(here for _, _, here in included)
        if isinstance(self._strategy, KeepsBase) and not self.included:
            self._stale += 1
            self._gives_up(self._strategy)
            self._goes_on(result.op)
        else:
            if given is not None:
                self._ended(result.op)
            self._began, self._stale = result.op, 0
        self.op = result.op
        copy = result.is_kept or self._is_copied(result.op)
        moves_little = isinstance(self._strategy, StepsInPlace) and self._confine is None
        before = self._manifest if moves_little else None
        return self._image(result.op, copy=copy, before=before)

    def _spans(self, result: OpResult) -> dict[PeerId, int]:
        """Rounds of work in each contributor's part: those since it was in an op that we saw.
        Beyond as many as `Exclusions` allows its work was dropped, or it is anew here."""
        op, named = result.op, {peer for _, _, peers in result.ranges for peer in peers}
        spans = {peer: op - self._seen.get(peer, op - 1) for peer in named}
        recent = {peer: at for peer, at in self._seen.items() if op - at < EXCLUSIONS_MAX}
        self._seen = recent | dict.fromkeys(named, op)
        return spans

    def _stepped(
        self,
        result: OpResult,
        included: list[tuple[int, int, bool]],
        given: _Given | None,
        *,
        is_dropped: bool,
    ) -> Tensor | Moved:
        """The strategy's step with a committed result, and the weights to go on from.

        Args:
            result: result of the op.
            included: see `Strategy.apply`.
            given: our part of it.
            is_dropped: the strategy has dropped that part.
        """
        strategy, op = self._strategy, result.op
        if isinstance(strategy, Probing):
            contributions = contributions_of(result)
            self.op = -1  # whatever ends this in the middle, a torn state is nobody's
            return strategy.take(contributions, op)
        decoded = None
        if given is not None:
            own = decoded_own(given.part.contribution, result, self._padding(op))

            def decoded(start: int, stop: int) -> Tensor:
                return own[start:stop]

        contributors = max((len(named) for _, _, named in result.ranges), default=0)
        own_share = 1 / contributors if contributors else None
        if not isinstance(strategy, StepsInPlace):
            return strategy.apply(
                # Not kept here: it is let go as soon as the step is made.
                self._without_padding((self._decode or decode_result)(result), op),
                included, self._weights.read_weights(), decoded, op=op, own_share=own_share,
            )  # fmt: skip
        mean: Values
        if self._decode is None:
            mean = mean_of(result, self._padding(op))
        else:
            mean = self._without_padding(self._decode(result), op)
        is_still = given is not None and given.steps == self.steps and not is_dropped
        now = None if is_still else self._live()
        self.op = -1  # whatever ends this in the middle, a torn state is nobody's
        return strategy.land(mean, included, now, decoded, op=op, own_share=own_share)

    def _all_of(self, weights: Tensor | Moved) -> Tensor:
        """(padded,) the weights, if they are told where they are others than now."""
        if isinstance(weights, Tensor):
            return weights
        return weights.put_in(self._weights.read_weights())

    def _go_on_from(self, weights: Tensor | Moved, result: OpResult) -> None:
        """Take the weights of an outer step. Codecs without a level for zero, and peers that give
        what they should not, move values that nobody trains; and a subspace may have turned. The
        anchor goes through that once, also where the weights are the anchor itself."""
        if self._confine is not None:
            weights, anchor = self._all_of(weights), self._anchor()
            self._confine(anchor, result.turns)
            if weights.data_ptr() != anchor.data_ptr():
                self._confine(weights, result.turns)
        if isinstance(weights, Moved) and isinstance(self._weights, WritesInParts):
            self._weights.write_moved(weights)
        else:
            self._weights.write_weights(self._all_of(weights))

    def _live(self) -> Values:
        """The live weights for somebody who looks at one part after the other."""
        weights = self._weights
        return (
            weights.live_weights() if isinstance(weights, ReadsInParts) else weights.read_weights()
        )

    def _end_without_partner(self, result: OpResult) -> StateImage:
        """A pair op that has nothing for this peer: nobody was left for it, its pair was not
        whole, or it did not take part."""
        self.included, op = False, result.op
        if self.is_waiting and isinstance(self._strategy, StepsAlone):
            now = self._weights.read_weights()
            self.is_alone = is_finite(now)
            if self.is_alone:
                self.op = -1  # as in `_stepped`
                self._go_on_from(self._strategy.solo(now), result)
            else:
                # Nobody's mean would make the anchor a number again: such work is dropped.
                self._strategy.skip()
                self._weights.write_weights(self._without_broken(now))
            self._ended(op)
        elif self.is_waiting:
            self.is_alone = False
            self._end_unused(op)
        if self._confine is not None and not self.is_alone:
            self._go_on_from(self._weights.read_weights(), result)  # the subspace turns for all
        self.op = op
        return self._image(op, copy=self._is_copied(op))

    def _is_copied(self, op: int) -> bool:
        """Return True if the state after an op is kept for others. Where ops go by pairs it always
        is: nobody else has it, and no replay leads from an older one to it."""
        return self.is_paired or op % self._snapshot_rounds == 0

    def _padding(self, op: int) -> tuple[tuple[int, int], ...]:
        """Return the places at which the op's vector holds no values of the model."""
        wanted = self._strategy.exchange(op)
        found, position = [], 0
        for start, stop in wanted.ranges * wanted.vectors:
            first = max(start, self._num_values)
            if first < stop:
                found.append((position + first - start, position + stop - start))
            position += stop - start
        return tuple(found)

    def _without_padding(self, mean: Tensor, op: int) -> Tensor:
        """The mean with zeros where there is no model: codecs without a level for zero, as sign
        and two_bit are, send something there, and the padding is not in the state root."""
        for low, high in self._padding(op):
            if mean[low:high].any():
                mean = mean.clone()
                mean[low:high] = 0
        return mean

    def skip(self, op: int) -> None:
        """The op ended without a result: train on from where we are, if that is a place at all."""
        if self._given:
            self._end_unused(op)
        self.op = op

    def _end_unused(self, op: int) -> None:
        """An op that we have given to has changed nothing for us."""
        self._strategy.skip()
        if self._is_lost(self._given[0].values):
            now = self._weights.read_weights()
            self._weights.write_weights(self._without_broken(now))
        if isinstance(self._strategy, KeepsBase) or self._seeks_partner:
            self._goes_on(op)
        else:
            self._ended(op)

    def _goes_on(self, op: int) -> None:
        """An op has ended without our part: what there is of it is due for the next one. Without
        any the round begins at the newest anchor."""
        self._given.clear()
        if not self.steps:
            self._began, self._stale = op, 0

    def _gives_up(self, strategy: KeepsBase) -> None:
        """Begin anew at the anchor where no op takes work as old as ours any more."""
        if self.steps and self._stale > strategy.max_stale:
            logger.warning(
                "Work that began after op %d is given up: %d results have come meanwhile.",
                self._began, self._stale,
            )  # fmt: skip
            self._weights.write_weights(strategy.give_up())
            self.steps = self._samples = 0

    def settle(self) -> None:
        """The run is over: its weights take the place of steps that no round will merge."""
        self._weights.write_weights(self._anchor())
        self._reset(self.op)

    def _delay(self, op: int) -> int:
        return self._strategy.exchange(op).delay_steps

    def _ended(self, op: int) -> None:
        """Steps made on purpose while the op was under way belong to the next round; those made
        because its outcome was late do not delay anybody's next part."""
        if self._delay(op) == 0:
            self._reset(op)
            return
        ended = self._given.popleft()
        self.steps -= ended.steps
        self._samples -= ended.samples
        for later in self._given:
            later.steps -= ended.steps
            later.samples -= ended.samples

    def _reset(self, op: int) -> None:
        self._given.clear()
        self.steps = 0
        self._samples = 0
        self._stale = 0
        self.op = self._began = op

    def _image(self, op: int, *, copy: bool, before: StateManifest | None = None) -> StateImage:
        image = image_of(
            self._strategy, self._layout, self._num_values, op, copy=copy, put=self._put,
            before=before,
        )  # fmt: skip
        self._manifest, self.root = image.manifest, image.manifest.root
        return image
