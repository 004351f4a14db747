"""Mistakes and mishaps as people see them: what happened, what it means, what to do, exit status.

Parts raise their own typed errors; whatever a person must act on is, or is translated here into, a
`UserError`. Errors of bugs are none: they end as SWT-E901 with a report. No text here is ever
taken from the network without being cut and cleaned.
"""

import errno
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from swarmtrain.foundation.error_table import EXIT_INTERRUPTED, TABLE, ErrorKind
from swarmtrain.foundation.regular_file import UnfitFile
from swarmtrain_transport.errors import (
    InviteError,
    LinkLost,
    ListenFailed,
    PortInUse,
    RemoteFault,
    TransportError,
)

NAMED: Mapping[str, str] = MappingProxyType(
    {
        "swarmtrain.checkpoint.CheckpointDamaged": "SWT-E803",
        "swarmtrain.checkpoint.CheckpointFull": "SWT-E401",
        "swarmtrain.data.corpus.CorpusMissing": "SWT-E801",
        "swarmtrain.foundation.numerics.NumericsError": "SWT-E101",
        "swarmtrain.peer.disk.identity_file.IdentityDamaged": "SWT-E302",
        "swarmtrain.models.tensors.LayoutMismatch": "SWT-E804",
    }
)
"""Errors of modules that load torch, by name: whoever explains an error must not load it too."""

FOREIGN_TEXT_CHARS_MAX = 300
"""Words that the other side sent are shown, so they are short."""


class UserError(Exception):
    """An error that its reader can do something about.

    Args:
        code: an id of the table, ``SWT-E203``.
        what: the event, in one sentence with the value concerned.
        meaning: meaning for the reader; may be empty.
        remedy: the way out; may be empty.

    Raises:
        ValueError: `code` is not in the table (a bug).
    """

    def __init__(self, code: str, what: str, meaning: str = "", remedy: str = "") -> None:
        if code not in TABLE:
            raise ValueError(f"{code} is not in the table of errors")
        super().__init__(code, what, meaning, remedy)  # so that it can be pickled
        self.code = code
        self.what = what
        self.meaning = meaning
        self.remedy = remedy

    def __str__(self) -> str:
        """Id, fact, meaning and remedy: all that a traceback or a log shows of it."""
        return " ".join(filter(None, (f"{self.code}:", self.what, self.meaning, self.remedy)))

    @property
    def kind(self) -> ErrorKind:
        """The row of the table."""
        return TABLE[self.code]

    @property
    def exit_status(self) -> int:
        """Status of a process that ends with this error."""
        return TABLE[self.code].exit_status


class Interrupted(Exception):
    """The process was told to stop before it could leave cleanly.

    Args:
        exit_status: 130 after SIGINT, 143 after SIGTERM.
    """

    def __init__(self, exit_status: int = EXIT_INTERRUPTED) -> None:
        super().__init__(f"interrupted (exit {exit_status})")
        self.exit_status = exit_status


def render(error: UserError, *, ends: bool = True) -> str:
    """The error as it is printed: id and fact, then meaning and remedy under each other.

    Args:
        ends: the program ends with it, so the last line ends with its exit status.

    Returns:
        Lines without a final line end.
    """
    indent = " " * (len(error.code) + 2)
    lines = [
        line for part in (error.what, error.meaning, error.remedy) for line in part.splitlines()
    ]
    first, *rest = lines or [error.kind.title]
    text = "\n".join([f"{error.code}  {first}", *(indent + line for line in rest)])
    return f"{text}   [exit {error.exit_status}]" if ends else text


def cleaned(text: str) -> str:
    """Text of the other side, made harmless: printable, on one line, cut."""
    printable = "".join(c if c.isprintable() else " " for c in text[: FOREIGN_TEXT_CHARS_MAX + 1])
    if len(printable) > FOREIGN_TEXT_CHARS_MAX:
        printable = printable[: FOREIGN_TEXT_CHARS_MAX - 3] + "..."
    return " ".join(printable.split())


def coordinator_unreachable(host: str, port: int, tries: int, seconds: float) -> UserError:
    """No coordinator answered at the invite's address."""
    return UserError(
        "SWT-E203",
        f"The coordinator {host}:{port} did not answer in {seconds:.0f} s "
        f"({tries} {'try' if tries == 1 else 'tries'}).",
        f"The run may be finished or down, or a firewall blocks port {port}. Nothing is lost.",
        "Try again later, with --wait to wait for it, or ask the organiser whether the run is up.",
    )


def run_over(run: str, checkpoints: str) -> UserError:
    """The coordinator has gone, and our own copy of the ledger says that all rounds were made."""
    return UserError(
        "SWT-E705",
        f"The run {run} is finished, and its coordinator has ended.",
        "This peer's copy of the ledger has every round of it; there is nothing left to do.",
        f"The model, as this peer has it, is in the newest folder of {checkpoints}.",
    )


def wrong_key(host: str, port: int) -> UserError:
    """The server has another certificate than the invite names."""
    return UserError(
        "SWT-E301",
        f"{host}:{port} answered with another key than the invite names.",
        "Another run is up there than the one of this invite, or somebody stands in between. "
        "Nothing was sent.",
        "Ask the organiser for a new invite by a way that you trust.",
    )


def port_in_use(host: str, port: int) -> UserError:
    """Another process listens at the port."""
    return UserError(
        "SWT-E201",
        f"Port {port} on {host} is already in use.",
        "Another program listens there, perhaps an earlier run that still lives.",
        "Stop it, or choose another port with --listen HOST:PORT (port 0 picks a free one).",
    )


def refused(code: str, text: str) -> UserError:
    """The coordinator's refusal, at the door or when it closed the connection.

    Args:
        code: the id that came over the network; one that is not in the table is not believed.
        text: the words that came over the network.
    """
    words = cleaned(text)
    if code not in TABLE:
        return UserError(
            "SWT-E501",
            f"The coordinator refused this peer without a known reason: {cleaned(code)} {words}",
            "The two sides may run different builds.",
            "Compare `swarmtrain --version` with the organiser's.",
        )
    kind = TABLE[code]
    return UserError(code, words or kind.title + ".", "", kind.explanation)


def disk_full(path: str, *, at_coordinator: bool) -> UserError:
    """No space is left where state is written."""
    if at_coordinator:
        return UserError(
            "SWT-E402",
            f"No space is left on the disk of {path}.",
            "The coordinator stopped before sending a decision that it could not keep. "
            "Nothing is lost.",
            "Free some space and start it again on the same state directory.",
        )
    return UserError(
        "SWT-E401",
        f"No space is left on the disk of {path}.",
        "The last file was left out; what was complete before is intact.",
        "Free some space and try again. A peer goes on from the same state directory.",
    )


def no_numbers(what: str) -> UserError:
    """The model's values are no numbers any more.

    Args:
        what: values that are infinite or not numbers, in the plural.
    """
    return UserError(
        "SWT-E455",
        f"{what} are infinite or not a number.",
        "Training went astray, or the file was made so; such a model can neither write nor be "
        "judged.",
        "Take an earlier checkpoint of the run, or another peer's.",
    )


def misuse(what: str, remedy: str = "") -> UserError:
    """Options that cannot be meant together."""
    return UserError("SWT-E610", what, "", remedy)


def translate(error: BaseException, *, at_coordinator: bool = False) -> UserError | None:
    """The error as its reader can use it, or None for a bug.

    Looks through the chain of causes and through exception groups, so that a task group around
    a full disk is still a full disk.
    """
    for fault in _chain(error):
        found = _translate_one(fault, at_coordinator=at_coordinator)
        if found is not None:
            return found
    return None


def _chain(error: BaseException) -> Iterable[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        fault = waiting.pop(0)
        if id(fault) in seen:
            continue
        seen.add(id(fault))
        yield fault
        if isinstance(fault, BaseExceptionGroup):
            waiting.extend(fault.exceptions)
        if fault.__cause__ is not None:
            waiting.append(fault.__cause__)


def _translate_one(fault: BaseException, *, at_coordinator: bool) -> UserError | None:
    if isinstance(fault, UserError):
        return fault
    if isinstance(fault, TransportError):
        return _translate_transport(fault)
    if isinstance(fault, OSError):
        return _translate_os(fault, at_coordinator=at_coordinator)
    if _is_short_of_memory(fault):
        return UserError(
            "SWT-E407",
            "Memory ran out: the system, or a limit on this process, gave no more.",
            "All that was complete on the disk is intact.",
            "In a run whose model is in stages, join with fewer: --span 1, or --memory 4GB for "
            "what fits. Else end other programs, or allow more.",
        )
    for kind in type(fault).__mro__:
        code = NAMED.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return _with_own_words(code, fault)
    return None


def _is_short_of_memory(fault: BaseException) -> bool:
    """Return True for Python's error, and for those of torch, which have no type of their own on a
    CPU."""
    words = str(fault)
    is_torch = isinstance(fault, RuntimeError) and (
        "can't allocate memory" in words or "out of memory" in words
    )
    return isinstance(fault, MemoryError) or is_torch


def _with_own_words(code: str, fault: BaseException) -> UserError:
    """An error whose text already says what happened, what it means and what to do."""
    text = str(fault).strip() or TABLE[code].title
    sentence = text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
    return UserError(code, sentence, "", f"More: swarmtrain explain {code}")


def _translate_transport(fault: TransportError) -> UserError | None:
    if isinstance(fault, InviteError):
        return UserError(
            "SWT-E312",
            cleaned(str(fault)),
            "Nothing was sent to anybody.",
            "An invite looks like swarm://host:port/run#secret; copy it whole, in quotes.",
        )
    if isinstance(fault, PortInUse):
        return port_in_use(fault.host, fault.port)
    if isinstance(fault, ListenFailed):
        return _with_own_words("SWT-E202", fault)
    if isinstance(fault, LinkLost):
        return UserError(
            "SWT-E203",
            f"The connection was lost: {cleaned(str(fault))}",
            "The other side or the network in between went away. Nothing is lost.",
            "Try again later with the same command.",
        )
    if isinstance(fault, RemoteFault) and fault.reason == "snapshot":
        words = f"The run's past is not what it was said to be: {cleaned(fault.detail)}."
        return UserError("SWT-E562", words, "", TABLE["SWT-E562"].explanation)
    if isinstance(fault, RemoteFault):
        return UserError(
            "SWT-E501",
            f"The other side broke the protocol: {cleaned(str(fault))}",
            "It runs another build, or sends hostile data. The message was not acted on.",
            "Compare `swarmtrain --version` on both sides.",
        )
    return None


def _translate_os(fault: OSError, *, at_coordinator: bool) -> UserError | None:
    where = str(fault.filename or "the state directory")
    if isinstance(fault, UnfitFile):
        return UserError(
            "SWT-E812",
            f"{where} is not what it should be: {fault.strerror}.",
            "Nothing of it was read.",
            "Look where the folder comes from, and take it anew from somebody whom you trust.",
        )
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(where, at_coordinator=at_coordinator)
    if fault.errno == errno.EADDRINUSE:
        return UserError(
            "SWT-E201",
            "The address to listen on is already in use.",
            "Another program listens there, perhaps an earlier run that still lives.",
            "Stop it, or choose another port with --listen HOST:PORT (port 0 picks a free one).",
        )
    if fault.errno == errno.EADDRNOTAVAIL:
        return UserError(
            "SWT-E202",
            f"Cannot listen there: {cleaned(str(fault))}",
            "The address is not one of this machine.",
            "Use 127.0.0.1 for this machine alone or 0.0.0.0 for all its networks.",
        )
    if fault.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and fault.filename:
        return UserError(
            "SWT-E403",
            f"Cannot use {where}: {fault.strerror}.",
            "It belongs to somebody else or lies on a disk that is not written to. What was "
            "complete before is intact.",
            "Name a place that you own; that of a run's state is said with --state-dir.",
        )
    return None


def earlier_version(place: str) -> UserError:
    """A ledger on disk is in a form that this version does not read."""
    return UserError(
        "SWT-E810",
        f"{place} was written by an earlier version of swarmtrain.",
        "This version does not read it, and has changed nothing. The run can go on with the\n"
        "version that it began with.",
        "To go on here, take the model from a peer's newest checkpoint (safetensors) and start a\n"
        "new run from it, with another state directory.",
    )
