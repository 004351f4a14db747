"""Pieces of text from the coordinator: asked for by hash, checked by hash.

The plain length that comes first is bounded before anything is
unpacked, and nothing is returned that does not hash to its name.
"""

import hashlib
from collections.abc import AsyncIterator

import lz4.block

from swarmtrain.foundation.control_lane import LENGTH_BYTES
from swarmtrain.foundation.errors import UserError

NOT_GIVEN = "SWT-E501"
"""Error id for a piece that the coordinator does not have, or not for us."""


class PieceRefused(UserError):
    """A piece of text is not to be had, or is not what its name says."""


async def read_bounded(chunks: AsyncIterator[bytes], bytes_max: int) -> bytes:
    """Return all that comes, as long as it is at most `bytes_max` bytes.

    Raises:
        PieceRefused: it is more.
    """
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > bytes_max:
            raise not_as_named(f"more than {bytes_max} bytes came")
    return bytes(data)


def unpack_piece(data: bytes, piece_hash: bytes, bytes_max: int) -> bytes:
    """The plain text of a piece.

    Args:
        data: length and lz4 block, as they came.
        piece_hash: SHA-256 of the plain text.
        bytes_max: largest plain text that is accepted.

    Raises:
        PieceRefused: too long, not lz4, or of another hash.
    """
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) < LENGTH_BYTES or length > bytes_max:
        raise not_as_named(f"it says that it is {length} bytes long, {bytes_max} are allowed")
    try:
        plain: bytes = lz4.block.decompress(data[LENGTH_BYTES:], uncompressed_size=length)
    except lz4.block.LZ4BlockError as exc:
        raise not_as_named("it does not unpack") from exc
    if hashlib.sha256(plain).digest() != piece_hash:
        raise not_as_named("its hash is another one")
    return plain


def not_as_named(what: str) -> PieceRefused:
    """The error for a piece that came, but is not the one."""
    return PieceRefused(
        "SWT-E802",
        f"A piece of text from the coordinator was refused: {what}.",
        "Nothing was trained on it.",
        "Compare `swarmtrain --version` with the organiser's.",
    )


def not_given(status: int) -> PieceRefused:
    """The error for a piece that the coordinator does not give out."""
    return PieceRefused(
        NOT_GIVEN,
        f"The coordinator does not give out a piece that it leased (HTTP {status}).",
        "Its text was changed while the run was on, or it was started again with another one.",
        "Ask the organiser to bring the old files back.",
    )
