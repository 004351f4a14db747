"""Sheets have one entry for each contributor or slice of a cell, and no more."""

import msgpack
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.records import SignedRoot
from swarmtrain_transport.wire.sheets import (
    roots_in,
    roots_sheet,
    signatures_in,
    signatures_sheet,
)
from tests.transport.rig import A, B, C

ROOTS = {A: SignedRoot(b"a" * 32, b"x" * 64), B: SignedRoot(b"b" * 32, b"y" * 64)}


def test_a_sheet_is_read_as_it_was_written() -> None:
    assert roots_in(roots_sheet(ROOTS, (A, B)), (A, B)) == ROOTS
    told = roots_in(roots_sheet(ROOTS, (A, C)), (A, C))
    assert told == {A: ROOTS[A], C: SignedRoot(b"", b"")}
    assert signatures_in(signatures_sheet([b"x" * 64, b""]), 2) == [b"x" * 64, b""]


def test_the_sheets_of_a_full_cell_fit() -> None:
    peers = [bytes([number]) * 32 for number in range(limits.CELL_PEERS_MAX)]
    full = {peer: SignedRoot(peer, peer + peer) for peer in peers}
    assert len(roots_sheet(full, peers)) < 7_000
    assert len(signatures_sheet([bytes(64)] * 64)) < 4_300


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"x", roots_sheet(ROOTS, (A,)), roots_sheet(ROOTS, (A, B, C)),
        msgpack.packb({}), msgpack.packb([1, 2]), msgpack.packb([[b""], [b""]]),
        roots_sheet({A: SignedRoot(bytes(limits.SHEET_BYTES_MAX), b"")}, (A, B)),
    ],
    ids=range(9),
)  # fmt: skip
def test_one_with_other_entries_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteFault) as caught:
        roots_in(data, (A, B))
    assert caught.value.reason == "sheet"
    with pytest.raises(RemoteFault):
        signatures_in(data, 9)
