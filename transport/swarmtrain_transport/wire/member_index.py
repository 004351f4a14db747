"""Members by their place in PLAN: the short form of keys in a record.

A key would be named dozens of times in the records of an op. So a member's key is MessagePack
extension 1 in a body, its place in the newest PLAN before (in a PLAN, among its own members) as one
byte, or as two where there are more than 256 members, and a sorted list of members is extension 2,
a bitmap of places. Other keys stay as they are: any body can be written, and is read back as it
was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgpack

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault

_MEMBER, _MEMBERS = 1, 2

_BYTE_PLACES = 256
"""Members that one byte names."""

EXT_BYTES_MAX = limits.RUN_PEERS_MAX // 8
"""Bytes of a place, or of a bitmap of as many as there may be."""


@dataclass(frozen=True, slots=True)
class MemberIndex:
    """The members of one PLAN.

    Attributes:
        keys: keys in PLAN's order.
        of: place of each.
    """

    keys: tuple[bytes, ...]
    of: Mapping[bytes, int]

    @classmethod
    def among(cls, keys: Sequence[bytes]) -> "MemberIndex":
        """Places of these, as far as a bitmap reaches."""
        known = tuple(keys[: limits.RUN_PEERS_MAX])
        return cls(known, {key: place for place, key in enumerate(known)})

    @property
    def _place_bytes(self) -> int:
        return 1 if len(self.keys) <= _BYTE_PLACES else 2

    def shorten(self, value: Any) -> Any:
        """Put places in the place of keys, all the way down."""
        if isinstance(value, bytes):
            place = self.of.get(value)
            if place is None:
                return value
            return msgpack.ExtType(_MEMBER, place.to_bytes(self._place_bytes, "little"))
        if isinstance(value, list | tuple):
            bitmap = self._bitmap(value)
            return bitmap if bitmap is not None else [self.shorten(one) for one in value]
        if isinstance(value, dict):
            return {self.shorten(key): self.shorten(one) for key, one in value.items()}
        return value

    def _bitmap(self, value: Sequence[Any]) -> msgpack.ExtType | None:
        """The bitmap of a list that is one of members, sorted, each of them once."""
        if not value or not all(isinstance(key, bytes) and key in self.of for key in value):
            return None
        if any(one >= other for one, other in pairwise(value)):
            return None
        bits = sum(1 << self.of[key] for key in value)
        return msgpack.ExtType(_MEMBERS, bits.to_bytes(-(-len(self.keys) // 8), "little"))

    def lengthen(self, value: Any) -> Any:
        """Put keys back in the place of places.

        Raises:
            RemoteFault: reason ``record``: a place that nobody has.
        """
        if isinstance(value, msgpack.ExtType):
            return self._named(value.code, value.data)
        if isinstance(value, list):
            return [self.lengthen(one) for one in value]
        if isinstance(value, dict):
            return {self.lengthen(key): self.lengthen(one) for key, one in value.items()}
        return value

    def _named(self, code: int, data: bytes) -> bytes | tuple[bytes, ...]:
        number = int.from_bytes(data, "little")
        if code == _MEMBER and len(data) == self._place_bytes and number < len(self.keys):
            return self.keys[number]
        if code != _MEMBERS or len(data) > EXT_BYTES_MAX or number >> len(self.keys):
            raise RemoteFault("record", "a place in PLAN that no member has")
        return _sorted_members(self.keys, number)


@lru_cache(256)
def _sorted_members(keys: tuple[bytes, ...], bits: int) -> tuple[bytes, ...]:
    return tuple(sorted(key for place, key in enumerate(keys) if bits >> place & 1))


NO_MEMBERS = MemberIndex((), {})
"""Before any PLAN."""
