"""A peer's two key pairs in a file that only their owner may read."""

import contextlib
import json
from pathlib import Path
from typing import Any

from swarmtrain.foundation import atomic_file, regular_file
from swarmtrain.foundation.regular_file import UnfitFile
from swarmtrain_transport.credentials.identity import KEY_BYTES, Identity

FILE_NAME = "identity.json"

_FORMAT = "swarmtrain identity"
_VERSION = 1
_FILE_BYTES_MAX = 4096


class IdentityDamaged(Exception):
    """The file cannot be read as one of ours. It was not changed."""


def save(identity: Identity, path: Path) -> None:
    """Write the secrets, readable by their owner only.

    Raises:
        OSError: the directory cannot be written; a file of that name is as it was.
    """
    fields = {
        "format": _FORMAT,
        "version": _VERSION,
        "peer_id": identity.peer_id.hex(),
        "curve_key": identity.curve_key.hex(),
        "signing_secret": identity.signing_secret.hex(),
        "curve_secret": identity.curve_secret.hex(),
    }
    text = json.dumps(fields, indent=1) + "\n"
    atomic_file.write(path, text.encode("ascii"), mode=0o600)


def load(path: Path) -> Identity:
    """Read the identity in a file.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
        IdentityDamaged: it is not one of our files, or its keys do not match each other.
    """
    try:
        data = regular_file.read(path, _FILE_BYTES_MAX)
    except UnfitFile as unfit:
        raise _damaged(path, str(unfit.strerror)) from unfit
    fields = _read_fields(path, data)
    identity = Identity.from_secrets(fields["signing_secret"], fields["curve_secret"])
    # A flipped bit in a secret still makes a valid key: another one. The public halves in
    # the file tell it, before this peer appears in the run as somebody else.
    if (identity.peer_id, identity.curve_key) != (fields["peer_id"], fields["curve_key"]):
        raise _damaged(path, "its keys do not belong together")
    return identity


def _read_fields(path: Path, data: bytes) -> dict[str, bytes]:
    """Return the file's four keys, or raise IdentityDamaged with the first thing wrong."""
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise _damaged(path, "it is cut off or not a swarmtrain identity") from exc
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise _damaged(path, "it is some other program's file")
    if fields.get("version") != _VERSION:
        raise _damaged(path, "its version is not 1, the only one that this swarmtrain reads")
    return {
        name: _read_key(path, name, fields.get(name))
        for name in ("peer_id", "curve_key", "signing_secret", "curve_secret")
    }


def _read_key(path: Path, name: str, text: Any) -> bytes:
    """Read one key. Its text is never shown: it may be a secret."""
    key = b""
    if isinstance(text, str):
        with contextlib.suppress(ValueError):
            key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise _damaged(path, f"its {name} is not 32 bytes of hex")
    return key


def _damaged(path: Path, what: str) -> IdentityDamaged:
    return IdentityDamaged(
        f"{path} is not a usable identity: {what}. The file was left alone. Restore it from a"
        " copy, or move it away to become a new peer."
    )
