"""The run file: typed settings that the organiser writes and every peer hashes.

Data only, never code: a run file travels to strangers. The canonical form (msgpack of all fields,
defaults written out) is hashed into the ledger's first record.
"""

from typing import Literal

import msgspec


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all sections: unknown keys are errors, not silence."""


class RunSection(_Section, frozen=True):
    """What the run is and when it ends. `rounds` counts committed rounds."""

    name: str
    seed: int = 0
    rounds: int = 1000


class ModelSection(_Section, frozen=True):
    """``kind = "byte-transformer"`` is built in; ``"custom"`` is brought by a Python hook."""

    kind: Literal["byte-transformer", "custom"] = "byte-transformer"
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128


class DataSection(_Section, frozen=True):
    """Training text: the standard library's own sources, cut into pieces leased by hash."""

    source: Literal["python-stdlib", "own"] = "python-stdlib"
    piece_bytes: int = 65_536
    lease_pieces: int = 8
    validation_pieces: int = 8


class InnerSection(_Section, frozen=True):
    """The inner optimizer. `lr` follows warm-up, then cosine to `lr_end_fraction`, over the
    run's cumulative steps (rounds x inner_steps). With ``schedule = "tokens"`` a step is as much
    text as `exchange.start_peers` peers train on in one, and the schedule ends after
    `schedule_tokens` of the whole swarm (0: those of rounds x inner_steps such steps), however many
    peers come or go. ``"muon"`` (MuLoCo, arXiv 2505.23725) steps hidden matrices with momentum
    `beta1`, scaled so that an `lr` of AdamW works, though a larger one is often better (up to
    0.02); embedding, head and gains it steps as AdamW does."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-3
    lr_end_fraction: float = 0.1
    warmup_steps: int = 20
    batch: int = 16
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    schedule: Literal["steps", "tokens"] = "steps"
    schedule_tokens: int = 0


class OuterSection(_Section, frozen=True):
    """When and what peers exchange, and what they make of it: `strategy` is a name, swarmtrain's
    own or one that an installed package brings; `lr` and `momentum` are those of the outer step,
    and `robust` is a rule in the place of the mean. ddp exchanges gradients in every step, whatever
    `inner_steps` says, and steps as `[inner]` says. `fragments`, `delay_steps` and `mixing` are
    for streaming alone: the model goes through the link in `fragments` parts, each once in
    `inner_steps`; a result takes its place `delay_steps` inner steps after it was begun and keeps
    `mixing` of what the peer has become meanwhile. The defaults here are diloco's; what other
    strategies mean where the file says nothing is in `config_defaults`."""

    strategy: str = "diloco"
    inner_steps: int = 20
    lr: float = 0.9
    momentum: float = 0.8
    error_feedback: bool = False
    fragments: int = 1
    delay_steps: int = 0
    mixing: float = 0.0
    robust: Literal["none", "norm-clip", "trimmed-mean", "median", "centered-clip", "flag"] = "none"
    lr_rule: Literal["fixed", "contributors"] = "fixed"
    """With ``contributors`` each op of diloco has, instead of `lr`, the rate that was found best
    for so many contributors at momentum 0.9 (arXiv 2503.09799), and for another momentum one that
    is as stable or more (`swarmtrain_optimizers.scaling.outer_lr`)."""


class ExchangeSection(_Section, frozen=True):
    """How differences travel. Times are in seconds; every other timeout derives from them.
    `codec` is that of what peers give: int8, int4, e3m0, two_bit, sign, topk-K or none; results
    have int8, or none. `slices` are cut in proportion to what peers' links carry, or all equal.
    `rounding` may be stochastic in int8, int4 and e3m0."""

    codec: str = "int8"
    block: int = 1024
    chunk_values: int = 262_144
    e_max: int = 0
    slices: Literal["measured", "equal"] = "measured"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    min_contributors: int = 1
    start_peers: int = 1
    wait_ready_s: float = 60.0
    deadline_floor_s: float = 20.0
    deadline_cap_s: float = 900.0


class AdmissionSection(_Section, frozen=True):
    """Who may come in. `invite_uses` 0 means without limit."""

    invite_uses: int = 0
    invite_expires_hours: float = 0.0
    peers_max: int = 64


class CheckpointSection(_Section, frozen=True):
    """`every_rounds`: one named peer writes a checkpoint. `snapshot_rounds`: every peer pins a
    snapshot for joiners."""

    every_rounds: int = 10
    keep: int = 3
    snapshot_rounds: int = 4


Setting = bool | int | float | str
"""What a strategy's own setting may be."""


class RunConfig(_Section, frozen=True):
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
    strategy: dict[str, dict[str, Setting]] = {}

    @property
    def steps_per_round(self) -> int:
        """Inner steps from one op to the next."""
        if self.outer.strategy == "ddp":
            return 1
        return self.outer.inner_steps // self.outer.fragments

    @property
    def tokens_per_step(self) -> int:
        """Of the swarm that a schedule by tokens is written for, in one inner step."""
        return self.exchange.start_peers * self.inner.batch * self.model.context

    @property
    def schedule_steps(self) -> int:
        """Steps of the whole learning-rate schedule."""
        if self.inner.schedule_tokens:
            return self.inner.schedule_tokens // self.tokens_per_step
        return self.run.rounds * self.steps_per_round
