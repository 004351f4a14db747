"""Costs of the named sizes of models: a peer's memory, and the bytes and seconds of an exchange.

The arithmetic is that of forecasts and of the door that refuses who has too little memory. A link
is as fast up as down here, and a peer exchanges over nothing else meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from swarmtrain.compare.plan import Net
from swarmtrain.config.built_in import SIZES, built_in_parameters, num_values_of
from swarmtrain.config.settings import InnerSection, ModelSection, RunConfig, RunSection
from swarmtrain.console.table import plain_lines, table_of
from swarmtrain.console.units import human_bytes
from swarmtrain.pipeline.costs import stage_needs
from swarmtrain.plan.forecast import exchange_bytes, exchange_s
from swarmtrain_transport.pipeline.coordinator.assignment import memory_of

PEERS = (4, 16)
MBITS_S = (20, 100)
_ROUND_TRIP_S = 0.050

_BYTES, _GPT2_TOKENS = 256, 50_257
_BYTES_UP_TO = 20_000_000
"""Parameters with bytes as tokens, above which a size is meant for a tokenizer."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Cost of one exchange of a model.

    Attributes:
        mbit_s: rate of each one's link, up and down.
        num_bytes: bytes that each sends, and as many that it receives.
    """

    peers: int
    mbit_s: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of one size.

    Attributes:
        size: name of the size in a run file.
        tokens: size of its vocabulary.
        memory_bytes: memory of a peer in all, an example at a time, float32 and AdamW.
        exchanges: costs by the number of peers, then by their links.
    """

    size: str
    tokens: int
    parameters: int
    memory_bytes: int
    exchanges: tuple[Exchange, ...]


def costs() -> tuple[Cost, ...]:
    """Cost of each size by name, with int8 and the mean of all peers."""
    return tuple(map(_cost, SIZES))


def _cost(size: str) -> Cost:
    config = _config(size, _BYTES)
    if num_values_of(built_in_parameters(config.model)) > _BYTES_UP_TO:
        config = _config(size, _GPT2_TOKENS)
    needs, parameters = stage_needs(config), num_values_of(built_in_parameters(config.model))
    exchanges = tuple(
        Exchange(
            peers, mbit_s, round(exchange_bytes(config, parameters, peers)),
            exchange_s(config, parameters, peers, _link(mbit_s)),
        )
        for peers in PEERS for mbit_s in MBITS_S
    )  # fmt: skip
    return Cost(size, config.model.vocabulary, parameters, memory_of(needs, range(1)), exchanges)


def _link(mbit_s: int) -> Net:
    """A link as fast up as down."""
    rate = mbit_s * 1e6 / 8
    return Net(rate, rate, _ROUND_TRIP_S)


def _config(size: str, tokens: int) -> RunConfig:
    said = {"kind": "transformer", "size": size, "vocabulary": tokens, **SIZES[size]}
    model = msgspec.convert(said, ModelSection)
    one_by_one = InnerSection(accumulate=InnerSection().batch)
    return RunConfig(run=RunSection(name="costs"), model=model, inner=one_by_one)


def in_words(found: Sequence[Cost]) -> list[str]:
    """The costs as a table, and what they take for granted."""
    titles = ["size", "tokens", "parameters", "memory"]
    titles += [f"{peers} peers send" for peers in PEERS]
    titles += [f"{peers}, {mbit_s} Mbit/s" for peers in PEERS for mbit_s in MBITS_S]
    rows = [
        [
            one.size, f"{one.tokens}", f"{one.parameters / 1e6:.1f} M",
            human_bytes(one.memory_bytes),
            *(human_bytes(part.num_bytes) for part in one.exchanges[:: len(MBITS_S)]),
            *(f"{part.seconds:.3g} s" for part in one.exchanges),
        ]
        for one in found
    ]  # fmt: skip
    return [
        *plain_lines(table_of(titles, rows, right=titles[1:])),
        "",
        "memory: of a peer's whole process, with AdamW in float32 and one example at a time",
        "send: each peer in a round, with int8 and the mean of all; it receives as much",
        "Mbit/s: seconds of an exchange over links as fast up as down, 50 ms there and back",
    ]
