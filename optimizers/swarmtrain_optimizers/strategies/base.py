"""The promises of a strategy to the driver that steps it.

A strategy names the exchanges it needs and does the arithmetic around them. It never opens a
socket, knows no peer but its own, and keeps no time: the driver calls `pseudo_gradient` when an
op starts and exactly one of `apply` and `skip` when it ends. Vectors are flat, padded to a whole
number of blocks, and live on the CPU.

An op may move only a part of the vector, and may end some inner steps after it began: `exchange`
says so, as a function of the op's number alone, so that all peers agree without a word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from swarmtrain_optimizers.error_feedback import DecodeOwn
from swarmtrain_optimizers.strategies.facts import OpKind as OpKind


@dataclass(frozen=True, slots=True)
class Exchange:
    """The values that one op moves, and how.

    Attributes:
        kind: kind of the op.
        ranges: (start, stop) parts of the padded vector on whole blocks, in order, apart; the op's
            vector is these parts one after the other.
        delay_steps: inner steps between a contribution and the place of its result. A peer that has
            the result earlier waits with it, one that has it later waits for it. 0: nobody steps
            meanwhile.
        vectors: number of vectors that the parts are taken from, one after the other.
    """

    kind: OpKind
    ranges: tuple[tuple[int, int], ...]
    delay_steps: int = 0
    vectors: int = 1

    @property
    def num_values(self) -> int:
        """Length of the op's vector."""
        return self.vectors * sum(stop - start for start, stop in self.ranges)


class Values(Protocol):
    """A flat vector of which parts are asked for, such as a tensor. A part that is made when it is
    asked for takes no memory before."""

    def numel(self) -> int:
        """Length of the vector."""

    def __getitem__(self, places: slice, /) -> Tensor:
        """(stop - start,) contiguous, on the CPU; only read."""


class Strategy(Protocol):
    """One peer's side of one way to train together."""

    @property
    def num_values(self) -> int:
        """Length of the padded vector."""

    @property
    def inner_steps(self) -> int:
        """Inner steps of one round."""

    @property
    def takes_gradients(self) -> bool:
        """True if `pseudo_gradient` wants the gradient at the weights instead of the weights: then
        the driver makes no inner optimizer step, and every op is one step."""

    def exchange(self, op: int) -> Exchange:
        """Return the exchange of op `op`, counted from 1: the same on every peer."""

    def is_due(self, steps_since_outer: int) -> bool:
        """Return True if an exchange is due after this many inner steps since the last op's
        contribution or, where nobody steps during an op, since its end."""

    def set_initial(self, weights: Tensor) -> None:
        """Begin as op 0 with these weights, (num_values,); everything else is zero."""

    def state_arrays(self) -> list[tuple[str, Tensor]]:
        """The shared state in fixed order; its bytes make the state root.

        One of them is named ``anchor``: the weights that a newcomer begins with and that a
        checkpoint holds as the model. All are (num_values,), the live buffers: read them before
        the next `apply`, never write.
        """

    def load_state(self, arrays: Mapping[str, Tensor]) -> None:
        """Take over downloaded shared state; pending work and error feedback are dropped.

        Raises:
            ValueError: a name is missing or unknown, or a length differs; nothing changed.
        """

    def local_arrays(self) -> list[tuple[str, Tensor]]:
        """State that belongs to this peer alone and should survive its restart; may be empty."""

    def load_local(self, arrays: Mapping[str, Tensor]) -> None:
        """Take back `local_arrays`. Only valid if no later op included this peer (rule 9)."""

    def pseudo_gradient(self, weights: Tensor, op: int = 1) -> Tensor:
        """This peer's contribution to the op that starts, (exchange.num_values,), not changed until
        the op ends.

        Args:
            weights: (num_values,) the weights now, or with `takes_gradients` the gradient; copied.
            op: number of the op; ignored by a strategy whose ops are all alike.
        """

    def weights_under_way(self) -> Tensor | None:
        """(num_values,) the weights to go on from while the op is under way that
        `pseudo_gradient` was just called for; only read, and before the next call. None: as they
        are."""

    def apply(
        self,
        mean: Tensor,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Tensor,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Tensor:
        """End the op with its committed result.

        Args:
            mean: (exchange.num_values,) the decoded mean, the same on every peer.
            included: (start, stop, whether our part is in the mean) in the op's vector, in order,
                covering all; not looked at by a peer that contributed nothing.
            weights_now: (num_values,) the weights, with steps made since `pseudo_gradient`.
            decoded_own: with error feedback, our own part as the others decoded it, by places in
                the op's vector.
            op: number of the op; ignored by a strategy whose ops are all alike.
            own_share: one peer's part of the mean, 1 / contributors, where it is known.

        Returns:
            (num_values,) the weights to go on from, a new tensor.

        Raises:
            ValueError: shapes or ranges do not fit; nothing changed.
        """

    def skip(self) -> None:
        """End the op without a result: parameters, momentum and error feedback stay."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Weights to go on from, where they are others than they were.

    Attributes:
        ranges: (start, stop) parts of the padded vector, in order, apart; () where none moved.
        values: values of these parts one after the other; only read, and before the strategy's next
            call.
    """

    ranges: tuple[tuple[int, int], ...]
    values: Tensor

    def put_in(self, weights: Tensor) -> Tensor:
        """Write them into (num_values,) the weights as they were, which are returned."""
        position = 0
        for start, stop in self.ranges:
            weights[start:stop] = self.values[position : position + stop - start]
            position += stop - start
        return weights


@runtime_checkable
class StepsInPlace(Protocol):
    """A strategy that steps piece by piece where its state lies: neither mean nor new state is ever
    there as a whole vector beside the old. An op changes the shared state in its ranges alone."""

    def difference(self, weights: Values, op: int = 1) -> Values:
        """Do what `pseudo_gradient` does, without a copy of its own: `weights` are read before this
        returns, and a tensor becomes the strategy's own. The returned values hold until the op
        ends."""

    def land(
        self,
        mean: Values,
        included: Sequence[tuple[int, int, bool]],
        weights_now: Values | None,
        decoded_own: DecodeOwn | None = None,
        *,
        op: int = 1,
        own_share: float | None = None,
    ) -> Tensor | Moved:
        """Do what `apply` does, in place; any error but ValueError leaves a torn state.

        Args:
            mean: the mean of `apply`, read in order.
            included: see `apply`.
            weights_now: the weights of `apply`, read in order; a tensor becomes the strategy's own.
                None: no step was made since `difference`.
            decoded_own: see `apply`; read in order.
            op: see `apply`.
            own_share: see `apply`.

        Returns:
            (num_values,) the weights to go on from, to be read before the next call; they may be
            the live anchor. Or where they are others than `weights_now`.

        Raises:
            ValueError: as `apply`; nothing changed.
        """


@dataclass(frozen=True, slots=True)
class SwarmFacts:
    """Common knowledge of an op that ends, beside its result.

    Attributes:
        samples_before: samples in all earlier results; 0 where the run does not count them.
        weights: contributors' weights; empty where they are unknown.
        rounds: rounds of work that a contributor's part spans, on average, as far as this peer has
            seen who was in earlier ops: for what is a peer's own, never for shared state.
        own_rounds: rounds that this peer's part spans.
    """

    samples_before: int
    weights: tuple[int, ...]
    rounds: float = 1.0
    own_rounds: int = 1


@runtime_checkable
class HearsOfSwarm(Protocol):
    """A strategy whose shared step depends on the swarm's size, or on how far the run is."""

    def hear_of_swarm(self, facts: SwarmFacts) -> None:
        """Told before `apply` of every op, the same to every peer."""


@runtime_checkable
class KeepsPace(Protocol):
    """A strategy in which slow peers make fewer inner steps, so that all are done together
    (dynamic local updates, arXiv 2401.09135, section 5)."""

    def keep_pace(self, own_steps_per_s: float, wanted_steps_per_s: float) -> None:
        """Make so many inner steps a round from now on that nobody as fast as is wanted need wait.

        Raises:
            ValueError: a speed is not positive, or the own one above the wanted one.
        """


@runtime_checkable
class KeepsBase(Protocol):
    """A strategy whose rounds are each peer's own: they begin at the newest anchor, and ops that
    end meanwhile leave weights and difference alone. A part that an op has not taken is given to
    the next one at once."""

    @property
    def base(self) -> Tensor:
        """(num_values,) the weights that the round began with; only read."""

    @property
    def max_stale(self) -> int:
        """Results after which work that began before them is given up."""

    def give_up(self) -> Tensor:
        """Drop all that is not in the anchor, and return (num_values,) the anchor, a new tensor, to
        begin a round with."""


@runtime_checkable
class ActsBetween(Protocol):
    """A strategy that acts on the weights between any two inner steps, whatever optimizer makes
    these."""

    def between(self) -> Tensor:
        """(num_values,) what is added to the weights after the inner step that was just made, a
        new tensor. To be called once after each; `FACTS.acts_between` says that it is."""


@runtime_checkable
class StepsAlone(Protocol):
    """A strategy whose ops go by pairs: who has no partner makes a step of a group of one."""

    def solo(self, weights_now: Tensor) -> Tensor:
        """End the op that `pseudo_gradient` began without a partner's half.

        Args:
            weights_now: (num_values,) the weights, with steps made since `pseudo_gradient`.

        Returns:
            (num_values,) the weights to go on from, a new tensor.

        Raises:
            RuntimeError: no op is under way.
        """


@runtime_checkable
class DropsBroken(Protocol):
    """A strategy that tells work which is no number any more, and can never be sent, from the rest.

    Of one that does not, everything pending is dropped, by `load_state`.
    """

    def drop_broken(self, weights: Tensor) -> Tensor:
        """Between two ops: drop waiting work that is not finite, and go on from such weights.

        Nothing changes where all is finite. Where it is not, finite neighbours go too: beside NaN
        there are numbers on their way to it. So the unit is the part of the vector that one op
        moves.

        Args:
            weights: (num_values,) the weights now.

        Returns:
            (num_values,) the weights to go on from, a new tensor: the anchor where work was
            dropped.
        """


@runtime_checkable
class KnowsAhead(Protocol):
    """A strategy of which part of the next op's contribution is known when its round begins."""

    def known_ahead(self) -> tuple[int, Tensor]:
        """The first place in the op's vector from which on it is known, on a whole block, and the
        values from there to its end, not changed until the op ends."""


class Direction(Protocol):
    """A direction in which weights are moved to see what that does to a loss. It is nowhere as a
    whole: any part of it is made when it is asked for."""

    @property
    def step(self) -> float:
        """Length of the move in each value."""

    def signs(self, start: int, stop: int) -> Tensor:
        """(stop - start,) float32, each 1 or -1, for these places of the vector; a new tensor."""


@dataclass(frozen=True, slots=True)
class Given:
    """One peer's contribution to a gather op, as all decode it.

    Attributes:
        peer: key of the peer.
        weight: weight of the peer in PLAN, 1 to 255.
        values: (exchange.num_values,) float32; only read.
    """

    peer: bytes
    weight: int
    values: Tensor


@runtime_checkable
class Probing(Protocol):
    """A strategy whose inner steps leave the weights alone: each asks what a batch loses on both
    sides of them. The answers are the contribution, and everybody's are taken one by one.

    Its whole state is the anchor, which may be the very memory that the model computes with.
    """

    def live_in(self, weights: Tensor) -> None:
        """Let the anchor be this memory, (num_values,) float32, from now on, as it is."""

    def direction(self, op: int, peer: bytes) -> Direction:
        """Return the direction of our next inner step.

        Args:
            op: op that its answer goes to.
            peer: our own key.
        """

    def heard(self, ahead: float, behind: float) -> None:
        """The batch's losses in that direction and against it; what is no number says nothing."""

    def take(self, given: Sequence[Given], op: int) -> Tensor:
        """End the op with what was given to it, in the same order at every peer.

        Returns:
            (num_values,) the weights to go on from: the live anchor, only to be read.
        """
