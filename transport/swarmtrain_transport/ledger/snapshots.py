"""Snapshots: the folded view as bytes, which a SNAPSHOT record names by its hash.

Everybody who has folded the same records has the same image, to the bit: dicts stand in the order
in which records have filled them, sets are sorted. An op is told by the bodies of its own records,
which are short, and folded from them again. The plans by which later records name members are in it
too.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.chain import Ledger
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


def image_of(view: LedgerView, reader: BodyReader) -> bytes:
    """The canonical bytes of a fold, and of what reads the records after it."""
    data: bytes = msgpack.packb([reader.plans(), _plain(view)])
    return data


def from_image(data: bytes) -> tuple[LedgerView, BodyReader]:
    """The fold and the reader again.

    Raises:
        RemoteFault: reason ``snapshot``: it is no image.
    """
    try:
        plans, raw = msgpack.unpackb(data, strict_map_key=False)
        view = _shaped(raw, LedgerView)
        for group in view.groups.values():
            if group.op is not None:
                known = group.ops.get(group.op.plan_id) or group.commits.get(group.op.plan.op)
                is_known = known is not None and known.plan_hash == group.op.plan_hash
                group.op = known if is_known else group.op
            for op in (group.op, *group.ops.values(), *group.commits.values()):
                if op is not None:
                    op.turns = view.turns[: op.plan.turns]
        return view, BodyReader(plans)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, msgspec.MsgspecError,
            msgpack.UnpackException, RecursionError) as exc:  # fmt: skip
        raise RemoteFault("snapshot", f"no image of a fold: {exc}") from exc


def _plain(value: Any) -> Any:
    if isinstance(value, OpView):
        return [value.plan_hash, value.outcome_hash, _plain(value.unfit), value.bodies]
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value, builtin_types=(bytes,))
    if is_dataclass(value):
        kept = [_plain(getattr(value, one.name)) for one in fields(value)]
        while len(kept) > _num_old(value) and not kept[-1]:
            kept.pop()
        return kept
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(one)] for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _shaped(raw: Any, hint: Any) -> Any:
    """The value of this type that `_plain` has written."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (other,) = [one for one in args if one is not NoneType]
        return None if raw is None else _shaped(raw, other)
    if hint is OpView:
        return _op(*raw)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return msgspec.convert(raw, type=hint, builtin_types=(bytes,), str_keys=False)
    if isinstance(hint, type) and is_dataclass(hint):
        made = hint()
        if len(raw) < _num_old(made):
            raise ValueError(f"{len(raw)} fields of {hint}")
        for (name, kind), one in zip(_kinds(hint)[: len(raw)], raw, strict=True):
            setattr(made, name, _shaped(one, kind))
        return made
    if origin in (dict, Mapping):
        return {_shaped(key, args[0]): _shaped(one, args[1]) for key, one in raw}
    if origin is Counter:
        return Counter({_shaped(key, args[0]): one for key, one in raw})
    if origin in (set, frozenset, list):
        return origin(_shaped(one, args[0]) for one in raw)
    if origin is tuple:
        kinds = args[:1] * len(raw) if args[-1] is Ellipsis else args
        return tuple(_shaped(one, kind) for one, kind in zip(raw, kinds, strict=True))
    if type(raw) is not hint:
        raise TypeError(f"{type(raw).__name__} in place of {hint}")
    return raw


@lru_cache
def _kinds(shape: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(shape)
    return [(one.name, hints[one.name]) for one in fields(shape)]


def _num_old(fold: Any) -> int:
    """Number of fields that are always written."""
    return sum(not one.metadata.get("is_later") for one in fields(fold))


def _op(plan_hash: bytes, outcome_hash: bytes, unfit: Any, bodies: list[bytes]) -> OpView:
    plan, *decisions = [body_of(Record(0, b"", 0, body, b""), bodies[0]) for body in bodies]
    if not isinstance(plan, Plan):
        raise TypeError("an op without its PLAN")
    view = OpView.of(plan, plan_hash, _shaped(unfit, dict[bytes, int]))
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
        self._bytes_since += len(record.body)
