"""Forecast of a run: who would serve what, how much memory that takes, and what slows it down.

Stages go to peers in the order in which they are named, by the arithmetic with which a coordinator
gives them to who joins. Peers of a model in one piece wait for the slowest of them in each round;
a pipeline is as fast as its slowest stage, and a stage as all who serve it together.

A forecast counts operations and bytes. It takes for granted that peers compute while they send,
that nobody fails, that an exchange hides behind nothing, and that processors and links are as its
tables say. It is meant to find the bottleneck, not to promise seconds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from swarmtrain.compare.plan import NETS, Net
from swarmtrain.config.built_in import built_in_parameters, counted, is_tied, num_values_of
from swarmtrain.config.caps import parse_size
from swarmtrain.config.limits import OF_WHOLE_MODELS, first_problem
from swarmtrain.config.pipeline import stage_strategy_problems
from swarmtrain.config.settings import InnerSection, PipelineSection, RunConfig
from swarmtrain.config.stages import built_in_costs, stage_parameters
from swarmtrain.console.table import plain_lines, table_of
from swarmtrain.console.units import human_bytes, human_seconds
from swarmtrain.foundation.errors import UserError, cleaned, misuse
from swarmtrain.pipeline.costs import most_slots_of, span_words, stage_needs, under_way_of
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_optimizers.strategies.facts import OpKind
from swarmtrain_transport.limits import CELL_PEERS_MAX
from swarmtrain_transport.pipeline.coordinator.assignment import (
    Server,
    StageNeed,
    choose,
    flops_of,
    hop_bytes_of,
    memory_of,
    rate_of,
    spans_that_fit,
)

_TAKEN = "peers compute while they send, nobody fails, an exchange hides behind nothing"

_ROUND_TRIPS = 4
"""Messages of an exchange beside its bulk: READY and PLAN, parts and results, GOT and FREEZE, HAVE
and COMMIT."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine.

    Attributes:
        flops_per_s: float32 operations a second that training gets out of it.
        memory_bytes: memory that its owner gives.
    """

    flops_per_s: float
    memory_bytes: int
    words: str


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "small": Machine(2e10, 2_000_000_000, "an old laptop or a board"),
        "laptop": Machine(5e10, 4_000_000_000, "two cores of a laptop"),
        "desktop": Machine(2e11, 12_000_000_000, "eight cores"),
        "gpu": Machine(1e13, 14_000_000_000, "a card like a T4"),
        "big-gpu": Machine(6e13, 22_000_000_000, "a card like an RTX 4090"),
    }
)
"""Operations per second are what training reaches, a third to a half of a data sheet's."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer of a forecast: a kind of machine on a kind of link.

    Attributes:
        link: name of a link, or ``20/5:50``: Mbit/s up and down, milliseconds there and back.
        memory_bytes: memory that its owner gives, 0 for what the kind of machine says.
    """

    machine: str
    link: str
    memory_bytes: int = 0

    @property
    def net(self) -> Net:
        """The link."""
        return net_named(self.link)

    @property
    def server(self) -> Server:
        """The peer as it would tell a coordinator of itself."""
        machine, net = MACHINES[self.machine], self.net
        slower = min(net.up_bytes_s, net.down_bytes_s)
        return Server(None, machine.flops_per_s, slower, self.given_bytes)

    @property
    def given_bytes(self) -> int:
        """Memory that its owner gives."""
        return self.memory_bytes or MACHINES[self.machine].memory_bytes

    def __str__(self) -> str:
        memory = f":{human_bytes(self.memory_bytes)}".replace(" ", "") if self.memory_bytes else ""
        return f"{self.machine}{memory}@{self.link}"


@dataclass(frozen=True, slots=True)
class Seats:
    """Peers of one kind that serve the same span.

    Attributes:
        span: first and last stage.
        memory_bytes: memory that one of them takes.
        hop_bytes: bytes that one sends for a micro-batch, and receives.
        micro_batches_s: micro-batches that one can make in a second.
        held_by: limit of that rate: the processor or the link.
    """

    peer: str
    count: int
    span: tuple[int, int]
    memory_bytes: int
    hop_bytes: int
    micro_batches_s: float
    held_by: str


@dataclass(frozen=True, slots=True)
class More:
    """Gain by one more peer.

    Attributes:
        span: first and last stage that it would serve.
        tokens_s: tokens a second of the run with it.
    """

    peer: str
    span: tuple[int, int]
    tokens_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """A run that has not begun.

    Attributes:
        tokens_per_micro_batch: the unit that goes through the stages; in a model of one piece a
            peer's batch.
        seats: peers by the stages that they serve.
        left_out: kinds of peers whose memory holds no stage, and how many there are of each.
        stage_rates: micro-batches a second of each stage, by its peers alone.
        micro_batches_s: micro-batches a second of the run while it trains.
        bottleneck: limit of that rate, in words.
        round_s: inner steps and exchange.
        exchange_s: part of that in the exchange.
        tokens_s: tokens a second of the run, with its exchanges.
        more: gain by one more peer of each kind.
    """

    stages: int
    tokens_per_micro_batch: int
    seats: tuple[Seats, ...]
    left_out: Mapping[str, int]
    stage_rates: tuple[float, ...]
    micro_batches_s: float
    bottleneck: str
    round_s: float
    exchange_s: float
    tokens_s: float
    more: tuple[More, ...] = ()


_NUMBERS = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)/([0-9]{1,6}(?:\.[0-9]{1,3})?):([0-9]{1,5})")

_PEERS = re.compile(
    r"(?:([0-9]{1,4})\s*\*\s*)?([a-z0-9-]+)(?::([0-9.]{1,9}[kmgt]b))?@([a-z0-9.:/-]{1,40})",
    re.IGNORECASE,
)


def net_named(link: str) -> Net:
    """Link of a name, or of numbers: ``20/5:50``. UserError: SWT-E610."""
    if link in NETS:
        return NETS[link]
    numbers = _NUMBERS.fullmatch(link)
    found = [float(one) for one in numbers.groups()] if numbers is not None else []
    if len(found) < 3 or not min(found) > 0:
        raise misuse(
            f"{cleaned(link)!r} is no link that is known here.",
            f"Known are {', '.join(NETS)}, and numbers: 20/5:50 is Mbit/s up and down, and "
            f"milliseconds there and back.",
        )
    up, down, trip = found
    return Net(up * 1e6 / 8, down * 1e6 / 8, trip / 1000)


def parse_peers(text: str) -> tuple[Peer, ...]:
    """``20*laptop@dsl,2*gpu:8GB@20/5:50`` as peers, in this order.

    Raises:
        UserError: SWT-E610.
    """
    peers: list[Peer] = []
    for part in text.split(","):
        match = _PEERS.fullmatch(part.strip())
        if match is None:
            raise misuse(
                f"{cleaned(part.strip())!r} names no peers.",
                "Write NUMBER*MACHINE@LINK, with commas: 20*laptop@dsl,2*gpu@fibre; or with memory "
                "and a link of your own: laptop:8GB@20/5:50, Mbit/s up and down, milliseconds.",
            )
        peer = Peer(match[2], match[4], parse_size(match[3] or ""))
        if peer.machine not in MACHINES:
            raise misuse(
                f"{cleaned(peer.machine)!r} is no machine that is known here.",
                f"Known are {', '.join(MACHINES)}.",
            )
        net_named(peer.link)
        peers += [peer] * int(match[1] or 1)
    if not 1 <= len(peers) <= CELL_PEERS_MAX:
        raise misuse(
            f"There is no forecast for {len(peers)} peers.",
            f"Name 1 to {CELL_PEERS_MAX}: it is for peers that all exchange directly.",
        )
    return tuple(peers)


def forecast(config: RunConfig, peers: Sequence[Peer]) -> Forecast:
    """Work out a run with these peers, and what one more of each kind would bring.

    Raises:
        UserError: SWT-E633, peers bring the model; E614, none of them holds a stage, or nobody is
            left for one.
    """
    known = counted(config)
    if known is None:
        raise UserError(
            "SWT-E633",
            f"The model of {config.run.name} is brought by its peers.",
            "Nothing is known of what it costs.",
            'Plan with kind = "transformer" of its size.',
        )
    needs = stage_needs(config)
    served, left_out = _seated(needs, peers)
    _check_served(config, needs, served, left_out, peers)
    config = known
    found = _worked_out(config, needs, served, left_out)
    more = []
    for peer in dict.fromkeys(peers):
        if str(peer) in left_out or len(peers) == CELL_PEERS_MAX:
            continue
        span = choose(needs, [server for _, server in served], peer.server).span
        longer = [*served, (peer, replace(peer.server, span=span))]
        rate = _worked_out(config, needs, longer, left_out).tokens_s
        more.append(More(str(peer), (span[0], span[-1]), rate))
    return replace(found, more=tuple(more))


_Served = list[tuple[Peer, Server]]


def _seated(needs: Sequence[StageNeed], peers: Sequence[Peer]) -> tuple[_Served, dict[str, int]]:
    """Each peer with its span, as it would come in; and who has no room for any stage."""
    served: _Served = []
    left_out: dict[str, int] = {}
    for peer in peers:
        server = peer.server
        if not spans_that_fit(needs, server.memory_bytes):
            left_out[str(peer)] = left_out.get(str(peer), 0) + 1
            continue
        span = choose(needs, [one for _, one in served], server).span
        served.append((peer, replace(server, span=span)))
    return served, left_out


def _check_served(
    config: RunConfig,
    needs: Sequence[StageNeed],
    served: _Served,
    left_out: Mapping[str, int],
    peers: Sequence[Peer],
) -> None:
    taken = {stage for _, server in served for stage in server.span or ()}
    if not (empty := [stage for stage in range(len(needs)) if stage not in taken]):
        return
    unserved = range(empty[0], empty[0] + 1)
    small = "".join(f" {count} {peer} had no room for any." for peer, count in left_out.items())
    most = max(peer.server.memory_bytes for peer in peers)
    remedies = ["Name more peers, or larger ones"]
    if len(needs) == 1:
        remedies = ["Name larger peers", "let the batch go in parts (inner.accumulate)"]
    if memory_of(needs, unserved) > most and (finer := _finer_cut(config, most)):
        remedies.append(finer)
    raise UserError(
        "SWT-E614",
        f"Nobody is left for {span_words(unserved)}, which takes about "
        f"{human_bytes(memory_of(needs, unserved))}.{small}",
        "A run trains while each of its stages has a peer with room for it.",
        f"{'; or '.join(remedies)}.",
    )


def _finer_cut(config: RunConfig, most: int) -> str:
    """Words on the fewest stages of which a peer with so much memory holds any one; "" where the
    run cannot be in stages, or in none that are small enough."""
    cannot = config.experts.count > 1 or any(stage_strategy_problems(config))
    if cannot or not config.model.is_counted:
        return ""
    pipeline = config.pipeline
    model, inner = config.model, config.inner  # without what is for a model in one piece
    model = msgspec.structs.replace(model, tied=False)
    whole = {key: getattr(InnerSection(), key) for key in OF_WHOLE_MODELS}
    inner = msgspec.structs.replace(inner, **whole)

    def cut_into(stages: int) -> RunConfig:
        cut = _cut_in(config, stages)
        return msgspec.structs.replace(config, model=model, inner=inner, pipeline=cut)

    def dearest(cut: RunConfig) -> int:
        needs = stage_needs(cut)
        return max(memory_of(needs, range(stage, stage + 1)) for stage in range(len(needs)))

    finest = min(CELL_PEERS_MAX, len(built_in_costs(model)))
    if (least := dearest(cut_into(finest))) > most:
        return f"take a smaller model: of {finest} stages one takes {human_bytes(least)} still"
    finer = (cut_into(stages) for stages in range(max(2, pipeline.visit + 1), finest + 1))
    fits = (cut for cut in finer if dearest(cut) <= most and first_problem(cut) is None)
    if (found := next(fits, None)) is None:
        return ""
    stages, size = found.pipeline.num_stages, found.pipeline.micro_batch
    first, how = list[str](), ""
    if pipeline.micro_batch != _cut_in(config, pipeline.stages).micro_batch:
        first.append("leave out pipeline.micro_batch")
    elif pipeline.num_stages > 1 and pipeline.micro_batch != size:
        how = f", with a micro_batch of {size}"
    first += [f"leave out inner.{key}" for key in whole if getattr(config.inner, key) != whole[key]]
    if is_tied(config.model):
        first.append("set model.tied = false")
    less = f"{', '.join(first)} and " if first else ""
    held = f"the largest takes {human_bytes(dearest(found))}, and it takes {stages} such peers"
    return f"{less}cut the model into {stages} stages (pipeline.stages{how}), of which {held}"


def _cut_in(config: RunConfig, stages: int | Sequence[str]) -> PipelineSection:
    """The run's pipeline with other stages, and micro-batches of the size that fits these."""
    pipeline = msgspec.structs.replace(config.pipeline, stages=stages, micro_batch=0)
    return msgspec.structs.replace(config, pipeline=pipeline).pipeline


def _worked_out(
    config: RunConfig, needs: Sequence[StageNeed], served: _Served, left_out: Mapping[str, int]
) -> Forecast:
    rates = [0.0] * len(needs)
    for _, server in served:  # a coordinator bounds what it is told; here it is known
        span = server.span or range(0)
        for stage in span:
            rates[stage] += rate_of(needs, server, span)
    seats = _seats(needs, served)
    if len(needs) == 1:
        rate = len(served) * min(seat.micro_batches_s for seat in seats)
        slowest = min(seats, key=lambda seat: seat.micro_batches_s)
        bottleneck = f"the slowest peer, {slowest.peer}, for which all wait in each round"
        count = config.steps_per_round * len(served)
    else:
        rate, bottleneck = _pipeline_rate(config, needs, served, seats, rates)
        sources = sum(0 in (server.span or ()) for _, server in served)
        share = config.steps_per_round * config.inner.batch // config.pipeline.micro_batch
        count = share * sources
    tokens = config.model.context * (
        config.pipeline.micro_batch if len(needs) > 1 else config.inner.batch
    )
    exchange_s = _exchange_s(config, served)
    round_s = count / rate + exchange_s
    return Forecast(
        len(needs), tokens, seats, left_out, tuple(rates), rate, bottleneck, round_s, exchange_s,
        count * tokens / round_s,
    )  # fmt: skip


def _seats(needs: Sequence[StageNeed], served: _Served) -> tuple[Seats, ...]:
    counted: dict[tuple[Peer, Server], int] = {}
    for one in served:
        counted[one] = counted.get(one, 0) + 1
    seats = []
    for (peer, server), count in sorted(counted.items(), key=lambda item: _place(item[0][1])):
        span = server.span or range(0)
        rate = rate_of(needs, server, span)
        by_processor = rate_of(needs, replace(server, link_bytes_per_s=0.0), span)
        seats.append(
            Seats(
                str(peer), count, (span[0], span[-1]), memory_of(needs, span),
                hop_bytes_of(needs, span), rate, "processor" if rate == by_processor else "link",
            )
        )  # fmt: skip
    return tuple(seats)


def _place(server: Server) -> tuple[int, int]:
    span = server.span or range(0)
    return span.start, span.stop


def _pipeline_rate(
    config: RunConfig,
    needs: Sequence[StageNeed],
    served: _Served,
    seats: Sequence[Seats],
    rates: Sequence[float],
) -> tuple[float, str]:
    """Micro-batches a second of a pipeline, and what they hang on. A source has so many on their
    way at a time: where the way is long, that is too few."""
    slowest = min(range(len(rates)), key=rates.__getitem__)
    here = [seat for seat in seats if seat.span[0] <= slowest <= seat.span[1]]
    links = sum(seat.count * seat.micro_batches_s for seat in here if seat.held_by == "link")
    held_by = "links" if 2 * links > rates[slowest] else "processors"
    count = sum(seat.count for seat in here)
    sources = sum(0 in (server.span or ()) for _, server in served)
    way_s, slots = _way_s(needs, served), under_way_of(config, most_slots_of(config))
    most = sources * slots / way_s
    if most < rates[slowest]:
        many = "micro-batches" if slots > 1 else "micro-batch"
        return most, (
            f"the way through the stages, {way_s:.2g} s there and back for the {slots} {many} that "
            f"each source has on it; sources: {sources}"
        )
    return rates[slowest], (
        f"stage {slowest}: the {held_by} of its {count} peer{'s' if count > 1 else ''}"
    )


def _way_s(needs: Sequence[StageNeed], served: _Served) -> float:
    """Seconds of a micro-batch there and back: the middle of what each stage's peers take."""
    seconds = 0.0
    for stage in range(len(needs)):
        here = [(peer, one) for peer, one in served if stage in (one.span or ())]
        total = sum(one.flops_per_s for _, one in here) / len(here)
        seconds += flops_of(needs, range(stage, stage + 1)) / total
        if stage:
            nets = [peer.net for peer, _ in here]
            seconds += sum(map(_hop_s, nets, [needs[stage].input_bytes] * len(nets))) / len(nets)
    return seconds


def _hop_s(net: Net, num_bytes: int) -> float:
    """Seconds from one stage to the next, and later back."""
    return net.round_trip_s + 2 * num_bytes / min(net.up_bytes_s, net.down_bytes_s)


def _exchange_s(config: RunConfig, served: _Served) -> float:
    """Seconds of the slowest stage's exchange. Stages exchange side by side."""
    worst = 0.0
    for stage, parameters in enumerate(stage_parameters(config)):
        nets = [peer.net for peer, one in served if stage in (one.span or ())]
        num_values = num_values_of(parameters)
        for net in nets if len(nets) > 1 else ():
            worst = max(worst, exchange_s(config, num_values, len(nets), net))
    return worst


def exchange_bytes(config: RunConfig, num_values: int, peers: int) -> float:
    """Bytes that each of two peers or more sends in an exchange of so many values, and receives."""
    times = {OpKind.GATHER: peers - 1, OpKind.PAIR: config.facts.vectors}.get(
        config.facts.kind or OpKind.MEAN, 2 * (peers - 1) / peers
    )
    value_bytes = facts_of(config.exchange.codec).bytes_per_value(config.exchange.block)
    return times * num_values * value_bytes / config.outer.fragments


def exchange_s(config: RunConfig, num_values: int, peers: int, net: Net) -> float:
    """Seconds of such an exchange over this link."""
    moving_s = exchange_bytes(config, num_values, peers) / min(net.up_bytes_s, net.down_bytes_s)
    return moving_s + _ROUND_TRIPS * net.round_trip_s


# ---- for people


def in_words(config: RunConfig, found: Forecast, peers: Sequence[Peer]) -> list[str]:
    """The forecast as lines."""
    titles = ["peers", "stages", "memory", "sends for one", "micro-batches/s", "held back by"]
    rows = [
        [
            f"{seat.count} {seat.peer}", f"{range_words(seat.span)} of 0-{found.stages - 1}",
            human_bytes(seat.memory_bytes), human_bytes(seat.hop_bytes),
            f"{seat.micro_batches_s:.3g}", seat.held_by,
        ]
        for seat in found.seats
    ]  # fmt: skip
    lines = plain_lines(table_of(titles, rows, right=titles[2:5]))
    for peer, count in found.left_out.items():
        lines.append(f"{count} {peer}: left out, no stage fits into the memory given")
    if (known := counted(config)) is not None:
        lines += ["", f"Model        {_size_words(known)}"]
    stages = ", ".join(f"{rate:.3g}" for rate in found.stage_rates)
    if found.stages > 1:
        lines += [f"Stages       {stages} micro-batches a second, by their peers alone"]
    lines += [
        f"Run          {found.tokens_s:.3g} tokens a second: {found.micro_batches_s:.3g} "
        f"micro-batches of {found.tokens_per_micro_batch} tokens, less its exchanges",
        f"Bottleneck   {found.bottleneck}",
        f"Round        {human_seconds(found.round_s)}, of which {human_seconds(found.exchange_s)} "
        f"exchange",
    ]
    for more in found.more:
        gain = 100 * (more.tokens_s / found.tokens_s - 1)
        lines.append(
            f"One more     {more.peer} ({range_words(more.span)}): {gain:+.0f} % "
            f"({more.tokens_s:.3g} tokens a second)"
        )
    return [*lines, "", *assumptions(peers)]


def _size_words(config: RunConfig) -> str:
    """Parameters of a counted model, and what they are in an exchange."""
    num_values = num_values_of(built_in_parameters(config.model))
    codec = config.exchange.codec
    num_bytes = num_values * facts_of(codec).bytes_per_value(config.exchange.block)
    number = f"{num_values / 1e6:.1f} M" if num_values >= 1e6 else f"{num_values:,}"
    return f"{number} parameters, {human_bytes(int(num_bytes))} as {codec}"


def assumptions(peers: Sequence[Peer]) -> list[str]:
    """Figures that a forecast stands on."""
    machines = [
        f"{name}: {MACHINES[name].flops_per_s:.0e} operations a second, {MACHINES[name].words}, "
        f"{human_bytes(given)} given"
        for name, given in dict.fromkeys((peer.machine, peer.given_bytes) for peer in peers)
    ]
    links = [
        f"{name}: {net.up_bytes_s / 125_000:g} Mbit/s up, {net.down_bytes_s / 125_000:g} down, "
        f"{1000 * net.round_trip_s:g} ms"
        for name, net in {peer.link: peer.net for peer in peers}.items()
    ]
    return [f"Assumed      {line}" for line in (*machines, *links, _TAKEN)]


def range_words(span: tuple[int, int]) -> str:
    """First and last stage as people read them."""
    return f"{span[0]}-{span[1]}" if span[0] != span[1] else str(span[0])
