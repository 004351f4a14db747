"""A world before anything goes wrong in it: its lines, disks, clocks and terms."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from swarmtrain.config.values import TELLABLE, WHOLE_VECTOR_RULES
from swarmtrain.simulate.ground.handicaps import Handicap
from swarmtrain.simulate.ground.spikes import GUARD
from swarmtrain_optimizers.strategies.asynchronous.strategy import Asynchronous
from swarmtrain_optimizers.strategies.co2.strategy import CO2
from swarmtrain_optimizers.strategies.ddp.strategy import DDP, AdamW
from swarmtrain_optimizers.strategies.decentralized_adam.strategy import DecentralizedAdam
from swarmtrain_optimizers.strategies.decoupled_momentum.strategy import DecoupledMomentum
from swarmtrain_optimizers.strategies.delayed.strategy import Delayed
from swarmtrain_optimizers.strategies.delayed_nesterov.strategy import DelayedNesterov
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_optimizers.strategies.eager.strategy import Eager
from swarmtrain_optimizers.strategies.gossip.strategy import Gossip
from swarmtrain_optimizers.strategies.noloco.strategy import NoLoCo
from swarmtrain_optimizers.strategies.sparseloco.strategy import SparseLoCo
from swarmtrain_optimizers.strategies.streaming.strategy import Streaming
from swarmtrain_transport.coordinator.ops.guard import NO_GUARD
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.kinds import CLOCKS, EXPONENTIAL, MEAN, PAIR, PAIR_VECTORS, RING
from swarmtrain_transport.ledger.sample_weights import STALENESS

SNAPSHOT_ROUNDS = 2
_RATE = 0.01
_MAX_STALE = 3
"""Results; so few that work is given up now and then."""

_EXTRA_PEERS = 4
"""Room for the parts of newcomers in what a peer declares that it will keep."""


Averaging = NoLoCo | Gossip | DecentralizedAdam
Task = DiLoCo | Averaging | Streaming | Delayed | DelayedNesterov | SparseLoCo | DDP


@dataclass(frozen=True, slots=True)
class Extension:
    """Rounds that the organiser adds to a run.

    Attributes:
        rounds: commits after which it is over then.
        after: number of commits that must be there; of the run's rounds, once it is finished.
        delay_s: time until the organiser does so.
        anew: the coordinator is ended for it, and started with the new number.
    """

    rounds: int
    after: int
    delay_s: float = 0.0
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """A world's constants. Times in seconds.

    Attributes:
        num_peers: peers at the start.
        rounds: the run ends after so many commits.
        seed: seed of everything that is drawn.
        min_contributors: setting of the run file.
        slice_chunks: chunks per slice, each of `chunk_values` values.
        slices: number of slices that an op moves; 0 for one for each peer at the start.
        chunk_values: values per chunk.
        block: values per scale.
        error_feedback: setting of the run file.
        deadline_s: floor and cap of D_op.
        latency_s: typical time of a frame on the way.
        rates: bytes per second of a line, drawn between these; 0 for lines that are never full.
        sync_s: time that a record takes to become durable; 0 for none.
        skew_s: processes' clocks show anything up to this when the world begins.
        drift: largest part by which a clock may run fast or slow.
        handicaps: defects of a peer from its start, by number.
        fragments: parts of the vector that ops move in turn, each as long as the vector without.
        kind: kind of the ops.
        codec: codec of parts and results; sums are watched as int8's are.
        rule: robust rule of mean ops instead of the mean; with it three contributors are needed.
        groups: 2 for a second group of another layout, in which some of the peers are too; with
            `are_experts` the number of groups, each with peers of its own.
        are_experts: groups are experts, to which the coordinator assigns peers.
        strategy_name: ``ddp``, ``delayed_nesterov``, or, with results that have a later place,
            ``delayed``, ``eager``, ``co2`` or ``streaming``; ``asynchronous``, with a buffer and a
            rule of staleness that the seed draws and peers of several speeds; of gathers
            ``sparseloco`` or ``decoupled_momentum``; of pairs ``gossip``, with a buffer and, by the
            seed, accelerated, or ``decentralized_adam``, by a graph that the seed draws. "" for
            what is waited for: diloco, noloco or, where there are fragments, streaming.
        ops_at_once: ops of late streaming that begin before the first one's place.
        leaves_in_turn: whoever says goodbye gives what it has, or ends its round, before.
        is_narrow: bounds are those of `narrow`.
        stage_holders: holders of the second group's state, keepers among them: then it has
            fewer members; 0 for no keepers.
        text_pieces: pieces of the text that peers lease; 0 for none.
        extension: rounds that are added. Peers of a finished run have left then, and come back.
        routers: peers are behind routers, and do not plainly reach each other.
        guarded: the loss leaps now and then, and the run has a guard.
        cells: cells of an op in which all peers of the start take part.
    """

    num_peers: int = 3
    rounds: int = 2
    seed: int = 0
    min_contributors: int = 1
    slice_chunks: int = 2
    slices: int = 0
    chunk_values: int = 64
    block: int = 32
    error_feedback: bool = True
    deadline_s: float = 20.0
    latency_s: float = 0.003
    rates: tuple[float, float] = (0.0, 0.0)
    sync_s: float = 0.0
    skew_s: float = 0.0
    drift: float = 0.0
    handicaps: Mapping[int, Handicap] = field(default_factory=dict)
    fragments: int = 1
    kind: str = MEAN
    codec: str = "int8"
    rule: str = ""
    groups: int = 1
    are_experts: bool = False
    strategy_name: str = ""
    ops_at_once: int = 1
    leaves_in_turn: bool = False
    is_narrow: bool = False
    stage_holders: int = 0
    text_pieces: int = 0
    extension: Extension | None = None
    routers: bool = False
    guarded: bool = False
    cells: int = 1

    @property
    def last_round(self) -> int:
        """Commits after which nothing more is wanted."""
        return self.rounds if self.extension is None else self.extension.rounds

    @property
    def keeps_books(self) -> bool:
        """True if what a peer has done is in results, or is kept. A gradient left out is lost or
        fades, and what was done before a late place is mixed away there on purpose."""
        return self.strategy_name not in ("ddp", "decoupled_momentum", "streaming")

    @property
    def buffer(self) -> int:
        """Peers that are ready with which an op begins; 0: all are waited for."""
        drawn = self.seed % max(1, self.num_peers - 1)
        return {"asynchronous": 1 + drawn, "gossip": max(2, drawn)}.get(self.strategy_name, 0)

    @property
    def _graph(self) -> str:
        drawn = (EXPONENTIAL, RING)[self.seed // 2 % 2]
        return {"decentralized_adam": drawn, "gossip": CLOCKS}.get(self.strategy_name, "")

    @property
    def keeps_age(self) -> bool:
        """True if work may be older, and then counts less."""
        return self.buffer > 0 and self.kind != PAIR

    @property
    def op_values(self) -> int:
        """Values that an op moves."""
        return (self.slices or self.num_peers) * self.slice_chunks * self.chunk_values

    @property
    def num_values(self) -> int:
        """Length of the vector."""
        return self.fragments * self.op_values

    @property
    def stage_values(self) -> int:
        """Length of the second group's vector."""
        return self.op_values // 2 + self.chunk_values

    @property
    def stage_peers(self) -> int:
        """Number of peers in the second group, as long as there are so many."""
        if self.stage_holders:
            return 1 + self.num_peers // 4
        return max(2, self.num_peers // 2) + 1

    @property
    def all_peers(self) -> int:
        """Peers at the start: with a second group one more than the first group has."""
        return self.num_peers + (self.groups > 1 and not self.are_experts)

    @property
    def retain_bytes(self) -> int:
        """Bytes of others' parts that a peer declares it will keep."""
        return 2 * self.num_values * (self.num_peers + _EXTRA_PEERS)

    def strategy(self, inner_steps: int, lr: float, momentum: float) -> Task:
        """Return the strategy of the peers. A fragment lies in two places, as a model's layers do;
        with a partner momentum counts half, as it must stay below the rate."""
        if self.strategy_name == "gossip":
            flow, reach = ((0.0, 0.5), (0.3, 1.0))[self.seed % 2]
            return Gossip(self.num_values, inner_steps=inner_steps, flow=flow, reach=reach)
        if self.strategy_name == "decentralized_adam":
            return DecentralizedAdam(self.num_values, inner_steps=inner_steps)
        if self.kind == PAIR:
            return NoLoCo(
                self.num_values, inner_steps=inner_steps, lr=lr, momentum=momentum / 2, pull=lr
            )
        if self.strategy_name == "ddp":
            return DDP(self.num_values, optimizer=AdamW(), schedule=lambda step: _RATE)
        if self.strategy_name == "decoupled_momentum":
            return DecoupledMomentum(
                self.num_values, block=self.block, weight_decay=0.1, schedule=lambda step: _RATE
            )
        if self.strategy_name == "delayed_nesterov":
            return DelayedNesterov(
                self.num_values, inner_steps=inner_steps, lr=lr, momentum=momentum, arrivals=2,
                error_feedback=self.error_feedback,
            )  # fmt: skip
        if self.strategy_name == "sparseloco":
            return SparseLoCo(self.num_values, inner_steps=inner_steps, lr=lr, beta=1.0)
        if self.strategy_name == "asynchronous":
            return Asynchronous(
                self.num_values, inner_steps=inner_steps, lr=lr, momentum=momentum, arrivals=2,
                max_stale=_MAX_STALE, error_feedback=self.error_feedback,
            )  # fmt: skip
        late = {"delayed": Delayed, "eager": Eager, "co2": CO2}.get(self.strategy_name)
        if late is not None:
            return late(
                self.num_values, inner_steps=inner_steps, lr=lr / 2, momentum=momentum / 2,
                error_feedback=self.error_feedback,
            )  # fmt: skip
        is_late = self.strategy_name == "streaming"
        if self.fragments == 1 and not is_late:
            return DiLoCo(
                self.num_values, inner_steps=inner_steps, lr=lr, momentum=momentum,
                error_feedback=self.error_feedback,
            )  # fmt: skip
        half = self.op_values // 2 // self.block * self.block
        places = ((0, half), (self.fragments * half, self.op_values - half))
        return Streaming(
            self.num_values,
            fragments=[
                tuple((at + i * size, at + (i + 1) * size) for at, size in places)
                for i in range(self.fragments)
            ],
            inner_steps=self.fragments * inner_steps,
            delay_steps=(self.ops_at_once - 1) * inner_steps + 1 if is_late else 0,
            mixing=0.5 if is_late else 0.0,
            lr=lr, momentum=momentum, error_feedback=self.error_feedback,
        )  # fmt: skip

    def skew(self, rng: random.Random) -> tuple[float, float]:
        """Offset and speed of one process's clock."""
        if not self.skew_s and not self.drift:
            return 0.0, 1.0
        return rng.random() * self.skew_s, 1.0 + (2 * rng.random() - 1) * self.drift

    def rate(self, rng: random.Random) -> float:
        """One line's rate; slow and fast ones are equally likely on a logarithmic scale."""
        low, high = self.rates
        return 0.0 if high <= 0 else float(low * (high / low) ** rng.random())

    def stage_terms(self) -> tuple[RunTerms, ...]:
        """Terms of the second group, if there is one: of means, and it begins with whom it has."""
        if self.groups == 1:
            return ()
        if self.are_experts:
            return tuple(replace(self.terms(), group=number) for number in range(1, self.groups))
        alone = replace(
            self, kind=MEAN, codec="int8", rule="", fragments=1, min_contributors=1, ops_at_once=1
        )
        terms = replace(alone.terms(), buffer=0, staleness="", max_stale=0, graph="")
        return (replace(terms, start_peers=1, group=1, holders=self.stage_holders),)

    def terms(self) -> RunTerms:
        """The run file's part of it."""
        # Of two stages either may be left with half of the peers for good.
        stays = self.num_peers if self.groups == 1 else max(1, self.num_peers // 2)
        return RunTerms(
            run_id="simulation",
            config=b"",
            config_hash=bytes(32),
            rounds=self.rounds,
            codec=self.codec,
            exact=not self.rule,
            block=self.block,
            chunk_values=self.chunk_values,
            e_max=0,
            min_contributors=1
            if self.are_experts
            else max(min(self.min_contributors, stays), TELLABLE if self.rule else 1),
            start_peers=stays if not self.are_experts else 1,
            wait_ready_s=5.0,
            deadline_floor_s=self.deadline_s,
            deadline_cap_s=self.deadline_s,
            checkpoint_rounds=1000,
            snapshot_rounds=SNAPSHOT_ROUNDS,
            rule=self.rule,
            kind=self.kind,
            scalars=WHOLE_VECTOR_RULES.get(self.rule, ""),
            ops_at_once=self.ops_at_once,
            hurries=self.strategy_name == "delayed_nesterov",
            buffer=self.buffer,
            staleness=STALENESS[self.seed // 8 % len(STALENESS)] if self.keeps_age else "",
            max_stale=_MAX_STALE if self.keeps_age else 0,
            vectors=1 if self.strategy_name in ("gossip", "decentralized_adam") else PAIR_VECTORS,
            graph=self._graph,
            guard=GUARD if self.guarded else NO_GUARD,
            cell_peers=-(-self.num_peers // self.cells) if self.cells > 1 else 0,
        )
