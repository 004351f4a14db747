"""`swarmtrain receipts save|verify`: rounds with a peer's work, signed by the run key."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose, group, read_by
from swarmtrain.console.lines import counted, fact, show, show_json
from swarmtrain.foundation.errors import UserError, misuse, translate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swarmtrain.credit.receipt import Proven
    from swarmtrain_transport.wire.records import Record

receipts_app = group("receipts", "Prove to others which rounds have a peer's work.")

_KEY_CHARS = 64

FILES_MAX = 100_000
"""Receipts of a folder that are read; each takes a millisecond."""


def parse_key(text: str) -> str:
    """Read a run key.

    Raises:
        UserError: SWT-E610, it is none; also where it is empty, as no key is compared then.
    """
    key = text.strip().lower()
    if len(key) != _KEY_CHARS or not set(key) <= set("0123456789abcdef"):
        raise misuse(
            f"--run-key is no run key: it has {len(key)} characters, or some that are no digits.",
            f"A run key has {_KEY_CHARS} hex digits; `swarmtrain verify DIR` prints it.",
        )
    return key


@receipts_app.command()
def save(
    folder: Annotated[Path, typer.Argument(help="Folder for the receipts, a file per round.")],
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Make a receipt of each round with this peer's work, from its copy of the ledger. Nobody is
    asked; the peer may run. Receipts that are there already are made again."""
    from swarmtrain.credit.receipt import BYTES_MAX, SUFFIX, made, run_key_of
    from swarmtrain.foundation import atomic_file, dirs, regular_file
    from swarmtrain.peer.disk import group_storage, identity_file, ledger_file
    from swarmtrain.status import newest_state_dir

    directory = state_dir or newest_state_dir(beside=(ledger_file.FILE_NAME,))
    records = _ledger_of(directory)
    key = run_key_of(records)
    try:
        peer = identity_file.load(directory / identity_file.FILE_NAME).peer_id
        run_file = regular_file.read(directory / group_storage.RUN_FILE, BYTES_MAX)
    except FileNotFoundError as error:
        raise UserError(
            "SWT-E806",
            f"There is no {error.filename}, so no receipt can be made.",
            "A receipt names the peer's key, and holds the run file that the ledger's hash is of.",
            "Name the whole state directory of a peer that has been in the run.",
        ) from error
    names = []
    try:
        for group, op, data in made(records, peer, run_file):
            dirs.make_owned(folder)
            part = f"-group-{group}" if group else ""
            name = f"{key.hex()[:8]}-{peer.hex()[:8]}{part}-round-{op:06d}{SUFFIX}"
            atomic_file.write(folder / name, data, sync=False)
            names.append(name)
    except OSError as error:
        raise translate(error) or misuse(
            f"{folder} cannot be written: {error.strerror}.", "Name another folder."
        ) from error
    if not names:
        raise UserError(
            "SWT-E814",
            f"No round in {directory} has this peer's work yet.",
            "A receipt is of a round whose result is in the ledger.",
            "Wait for the end of a round, or name the directory of another peer.",
        )
    if as_json:
        show_json({"folder": str(folder), "peer": peer.hex(), "receipts": names})
        return
    show(f"{counted(len(names), 'receipt')} of {directory} in {folder}.")
    show(f"Check them anywhere: swarmtrain receipts verify {folder}")


@receipts_app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A receipt, or a folder of receipts.")],
    run_key: Annotated[
        str | None,
        typer.Option(
            metavar="HEX",
            parser=read_by(parse_key),
            show_default=False,
            help="Key that must have signed, from somebody you trust.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Your peer's state directory in that run: compare with its ledger."
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Check receipts offline: of whom they are, of which rounds, and that the run key signed them.

    The file alone proves that whoever has the run key signed it; that this is a certain run's key
    you know from `swarmtrain verify DIR`, or by --ledger.
    """
    import msgspec

    from swarmtrain.credit.receipt import judged, run_key_of

    records = _ledger_of(ledger) if ledger is not None else None
    its_key = run_key_of(records).hex() if records is not None else ""
    proven: list[Proven] = []
    refused: list[tuple[Path, UserError]] = []
    files = _files(path)
    for file in files:
        try:
            proven.append(_proven(file, run_key or "", its_key))
        except UserError as error:
            refused.append((file, error))
    told = judged(proven, records)
    if as_json:
        rows = [{**msgspec.structs.asdict(one), "state": state} for one, state in told]
        bad = [{"file": str(file), "why": why.what} for file, why in refused]
        show_json({"receipts": rows, "refused": bad})
    elif told:
        _tell(told, is_compared=records is not None)
    if refused:
        file, first = refused[0]
        more = f" (and {len(refused) - 1} more of {len(files)})" if len(refused) > 1 else ""
        raise UserError(first.code, f"{file}{more}: {first.what}", first.meaning, first.remedy)


def _proven(file: Path, run_key: str, its_key: str) -> "Proven":
    """The facts of a receipt that one key must have signed, if one was given; the other one is that
    of the ledger beside it."""
    from swarmtrain.credit.receipt import BYTES_MAX, checked, proves_nothing
    from swarmtrain.foundation import regular_file

    try:
        data = regular_file.read(file, BYTES_MAX)
    except OSError as error:
        raise proves_nothing(f"it cannot be read ({error.strerror})") from error
    found = checked(data)
    if run_key and found.run_key != run_key:
        raise proves_nothing(f"the run key that has signed it is {found.run_key}")
    if its_key and found.run_key != its_key:
        raise UserError(
            "SWT-E813",
            f"It is of another run than the ledger: of {found.run}, whose key is {found.run_key}.",
            "The ledger can say nothing of it.",
            "Name with --ledger a peer's directory of that run, or leave it out.",
        )
    return found


def _files(path: Path) -> list[Path]:
    from swarmtrain.credit.receipt import SUFFIX

    found = path.glob(f"*{SUFFIX}") if path.is_dir() else [path] if path.exists() else []
    if not (files := sorted(itertools.islice(found, FILES_MAX))):
        raise UserError(
            "SWT-E814",
            f"There is no receipt in {path}." if path.is_dir() else f"There is no receipt {path}.",
            "A receipt is a file that ends in .receipt.",
            "Make some with `swarmtrain receipts save FOLDER`.",
        )
    return files


def _ledger_of(directory: Path) -> "Sequence[Record]":
    from swarmtrain.peer.disk import ledger_file
    from swarmtrain.status import no_directory

    if not directory.is_dir():
        raise no_directory(directory)
    records = ledger_file.read(directory / ledger_file.FILE_NAME).records
    if not records or records[0].index:
        raise UserError(
            "SWT-E806",
            f"{directory} holds no peer's copy of a ledger.",
            f"A peer keeps it there in {ledger_file.FILE_NAME}; a coordinator makes no receipts.",
            "Name the directory that was given to `swarmtrain join` as --state-dir.",
        )
    return records


def _tell(told: "list[tuple[Proven, str]]", *, is_compared: bool) -> None:
    from swarmtrain.credit.receipt import CANCELLED, UNKNOWN

    found = [one for one, state in told if state != CANCELLED]
    for run_key, peer in dict.fromkeys((one.run_key, one.peer) for one in found):
        its = [one for one in found if (one.run_key, one.peer) == (run_key, peer)]
        show(fact("run", its[0].run))
        show(fact("run key", run_key))
        show(fact("peer", peer))
        rounds = [one.round for one in its]
        span = f", of {min(rounds)} to {max(rounds)}" if len(its) > 1 else f": {rounds[0]}"
        show(fact("rounds", f"{len(its)}{span}"))
        if all(one.tokens is not None for one in its):
            show(fact("merged", f"{sum(one.tokens or 0 for one in its):,} {its[0].unit}"))
        show("")
    for one, state in told:
        if state == CANCELLED:
            show(f"Round {one.round} of {one.peer[:8]} was cancelled later by a REWIND.")
        elif state == UNKNOWN:
            show(f"Round {one.round} of {one.peer[:8]} is signed; the ledger here lacks it.")
    show(f"Proved: {counted(len(found), 'receipt')}, signed by the run key.")
    if not is_compared:
        show(
            "Compare the key with the one that the organiser gave out (--run-key). A later REWIND,"
            " which takes a round back, shows only beside a ledger (--ledger DIR)."
        )
