"""Sheets: the part of FREEZE and COMMIT that only auditors look at, one for each cell of an op.

Of an op of hundreds everybody would keep hundreds of signatures, and look at none of them. So in
cells (`ledger.cells`) FREEZE and COMMIT have a hash for each cell in their place: of its sheet. The
coordinator sends a sheet to the members of its cell, who keep it for as long as the op's result and
serve it by its hash, as any blob. There is no sheet that is not named in the ledger.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.records import SignedRoot
from swarmtrain_transport.wire.unpacking import unpack_limited


def roots_sheet(roots: Mapping[bytes, SignedRoot], contributors: Sequence[bytes]) -> bytes:
    """Sheet of FREEZE: what the contributors of a cell have signed, in this order."""
    known = (roots.get(peer, SignedRoot(b"", b"")) for peer in contributors)
    return msgspec.msgpack.encode([[one.root, one.signature] for one in known])


def roots_in(sheet: Buffer, contributors: Sequence[bytes]) -> dict[bytes, SignedRoot]:
    """Read such a sheet.

    Raises:
        RemoteFault: reason ``sheet``.
    """
    roots = _read(sheet, list[SignedRoot], len(contributors))
    return dict(zip(contributors, roots, strict=True))


def signatures_sheet(signatures: Sequence[bytes]) -> bytes:
    """Sheet of COMMIT: the signatures of a cell's owners, in the order of their slices."""
    return msgspec.msgpack.encode(list(signatures))


def signatures_in(sheet: Buffer, num_slices: int) -> list[bytes]:
    """Read such a sheet.

    Raises:
        RemoteFault: reason ``sheet``.
    """
    signatures: list[bytes] = _read(sheet, list[bytes], num_slices)
    return signatures


def _read(sheet: Buffer, kind: Any, count: int) -> Any:
    try:
        raw = unpack_limited(sheet, bytes_max=limits.SHEET_BYTES_MAX)
        found = msgspec.convert(raw, type=kind, builtin_types=(bytes,))
    except (RemoteFault, msgspec.ValidationError) as exc:
        raise RemoteFault("sheet", f"does not decode: {exc}") from exc
    if len(found) != count:
        raise RemoteFault("sheet", f"{len(found)} entries for {count}")
    return found
