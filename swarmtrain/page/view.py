"""The run as pages and programs see it: one view, made of the coordinator's status and the ledger.

Every number that people are shown is computed here or in `coordinator.status_view`, and nowhere
twice: the page, /api/v1 and /metrics are the same view in other forms.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

import msgspec

from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import hop_bytes
from swarmtrain.page.history import EventRow, History, Round
from swarmtrain_transport.coordinator.status import (
    CoordinatorStatus,
    PeerStatus,
    PipelineStatus,
    RoundTimes,
)
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.transfers import transfers_of
from swarmtrain_transport.wire.messages import PAUSED
from swarmtrain_transport.wire.records import Plan

POINTS_MAX = 2_000
"""Rounds in one answer; a plot is not finer."""

CONTRIBUTIONS_MAX = 200
EVENTS_MAX = 200
_EDGES_MAX = 400
"""Edges of a picture that anybody can still read; above that peers are drawn alone."""

_FLOAT_BYTES = 4
_ID_CHARS = 16

_WORDS = {
    "training": "Training", "scatter": "Exchanging", "gather": "Exchanging",
    "finished": "Finished", "disputed": "Stopped: peers hold different states",
    "ledger missing": "The ledger is missing here",
}  # fmt: skip
_STATES = {"scatter": "training", "gather": "training", "ledger missing": "lost"}


class PeerRow(msgspec.Struct, frozen=True):
    """One peer that is in. `merged` is the part of its rounds that have its work, None before the
    first; `silent_s` is since it was last heard of, which is not yet gone; `reached` is how many of
    the others it sends to by each way, or by none; `parallel_up` is what it would have sent for the
    same steps with a mean of float32 gradients at each, `fewer` how many times more that is, None
    before there is a step, and of a model in stages; `norms` are those of its newest rounds, and
    `expert` is the one that it trains."""

    peer: str
    name: str
    state: str
    round: int
    loss: float
    tokens_per_s: float
    bytes_up: int
    bytes_down: int
    merged: float | None
    silent_s: float
    left_out: int
    waited_s: float
    norm: float | None
    cosine: float | None
    rests: str
    reached: dict[str, int]
    stages: tuple[int, ...]
    parallel_up: int | None = None
    fewer: float | None = None
    norms: tuple[float, ...] = ()
    expert: int | None = None


class ContributionRow(msgspec.Struct, frozen=True):
    """Rounds and tokens of somebody that are in results, not merely computed. `tokens` is None
    where the model is in stages: a micro-batch there is the work of one peer of each."""

    peer: str
    name: str
    is_in: bool
    rounds: int
    tokens: int | None
    left_out: int
    streak: int


class Corner(msgspec.Struct, frozen=True):
    """A peer in the picture of the newest exchange; `share` is its part of the sum, 0 to 1."""

    peer: str
    name: str
    share: float


class Seat(msgspec.Struct, frozen=True):
    """A peer at one stage of a model; `counted` micro-batches of the newest round it has in its
    gradient."""

    stage: int
    peer: str
    name: str
    counted: int


class Exchange(msgspec.Struct, frozen=True):
    """The newest round's exchange as planned: edges are (from, to, bytes), from and to as
    numbers of corners; of seats instead where the model is in stages: there micro-batches travel by
    any peer of the next stage, and bytes are about those of a round, as each seat has counted."""

    round: int
    kind: str
    corners: tuple[Corner, ...]
    edges: tuple[tuple[int, int, int], ...]
    seats: tuple[Seat, ...] = ()


class Meter(msgspec.Struct, frozen=True):
    """Bytes, or bytes a second, of a peer beside what its owner allows."""

    label: str
    used: float
    most: int
    unit: str


class Traffic(msgspec.Struct, frozen=True):
    """Bytes of all peers that were seen, all overhead included; `relayed` by the coordinator.
    `fewer` is how many times more those that are in would have sent for the same steps with a mean
    of float32 gradients at each; None before there is a step, and of a model in stages."""

    up: int
    down: int
    relayed: int
    fewer: float | None


class Notice(msgspec.Struct, frozen=True):
    """An event that people should look at: `kind` is "skipped", "left out" or what a peer did."""

    round: int
    name: str
    kind: str
    text: str


class RunView(msgspec.Struct, frozen=True):
    """The run now. `state` is one of empty, waiting, training, skipped, disputed, lost, finished;
    `tokens` are those in results, `left_s` is the time that the rounds left take at the median pace
    of the newest ones, None before there is one; `at_s` the coordinator's wall clock. `loss` is of
    `loss_round`. Of so many `experts`, 0 where the run has none, rounds, losses and exchange are
    those of expert 0. `you` are facts of the peer whose own page it is, in words, and `meters` its
    limits on the link; `can_write` if its model takes a prompt."""

    run: str
    headline: str
    state: str
    at_s: float
    term: int
    round: int
    committed: int
    rounds: int
    unit: str
    tokens: int
    tokens_per_s: float
    left_s: float | None
    first_loss: float | None
    loss: float | None
    loss_round: int | None
    waiting_for: str
    waiting_seen_s: float | None
    door: str
    result: str
    checkpoint: int
    num_values: int
    relays: int
    traffic: Traffic
    peers: tuple[PeerRow, ...]
    timeline: tuple[RoundTimes, ...]
    exchange: Exchange | None
    contributions: tuple[ContributionRow, ...]
    notices: tuple[Notice, ...]
    text: str
    you: tuple[tuple[str, str], ...] = ()
    can_write: bool = False
    meters: tuple[Meter, ...] = ()
    experts: int = 0


class Numbers(msgspec.Struct, frozen=True):
    """Numbers of a view that `swarmtrain status` shows, too."""

    tokens: int
    tokens_per_s: float
    left_s: float | None
    loss: float | None
    loss_round: int | None
    traffic: Traffic


class RoundColumns(msgspec.Struct, frozen=True):
    """Rounds as columns of equal length; what is not known is None. `loss` is of validation text,
    `low` and `high` are the least and largest training loss of a peer."""

    round: list[int]
    outcome: list[str]
    peers: list[int]
    left_out: list[int]
    seconds: list[float]
    tokens: list[int]
    bytes: list[int | None]
    loss: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Viewed(msgspec.Struct, frozen=True):
    """Facts that a view is made of, beside status and ledger.

    Attributes:
        step_tokens: tokens of an inner step of a peer.
        value_bytes: bytes that a value of a contribution takes on the wire.
        hop_bytes: bytes of a micro-batch between two stages, to and fro.
    """

    step_tokens: int
    value_bytes: float
    hop_bytes: int = 0


def beginning(config: RunConfig, value_bytes: float) -> tuple[History, Viewed]:
    """An empty history of a run, and what its views are made of."""
    micro = config.micro_tokens
    is_known = micro and config.counted_unit == "tokens"  # of own models the width is not
    hop = 2 * hop_bytes(micro, config.model, config.pipeline.activations) if is_known else 0
    history = History(config.round_tokens or 0, config.num_ops, micro)
    return history, Viewed(config.step_tokens, value_bytes, hop)


def run_view(
    status: CoordinatorStatus,
    history: History,
    facts: Viewed,
    at_s: float,
    *,
    you: tuple[tuple[str, str], ...] = (),
    can_write: bool = False,
    meters: tuple[Meter, ...] = (),
) -> RunView:
    """The run now.

    Args:
        history: the ledger, read to its end.
        at_s: seconds since 1970.
    """
    losses = {int(op): loss for op, loss in status.losses.items()}
    loss_round = max(losses, default=None)
    experts = _experts(status)
    peers = tuple(_peer(peer, status, history, facts, experts) for peer in status.peers)
    newest = history.rounds[-1] if history.rounds else None
    state = _state(status, newest)
    return RunView(
        run=status.run, headline=_headline(status, state), state=state, at_s=round(at_s, 1),
        term=status.term, round=status.round, committed=status.committed, rounds=status.rounds,
        unit=status.unit, tokens=newest.tokens if newest else 0,
        tokens_per_s=round(sum(peer.tokens_per_s for peer in status.peers), 1),
        left_s=_left_s(status, history.rounds),
        first_loss=losses[min(losses)] if losses else None,
        loss=losses.get(loss_round) if loss_round is not None else None, loss_round=loss_round,
        waiting_for=_waits_for(status), waiting_seen_s=status.waiting_seen_s, door=status.door,
        result=status.result, checkpoint=status.checkpoint_op, num_values=status.num_values,
        relays=len(status.relays), traffic=_traffic(status, history, peers),
        peers=peers,
        timeline=status.timeline, exchange=_exchange(status, history, facts),
        contributions=_contributions(history),
        notices=tuple(_notices(status, history)), text=_text(status), you=you,
        can_write=can_write, meters=meters, experts=max(experts.values()) + 1 if experts else 0,
    )  # fmt: skip


def numbers_of(view: RunView) -> Numbers:
    """Numbers of a view for `status`."""
    return Numbers(**{name: getattr(view, name) for name in Numbers.__struct_fields__})


def round_columns(
    history: History, losses: Mapping[int, float], first: int = 0, points: int = POINTS_MAX
) -> RoundColumns:
    """Ended rounds from number `first` on, thinned evenly to so many at most; the newest is always
    among them. Round 0 is the time before training, where its loss is known."""
    begun = [Round(0, "", 0, 0, 0.0, 0, 0)] if 0 in losses and first <= 0 else []
    found = [*begun, *(one for one in history.rounds if one.number >= first)]
    every = max(1, -(-len(found) // max(1, min(points, POINTS_MAX))))
    kept = found[::-1][::every][::-1]
    return RoundColumns(
        round=[one.number for one in kept],
        outcome=[one.outcome for one in kept],
        peers=[one.peers for one in kept],
        left_out=[one.left_out for one in kept],
        seconds=[round(one.seconds, 3) for one in kept],
        tokens=[one.tokens for one in kept],
        bytes=[one.num_bytes if one.num_bytes >= 0 else None for one in kept],
        loss=[losses.get(one.number) for one in kept],
        low=[one.low for one in kept],
        high=[one.high for one in kept],
    )


def event_rows(history: History, after: int = -1, count: int = EVENTS_MAX) -> list[EventRow]:
    """The newest events behind record `after`, at most so many, the oldest first."""
    found = [one for one in history.events if one.index > after]
    return found[-max(0, min(count, EVENTS_MAX)) :] if count > 0 else []


def _state(status: CoordinatorStatus, newest: Round | None) -> str:
    if status.phase in ("finished", "disputed", "ledger missing"):
        return _STATES.get(status.phase, status.phase)
    if not status.peers and not status.committed:
        return "empty"
    if _waits_for(status) or not status.peers or status.phase not in _WORDS:
        return "waiting"
    is_skipped = (
        newest is not None and newest.outcome == "skipped" and newest.number == status.round
    )
    return "skipped" if is_skipped else "training"


def _waits_for(status: CoordinatorStatus) -> str:
    """Return what the run waits for, in words."""
    if status.waiting_for or not status.peers or status.result:
        return status.waiting_for
    rest = all(peer.state == PAUSED for peer in status.peers)
    return "its peers, all of which are paused" if rest else ""


def _headline(status: CoordinatorStatus, state: str) -> str:
    count = len(status.peers)
    peers = "1 peer" if count == 1 else f"{count} peers"
    if state == "empty":
        return "Nobody is here yet"
    if state == "finished":
        return f"Finished after {status.round} rounds"
    if state in ("disputed", "lost"):
        return _WORDS[status.phase]
    at = f"round {min(status.round + 1, status.rounds)} of {status.rounds}, {peers}"
    if state == "waiting":
        return f"Waiting, {at}"
    return f"{_WORDS.get(status.phase, 'Training')}, {at}"


def _left_s(status: CoordinatorStatus, rounds: list[Round]) -> float | None:
    newest = rounds[-21:]
    took = sorted(b.seconds - a.seconds for a, b in pairwise(newest))
    if not took or status.result:
        return None
    return round((status.rounds - status.committed) * took[len(took) // 2], 1)


def _traffic(status: CoordinatorStatus, history: History, peers: tuple[PeerRow, ...]) -> Traffic:
    up, down = sum(peer.bytes_up for peer in peers), sum(peer.bytes_down for peer in peers)
    return Traffic(
        max(up, history.up), max(down, history.down), status.relayed,
        _fewer(sum(peer.parallel_up or 0 for peer in peers), up),
    )  # fmt: skip


def _fewer(theirs: int, up: int) -> float | None:
    return round(theirs / up, 1) if up and theirs else None


def _experts(status: CoordinatorStatus) -> dict[str, int]:
    """Number of the expert that each peer trains, by its key; empty where the run has none."""
    if status.groups is msgspec.UNSET or status.pipeline is not msgspec.UNSET:
        return {}
    others = {peer.peer: group.group for group in status.groups for peer in group.peers}
    count = max((group.group for group in status.groups), default=0)
    return {"": count, **{peer.peer: others.get(peer.peer, 0) for peer in status.peers}}


def _peer(
    peer: PeerStatus,
    status: CoordinatorStatus,
    history: History,
    facts: Viewed,
    experts: Mapping[str, int],
) -> PeerRow:
    given = history.peers.of.get(bytes.fromhex(peer.peer))
    tries = given.contributed + given.excluded if given is not None else 0
    reached: dict[str, int] = defaultdict(int)
    for way in peer.ways.values():
        reached[way or "none"] += 1
    stages = () if peer.stages is msgspec.UNSET else peer.stages
    # A peer of an all-reduce sends its gradient's parts, and the mean's part that it has summed.
    each = 0 if history.micro_tokens else 2 * _FLOAT_BYTES * status.num_values
    theirs = round(each * peer.tokens / facts.step_tokens)
    return PeerRow(
        peer=peer.peer[:_ID_CHARS], name=peer.name, state=peer.state, round=peer.round,
        loss=peer.loss, tokens_per_s=peer.tokens_per_s, bytes_up=peer.bytes_up,
        bytes_down=peer.bytes_down, silent_s=peer.silent_s, left_out=peer.left_out,
        merged=round(given.contributed / tries, 4) if given is not None and tries else None,
        waited_s=peer.waited_s, norm=peer.norm, cosine=peer.cosine, rests=peer.rests,
        reached=dict(reached), stages=stages, parallel_up=theirs or None,
        fewer=_fewer(theirs, peer.bytes_up), norms=tuple(history.norms.get(peer.peer, ())),
        expert=experts.get(peer.peer),
    )  # fmt: skip


def _exchange(status: CoordinatorStatus, history: History, facts: Viewed) -> Exchange | None:
    plan = history.plan
    names = {bytes.fromhex(peer.peer): peer.name for peer in status.peers}
    if status.pipeline is not msgspec.UNSET:
        seats = _seats(status.pipeline, history, names)
        return Exchange(status.round, "", (), _routes(seats, facts.hop_bytes), seats)
    if plan is None:
        return None
    total = sum(member.weight for member in plan.members) or 1
    numbers = {member.peer: number for number, member in enumerate(plan.members)}
    corners = tuple(
        Corner(
            member.peer.hex()[:_ID_CHARS],
            names.get(member.peer, member.peer.hex()[:8]),
            round(member.weight / total, 4),
        )
        for member in plan.members
    )
    edges = _edges(plan, numbers, facts.value_bytes)
    return Exchange(plan.op, plan.kind, corners, edges)


def _seats(
    pipeline: PipelineStatus, history: History, names: Mapping[bytes, str]
) -> tuple[Seat, ...]:
    members = {} if history.books is None else {one.peer: one for one in history.books.members}

    def counted(peer: str, stage: int) -> int:
        one = members.get(bytes.fromhex(peer))
        at = stage - one.first if one is not None else -1
        return one.counted[at] if one is not None and 0 <= at < len(one.counted) else 0

    return tuple(
        Seat(
            number,
            peer[:_ID_CHARS],
            names.get(bytes.fromhex(peer), peer[:8]),
            counted(peer, number),
        )
        for number, stage in enumerate(pipeline.stages)
        for peer in stage.peers
    )


def _routes(seats: tuple[Seat, ...], hop_bytes: int) -> tuple[tuple[int, int, int], ...]:
    """Bytes between seats of stages that follow each other. The books tell what each seat has
    counted and not by which way: each share of one goes to all of the next by theirs."""
    total = Counter[int]()
    for seat in seats:
        total[seat.stage] += seat.counted
    found = [
        (a, b, hop_bytes * one.counted * other.counted // max(1, total[other.stage]))
        for a, one in enumerate(seats)
        for b, other in enumerate(seats)
        if other.stage == one.stage + 1 and other.peer != one.peer
    ]
    return tuple(found) if len(found) <= _EDGES_MAX else ()


def _edges(
    plan: Plan, numbers: dict[bytes, int], value_bytes: float
) -> tuple[tuple[int, int, int], ...]:
    moved: dict[tuple[int, int], float] = defaultdict(float)
    for transfer, spec in zip(transfers_of(plan), plan.slices, strict=True):
        count = (spec.stop - spec.start) * value_bytes
        owner = numbers.get(spec.owner)
        if plan.kind == PAIR or transfer.is_verbatim:
            ends = [(g, t) for g in transfer.givers for t in transfer.takers]
            moves = [(numbers[g], numbers[t]) for g, t in ends if g in numbers and t in numbers]
        else:
            inward = [(numbers[g], owner) for g in transfer.givers if g in numbers]
            outward = [(owner, numbers[t]) for t in transfer.takers if t in numbers]
            moves = [(a, b) for a, b in inward + outward if a is not None and b is not None]
        for a, b in moves:
            if a != b:
                moved[a, b] += count
    if len(moved) > _EDGES_MAX:
        return ()
    return tuple((a, b, int(count)) for (a, b), count in sorted(moved.items()))


def _contributions(history: History) -> tuple[ContributionRow, ...]:
    most = sorted(history.peers.of.items(), key=lambda item: (-item[1].contributed, item[0]))
    return tuple(
        ContributionRow(
            peer.hex()[:_ID_CHARS], one.name, one.is_in, one.contributed,
            None if history.micro_tokens else one.contributed * history.round_tokens,
            one.excluded, one.streak,
        )
        for peer, one in most[:CONTRIBUTIONS_MAX]
    )  # fmt: skip


def _notices(status: CoordinatorStatus, history: History) -> Iterator[Notice]:
    """Yield the newest twenty things that people should look at."""
    names = {peer.hex(): one.name for peer, one in history.peers.of.items()}
    told: list[tuple[int, Notice]] = []
    for one in status.exclusions:
        name = names.get(one.peer, one.peer[:8])
        told.append((one.round, Notice(one.round, name, "left out", one.reason)))
    for event in status.events:
        name = names.get(event.peer, event.peer[:8])
        times = f", {event.times} times" if event.times > 1 else ""
        told.append((event.round, Notice(event.round, name, event.event, event.reason + times)))
    told += [
        (one.number, Notice(one.number, "", "skipped", "nobody lost anything"))
        for one in history.rounds[-100:]
        if one.outcome == "skipped"
    ]
    yield from (notice for _, notice in sorted(told, key=lambda item: item[0])[-20:])


def _text(status: CoordinatorStatus) -> str:
    if status.text is msgspec.UNSET:
        return ""
    return f"pass {status.text.number}, {status.text.used} of {status.text.pieces} pieces"
