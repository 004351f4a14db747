"""The organiser's orders over the local socket: invites, peers, and whether anybody new comes in.

Permission to open the socket is ownership of the state directory, and with it of the run's keys; so
nothing more is asked. The machine writes bans into the ledger; names, words and hashes of secrets
stay in the store. A secret is answered once, to the command that made it, and kept nowhere.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import msgspec

from swarmtrain.config.settings import AdmissionSection
from swarmtrain.coordinator.disk.certificate import SECRET_BYTES
from swarmtrain.coordinator.disk.register import InviteRow
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.door.admission import SECONDS_PER_HOUR, add_invite, ban_words
from swarmtrain.coordinator.door.viewing import page_link
from swarmtrain.coordinator.organiser.order_forms import (
    AnySaid,
    BanPeer,
    CreateInvite,
    ExtendRun,
    InviteView,
    ListInvites,
    ListPeers,
    PeerSheet,
    PeerView,
    RemovePeer,
    RevokeInvite,
    SetDoor,
    ShowPeer,
    UnbanPeer,
)
from swarmtrain.coordinator.shell import Shell
from swarmtrain.foundation.errors import UserError, cleaned, misuse
from swarmtrain.why.peer_history import PeerHistories, PeerHistory
from swarmtrain_transport import limits
from swarmtrain_transport.actions import CoordinatorAction
from swarmtrain_transport.coordinator.members.departures import Ban, Order, Pardon, Removal
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.coordinator.status import CoordinatorStatus, PeerStatus, TextStatus
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import BodyReader
from swarmtrain_transport.wire.text_place import TextPlace

RECORDS_AT_ONCE = 500
"""Records that are read before the loop has its turn: some milliseconds."""

PATIENCE_S = 20.0
"""A restarted coordinator decides nothing for some seconds; an order waits so long."""

LOOK_S = 0.1

WORDS_CHARS_MAX = 200
"""Longest reason, or name of an invite."""


class Desk:
    """Hears orders and carries them out.

    Args:
        shell: makes them durable and tells the peers.
        store: store of invites and of all else that is no decision.
        settings: settings of invites where an order says nothing.
        invite_with: the run's invite with another secret.
        wall_clock: seconds since 1970.
        progress: tells where the run is in the text that it leases.
    """

    def __init__(
        self,
        machine: Rendezvous,
        shell: Shell,
        store: Store,
        settings: AdmissionSection,
        invite_with: Callable[[bytes], Invite],
        wall_clock: Callable[[], float],
        progress: Callable[[], TextPlace | None] = lambda: None,
    ) -> None:
        self._progress = progress
        self._machine = machine
        self._shell = shell
        self._store = store
        self._settings = settings
        self._invite_with = invite_with
        self._wall_clock = wall_clock
        self._histories, self._reader = PeerHistories(), BodyReader()

    def status(self) -> CoordinatorStatus:
        """The run as `status` shows it, with what the machine does not know."""
        view = self._machine.status(self._shell.now_s())
        text = self._progress()
        return msgspec.structs.replace(
            view,
            door="closed" if self._store.is_closed else "open",
            text=msgspec.UNSET if text is None else TextStatus(text.number, text.used, text.pieces),
        )

    async def hear(self, data: bytes) -> Any:
        """Carry out an order; the answer is to be encoded as JSON.

        Args:
            data: the order as JSON.

        Raises:
            UserError: it is none, names nobody, or cannot be carried out now.
        """
        try:
            said = msgspec.json.decode(data, type=AnySaid)
        except ValueError as exc:
            raise UserError(
                "SWT-E501", f"The coordinator does not understand the order: {cleaned(str(exc))}",
                "It is an order for a peer (pause, resume, finish, leave), or of another version.",
                "Name a peer's directory with --state-dir. Ctrl+C stops a coordinator; it goes on\n"
                "when it is started again.",
            ) from exc  # fmt: skip
        match said:
            case CreateInvite():
                return self._create_invite(said)
            case ListInvites():
                wall_s = self._wall_clock()
                return {"invites": [_invite_view(row, wall_s) for row in self._store.invites()]}
            case RevokeInvite():
                return await self._revoke(said)
            case SetDoor():
                self._store.close_door(closed=said.closed)
                return {"door": "closed" if said.closed else "open"}
            case ExtendRun():
                return await self._extend(said)
        await self._read_ledger()
        match said:
            case ListPeers():
                return {"peers": self._rows(everybody=said.everybody)}
            case ShowPeer():
                return self._sheet(self._named(said.peer))
            case RemovePeer():
                return await self._remove(said)
            case BanPeer():
                return await self._ban(said)
            case UnbanPeer():
                peer = self._named(said.peer, among=self._machine.view.banned)
                return await self._order(Pardon(peer))

    # ---- invites

    def _create_invite(self, said: CreateInvite) -> InviteView:
        uses = self._settings.invite_uses if said.uses is None else said.uses
        hours = self._settings.invite_expires_hours if said.hours is None else said.hours
        name = cleaned(said.name)[:WORDS_CHARS_MAX]
        wall_s = self._wall_clock()
        if name and any(row.name == name for row in self._store.invites()):
            raise UserError(
                "SWT-E610", f"There is an invite with the name {name} already.", "",
                "Choose another name, or none.",
            )  # fmt: skip
        secret = secrets.token_bytes(SECRET_BYTES)
        is_peers = said.role == "peer"
        if said.uses and not is_peers:
            raise misuse(
                "A viewing link has no number of uses: whoever has it can look.",
                "Leave --uses out; --expires 24h lets it end, and `invite revoke` withdraws it.",
            )
        if not is_peers and self._settings.page == "off":
            raise misuse(
                "The run file shows the run to nobody: admission.page is off.",
                'A run whose page is "link" has viewing links.',
            )
        row = add_invite(
            self._store, secret, uses_max=uses if is_peers else 0, wall_s=wall_s, name=name,
            role="" if is_peers else said.role,
            expires_at=wall_s + hours * SECONDS_PER_HOUR if hours > 0 else 0.0,
        )  # fmt: skip
        view = _invite_view(row, wall_s)
        invite = self._invite_with(secret)
        link = page_link(invite.host, invite.port, secret.hex())
        return msgspec.structs.replace(view, invite=str(invite) if is_peers else link)

    async def _revoke(self, said: RevokeInvite) -> Any:
        rows = [
            row for row in self._store.invites()
            if said.invite and (row.name == said.invite or row.invite_id.startswith(said.invite))
        ]  # fmt: skip
        if len(rows) != 1:
            raise _not_one("invite", said.invite, [row.invite_id for row in rows])
        # A guest who waits for a coordinator that decides nothing yet, or for other newcomers, may
        # hold its last use.
        await self._until_it_decides()
        self._shell.obey(self._machine.admit)
        invite_id = rows[0].invite_id
        members = self._store.admitted_by(invite_id)
        self._store.revoke_invite(invite_id, with_members=said.members)
        gone = [peer for peer in members if said.members and peer in self._machine.view.roster]
        for peer in gone:
            self._obey(Removal(peer, "The organiser has withdrawn the invite that you came with."))
        return {
            "id": invite_id, "name": rows[0].name, "state": "revoked", "members": len(members),
            "removed": [peer.hex() for peer in gone],
        }  # fmt: skip

    # ---- peers

    async def _read_ledger(self) -> None:
        """Bring the histories up to date, in portions: a ledger may have a million records."""
        ledger = self._machine.writer.ledger
        while self._histories.num_read < len(ledger):
            for record in islice(ledger.since(self._histories.num_read), RECORDS_AT_ONCE):
                self._histories.read(self._reader.read(record))
            await asyncio.sleep(0)

    def _rows(self, *, everybody: bool) -> list[PeerView]:
        now = self._now()
        view = self._machine.view
        shown = [
            peer for peer in self._histories.of
            if everybody or peer in view.roster or peer in view.banned
        ]  # fmt: skip
        return [PeerView(**self._facts(peer, now.get(peer))) for peer in shown]

    def _sheet(self, peer: PeerId) -> PeerSheet:
        now, history = self._now().get(peer), self._histories.of.get(peer, PeerHistory())
        return PeerSheet(
            **self._facts(peer, now), invite=history.invite, reasons=dict(history.reasons),
            accused_by=self._accusers(peer),
            ban_reason=self._store.ban_reason(peer) if peer in self._machine.view.banned else "",
            now=now,
        )  # fmt: skip

    def _accusers(self, peer: PeerId) -> dict[str, int]:
        return {
            f"{self._name_of(owner)} ({owner.hex()[:8]})".lstrip(): count
            for owner, count in self._machine.view.conduct_of(peer).accused_by.items()
        }

    def _facts(self, peer: PeerId, now: PeerStatus | None) -> dict[str, Any]:
        history = self._histories.of.get(peer, PeerHistory())
        view = self._machine.view
        state = "banned" if peer in view.banned else "gone"
        if peer in view.roster:
            state = now.state if now is not None else "disconnected"
        return {
            "peer": peer.hex(), "name": history.name, "state": state,
            "round": now.round if now is not None else 0,
            "since_round": history.since_round, "since_group": history.since_group,
            "contributed": history.contributed, "excluded": history.excluded,
            "last_reason": history.last_reason,
            "last_round": history.last_round, "last_group": history.last_group,
        }  # fmt: skip

    def _now(self) -> Mapping[PeerId, PeerStatus]:
        return {bytes.fromhex(peer.peer): peer for peer in self.status().peers}

    def _named(self, text: str, among: set[PeerId] | None = None) -> PeerId:
        """Find the one peer of that name, or whose id begins so.

        Members come first, so that a name can be used again; then those who were members.

        Raises:
            UserError: SWT-E809, there is none or more than one.
        """
        known = list(self._histories.of) if among is None else sorted(among)
        found = [
            peer for peer in known
            if text and (peer.hex().startswith(text.lower()) or self._name_of(peer) == text)
        ]  # fmt: skip
        here = [peer for peer in found if peer in self._machine.view.roster]
        chosen = here or found
        if len(chosen) != 1:
            raise _not_one("peer", text, [f"{p.hex()[:12]} {self._name_of(p)}" for p in chosen])
        return chosen[0]

    def _name_of(self, peer: PeerId) -> str:
        return self._histories.of[peer].name if peer in self._histories.of else ""

    async def _remove(self, said: RemovePeer) -> Any:
        reason = cleaned(said.reason)[:WORDS_CHARS_MAX]
        why = f": {reason}" if reason else "."
        text = f"The organiser has removed this peer{why} It may join again."
        return await self._order(Removal(self._named(said.peer), text))

    async def _ban(self, said: BanPeer) -> Any:
        reason = cleaned(said.reason)[:WORDS_CHARS_MAX]
        is_key = len(said.peer) == 2 * limits.HASH_BYTES and set(said.peer.lower()) <= _HEX
        peer = bytes.fromhex(said.peer) if is_key else self._named(said.peer)
        await self._until_it_decides()
        # The words first: whoever finds the record finds them too, also after a crash in between.
        self._store.note_ban(peer, reason)
        return await self._order(Ban(peer, ban_words(reason)))

    async def _order(self, order: Order) -> dict[str, Any]:
        await self._until_it_decides()
        changed = not self._machine.departures.is_void(order)
        self._obey(order)
        await self._read_ledger()
        return {
            "peer": order.peer.hex(), "name": self._name_of(order.peer), "changed": changed,
            "state": self._facts(order.peer, None)["state"],
        }  # fmt: skip

    def _obey(self, order: Order) -> None:
        self._act(lambda now_s: self._machine.ordered(order, now_s))

    def _act(self, decide: Callable[[float], tuple[CoordinatorAction, ...]]) -> None:
        self._shell.obey(decide)
        if self._shell.has_failed:
            raise UserError(
                "SWT-E204", "The coordinator has stopped while it carried out the order.",
                "It could not keep its decision, so it has made none.",
                "See what it has said, start it again, and repeat the command.",
            )  # fmt: skip

    async def _extend(self, said: ExtendRun) -> dict[str, Any]:
        check_more(said.rounds, self._machine)
        await self._until_it_decides()
        before = self._machine.rounds
        self._act(lambda now_s: self._machine.extend(said.rounds, now_s))
        return {"rounds": self._machine.rounds, "changed": self._machine.rounds != before}

    async def _until_it_decides(self) -> None:
        until_s = self._shell.now_s() + PATIENCE_S
        while self._machine.recovery.is_open:
            if self._shell.now_s() > until_s:
                raise UserError(
                    "SWT-E708", "The coordinator decides nothing yet: it waits for its peers.",
                    "It was restarted, and a peer may hold decisions that its disk has lost.",
                    "Repeat the command in a while; `swarmtrain status` says who is back.",
                )  # fmt: skip
            await asyncio.sleep(LOOK_S)


def check_more(rounds: int, machine: Rendezvous) -> None:
    """A run's end is only ever moved to a later round.

    Raises:
        UserError: SWT-E610.
    """
    if rounds < machine.rounds:
        raise misuse(
            f"The run is to have {machine.rounds} rounds already, and {rounds} are fewer.",
            "Rounds are added, never taken away. To end it earlier, stop the coordinator.",
        )


_HEX = frozenset("0123456789abcdef")


def _invite_view(row: InviteRow, wall_s: float) -> InviteView:
    state = "open"
    if row.revoked:
        state = "revoked"
    elif row.has_expired(wall_s):
        state = "expired"
    elif row.is_used_up():
        state = "used up"
    return InviteView(
        row.invite_id, row.name, state, row.uses, row.uses_max, row.created_at, row.expires_at,
        row.role or "peer",
    )  # fmt: skip


def _not_one(kind: str, text: str, found: list[str]) -> UserError:
    """Nobody, or several, are named by that."""
    if found:
        listed = ", ".join(one.strip() for one in found[:8]) + (" ..." if len(found) > 8 else "")
        what = f"{cleaned(text)} stands for {len(found)} {kind}s: {listed}."
        return UserError("SWT-E809", what, "Nothing was done.", "Name one by more of its id.")
    command = "peers ls --all" if kind == "peer" else "invite ls"
    what = f"There is no {kind} {cleaned(text)}."
    return UserError("SWT-E809", what, "Nothing was done.", f"`swarmtrain {command}` lists them.")
