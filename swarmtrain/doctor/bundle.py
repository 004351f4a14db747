"""`swarmtrain logs bundle`: what whoever mends a fault wants to see, scrubbed, in one archive.

Only files that are named here are read, and of these regular ones alone; links are not followed.
Keys, text, weights, results and proofs are never opened but to know what must not be in it. Nothing
is sent, and no network is asked.
"""

import getpass
import gzip
import io
import json
import os
import platform
import re
import socket
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from swarmtrain import status
from swarmtrain.config import file as config_file
from swarmtrain.config import owner_limits
from swarmtrain.coordinator.disk.certificate import FRESH_KEY_FILE, RUN_KEY_FILE, TLS_FILE
from swarmtrain.coordinator.disk.store import FILE_NAME as STORE_FILE
from swarmtrain.coordinator.disk.store_errors import StoreError
from swarmtrain.doctor.scrub import Scrubber
from swarmtrain.foundation import atomic_file, regular_file
from swarmtrain.foundation.errors import UserError, misuse, translate
from swarmtrain.page.tracking import FILE_NAME as METRICS_FILE
from swarmtrain.peer.disk import identity_file, ledger_file
from swarmtrain.peer.disk.group_storage import RUN_FILE
from swarmtrain.peer.disk.storage import beginning_in
from swarmtrain.trained.places import run_folder, state_dirs
from swarmtrain.verify.coordinator_state import is_coordinators, read_records
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.snapshots import from_image
from swarmtrain_transport.wire.records import AnyBody, BodyReader, Join, Record

BYTES_MAX = 5_000_000
"""Bytes of all files before they are packed: what people can look through, and mail."""

_FILE_BYTES_MAX = 300_000
_LINE_CHARS_MAX = 2_000
_NAME_CHARS_MAX = 60
_RECORDS_MAX = 400
_RECORD_CHARS_MAX = 600
_ITEMS_MAX = 8
_ROUNDS = 9
_LISTED_MAX = 400
_DIRECTORIES_MAX = 16
_KEY_BYTES_MAX = 8192

_LOGS = ("*.log", "logs/*.log", "reports/fault-*.txt")
_KEY_FILES = (identity_file.FILE_NAME, TLS_FILE, RUN_KEY_FILE, FRESH_KEY_FILE)
_PACKAGES = ("swarmtrain", "torch", "numpy", "aiohttp", "pyzmq", "msgspec", "cryptography",
             "safetensors", "transformers", "psutil")  # fmt: skip

_NUMBERS = {
    "tokens", "round", "val/loss", "train/loss", "perf/tok_s", "swarm/peers", "swarm/bytes_up",
    "swarm/bytes_down", "time",
}  # fmt: skip
"""Names of numbers in metrics."""

_OURS = re.compile(
    r"checkpoints|results|groups|kept|proofs|download|text|logs|reports|begins-with|before-\d+"
    r"|op-\d{6,}|\d{1,8}(\.bin|\.link|\.proof)?|(model|outer|own)\.safetensors|lock|spill\.bin"
    r"|(manifest|identity|status|limits|tokenizer)\.json|status\.sock|(run|initial)\.msgpack"
    r"|ledger(-image)?\.bin|ledger\.sqlite(-\w{3})?|(tls|run-key|run-key\.fresh)\.pem"
    r"|metrics(\.1)?\.jsonl"
)
"""Names of files that swarmtrain writes; whatever else lies there may have a telling name."""

Files = dict[str, bytes]


def directories_of(given: Sequence[str]) -> list[Path]:
    """State directories that the words name: of a run's name those of its coordinator and peers.

    Raises:
        UserError: SWT-E806, a word names none.
    """
    found: list[Path] = [] if given else [status.newest_state_dir()]
    for one in given:
        place, folder = Path(one), run_folder(one)
        if is_coordinators(place) or (place / status.WHERE_FILE).is_file():
            found.append(place)
        elif folder is not None and not place.is_dir():
            known = (folder / "coordinator", *sorted((folder / "peers").glob("*")))
            found += [place for place in known if place.is_dir()]
        else:
            found += state_dirs([one])
    return list(dict.fromkeys(found))[:_DIRECTORIES_MAX]


def gathered(directories: Sequence[Path]) -> Files:
    """The files of the archive by name, scrubbed: of this machine, and of each directory."""
    records = {place: _records(place) for place in directories}
    told = {place: _told_by(place) for place in directories}
    scrubber = Scrubber(
        str(Path.home()), _people(),
        [body.name for known in records.values() for _, body in known if isinstance(body, Join)]
        + [name for said in told.values() for name in _names(said)]
        + [name for place in directories for name in _before(place, records[place], told[place])],
        (key for place in directories for key in _keys(place)),
        [str(place.absolute()) for place in directories],
    )  # fmt: skip
    files = {"machine.json": _json(_machine(), scrubber)}
    left = BYTES_MAX - len(files["machine.json"])
    for number, place in enumerate(directories, 1):
        kind = "coordinator" if is_coordinators(place) else "peer"
        for name, data in _of_directory(place, records[place], told[place], scrubber):
            if len(data) <= left:
                left -= len(data)
                files[f"{kind}-{number}/{name}"] = data
            elif left < _FILE_BYTES_MAX:
                break  # the rest would be scrubbed for nothing
    # Hosts that a later file has told may stand in an earlier one.
    return {name: scrubber.hosts(data.decode()).encode() for name, data in files.items()}


def write(path: Path, files: Mapping[str, bytes]) -> None:
    """Write an archive that says nothing of who made it, for its owner alone.

    Raises:
        UserError: SWT-E610, the file is there; E401 or E403, it cannot be written.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"swarmtrain-logs/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    if path.exists() or path.is_symlink():
        raise misuse(f"{path} is there already.", "Name another file with --out.")
    try:
        atomic_file.write(path, gzip.compress(packed.getvalue(), mtime=0), mode=0o600)
    except OSError as error:
        raise translate(error) or UserError(
            "SWT-E403", f"{path} cannot be written: {error.strerror or error}.",
            "Nothing was gathered.", "Name a file in a folder that you own with --out.",
        ) from error  # fmt: skip


def _of_directory(
    place: Path, records: Sequence[tuple[Record, AnyBody]], told: Any, scrubber: Scrubber
) -> Iterator[tuple[str, bytes]]:
    yield "files.txt", _text("\n".join(_listed(place)), scrubber)
    yield "status.json", _json(told, scrubber)
    with suppress(OSError, UserError, RemoteFault):
        data = regular_file.read(_own(place, RUN_FILE), config_file.FILE_BYTES_MAX)
        settings = msgspec.to_builtins(config_file.from_canonical(data))
        yield "run-file.json", _json(settings, scrubber)
    with suppress(OSError, UserError):
        _own(place, owner_limits.FILE_NAME)
        yield "limits.json", _json(asdict(owner_limits.read(place)), scrubber)
    with suppress(OSError):
        yield METRICS_FILE, _numbers(_tail(_own(place, METRICS_FILE)))
    if records:
        lines = [_told(*one) for one in records[-_RECORDS_MAX:]]
        yield "ledger.txt", _text("\n".join(lines), scrubber)
    logs = [path for pattern in _LOGS for path in sorted(place.glob(pattern))]
    for number, path in enumerate(logs, 1):
        with suppress(OSError):
            text = _tail(_own(place, str(path.relative_to(place))))
            name = re.sub(r"[^\w.\[\] -]", "_", scrubber.text(path.name))
            yield f"logs/{number}-{name[-_NAME_CHARS_MAX:]}", _text(text, scrubber)


def _own(place: Path, name: str) -> Path:
    """A file of a directory that no link stands in the way to.

    Raises:
        OSError: there is none.
    """
    path = place / name
    if path.resolve() != place.resolve() / name or not path.is_file():
        raise FileNotFoundError(str(path))
    return path


def _tail(path: Path) -> str:
    """The end of a file, from the beginning of a line."""
    with regular_file.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _FILE_BYTES_MAX))
        data = file.read(_FILE_BYTES_MAX)
    text = data.decode("utf-8", "replace")
    text = text if size <= _FILE_BYTES_MAX else text.partition("\n")[2]
    return "\n".join(line[:_LINE_CHARS_MAX] for line in text.splitlines())


def _numbers(text: str) -> bytes:
    """Lines of metrics: numbers and their names; a line that is anything else is left out."""
    lines = []
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            told = json.loads(line)
            if isinstance(told, dict):
                known = [
                    key for key in told if key in _NUMBERS and isinstance(told[key], int | float)
                ]
                lines.append(json.dumps({key: told[key] for key in known}))
    return "\n".join(lines).encode()


def _told(record: Record, body: AnyBody) -> str:
    """A record in a line: its kind and fields, hashes and ids by their beginnings."""
    fields = {name: _shown(getattr(body, name)) for name in body.__struct_fields__}
    said = f"{record.index} term {record.term} {type(body).__name__} {fields}"
    return said[:_RECORD_CHARS_MAX]


def _shown(value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()[:8]
        case msgspec.Struct():
            return {name: _shown(getattr(value, name)) for name in value.__struct_fields__}
        case list() | tuple():
            more = [f"and {len(value) - _ITEMS_MAX} more"] if len(value) > _ITEMS_MAX else []
            return [_shown(one) for one in value[:_ITEMS_MAX]] + more
        case dict():
            return {str(_shown(key)): _shown(one) for key, one in list(value.items())[:_ITEMS_MAX]}
    return value


def _records(place: Path) -> list[tuple[Record, AnyBody]]:
    """The ledger there, as far as it can be read; that of a coordinator that runs cannot."""
    found: list[tuple[Record, AnyBody]] = []
    reader = BodyReader()
    with suppress(OSError, UserError, RemoteFault, StoreError):
        if is_coordinators(place):
            _own(place, STORE_FILE)
            records: Iterable[Record] = read_records(place)
        else:
            records = ledger_file.read(_own(place, ledger_file.FILE_NAME)).records
        for record in records:
            with suppress(RemoteFault):  # a copy with a gap lacks the PLAN that it refers to
                found.append((record, reader.read(record)))
    return found


def _before(
    place: Path, records: Sequence[tuple[Record, AnyBody]], told: Mapping[str, Any]
) -> Iterator[str]:
    """Names of peers that neither the records there tell nor the newest answer: stories have them,
    and logs."""
    with suppress(UserError, TypeError):
        if is_coordinators(place) and "no answer" not in told:
            yield from _names(status.order(place, {"order": "peers-ls", "everybody": True}))
    with suppress(OSError, UserError, RemoteFault):
        begins = beginning_in(place, [record for record, _ in records])
        if begins is not None:
            yield from from_image(begins.image)[0].names.values()


def _people() -> Iterator[str]:
    """Names of this user and machine."""
    for find in (getpass.getuser, socket.gethostname):
        with suppress(OSError, KeyError, ImportError):  # of a user without a name
            yield from {find(), find().partition(".")[0]}


def _keys(place: Path) -> Iterator[str]:
    """Contents of the key files, which must stand nowhere."""
    for name in _KEY_FILES:
        with suppress(OSError):
            text = regular_file.read(place / name, _KEY_BYTES_MAX).decode("ascii", "replace")
            yield from re.findall(
                r"(?<=_secret\": \")\w+|^[A-Za-z0-9+/=]{16,}$", text, re.MULTILINE
            )


def _told_by(place: Path) -> dict[str, Any]:
    """The answer of the process there, and how its newest rounds went: its ledger may be locked."""
    try:
        said = status.ask(place)
        newest = int(said.get("round", 0))
        for number in range(max(1, newest - _ROUNDS), newest + 1):
            with suppress(UserError):
                said[f"why {number}"] = status.ask(place, f"/why/{number}")
    except UserError as error:
        return {"no answer": str(error)}
    except (TypeError, ValueError):
        return {"no answer": "it makes no sense"}
    return said if len(json.dumps(said)) < 2 * _FILE_BYTES_MAX else {"too long": list(said)}


def _names(said: Any) -> Iterator[str]:
    """Names of peers in an answer: whatever is under that word."""
    for key, one in said.items() if isinstance(said, dict) else enumerate(said):
        if key == "name" and isinstance(one, str):
            yield one
        elif isinstance(one, dict | list):
            yield from _names(one)


def _machine() -> dict[str, Any]:
    versions = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    with suppress(ImportError):
        import psutil

        versions["memory"] = f"{psutil.virtual_memory().total / 1e9:.1f} GB"
    return {
        "python": platform.python_version(), "system": platform.platform(),
        "processor": platform.machine(), "cores": os.cpu_count(), **versions,
    }  # fmt: skip


def _listed(place: Path) -> Iterator[str]:
    """Names and sizes of the files there, for three folders down; nothing is opened."""
    found = (path for depth in ("*", "*/*", "*/*/*") for path in sorted(place.glob(depth)))
    for _, path in zip(range(_LISTED_MAX), found, strict=False):
        with suppress(OSError):
            kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file"
            names = path.relative_to(place).parts
            shown = "/".join(one if _OURS.fullmatch(one) else "[another]" for one in names)
            yield f"{path.lstat().st_size:>12} {kind} {shown}"


def _json(value: Any, scrubber: Scrubber) -> bytes:
    return json.dumps(scrubber.value(value), indent=1, ensure_ascii=False).encode(
        "utf-8", "replace"
    )


def _text(text: str, scrubber: Scrubber) -> bytes:
    return scrubber.text(text).encode("utf-8", "replace")
