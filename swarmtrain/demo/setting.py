"""The beginning of a demo: its cast, the places of its files, and the run file.

The run file is written out with comments because it is meant to be read, and to be used again with
`swarmtrain up`. Its numbers were tuned so that a round takes seconds on two cores and the loss
falls visibly. Not here: processes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from swarmtrain.config import file as config_file
from swarmtrain.config.declared import description
from swarmtrain.config.options import DemoOptions
from swarmtrain.config.settings import ExchangeSection, OuterSection, RunConfig
from swarmtrain.local_run.place import FOUNDERS, Place
from swarmtrain_optimizers.strategies.facts import StrategyFacts, Value
from swarmtrain_optimizers.strategies.registry import facts_named

KILL_ROUND = 3
"""The first rounds show the normal course, so that the third one shows the difference."""

NEWCOMER = "newt"

_VICTIM_INDEX = 2
"""Not the first: nobody shall think that the first one is special."""


@dataclass(frozen=True, slots=True)
class Part:
    """A peer where the model is in stages.

    Attributes:
        speed: speed in a word.
        pass_s: a pass through a stage takes it so long.
        span: stages that it asks for, "" for those that the run lacks most.
    """

    speed: str
    pass_s: float
    span: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Options of `swarmtrain join`."""
        return "--pass-seconds", str(self.pass_s), *(("--span", self.span) if self.span else ())


STAGES = 3

_FAST_S = 0.02
"""Longer than a pass takes on a core of one's own, so that peers of one machine sleep, too."""

PARTS = (
    *(
        Part(speed, pass_s, str(stage))
        for stage in range(STAGES)
        for speed, pass_s in (("fast", _FAST_S), ("slow", 2 * _FAST_S))
    ),
    Part("whole", _FAST_S, f"0-{STAGES - 1}"),
    Part("fast", _FAST_S),
)
"""Names of the founders in their order, and of the newcomer."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The peers of a demo.

    Attributes:
        founders: peers at the start.
        victim: the founder that is killed, None without churn.
        newcomer: the peer that joins later, None without churn.
        parts: tasks of the peers where the model is in stages.
    """

    founders: tuple[str, ...]
    victim: str | None
    newcomer: str | None
    parts: Mapping[str, Part] = field(default_factory=dict)

    @classmethod
    def of(cls, options: DemoOptions) -> "Cast":
        """The cast that the options ask for."""
        founders = FOUNDERS[: options.peers]
        parts = dict(zip((*founders, NEWCOMER), PARTS, strict=True)) if options.pipeline else {}
        if not options.churn:
            return cls(founders, None, None, parts)
        return cls(founders, founders[_VICTIM_INDEX], NEWCOMER, parts)

    @property
    def everybody(self) -> tuple[str, ...]:
        """All peers that appear at some time."""
        return (*self.founders, self.newcomer) if self.newcomer else self.founders

    @property
    def survivors(self) -> tuple[str, ...]:
        """Founders that are there from the start to the end."""
        return tuple(name for name in self.founders if name != self.victim)


def write_run_file(place: Place, options: DemoOptions) -> RunConfig:
    """Write the run file and read it back as everybody will read it."""
    facts = facts_named(options.strategy)
    text = _RUN_FILE.format(
        rounds=options.rounds,
        seed=options.seed,
        start_peers=options.peers,
        min_contributors=1 if options.pipeline else min(2, options.peers),
        outer="\n".join(_outer(facts, in_stages=options.pipeline)),
        exchange="\n".join(_exchange(facts)),
        pipeline=_PIPELINE.format(stages=STAGES) if options.pipeline else "",
    )
    place.run_file.write_text(text, encoding="utf-8")
    return config_file.load(place.run_file)


_RUN_FILE = """\
# The run file of the demo. Start a coordinator with it: swarmtrain up run.toml

[run]
name = "demo"
seed = {seed}
rounds = {rounds}             # committed rounds; then the run is over

[model]
kind = "byte-transformer"     # predicts the next byte; about 0.8 million parameters
layers = 4
width = 128
heads = 4
context = 128

[data]
source = "python-stdlib"      # the coordinator's own Python sources, leased to peers by hash

[inner]                       # what each peer does on its own
optimizer = "adamw"
lr = 2e-3
lr_end_fraction = 0.1
warmup_steps = 10
batch = 8
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
grad_clip = 1.0

[outer]                       # what is done with the peers' mean difference
{outer}

[exchange]
{exchange}
chunk_values = 32768          # small, so that a peer can be stopped in the middle of many
slices = "equal"              # rates between processes of one machine are noise
start_peers = {start_peers}
min_contributors = {min_contributors}
wait_ready_s = 60.0           # a late peer is waited for so long, a lost one is not
deadline_floor_s = 20.0
deadline_cap_s = 60.0
{pipeline}
[checkpoint]
every_rounds = 4
snapshot_rounds = 2           # newcomers download the state of such a round and replay the rest
"""

_PIPELINE = """
[pipeline]                    # the model is cut into stages, and a peer serves some of them
stages = {stages}
micro_batch = 4               # windows that travel together; two of them are a step of a source
activations = "int8"          # of what travels between two stages
"""


def _outer(facts: StrategyFacts, *, in_stages: bool) -> Iterator[str]:
    """Return the run file's part for the strategy: its section, and one of its own where it asks
    for that. A stage of so small a model is exchanged whole, in rounds of as many steps."""
    yield _line("strategy", facts.name, facts.about)
    said: type[msgspec.Struct] = OuterSection
    told = dict(facts.demo)
    if in_stages and "outer.fragments" in told:
        told["outer.inner_steps"] = int(told["outer.inner_steps"]) // int(told["outer.fragments"])
        told["outer.fragments"] = 1
    for path, value in told.items():
        section, _, key = path.rpartition(".")
        if section.startswith("strategy.") and said is not facts.settings:
            said = facts.settings
            yield from ("", f"[{section}]")
        if section != "exchange":
            yield _line(key, value, description(said, key))


def _exchange(facts: StrategyFacts) -> Iterator[str]:
    told = {**facts.defaults, **facts.demo}
    for key, plain in (("codec", "int8"), ("block", 1024)):
        value = told.get(f"exchange.{key}", plain)
        yield _line(key, value, description(ExchangeSection, key))


def _line(key: str, value: Value, what: str) -> str:
    return f"{f'{key} = {json.dumps(value)}':<29} # {what}"
