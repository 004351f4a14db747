"""Orders that the organiser may give over the local socket, and their answers: typed JSON."""

from typing import Annotated, Literal

import msgspec

from swarmtrain_transport.coordinator.status import PeerStatus

USES_MAX = ROUNDS_MAX = 1_000_000_000
HOURS_MAX = 1_000_000.0
"""Longest life of an invite, as the run file's [admission] has it for the run's own."""

_Uses = Annotated[int, msgspec.Meta(ge=0, le=USES_MAX)]
_Hours = Annotated[float, msgspec.Meta(ge=0.0, le=HOURS_MAX)]


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    """Base of all orders; the field ``order`` names the type."""


class CreateInvite(_Said, frozen=True, tag="invite-create"):
    """Make an invite; None stands for what the run file says."""

    uses: _Uses | None = None
    hours: _Hours | None = None
    name: str = ""
    role: Literal["peer", "observer"] = "peer"


class ListInvites(_Said, frozen=True, tag="invite-ls"):
    """Ask which invites there are."""


class RevokeInvite(_Said, frozen=True, tag="invite-revoke"):
    """Let nobody in any more with the invite of this name or id."""

    invite: str
    members: bool = False


class ListPeers(_Said, frozen=True, tag="peers-ls"):
    """List the peers that are in, the banned ones, and with `everybody` all that ever were in."""

    everybody: bool = False


class ShowPeer(_Said, frozen=True, tag="peers-show"):
    """All that is known of one peer."""

    peer: str


class RemovePeer(_Said, frozen=True, tag="peers-remove"):
    """Send a peer away; it may come again."""

    peer: str
    reason: str = ""


class BanPeer(_Said, frozen=True, tag="peers-ban"):
    """Shut a key out, in or not."""

    peer: str
    reason: str = ""


class UnbanPeer(_Said, frozen=True, tag="peers-unban"):
    """Let a banned key come again."""

    peer: str


class SetDoor(_Said, frozen=True, tag="door"):
    """Let nobody new in, or newcomers again."""

    closed: bool


class ExtendRun(_Said, frozen=True, tag="extend"):
    """Let the run go on until so many rounds are committed."""

    rounds: Annotated[int, msgspec.Meta(ge=1, le=ROUNDS_MAX)]


AnySaid = (
    CreateInvite | ListInvites | RevokeInvite | ListPeers | ShowPeer | RemovePeer | BanPeer
    | UnbanPeer | SetDoor | ExtendRun
)  # fmt: skip


class InviteView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One invite as people see it; times are seconds since 1970, `uses_max` and `expires_at` 0 for
    no limit. `invite` is the text itself, in the answer to who has made it; of an observer's the
    address of the page."""

    id: str
    name: str
    state: str
    uses: int
    uses_max: int
    created_at: float
    expires_at: float
    role: str
    invite: str = ""


class PeerView(msgspec.Struct, frozen=True):
    """One peer as people see it; `round` is the newest of group 0 whose result it holds. The other
    rounds are each of the group that stands beside it."""

    peer: str
    name: str
    state: str
    round: int
    since_round: int
    since_group: int
    contributed: int
    excluded: int
    last_reason: str
    last_round: int
    last_group: int


class PeerSheet(PeerView, frozen=True):
    """A row, with what it has no room for. `accused_by` counts the words of owners against
    it, whatever they have cost it."""

    invite: str
    reasons: dict[str, int]
    accused_by: dict[str, int]
    ban_reason: str
    now: PeerStatus | None
