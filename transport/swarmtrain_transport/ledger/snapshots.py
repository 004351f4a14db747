"""Snapshots: the folded view as bytes, which a SNAPSHOT record names by its hash.

Everybody who has folded the same records has the same image, to the bit: dicts stand in the order
in which records have filled them, sets are sorted. An op is told by the bodies of its own records,
which are short, and folded from them again. The plans by which later records name members are in it
too.

Keys and hashes stand eight times in the fold for each peer, and once in its image: whatever has
their length is in a table, in the order of its first use, and a number elsewhere.
"""

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.chain import Ledger, size_of
from swarmtrain_transport.ledger.fold import GroupView, LedgerView, OpDecision, OpView
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    AnyBody,
    BodyReader,
    Plan,
    Record,
    Snapshot,
    body_of,
)
from swarmtrain_transport.wire.unpacking import check_values, unpack_weighed

_LENGTH = limits.HASH_BYTES
"""Bytes of this length, keys and hashes, stand in the table."""

_AS_THEY_ARE = frozenset((int, str, float, bool, NoneType))

_PLANS = tuple[tuple[int, int, bytes], ...]
_OP = tuple[bytes, bytes, dict[bytes, int], list[bytes]]
"""Shapes of what a reader remembers, and of an op: hashes of PLAN and outcome, unfit peers, and
bodies."""


def image_of(view: LedgerView, reader: BodyReader) -> bytes:
    """The canonical bytes of a fold, and of what reads the records after it."""
    places: dict[bytes, int] = {}
    plain = _plain([reader.plans(), view], places)
    data: bytes = msgpack.packb([*plain, b"".join(places)])
    return data


def from_image(data: bytes) -> tuple[LedgerView, BodyReader]:
    """The fold and the reader again.

    Raises:
        RemoteFault: reason ``snapshot``: it is no image, or not the one that `image_of` makes.
    """
    try:
        check_values(data, limits.IMAGE_VALUES_MAX)
        plans, raw, table = unpack_weighed(data)
        keys = [table[at : at + _LENGTH] for at in range(0, len(table), _LENGTH)]
        reader = BodyReader(_shaped(plans, _PLANS, keys))
        view = _shaped(raw, LedgerView, keys)
        for group in view.groups.values():
            if group.op is not None:
                known = group.ops.get(group.op.plan_id) or group.commits.get(group.op.plan.op)
                is_known = known is not None and known.plan_hash == group.op.plan_hash
                group.op = known if is_known else group.op
            for op in (group.op, *group.ops.values(), *group.commits.values()):
                if op is not None:
                    op.turns = view.turns[: op.plan.turns]
        if image_of(view, reader) != data:
            raise ValueError("another form of a fold than this version's")
        return view, reader
    except (RemoteFault, ValueError, TypeError, KeyError, AttributeError, IndexError,
            OverflowError, RecursionError) as exc:  # fmt: skip
        raise RemoteFault("snapshot", f"no image of a fold: {exc}") from exc


def _plain(values: Iterable[Any], places: dict[bytes, int]) -> list[Any]:
    """Values as msgpack writes them; keys and hashes as their places, which begin with 1."""
    made: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is bytes:
            if len(value) == _LENGTH:
                value = places.setdefault(value, len(places) + 1)
        elif kind not in _AS_THEY_ARE:
            parts, least = _parts(value)
            value = _plain(parts, places)
            while len(value) > least and not value[-1]:
                value.pop()
        made.append(value)
    return made


def _parts(value: Any) -> tuple[Iterable[Any], int]:
    """Parts of a value in their order; how many are written also where the last ones are empty."""
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):  # JOINs are the most
        return msgspec.structs.astuple(value), _form(kind)[1]
    if isinstance(value, dict):
        return chain.from_iterable(value.items()), sys.maxsize
    if isinstance(value, set | frozenset):
        return sorted(value), sys.maxsize
    if isinstance(value, list | tuple):
        return value, sys.maxsize
    if isinstance(value, OpView):
        return (value.plan_hash, value.outcome_hash, value.unfit, value.bodies), sys.maxsize
    return [getattr(value, one.name) for one in fields(kind)], _form(kind)[1]


def _shaped(raw: Any, hint: Any, keys: list[bytes]) -> Any:
    """The value of this type that `_plain` has written."""
    if hint is bytes and type(raw) is int:
        return keys[raw - 1]
    if hint is bytes or hint in _AS_THEY_ARE:
        if type(raw) is not hint:
            raise TypeError(f"{type(raw).__name__} in place of {hint}")
        return raw
    if hint is OpView:
        return _op(*_shaped(raw, _OP, keys))
    if isinstance(hint, type) and get_origin(hint) is None:
        known, least = _form(hint)
        if not least <= len(raw) <= len(known):
            raise ValueError(f"{len(raw)} fields of {hint}")
        return hint(*(_shaped(*one, keys) for one in zip(raw, known, strict=False)))
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (other,) = [one for one in args if one is not NoneType]
        return None if raw is None else _shaped(raw, other, keys)
    if origin in (dict, Mapping, Counter):
        key, one = args if origin is not Counter else (*args, int)
        pairs = zip(raw[::2], raw[1::2], strict=True)
        made = {_shaped(name, key, keys): _shaped(value, one, keys) for name, value in pairs}
        return made if origin is not Counter else Counter(made)
    kinds = args if origin is tuple and args[-1] is not Ellipsis else args[:1] * len(raw)
    return origin(_shaped(one, kind, keys) for one, kind in zip(raw, kinds, strict=True))


@lru_cache
def _form(shape: type) -> tuple[list[Any], int]:
    """Types of the fields of a dataclass or a struct, and how many are always written."""
    hints = get_type_hints(shape)
    if is_dataclass(shape):
        least = sum(not one.metadata.get("is_later") for one in fields(shape))
        return [hints[one.name] for one in fields(shape)], least
    known = msgspec.structs.fields(shape)
    return [hints[one.name] for one in known], sum(one.required for one in known)


def _op(plan_hash: bytes, outcome_hash: bytes, unfit: Any, bodies: list[bytes]) -> OpView:
    plan, *decisions = [body_of(Record(0, b"", 0, body, b""), bodies[0]) for body in bodies]
    if not isinstance(plan, Plan):
        raise TypeError("an op without its PLAN")
    view = OpView.of(plan, plan_hash, unfit)
    for decision in decisions:
        if not isinstance(decision, OpDecision):
            raise TypeError("a record of another kind in an op")
        view.apply(decision)
    view.bodies, view.outcome_hash = bodies, outcome_hash
    return view


def become(view: LedgerView, other: LedgerView) -> None:
    """Make a view that others hold the same as another; groups that it has stay who they are."""
    groups: dict[int, GroupView] = {}
    for number, group in other.groups.items():
        groups[number] = view.groups.get(number, group)
        _take_over(groups[number], group)
    _take_over(view, other)
    view.groups = groups


def _take_over(one: Any, other: Any) -> None:
    for field in fields(one):
        setattr(one, field.name, getattr(other, field.name))


class Snapshots:
    """Says when a SNAPSHOT is due, and checks those that are there: hears of each record before it
    is kept, and folds it.

    Args:
        ledger, view: ledger and fold that it follows.

    Attributes:
        record: the newest SNAPSHOT, None before the first.
        image: image that it names.
        indexes: indexes of all of them.
    """

    def __init__(self, ledger: Ledger, view: LedgerView) -> None:
        self.record: Record | None = None
        self.image = b""
        self.indexes: list[int] = []
        self._ledger, self._view = ledger, view
        self._bytes_since = 0
        self._made = GENESIS_HASH, b""
        """Hash of the record that the newest image is after, and the image."""

    @property
    def is_due(self) -> bool:
        """True if enough records have come since the newest one."""
        return self._bytes_since >= limits.SNAPSHOT_EVERY_BYTES

    def begin(self, record: Record, image: bytes) -> None:
        """Go on from a SNAPSHOT whose image is known."""
        self.record, self.image, self._bytes_since = record, image, 0
        self.indexes.append(record.index)

    def bytes_before(self, first: int) -> int:
        """Lower bound on the bytes of records between a record and the newest SNAPSHOT."""
        count = len(self.indexes) - bisect_left(self.indexes, first)
        return max(0, count - (first > 0)) * limits.SNAPSHOT_EVERY_BYTES

    def next(self) -> Snapshot:
        """The SNAPSHOT of the records so far."""
        image = self._image()
        return Snapshot(content_hash(image), len(image))

    def _image(self) -> bytes:
        """The image of the records so far; of a crowd it takes a while to make."""
        head = self._ledger.head_hash
        if self._made[0] != head or not self._made[1]:
            self._made = head, image_of(self._view, self._ledger.reader)
        return self._made[1]

    def apply(self, record: Record, body: AnyBody) -> None:
        """Fold the next record.

        Raises:
            RemoteFault: reason ``snapshot``: it names another fold than ours of the same records;
                or what the fold raises.
        """
        if isinstance(body, Snapshot):
            image = self._image()
            if body != Snapshot(content_hash(image), len(image)):
                raise RemoteFault("snapshot", f"SNAPSHOT {record.index} is of another history")
            self.begin(record, image)
            self._made = GENESIS_HASH, b""
            return
        self._view.apply(record, body)
        self._bytes_since += size_of(record)
