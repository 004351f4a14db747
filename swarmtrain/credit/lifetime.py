"""Totals of a user's peers over all runs, kept when the state directory of a run is long gone.

Each key of each run has a small file of its own, so that two peers of a user never write the same
one. Rounds are read from the run's signed ledger as a set, not summed: whatever is read again after
a restart counts once, and a REWIND takes its rounds back. Bytes and time are what the peer itself
has measured. A file that is damaged is set aside; it never stops a run.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.credit.receipt import OwnRounds
from swarmtrain.foundation import atomic_file, dirs, regular_file
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.records import Record, Rewind, Run, body_of

KEEP_S = 60.0
"""Pause between two writes: what a power cut takes of bytes and hours; rounds are read again."""

FILE_BYTES_MAX = 1 << 20
FILES_MAX = 10_000
"""Files that are read, one for each key; nobody has been in so many runs."""

ROUNDS_MAX = 50_000
"""Rounds that are told apart. Of more the older half of the largest group becomes a number: no
REWIND goes back so far, and the file stays below its bound."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]

_DAMAGED = ".damaged"


class Lifetime(msgspec.Struct):
    """One key in one run: the file.

    Attributes:
        run: name of the run.
        run_key: key of the run, in hex.
        peer: the peer's key in hex; `name` the name that it had last.
        unit: unit of tokens.
        round_tokens: tokens of a round; None where the model is in stages.
        merged: rounds with its work, by group.
        older: the last of the rounds that are a number alone, and that number, by group.
        bytes_up, bytes_down: bytes that it has sent and received, by its own word.
        seconds: time that it was in the run without a pause, by its own word.
        seen_s: time of the newest change, seconds since 1970.
    """

    run: str
    run_key: str
    peer: str
    name: str = ""
    unit: str = "tokens"
    round_tokens: _Count | None = None
    merged: dict[int, set[int]] = {}
    older: dict[int, tuple[int, int]] = {}
    bytes_up: _Count = 0
    bytes_down: _Count = 0
    seconds: _Seconds = 0.0
    seen_s: _Seconds = 0.0

    @property
    def rounds(self) -> int:
        """Rounds that have its work."""
        return sum(map(len, self.merged.values())) + sum(count for _, count in self.older.values())

    @property
    def tokens(self) -> int | None:
        """Tokens in results; None where those of one peer are not counted."""
        return None if self.round_tokens is None else self.rounds * self.round_tokens

    def add(self, group: int, op: int) -> None:
        """Add a round, once."""
        if op <= self.older.get(group, (0, 0))[0]:
            return
        self.merged.setdefault(group, set()).add(op)
        if sum(map(len, self.merged.values())) > ROUNDS_MAX:
            most = max(self.merged, key=lambda one: len(self.merged[one]))
            ops = sorted(self.merged[most])
            oldest, self.merged[most] = ops[: len(ops) // 2], set(ops[len(ops) // 2 :])
            count = self.older.get(most, (0, 0))[1] + len(oldest)
            self.older[most] = oldest[-1], count

    def take_back(self, group: int, op: int) -> None:
        """Take back all rounds after this one."""
        self.merged[group] = {one for one in self.merged.get(group, ()) if one <= op}


class Keeper:
    """Keeps the file of a peer while it is in a run. Nothing here ever fails for a disk.

    Args:
        folder: folder of the files; made when first written.
        peer: key of the peer.
        name: shown to others.
    """

    def __init__(self, folder: Path, peer: bytes, name: str) -> None:
        self._folder, self._peer, self._name = folder, peer, name
        self._own = OwnRounds(peer)
        self._kept: Lifetime | None = None
        self._before = 0, 0
        self._newest = -1
        self._looked_s: float | None = None
        self._written_s = 0.0
        self._writing = threading.Lock()
        self._config: RunConfig | None = None
        self._has_news = False

    def take(self, record: Record) -> Record:
        """Take a record of the ledger, and return it; the first one is RUN. Of those that fill a
        gap, and come late, nothing is read: the next start reads them in order."""
        if record.index <= self._newest:
            return record
        self._newest = record.index
        if record.index == 0:
            self._begin(record)
        found, kept = self._own.read(record), self._kept
        if found is None or kept is None:
            return record
        if isinstance(found, Rewind):
            kept.take_back(found.group, found.op)
        else:
            kept.add(found[1].group, found[1].op)
            self._has_news = True
        return record

    def _begin(self, record: Record) -> None:
        run = body_of(record)
        if self._kept is None and isinstance(run, Run):
            fresh = Lifetime(cleaned(run.run_id), run.run_key.hex(), self._peer.hex())
            path = self._folder / file_name(fresh)
            self._kept = kept = loaded(path, sets_aside=True) or fresh
            if (kept.run_key, kept.peer) != (fresh.run_key, fresh.peer):
                self._kept = kept = fresh
            self._before = kept.bytes_up, kept.bytes_down

    def knows(self, run_file: bytes) -> None:
        """The coordinator has let the peer in, with this run file in canonical form."""
        with contextlib.suppress(UserError, RemoteFault):  # others refuse it, and say so
            self._config = config_file.from_canonical(run_file)

    def look(self, now_s: float, *, works: bool) -> bool:
        """Count the time since the last look if the peer works.

        Returns:
            True, once, if a round was merged and the last write is KEEP_S ago.
        """
        if self._kept is not None and works and self._looked_s is not None:
            self._kept.seconds += now_s - self._looked_s
        self._looked_s = now_s
        if not self._has_news or self._config is None or now_s - self._written_s < KEEP_S:
            return False
        self._written_s, self._has_news = now_s, False
        return True

    def file(self, moved: tuple[int, int], wall_s: float) -> bytes:
        """The file as it is to be written now; b"" before the peer is in.

        Args:
            moved: bytes sent and received since the process began.
            wall_s: seconds since 1970.
        """
        kept, config = self._kept, self._config
        if kept is None or config is None:
            return b""
        kept.name, kept.unit = self._name, config.counted_unit
        kept.round_tokens = config.round_tokens
        kept.bytes_up, kept.bytes_down = self._before[0] + moved[0], self._before[1] + moved[1]
        kept.seen_s = max(0.0, wall_s)
        return msgspec.json.encode(kept)

    def write(self, data: bytes) -> None:
        """Write the file; a disk that takes none loses the totals since the last one, no more."""
        if self._kept is None or not data:
            return
        with self._writing, contextlib.suppress(OSError, UserError):
            dirs.make_private(self._folder)
            atomic_file.write(self._folder / file_name(self._kept), data, mode=0o600)


def file_name(one: Lifetime) -> str:
    """Return the name of a key's file."""
    return f"{one.run_key[:32]}-{one.peer[:32]}.json"


def loaded(path: Path, *, sets_aside: bool = False) -> Lifetime | None:
    """Read a file; None where there is none, or none that makes sense.

    Args:
        path: place of the file.
        sets_aside: give a damaged one another name, so that it is kept.
    """
    try:
        return msgspec.json.decode(regular_file.read(path, FILE_BYTES_MAX), type=Lifetime)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        if sets_aside and not isinstance(error, FileNotFoundError):
            with contextlib.suppress(OSError):
                atomic_file.rename(path, path.with_name(path.name + _DAMAGED))
        return None


def kept_in(folder: Path) -> tuple[list[Lifetime], list[Path]]:
    """All that is kept, the newest first, and files that are damaged."""
    found: list[Lifetime] = []
    damaged: list[Path] = []
    for path in itertools.islice(folder.glob("[!.]*.json*"), FILES_MAX):
        one = loaded(path) if path.suffix == ".json" else None
        if one is None:
            damaged.append(path)
        else:
            found.append(one)
    return sorted(found, key=lambda one: -one.seen_s), sorted(damaged)


def total_words(kept: Iterable[Lifetime]) -> str:
    """Say what is in results in all: ``412 rounds, 1,234,000 tokens``."""
    found = list(kept)
    tokens: dict[str, int] = {}
    for one in found:
        if one.tokens is not None:
            tokens[one.unit] = tokens.get(one.unit, 0) + one.tokens
    rounds = sum(one.rounds for one in found)
    words = [f"{rounds:,} round{'' if rounds == 1 else 's'}"]
    return ", ".join([*words, *(f"{count:,} {unit}" for unit, count in sorted(tokens.items()))])
