"""Messages as people read them in a trace: kinds and short names instead of keys and hashes."""

from collections.abc import Callable
from typing import Any

import msgspec

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.messages import Records
from swarmtrain_transport.wire.records import BodyReader, outline_of

NameOf = Callable[[bytes], str]

_KEY_BYTES = 32


def told(message: object, name_of: NameOf, reader: BodyReader | None = None) -> str:
    """A control message on one line; `reader` reads what the same peer is told."""
    if isinstance(message, Records):
        reader = reader or BodyReader()
        lines = [_body(reader, raw, name_of) for raw in message.records]
        return f"records {message.first_index}..: {', '.join(lines)}"
    return _struct(message, name_of) if isinstance(message, msgspec.Struct) else str(message)


def _body(reader: BodyReader, raw: bytes, name_of: NameOf) -> str:
    try:
        record = reader.record(raw)
    except RemoteFault:  # it is short by a PLAN that was told before this connection
        return "PLAN"
    try:
        return _struct(reader.read(record), name_of)
    except RemoteFault:  # its PLAN was told before
        outline = outline_of(record)
        return f"{outline.kind}({outline.op})"


def _struct(value: msgspec.Struct, name_of: NameOf) -> str:
    fields = [getattr(value, name) for name in value.__struct_fields__]
    return f"{type(value).__name__}({', '.join(_short(field, name_of) for field in fields)})"


def _short(value: Any, name_of: NameOf) -> str:
    if isinstance(value, bytes):
        name = name_of(value) if len(value) == _KEY_BYTES else "stranger"
        return name if not name.startswith("stranger") else value.hex()[:6] or "-"
    if isinstance(value, msgspec.Struct):
        return _struct(value, name_of)
    if isinstance(value, tuple):
        return f"[{' '.join(_short(item, name_of) for item in value)}]"
    if isinstance(value, dict):
        pairs = [f"{_short(k, name_of)}: {_short(v, name_of)}" for k, v in value.items()]
        return f"{{{', '.join(pairs)}}}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)[:80]
