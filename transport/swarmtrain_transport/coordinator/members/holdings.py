"""Holders of the whole ledger, and those who are to fetch it too or may free their disks.

A peer says from which record on it holds the ledger (PROGRESS). That alone counts for nothing: it
is asked for a record, drawn from a signature of the run key, which nobody can predict. It counts as
a holder once it has shown one, until it fails to show the next. Everything here is volatile.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.ledger_writer import LedgerWriter
from swarmtrain_transport.coordinator.members.roster import PeerLine
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import History, Keep, Progress, Tell
from swarmtrain_transport.wire.records import Sign, record_from_bytes

_SHOW_S = 20.0
"""Seconds that an answer may take; a message of records may be before it."""

_ON_TRIAL_MAX = 4 * limits.HISTORY_HOLDERS
"""Peers that are asked: as many as are needed, some that may go, and some that lie."""

_FILL_S = 600.0
"""Seconds for which a peer that was told to fetch is relied on; then another is told, too."""


@dataclass(slots=True)
class _Holder:
    """One peer's copy, as far as it is known on its present connection.

    Attributes:
        line: the connection.
        since_s: time when it was heard first.
        holds_from: first record from which on it says that it holds all.
        asked: index of the record that it is to show, -1 for none.
        asked_s: time when it was asked last.
        has_shown: True if it has shown the one that it was asked for last, in time.
        is_false: True if it has said that it cannot, or shown another.
        filling_s: time when it was last told to fetch the records that it lacks.
    """

    line: PeerLine
    since_s: float
    holds_from: int = 0
    asked: int = -1
    asked_s: float = -math.inf
    has_shown: bool = False
    is_false: bool = False
    filling_s: float = -math.inf

    @property
    def claims_all(self) -> bool:
        """True if it says that it holds all, and nothing speaks against it."""
        is_here = self.line.connected and not self.is_false
        return is_here and self.holds_from == 0 and not (self.keeps and self.keeps.frees)

    @property
    def keeps(self) -> Keep | None:
        """Our last word on what it is to keep."""
        return self.line.keeps

    @property
    def is_filling(self) -> bool:
        """True if it was told to fetch what it lacks."""
        return self.line.connected and self.keeps is not None and self.keeps.all


class Holdings:
    """Keeps account of who holds what of the ledger. Only so many are asked to show it, and only
    those are looked at again: of thousands each says every few seconds that it holds all.

    Args:
        writer: the ledger.
        lines: lines of the peers that are here.
        sign: signs with the run key; what it makes of a question draws the record.
    """

    def __init__(self, writer: LedgerWriter, lines: Mapping[PeerId, PeerLine], sign: Sign) -> None:
        self._writer, self._lines, self._sign = writer, lines, sign
        self._holders: dict[PeerId, _Holder] = {}
        self._whole: dict[PeerId, _Holder] = {}
        """Peers that have said last that they hold all."""
        self._on_trial: dict[PeerId, _Holder] = {}
        """Peers that are asked, or have shown what they were asked for."""
        self._filling: dict[PeerId, _Holder] = {}
        """Peers that were told to fetch what they lack."""
        self._asked = 0

    def left(self, peer: PeerId) -> None:
        """Forget a peer that has left, or a connection of it that has ended."""
        for known in (self._holders, self._whole, self._on_trial, self._filling):
            known.pop(peer, None)

    def progressed(self, peer: PeerId, line: PeerLine, message: Progress, now_s: float) -> None:
        """A peer says what it holds: have it show that, and tell it what to keep."""
        holder = self._holders.get(peer)
        if holder is not None and holder.line is not line:
            self.left(peer)
            holder = None
        if message.index < 0:
            return
        if holder is None:
            holder = self._holders[peer] = _Holder(line, now_s)
        holder.holds_from = message.holds_from
        if holder.holds_from:
            self._whole.pop(peer, None)
        else:
            self._whole[peer] = holder
            self._filling.pop(peer, None)
        if holder.asked >= 0 and now_s >= holder.asked_s + _SHOW_S:
            # Either of us may have been asleep: it is asked again, and does not count till then.
            holder.asked, holder.has_shown = -1, False
            self._on_trial.pop(peer, None)
        is_due = holder.claims_all and now_s >= holder.asked_s + limits.HISTORY_ASK_S
        if is_due and self._matters and self._may_try(peer):
            self._ask(peer, holder, min(message.index, self._writer.head), now_s)
        told = self._due(peer, holder, now_s)
        if told is not None and (told != line.keeps or told.frees):
            line.keeps = told
            if told.all:
                holder.filling_s = now_s
                self._filling[peer] = holder
                line.older_from = sys.maxsize  # an answer that crossed an earlier KEEP is lost
            self._writer.send(peer, told)

    @property
    def _matters(self) -> bool:
        """True if somebody has not all records, or may soon do without them."""
        return self._is_long(0) or len(self._whole) < len(self._holders)

    def _may_try(self, peer: PeerId) -> bool:
        """Return True if a peer is one of those that are asked, or there is room for one more."""
        for gone in [other for other, one in self._on_trial.items() if not one.claims_all]:
            del self._on_trial[gone]
        return peer in self._on_trial or len(self._on_trial) < _ON_TRIAL_MAX

    def shown(self, peer: PeerId, line: PeerLine, message: History, now_s: float) -> None:
        """A peer shows the record that it was asked for, or cannot."""
        holder = self._holders.get(peer)
        if holder is None or holder.line is not line or holder.asked < 0:
            return
        index, holder.asked = holder.asked, -1
        holder.has_shown = len(message.records) == 1 and self._is_record(index, message.records[0])
        holder.is_false = holder.is_false or not holder.has_shown

    def _is_record(self, index: int, raw: bytes) -> bool:
        try:
            return record_from_bytes(raw).hash == self._writer.ledger.hash_at(index)
        except RemoteFault:
            return False

    def _ask(self, peer: PeerId, holder: _Holder, newest: int, now_s: float) -> None:
        self._asked += 1
        self._on_trial[peer] = holder
        question = content_hash(b"show" + peer + self._asked.to_bytes(8, "little"))
        draw = content_hash(self._sign(question))
        holder.asked, holder.asked_s = int.from_bytes(draw[:8], "little") % (newest + 1), now_s
        self._writer.send(peer, Tell(holder.asked, alone=True))

    def _due(self, peer: PeerId, holder: _Holder, now_s: float) -> Keep | None:
        """Say what the peer is to keep now, None where nothing need be said."""
        tried = (one for other, one in self._on_trial.items() if other != peer)
        num_shown = sum(one.has_shown and one.claims_all for one in tried)
        is_long = self._is_long(holder.holds_from)
        if not holder.holds_from:
            # One more than are needed: or whoever leaves would have another one fetch all.
            is_spare = num_shown > limits.HISTORY_HOLDERS
            return Keep(all=False, frees=True) if is_spare and is_long else None
        coming = 0
        if not holder.is_filling:
            coming = sum(
                one.is_filling and one.holds_from > 0 and now_s < one.filling_s + _FILL_S
                for other, one in self._filling.items()
                if other != peer
            )
        if num_shown + coming >= limits.HISTORY_HOLDERS:
            frees = is_long and num_shown >= limits.HISTORY_HOLDERS
            return Keep(all=False, frees=frees) if frees or holder.is_filling else None
        # Those who may soon have shown one are given the time for it, once.
        is_early = not holder.is_filling and now_s < holder.since_s + _SHOW_S
        if is_early and self._are_claimed(limits.HISTORY_HOLDERS - coming, peer):
            return None
        return Keep(all=True)

    def _are_claimed(self, count: int, peer: PeerId) -> bool:
        """Return True if so many others say that they hold all."""
        claims = (other for other, one in self._whole.items() if one.claims_all and other != peer)
        return len([*islice(claims, count)]) == count

    def _is_long(self, holds_from: int) -> bool:
        return self._writer.bytes_before_newest(holds_from) > limits.LEDGER_DISK_BYTES
