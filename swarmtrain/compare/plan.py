"""One run of a comparison: every setting that its bits depend on, and nothing else.

A plan is a value. Its key names the file that keeps the finished run, so a sweep that was stopped
goes on where it was; therefore everything that changes the bits is a field here, and torch's
version is in the key beside it. Not here: any work, and torch.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from types import MappingProxyType
from typing import Literal

from swarmtrain.config.settings import (
    STALE_STEPS,
    ExchangeSection,
    InnerSection,
    ModelSection,
    OuterSection,
    RunConfig,
    RunSection,
    Setting,
)
from swarmtrain_optimizers.strategies.budget import Budget, When

KEPT_FORM = 4
"""Form of a kept run; raise it when a run of the same plan gives other figures."""


class Pace(Enum):
    """Behaviour of fast peers while slow ones finish their inner steps.

    WAIT: wait, so that all make the same number of steps. DYNAMIC: nothing; a slow peer makes fewer
    steps in a round, floor(inner_steps x speed / fastest) (dynamic local updates, arXiv 2401.09135,
    section 5). APART: nothing; everybody makes all steps of its own round, and an op has those who
    are done.
    """

    WAIT = "wait"
    DYNAMIC = "dynamic"
    APART = "apart"


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Peers that are slow for some steps.

    Attributes:
        share: part of all steps that are slow.
        slowness: times as long as the others.
        burst: slow steps in a row, in the mean.
    """

    share: float
    slowness: float
    burst: float


Late = Literal["wait", "leave", "coded", "repeated"]
"""Ways with peers that are late."""


class Attack(Enum):
    """Gifts of hostile peers instead of their difference.

    SIGN_FLIP: minus ten times of it.
    NOISE: normal noise with a hundred times its root mean square.
    NAN: no numbers.
    """

    SIGN_FLIP = "sign-flip"
    NOISE = "noise"
    NAN = "nan"


@dataclass(frozen=True, slots=True)
class Net:
    """A link as every peer has it.

    Attributes:
        up_bytes_s: bytes per second that a peer sends.
        down_bytes_s: bytes per second that it receives.
        round_trip_s: seconds to another peer or the coordinator and back.
    """

    up_bytes_s: float
    down_bytes_s: float
    round_trip_s: float


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "dsl": Net(10e6 / 8, 50e6 / 8, 0.050),
        "mobile": Net(5e6 / 8, 20e6 / 8, 0.080),
        "fibre": Net(500e6 / 8, 500e6 / 8, 0.020),
        "lan": Net(1e9 / 8, 1e9 / 8, 0.0005),
    }
)
"""10 up and 50 down, 5 up and 20 down, 500 both ways, 1 000 both ways; Mbit/s."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model to compare with.

    Attributes:
        model: the model's section of a run file.
        batch: windows of one inner step.
        step_s: modelled seconds of an inner step of the fastest peer: what a core of a 2-core
            machine takes, so that exchanges are not made to look cheap.
        block: values that share a scale; small where layers are.
        chosen_from: values of which a sparse codec keeps a few.
    """

    model: ModelSection
    batch: int
    step_s: float
    block: int = 1024
    chosen_from: int = 4096

    @property
    def tokens_per_step(self) -> int:
        """Bytes of text, which are this model's tokens, in an inner step of one peer."""
        return self.batch * self.model.context


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "sweep": Size(ModelSection(layers=2, width=64, heads=4, context=64), 8, 0.011),
        "deep": Size(ModelSection(layers=6, width=64, heads=4, context=64), 8, 0.030),
        "demo": Size(ModelSection(layers=4, width=128, heads=4, context=128), 8, 0.060),
        "tiny": Size(ModelSection(layers=1, width=16, heads=2, context=16), 2, 0.002, 128, 512),
    }
)
"""About 130 000, 330 000, 850 000 and 12 000 parameters; the last is for tests."""


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A model in stages, each served by as many peers as a run of whole models has replicas.

    Attributes:
        stages: number of the model's stages.
        activations: form of what goes between two stages.
        schedule: says if steps wait for all stages.
        routes: "random" where a peer sends to any of the next stage, as in a run; "fixed" where the
            first always sends to the first, and so on.
        micro_batch: windows that go through the stages together; 0 for as many as a run has where
            its file says nothing.
        slots: micro-batches that a peer takes in at a time, and as many that a source has under
            way; 0 for as many as a run has.
        max_stale_steps: steps of a peer after a forward pass, beyond which its gradient is refused.
        visit: stages that a micro-batch visits; 0 for all.
        drawn: "even" where routes are spread out as in a run; "random" where each is drawn for
            itself.
        slow: passes of the middle stage take so many times as long; 0 for as long as they do.
        death_s: modelled seconds from one death of a peer, which comes back with the run's state
            and nothing else, to the next; 0 for none.
    """

    stages: int
    activations: str = "int8"
    schedule: Literal["free", "flush"] = "free"
    routes: Literal["random", "fixed"] = "random"
    micro_batch: int = 0
    slots: int = 0
    max_stale_steps: int = STALE_STEPS
    death_s: float = 0.0
    visit: int = 0
    drawn: Literal["even", "random"] = "even"
    slow: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One strategy, one seed.

    Attributes:
        label: the strategy as it was asked for, with what differs from the others.
        strategy: name of the strategy.
        codec: name in an op's plan.
        rounding: rounding of contributions; if stochastic, seeded by run, op and peer.
        seed: seed of weights, shards, windows and faults.
        peers: replicas; in a pipeline the peers of each stage, whose sources see as many tokens.
        steps: inner steps of each peer if all make equally many; the budget is in tokens.
        inner_steps: inner steps of a round.
        inner: the inner optimizer: adamw, accum_adamw, muon, or a class as in a run file.
        inner_lr: the inner optimizer's highest learning rate.
        outer_lr: learning rate of the outer step.
        outer_momentum: momentum of the outer step.
        error_feedback: True if the codec's loss is sent with the next op.
        size: a name of SIZES.
        speeds: speed of each peer, in any one unit; () if all are equal. Every stage has them all.
        links: each peer's part of the link's rates; () if all have them whole.
        stragglers: peers that are slow now and then; None for none.
        late: way with those who are late: an exchange waits for them, leaves the last `tolerates`
            out, or has their work of others (coded) or later (repeated).
        tolerates: peers that are left out; with codes those of a group that may be late.
        pace: use that fast peers make of the time in which others catch up.
        noniid: True if each peer's text is a contiguous part of the corpus.
        hostile: number of peers, the last ones, that attack.
        attack: kind of attack.
        robust: name of the rule that takes the mean's place, "" for the mean.
        drop: probability that a contribution is lost; in a pipeline also a message of a peer.
        fragments: parts of the vector that are exchanged in turn, in strategies that have such.
        delay_steps: inner steps between begin and place, in strategies that choose them.
        mixing: share of its own weights that a peer keeps at that place, in streaming.
        net: a name of NETS.
        points: number of judgements of the anchor, at equal distances in tokens.
        windows: windows of held-out text per judgement.
        own: settings that only this strategy knows, by name.
        last_merge: True if the run ends with the mean of all replicas' weights.
        budget: exchanges before that; 0 for as many as the strategy has.
        when: rounds that the budget is spent in.
        pipeline: None where every peer has the whole model.
    """

    label: str
    strategy: str
    codec: str
    seed: int = 0
    peers: int = 4
    steps: int = 1000
    inner_steps: int = 50
    inner: str = "adamw"
    inner_lr: float = 2e-3
    outer_lr: float = 0.9
    outer_momentum: float = 0.8
    error_feedback: bool = False
    size: str = "sweep"
    speeds: tuple[float, ...] = ()
    links: tuple[float, ...] = ()
    stragglers: Stragglers | None = None
    late: Late = "wait"
    tolerates: int = 1
    pace: Pace = Pace.WAIT
    noniid: bool = False
    hostile: int = 0
    attack: Attack = Attack.SIGN_FLIP
    robust: str = ""
    drop: float = 0.0
    fragments: int = 1
    delay_steps: int = 0
    mixing: float = 0.0
    rounding: Literal["nearest", "stochastic"] = "nearest"
    net: str = "dsl"
    points: int = 20
    windows: int = 256
    own: tuple[tuple[str, Setting], ...] = ()
    last_merge: bool = False
    budget: int = 0
    when: When = "late"
    pipeline: Pipelined | None = None

    @property
    def tokens(self) -> int:
        """Tokens that all peers together train on: the same for every strategy."""
        return self.peers * self.steps * SIZES[self.size].tokens_per_step

    @property
    def block(self) -> int:
        """Values that share a scale, or of which a few are chosen."""
        size = SIZES[self.size]
        return size.chosen_from if self.codec.startswith("topk") else size.block

    @property
    def is_uneven(self) -> bool:
        """True if some peers are faster than others."""
        return len(set(self.speeds)) > 1

    @property
    def returns(self) -> bool:
        """True if peers die and come back."""
        return self.pipeline is not None and self.pipeline.death_s > 0

    def relative_speeds(self) -> tuple[float, ...]:
        """Speed of each peer, the fastest being 1."""
        speeds = self.speeds or (1.0,) * self.peers
        return tuple(speed / max(speeds) for speed in speeds)

    def steps_alone(self, op: int) -> int:
        """Inner steps before the round that ends with op `op`, in rounds without an exchange. The
        last merge is made beside the ops of the strategy, which then has no more."""
        if not self.budget:
            return 0
        budget = Budget(-(-self.steps // self.inner_steps), self.budget, self.when)
        return self.steps if op > self.budget else budget.rounds_alone(op) * self.inner_steps

    def run_config(self) -> RunConfig:
        """Return the settings that the built-in trainer reads: its learning rate goes by `steps`
        inner steps."""
        size = SIZES[self.size]
        inner = InnerSection(
            optimizer=self.inner,
            # A swarm's mean has the noise of a batch as many times as large.
            moments_every=self.peers if self.inner == "accum_adamw" else 4,
            lr=self.inner_lr,
            warmup_steps=max(1, self.steps // 20),
            batch=size.batch,
        )
        return RunConfig(
            run=RunSection("compare", self.seed, self.steps),
            model=size.model,
            inner=inner,
            outer=OuterSection(inner_steps=1),  # so the schedule is `steps` long
            exchange=ExchangeSection(block=self.block),
        )

    def as_json(self) -> str:
        """All fields as canonical JSON; those that came later only where they say something."""
        fields = asdict(self)
        if not self.own:
            del fields["own"]
        if self.rounding == "nearest":
            del fields["rounding"]
        if self.pipeline is None:
            del fields["pipeline"]
        else:
            for key, unsaid in (("visit", 0), ("drawn", "even"), ("slow", 0.0)):
                if fields["pipeline"][key] == unsaid:
                    del fields["pipeline"][key]
        if not self.links:
            del fields["links"]
        if self.stragglers is None:
            for key in ("stragglers", "late", "tolerates"):
                del fields[key]
        if not self.last_merge:
            for key in ("last_merge", "budget", "when"):
                del fields[key]
        return json.dumps(fields, sort_keys=True, default=_value_of)

    def key(self, versions: str) -> str:
        """Hex name of the finished run.

        Args:
            versions: versions of torch and of the text.
        """
        text = f"{KEPT_FORM} {versions} {self.as_json()}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _value_of(choice: object) -> object:
    if isinstance(choice, Enum):
        return choice.value
    raise TypeError(f"{choice!r} is no setting")
