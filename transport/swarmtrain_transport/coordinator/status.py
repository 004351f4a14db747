"""Status of a run as people and their programs are told it."""

import msgspec


class PeerStatus(msgspec.Struct, frozen=True):
    """One peer as `status` shows it. Bytes count both lanes, all protocol overhead included;
    `round` and `state_root` are those of the first of its groups; `rests` is what it sits out in
    any of them for its faults, and until which round; `stages` it serves, of a model that is cut
    into stages. `norm` is the length of what
    it gave lately by the median contributor's and `cosine` its likeness to what the others gave, as
    owners say (`gauges`) in the first of its groups where they say so, None where nobody does.
    `left_out` is how often it was in all groups, and `accused_by` on whose word how often.
    `waited_s` is for how long the others have waited for it in the last hour, in that group in
    which it is longest. `ways` is by which way it sends to each other peer, by name, None for by
    none."""

    peer: str
    name: str
    state: str
    round: int
    step: int
    loss: float
    tokens_per_s: float
    tokens: int
    bytes_up: int
    bytes_down: int
    replayed_ops: int
    state_root: str
    silent_s: float
    chain: str = ""
    rests: str = ""
    norm: float | None = None
    cosine: float | None = None
    left_out: int = 0
    accused_by: dict[str, int] = {}
    waited_s: float = 0.0
    ways: dict[str, str | None] = {}
    stages: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET


class RelayStatus(msgspec.Struct, frozen=True):
    """One peer, or process that does nothing else, that passes bytes on: the rate that it tells,
    the ways that it carries now, and bytes that it has carried as both ends bear out."""

    peer: str
    name: str
    bytes_per_s: int
    ways: int
    carried: int


class Exclusion(msgspec.Struct, frozen=True):
    """Somebody was left out of a round, and why; `by` are the owners on whose word it was. `group`
    is left out if it is the first."""

    round: int
    peer: str
    reason: str
    by: tuple[str, ...] = ()
    group: int | msgspec.UnsetType = msgspec.UNSET


class RoundEvent(msgspec.Struct, frozen=True):
    """A peer joined, left or was lost while this round was in progress, or did what people should
    know of; `times` in a row, the first of them in this round. `group` is left out if it is the
    first."""

    round: int
    peer: str
    event: str
    reason: str = ""
    times: int = 1
    group: int | msgspec.UnsetType = msgspec.UNSET


class RoundTimes(msgspec.Struct, frozen=True):
    """When each part of a round was over, in seconds since the outcome before it: each peer's work
    (`ready`), the wait for all (`planned`), what contributors sent (`frozen`), and the result
    (`ended`). None for what was not yet; `outcome` is "" until then, else "merged" or "skipped"."""

    round: int
    ready: dict[str, float]
    planned: float
    frozen: float | None = None
    ended: float | None = None
    outcome: str = ""


class GroupPeerStatus(msgspec.Struct, frozen=True):
    """One peer of a group beside the first: `round` and `state_root` are its newest state of that
    group, -1 and "" where none is known; the rest is as in PeerStatus."""

    peer: str
    name: str
    state: str
    round: int = -1
    state_root: str = ""
    chain: str = ""
    rests: str = ""


class GroupStatus(msgspec.Struct, frozen=True):
    """One group beside the first; what is not explained here is as in CoordinatorStatus."""

    group: int
    round: int
    committed: int
    rounds: int
    wanted_root: str
    num_values: int
    peers: tuple[GroupPeerStatus, ...]
    ops_under_way: tuple[int, ...]
    phase: str = ""
    losses: dict[str, float] = {}
    waiting_for: str = ""
    waiting_seen_s: float | None = None


class StageStatus(msgspec.Struct, frozen=True):
    """One stage of a model: who serves it, the micro-batches that it has counted in the newest
    round that is booked, and which peers of other stages hold its newest state."""

    peers: tuple[str, ...]
    counted: int
    keepers: tuple[str, ...] = ()


class PipelineStatus(msgspec.Struct, frozen=True):
    """A model in stages. Micro-batches are those of all rounds: made, `whole` are counted in all
    stages, `redone` is how often one was sent or made again. `suspects` are whom sources suspect,
    by source, as each of them has told in the newest round."""

    stages: tuple[StageStatus, ...]
    made: int = 0
    whole: int = 0
    lost: int = 0
    redone: int = 0
    suspects: dict[str, str] = {}


class TextStatus(msgspec.Struct, frozen=True):
    """Place of the run in the text that the coordinator leases: of so many `pieces` so many were
    `used` in this pass, the first of which is 1."""

    number: int = msgspec.field(name="pass")
    used: int
    pieces: int


class CoordinatorStatus(msgspec.Struct, frozen=True):
    """The coordinator's knowledge, for `status --json`.

    `round` is the newest op with an outcome, `wanted_root` the state root that a returning peer
    must hold ("" where states are each peer's own), `losses` the validation loss per op in nats,
    `door` tells if newcomers are let in ("open", "closed", "" where that is not known).
    `waiting_for` keeps the run from going on, `waiting_seen_s` is how many seconds ago somebody was
    here who had it, if that is known. `result` is the outcome of a finished run.
    `unit` is what `tokens_per_s` of peers counts: "samples" where programs bring the model.
    `groups` are those beside the first, of which all else is told; left out where there are none.
    `pipeline` is left out where the model is not cut into stages; group s is stage s.
    `timeline` are the newest rounds of the first group in this term, the oldest first.
    `text` is left out where peers bring their own. `relayed` are bytes that the coordinator itself
    has passed on from peer to peer, `relays` who else does.
    """

    run: str
    term: int
    round: int
    committed: int
    rounds: int
    phase: str
    wanted_root: str
    num_values: int
    peers: tuple[PeerStatus, ...]
    losses: dict[str, float]
    exclusions: tuple[Exclusion, ...]
    events: tuple[RoundEvent, ...]
    checkpoint_op: int
    waiting_for: str = ""
    door: str = ""
    waiting_seen_s: float | None = None
    result: str = ""
    unit: str = "tokens"
    relayed: int = 0
    relays: tuple[RelayStatus, ...] = ()
    timeline: tuple[RoundTimes, ...] = ()
    groups: tuple[GroupStatus, ...] | msgspec.UnsetType = msgspec.UNSET
    pipeline: PipelineStatus | msgspec.UnsetType = msgspec.UNSET
    text: TextStatus | msgspec.UnsetType = msgspec.UNSET
