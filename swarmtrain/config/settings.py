"""The run file: typed settings that the organiser writes and every peer hashes.

Each setting is declared once, with its default, its range and what it is. The checks of a run file
and docs/run-file.md are made from these declarations; a section's docstring is what the page says
below its table. Data only, never code: a run file travels to strangers. The canonical form (msgpack
of all fields, defaults written out) is hashed into the ledger's first record. Not here: which
settings fit together (`limits`), and what only one strategy knows, which its facts declare.
"""

from functools import cached_property
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from swarmtrain.config.declared import above_zero as _above_zero
from swarmtrain.config.declared import between as _between
from swarmtrain.config.declared import fading as _fading
from swarmtrain.config.declared import said as _said
from swarmtrain.config.problem import INTEGER_MAX
from swarmtrain_optimizers.codec_facts import CODEC_NAMES
from swarmtrain_optimizers.strategies.budget import Budget, When
from swarmtrain_optimizers.strategies.facts import StrategyFacts, Value
from swarmtrain_optimizers.strategies.registry import facts_named
from swarmtrain_transport import limits

_SPREAD_BITS = (
    limits.EXACT_BITS
    - limits.PRODUCT_BITS
    - (limits.CELL_PEERS_MAX * limits.WEIGHT_MAX - 1).bit_length()
)
"""Scale exponents that an exact sum of one cell can span (protocol.md part 1, rule 2)."""

E_MAX_LOWEST = limits.E_MIN_FLOOR + _SPREAD_BITS
E_MAX_HIGHEST = 100
"""127 steps of the largest scale, times two, stay far under float32's overflow at 2^128."""

STALE_STEPS = 8
"""Default of `pipeline.max_stale_steps`."""

TURN_ANGLE = 0.1
"""Default of `pipeline.turn_angle`."""

_BILLION = 1_000_000_000
_DAY_S = 86_400.0


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all sections: unknown keys are errors, not silence."""


class RunSection(_Section, frozen=True):
    """Above all sections `schema = 1` may stand: the form of this file, the only one so far."""

    name: Annotated[
        str,
        _said(
            "the run's name, a part of every invite: at most "
            f"{limits.NAME_CHARS_MAX} characters, first a letter or digit",
            "letters, digits, `-`, `_`",
        ),
    ]
    seed: Annotated[
        int, _between(0, INTEGER_MAX, "seed of the first weights and of how the text is cut")
    ] = 0
    rounds: Annotated[
        int, _between(1, _BILLION, "committed rounds after which the run is over")
    ] = 1000


class ModelSection(_Section, frozen=True):
    """[docs/models.md](models.md) tells of the kinds and sizes. `size`, and `kv_heads` to `tied`,
    are those of `kind = "transformer"`.

    - With `kind = "module:pkg.name"` peers call that function of a package that they have
      installed, and only where they said so: `swarmtrain join --module pkg.name`.
    - With `kind = "custom"` peers bring the model from a Python program. In one piece, the other
      settings say nothing. In stages `digest` is that of `swarmtrain.StagedModel`, and `context`
      the number of labels that an example has.
    """

    kind: Annotated[
        str,
        _said(
            "which model: one of swarmtrain's own, one of the transformers library by its "
            "`config`, one that an installed package makes, or one that peers' programs bring",
            "byte-transformer, transformer, huggingface, module:PKG.NAME, custom",
        ),
    ] = "byte-transformer"
    size: Annotated[
        str,
        _said(
            "what the settings below are where the file does not say them",
            "tiny, 10M, 50M, 124M, 350M",
        ),
    ] = ""
    layers: Annotated[int, _between(1, 512, "layers of the transformer")] = 4
    width: Annotated[
        int, _between(1, 16_384, "values in each place of a layer, a multiple of 2 x `heads`")
    ] = 128
    heads: Annotated[int, _between(1, 1_024, "attention heads")] = 4
    kv_heads: Annotated[
        int, _between(0, 1_024, "heads of keys and values, which `heads` share; 0: as many")
    ] = 0
    mlp_width: Annotated[
        int,
        _between(
            0, 65_536, "inner width of the feed-forward part; 0: 8/3 of `width`, to the next 64"
        ),
    ] = 0
    norm: Annotated[Literal["rms", "layer"], _said("what keeps values in scale")] = "rms"
    rotary_base: Annotated[
        float, _between(1.0, 1e9, "longest wavelength of the positions, in radians per token")
    ] = 10_000.0
    tied: Annotated[
        bool, _said("the head is the embedding's table; not where the model is in stages")
    ] = True
    context: Annotated[int, _between(1, 65_536, "tokens of one training example")] = 128
    vocabulary: Annotated[
        int, _between(0, 1_048_576, "tokens that the model knows; 0: those of the tokenizer")
    ] = 0
    config: Annotated[
        str,
        _said(
            "with kind huggingface: its config.json, or the folder with that; what it says "
            "travels in the run file",
            "a path",
        ),
    ] = ""
    digest: Annotated[
        str,
        _said("names a custom model in stages: all peers bring the same", "64 hex digits"),
    ] = ""
    initial: Annotated[
        str,
        _said(
            "names the weights that the run begins with; `swarmtrain up --from` fills it",
            "64 hex digits",
        ),
    ] = ""

    @property
    def is_counted(self) -> bool:
        """True if all parameters are known from this section, without the model."""
        return self.kind in ("byte-transformer", "transformer")


STDLIB, LEASED_TEXT, OWN_TEXT = "python-stdlib", "text", "own"
"""Sources as settings that travel name them: they hold no paths."""

BYTES, IDS = "bytes", "ids"
"""Tokenizers that need no file; any other is named by its SHA-256."""


class DataSection(_Section, frozen=True):
    """Text is cut into pieces, which the coordinator leases to peers by their hashes.
    [data.md](data.md) has the kinds of sources. Paths are relative to the run file and never leave
    the organiser's machine: in the settings that travel `source` is then "text".
    """

    source: Annotated[
        str,
        _said(
            "the standard library's own sources, text of the organiser's, or text that peers bring",
            "`python-stdlib`, a path, `hf:NAME`, `own`",
        ),
    ] = STDLIB
    piece_bytes: Annotated[
        int,
        _between(1_024, limits.FRAME_BYTES_MAX, "bytes of one piece; more than an example has"),
    ] = 65_536
    lease_pieces: Annotated[
        int, _between(1, 4_096, "pieces of one lease; a peer holds two at most")
    ] = 8
    validation_pieces: Annotated[
        int, _between(1, 4_096, "pieces kept back to judge by, the same for all")
    ] = 8
    validation: Annotated[
        str, _said("text to judge by, in place of a share of the source", "a path, or empty")
    ] = ""
    tokenizer: Annotated[
        str,
        _said(
            "what makes tokens of text; `ids`: the source holds tokens already",
            "`bytes`, `ids`, or a `tokenizer.json`",
        ),
    ] = BYTES
    field: Annotated[
        str, _said("what holds the text of a JSONL line or a dataset's row", "a name")
    ] = "text"
    documents: Annotated[
        int, _between(0, INTEGER_MAX, "documents of JSONL or a dataset to read; 0: all")
    ] = 0


Setting = Value
"""Types of settings of which only a strategy or an optimizer's class knows the meaning."""


class InnerSection(_Section, frozen=True):
    """The inner optimizer of the built-in trainer and of stages, and ddp's own step. A loop of
    one's own brings its own. The learning rate warms up and then falls along a cosine over all
    inner steps of the run.

    - `optimizer = "muon"` (MuLoCo, arXiv 2505.23725) steps hidden matrices by muon and all else by
      AdamW, scaled so that an `lr` of AdamW works, though a larger one, up to 0.02, is often
      better.
    - `optimizer = "accum_adamw"` (arXiv 2410.11998) is AdamW whose moments see the mean gradient of
      `moments_every` steps, as those of a batch so many times as large would.
    - `optimizer = "pytorch_optimizer:SOAP"` or `"torch.optim:RMSprop"` is a class with torch's
      interface, made with `lr`, with `weight_decay` for matrices, with `beta1` and `beta2` where it
      takes `betas`, and with the table `[inner.arguments]`. Every peer has the package installed
      and says that it may be used: `swarmtrain join --module pytorch_optimizer.SOAP`. Torch's own
      classes need no word. The learning rate is set before each step, as for all others.
    - With `schedule = "tokens"` a step is as much text as `exchange.start_peers` peers train on in
      one, and what counts is what the whole swarm has trained on, however many peers come or go.
      Not with `model.kind = "custom"`.
    - `accumulate` divides `batch`; a peer may take other parts by `join --micro-batch`, as they
      change nothing but the order of sums. `precision = "auto"` is bfloat16 on a GPU that has it.
      Both, and `activation_checkpointing`, are for a model in one piece.
    """

    optimizer: Annotated[
        str,
        _said(
            "optimizer of each peer's inner steps, or a class of torch.optim or of a package",
            "adamw, accum_adamw, muon, PKG:CLASS",
        ),
    ] = "adamw"
    arguments: Annotated[
        dict[str, Setting],
        _said("what PKG:CLASS is made with beside the settings here", "[inner.arguments]", "none"),
    ] = {}
    lr: Annotated[float, _above_zero(100.0, "highest learning rate")] = 1e-3
    lr_end_fraction: Annotated[
        float, _between(0.0, 1.0, "share of `lr` at which the cosine ends")
    ] = 0.1
    warmup_steps: Annotated[
        int, _between(0, INTEGER_MAX, "steps to the highest rate, once in the run")
    ] = 20
    batch: Annotated[int, _between(1, 65_536, "examples in each step")] = 16
    accumulate: Annotated[
        int, _between(1, 65_536, "parts in which a step's batch goes through the model")
    ] = 1
    precision: Annotated[
        Literal["float32", "bfloat16", "auto"],
        _said("type in which the model computes; weights and sums are float32 always"),
    ] = "float32"
    activation_checkpointing: Annotated[
        bool, _said("compute each layer again for its gradient, to keep less in memory")
    ] = False
    weight_decay: Annotated[
        float, _between(0.0, 10.0, "decoupled weight decay, times the learning rate")
    ] = 0.1
    beta1: Annotated[float, _fading("decay of the first moment; muon's momentum")] = 0.9
    beta2: Annotated[float, _fading("decay of the second moment")] = 0.95
    moments_every: Annotated[
        int, _between(1, 1000, "steps whose mean gradient accum_adamw's moments see")
    ] = 4
    grad_clip: Annotated[float, _above_zero(1e9, "norm to which each peer clips its gradient")] = (
        1.0
    )
    schedule: Annotated[Literal["steps", "tokens"], _said("what the learning rate goes by")] = (
        "steps"
    )
    schedule_tokens: Annotated[
        int, _between(0, INTEGER_MAX, "where a schedule by tokens ends; 0: with the run")
    ] = 0


class OuterSection(_Section, frozen=True):
    """Strategy: when peers exchange and what they make of it. Which one takes which settings, and
    what else each of them asks for, is said under [Strategies](#strategies).

    - `inner_steps` is a multiple of `fragments`, `delay_steps` at most `inner_steps`. Above
      `inner_steps / fragments` the exchanges of several fragments are under way at once.
      Fragments are whole layers, and one is what belongs to no layer: so the built-in model has at
      most `model.layers + 1`, and a small one fewer.
    - A rule of `robust` wants a strategy that exchanges means, and `exchange.min_contributors` of
      at least 3.
    - `lr_rule = "contributors"`: with `momentum` 0.9 the published rates, 0.5 for one contributor,
      0.6 for 2 and 4, 0.8 for 8, 1.0 from 16 on (arXiv 2503.09799, 2505.23725). Below 0.9 somewhat
      more, the same part of what is stable, at most 1.0; above 0.9 less, so that
      `lr / (1 - momentum)` stays.
    - With `last_merge`, for strategy local, only `budget` + 1 of the `run.rounds` rounds end with
      an exchange: with `when` "late" the last ones, with "early" the first ones and the last, with
      "even" every so many. Peers train alone in the others, and the run counts as its rounds those
      that exchange. A peer that comes in between, or is started again, has the state of the last
      exchange.
    """

    strategy: Annotated[
        str, _said("one of swarmtrain's own, or of an installed package's", "see Strategies")
    ] = "diloco"
    inner_steps: Annotated[
        int, _between(1, 1_000_000, "inner steps between two exchanges of the same values")
    ] = 20
    lr: Annotated[float, _above_zero(100.0, "learning rate of the outer step")] = 0.9
    momentum: Annotated[float, _fading("momentum of the outer step")] = 0.8
    error_feedback: Annotated[bool, _said("send what a codec has lost in the next round")] = False
    fragments: Annotated[
        int, _between(1, limits.FRAGMENTS_MAX, "parts of the model, exchanged in turn")
    ] = 1
    delay_steps: Annotated[
        int, _between(0, 1_000_000, "inner steps until a result takes its place")
    ] = 0
    mixing: Annotated[
        float, _between(0.0, 1.0, "share of its own weights that a peer then keeps")
    ] = 0.0
    robust: Annotated[
        Literal["none", "norm-clip", "trimmed-mean", "median", "centered-clip", "flag"],
        _said("rule in place of the mean, against hostile peers"),
    ] = "none"
    lr_rule: Annotated[
        Literal["fixed", "contributors"], _said("take `lr`, or a rate by how many contribute")
    ] = "fixed"
    last_merge: Annotated[
        bool, _said("end the run with the mean of all peers' weights, where these differ")
    ] = False
    budget: Annotated[int, _between(0, _BILLION, "exchanges before the last merge")] = 0
    when: Annotated[When, _said("rounds that the budget is spent in")] = "late"


class ExpertsSection(_Section, frozen=True):
    """Several models of one run, each for a kind of text (c-BTM, arXiv 2303.14177). The organiser's
    machine parts the text into clusters (k-means over byte triples, tf-idf), each peer trains one
    expert, and no byte of one goes to peers of another. `swarmtrain export` makes one folder of
    all, and `generate` and `evaluate` mix those that a router finds likeliest. `start_peers` and
    `min_contributors` are those of the run, and of each expert as a part of it. Parting needs
    `swarmtrain[experts]`, at the organiser's alone.
    """

    count: Annotated[int, _between(1, 64, "experts; 1: one model of all text")] = 1


class PipelineSection(_Section, frozen=True):
    """A model in stages, for peers that are too small for all of it. A stage is some consecutive
    blocks of the model, served by any number of peers; a micro-batch goes from a peer of each stage
    to one of the next, and its gradient the same way back. Without this section, or with one stage,
    every peer has the whole model.

    - Blocks of the built-in model are `embedding`, `blocks.0` and so on, and `head`. With a number
      of stages it is cut so that the dearest one is as cheap as can be.
    - `inner.batch` is a multiple of `micro_batch`, and what goes between two stages fits into one
      frame. `outer.strategy` is one with inner steps; `outer.fragments` are those of each stage,
      and `outer.delay_steps` at most `outer.inner_steps / outer.fragments`.
    - A peer that reads text has two micro-batches per stage under way, or as many as it takes to
      fill the way through the stages and back if that is long, and in any case no more than make up
      one step: the more are under way, the older are the weights that they were computed with.
      That is the average; a fast peer has more, up to twice as many, and a slow one fewer.
      Where the file says nothing of `micro_batch`, or 0, it is the largest divisor of `inner.batch`
      with which two per stage fit into a step.
    - With `visit = 4` of 6 stages each micro-batch visits the first, the last and two of those
      between, in their order (SkipPipe, arXiv 2502.19913): each of these has half of the
      micro-batches, and as many steps as all others. A slow stage then holds up those alone that
      visit it, and `swarmtrain generate` goes without stages that a route may leave out. All that
      goes between stages has one shape then, and no two routes of a text are compared.
    - With `schedule = "flush"` a step waits for all its micro-batches, in all stages, and a round
      for the exchange of the one before: no strategy with a delay fits. With "free" neither waits,
      and `max_stale_steps` bounds how old a gradient may be.
    - `activations = "subspace-64"` is for links that are the bottleneck: 64 values of a token go on
      in int8, and its id, as nothing writes to the others of its `width` (Protocol Models, arXiv
      2506.01260). It is for kinds byte-transformer and transformer, with 64 below `model.width`.
      With `turn_rounds` the peers of the last stage turn those 64 directions now and then towards
      what they lack most, as that paper does; measured it wins nothing.
    """

    stages: Annotated[
        int | tuple[str, ...],
        _said("how many stages, or the first block of each", "1 to 64, or a list of names"),
    ] = 1
    micro_batch: Annotated[
        int,
        Meta(
            ge=0, le=65_536,
            description="examples that go through the stages together; 0 for the default",
            extra={"default": "inner.batch / (2 x stages)"},
        ),
    ] = 0  # fmt: skip
    max_stale_steps: Annotated[
        int,
        _between(
            0, 1_000_000,
            "steps of a peer after a forward pass, beyond which its gradient is refused",
        ),
    ] = STALE_STEPS  # fmt: skip
    schedule: Annotated[Literal["free", "flush"], _said("whether steps wait for stages")] = "free"
    visit: Annotated[
        int,
        Meta(
            ge=0, le=64, description="stages that a micro-batch visits; 0 for all",
            extra={"default": "all"},
        ),
    ] = 0  # fmt: skip
    activations: Annotated[
        str,
        _said("form of what goes between two stages", "int8, float16, none, subspace-K"),
    ] = "int8"
    turn_rounds: Annotated[
        int, _between(0, 1_000_000, "rounds from one turn of the subspace to the next; 0: it stays")
    ] = 0
    turn_angle: Annotated[
        float, _between(0.01, 1.5, "largest angle of a turn of the subspace, in radians")
    ] = TURN_ANGLE

    @property
    def num_stages(self) -> int:
        """Stages that the model is cut into."""
        return self.stages if isinstance(self.stages, int) else len(self.stages)


class ExchangeSection(_Section, frozen=True):
    """Travel of differences. Times are in seconds; every other timeout derives from them.

    - `codec` is that of what peers give; results have int8, or none. topk sends 64 values of each
      block, topk-K sends K. Strategies that exchange in pairs want int8 or none, as weights
      themselves travel; with all others two_bit, sign and topk want error feedback.
    - `rounding = "stochastic"` is for int8, int4 and e3m0.
    - `block` is a multiple of what fills whole bytes in the codec, `chunk_values` one of `block`.
    """

    codec: Annotated[str, _said("codec of what peers give", ", ".join(CODEC_NAMES))] = "int8"
    block: Annotated[int, _between(16, 65_536, "values that share one scale")] = 1024
    chunk_values: Annotated[
        int,
        _between(
            16, limits.FRAME_BYTES_MAX // 8, "values of one message; a multiple of `block`",
            "A chunk must fit into one frame in every codec.",
        ),
    ] = 262_144  # fmt: skip
    e_max: Annotated[
        int,
        _between(
            E_MAX_LOWEST, E_MAX_HIGHEST, "highest exponent of a scale; larger values are refused",
            "Scales in this window are what sums in float64 are exact for.",
        ),
    ] = 0  # fmt: skip
    slices: Annotated[
        Literal["measured", "equal"], _said("cut slices by what links carry, or all alike")
    ] = "measured"
    rounding: Annotated[
        Literal["nearest", "stochastic"], _said("how values are rounded to the codec's levels")
    ] = "nearest"
    min_contributors: Annotated[
        int, _between(1, limits.CELL_PEERS_MAX, "contributors below which a round is skipped")
    ] = 1
    start_peers: Annotated[
        int,
        _between(
            1, limits.RUN_PEERS_MAX, "peers that round 1 waits for; at least `min_contributors`"
        ),
    ] = 1
    wait_ready_s: Annotated[
        float, _above_zero(_DAY_S, "longest that the first ready peer waits for others")
    ] = 60.0
    deadline_floor_s: Annotated[float, _above_zero(_DAY_S, "shortest deadline of an exchange")] = (
        20.0
    )
    deadline_cap_s: Annotated[float, _above_zero(_DAY_S, "longest deadline of an exchange")] = 900.0


class AdmissionSection(_Section, frozen=True):
    """Admission of peers. With more than 64 of them means must be exact: no robust rule, no codec
    `none`, no strategy that takes contributions whole. A round has 512 at most, by pairs 64; the
    others take turns."""

    invite_uses: Annotated[
        int, _between(0, _BILLION, "peers that one invite lets in; 0: any number")
    ] = 0
    invite_expires_hours: Annotated[float, _between(0.0, 1e6, "life of an invite; 0: for ever")] = (
        0.0
    )
    peers_max: Annotated[
        int,
        _between(
            1, limits.RUN_PEERS_MAX, "peers in the run at a time",
            "Up to 64 exchange directly with each other in a round.",
        ),
    ] = 64  # fmt: skip
    page: Annotated[
        Literal["link", "public", "off"],
        _said("who sees the run's page: who has a viewing link, everybody, or nobody"),
    ] = "link"


class CheckpointSection(_Section, frozen=True):
    """A checkpoint is a file with the model. A snapshot is the state that newcomers download."""

    every_rounds: Annotated[
        int, _between(1, _BILLION, "rounds between two checkpoints, by peers in turn")
    ] = 10
    keep: Annotated[int, _between(1, 1_000_000, "checkpoints that a peer keeps")] = 3
    snapshot_rounds: Annotated[
        int,
        _between(
            1, limits.RESULT_KEEP_OPS, "rounds between two snapshots, at every peer",
            f"Results of {limits.RESULT_KEEP_OPS} rounds are kept for those who join from a "
            "snapshot.",
        ),
    ] = 4  # fmt: skip


class GuardSection(_Section, frozen=True):
    """The run gives up its newest results and reads other text where more than half of the peers
    lose more than `spike` times what is usual, in training. Usual is the median of the last
    `window` rounds, of three at least. [organiser.md](organiser.md) says more.
    """

    spike: Annotated[float, _between(0, 1e6, "times the usual loss, as 1.5; 0: no guard")] = 0.0
    window: Annotated[int, _between(3, 48, "rounds that say what is usual")] = 10
    back: Annotated[int, _between(1, 8, "results that are given up")] = 1
    limit: Annotated[int, _between(1, 100, "times in a row; then it rests for `window`")] = 3


_NOT_HERE = StrategyFacts(name="", maker="", about="")
"""Taken for a strategy that nobody brings here; whoever makes it says that it is missing."""


def facts_here(name: str) -> StrategyFacts | None:
    """The facts of a strategy, None where nobody brings it here."""
    try:
        return facts_named(name)
    except ValueError:
        return None


class RunConfig(_Section, frozen=True, dict=True):
    """A whole run file. A round is one op, so with fragments it moves one of them. `strategy`
    holds what only one strategy knows, by its name: a section ``[strategy.NAME]`` each."""

    run: RunSection
    schema: int = 1
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    inner: InnerSection = InnerSection()
    outer: OuterSection = OuterSection()
    exchange: ExchangeSection = ExchangeSection()
    admission: AdmissionSection = AdmissionSection()
    checkpoint: CheckpointSection = CheckpointSection()
    pipeline: PipelineSection = PipelineSection()
    experts: ExpertsSection = ExpertsSection()
    guard: GuardSection = GuardSection()
    strategy: dict[str, dict[str, Setting]] = {}

    def __post_init__(self) -> None:
        """Settle the size of micro-batches where nothing is said of it."""
        pipeline, batch = self.pipeline, self.inner.batch
        if pipeline.num_stages > 1 and not pipeline.micro_batch:
            most = max(1, batch // (2 * pipeline.num_stages))
            size = next(size for size in range(most, 0, -1) if batch % size == 0)
            settled = msgspec.structs.replace(pipeline, micro_batch=size)
            msgspec.structs.force_setattr(self, "pipeline", settled)

    @cached_property  # packages take milliseconds to be searched
    def facts(self) -> StrategyFacts:
        """Facts of its strategy."""
        facts = facts_here(self.outer.strategy) or _NOT_HERE
        return facts.merging() if self.outer.last_merge else facts

    @property
    def budget(self) -> Budget | None:
        """Places of the exchanges; None where every round ends with one."""
        outer = self.outer
        return Budget(self.run.rounds, outer.budget, outer.when) if outer.last_merge else None

    @property
    def num_ops(self) -> int:
        """Number of committed ops after which the run is over."""
        return self.budget.ops if self.budget is not None else self.run.rounds

    def steps_alone(self, op: int) -> int:
        """Inner steps before the round that ends with op `op`, in rounds without an exchange."""
        budget = self.budget
        return 0 if budget is None else budget.rounds_alone(op) * self.steps_per_round

    @property
    def steps_per_round(self) -> int:
        """Inner steps from one op to the next."""
        if self.facts.takes_gradients:
            return 1
        return self.outer.inner_steps // self.outer.fragments

    @property
    def ops_at_once(self) -> int:
        """Number of ops that begin before the first one's result has its place."""
        return max(1, -(-self.outer.delay_steps // self.steps_per_round))

    @property
    def counted_unit(self) -> str:
        """Unit in which peers count what they train on: of a program's own model nothing is known
        but its samples."""
        is_own = self.model.kind == "custom" and self.pipeline.num_stages == 1
        return "samples" if is_own else "tokens"

    @property
    def step_tokens(self) -> int:
        """Tokens, or samples, of one inner step of a peer."""
        return self.inner.batch * (self.model.context if self.counted_unit == "tokens" else 1)

    @property
    def round_tokens(self) -> int | None:
        """Tokens, or samples, of a peer in a round's result. None where the model is in stages: a
        micro-batch there is the work of one peer of each."""
        is_staged = self.pipeline.num_stages > 1
        return None if is_staged else self.steps_per_round * self.step_tokens

    @property
    def micro_tokens(self) -> int:
        """Tokens, or samples, of a micro-batch where the model is in stages; 0 where it is not."""
        is_staged = self.pipeline.num_stages > 1
        window = self.model.context if self.counted_unit == "tokens" else 1
        return self.pipeline.micro_batch * window if is_staged else 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one inner step of the swarm that a schedule by tokens is written for: where the
        model is in stages, of as many sources as there are peers for each."""
        sources = max(1, self.exchange.start_peers // self.pipeline.num_stages)
        return sources * self.inner.batch * self.model.context

    def step_at(self, op: int) -> int:
        """Return the step of the learning-rate schedule at which op `op` of the run ends. A peer
        that takes part in some of the run's ops alone makes fewer steps of its own."""
        rounds = op if self.budget is None else self.budget.round_of(op)
        return rounds * self.steps_per_round

    @property
    def schedule_steps(self) -> int:
        """Steps of the whole learning-rate schedule."""
        if self.inner.schedule_tokens:
            return self.inner.schedule_tokens // self.tokens_per_step
        return self.run.rounds * self.steps_per_round
