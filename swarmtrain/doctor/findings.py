"""Findings about a machine: each is well, or says what it means and what to do.

Pure: facts go in, lines come out. What a peer cannot do without is bad; what it can, but what its
owner should know, is a note. Figures that are compared here say why they are what they are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swarmtrain.console.units import human_bytes
from swarmtrain.doctor.router import Router
from swarmtrain.foundation.error_table import EXIT_BUG, EXIT_DONE, TABLE
from swarmtrain.foundation.errors import UserError
from swarmtrain.port_mapping.answers import is_private
from swarmtrain_transport import limits

OK, NOTE, BAD = "ok", "note", "bad"

DISK_BYTES_MIN = 256 << 20
"""Two checkpoints of the smallest models with the ledger and the text that is in use."""

DISK_BYTES_GOOD = 5 << 30
"""Checkpoints of a model of 100 M parameters, each of 1 GB, and room to write the next."""

MEMORY_BYTES_MIN = 512 << 20
"""Python with torch takes most of that, without a model."""

FILES_MIN = 8 * limits.CELL_PEERS_MAX
"""Connections to as many others as there may be, both ways, a few streams each."""

CLOCK_OFF_S = 60.0
"""No clock that is set by the network is so far off, and no answer takes so long."""

DAY_S = 86_400.0

_WIDTH = 14


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Attributes:
        name: subject, in a word or two.
        level: OK, NOTE or BAD.
        what: fact, in a few words.
        meaning: meaning for the reader, "" where all is well.
        remedy: way out, likewise.
        code: error id that `swarmtrain explain` knows, likewise.
    """

    name: str
    level: str
    what: str
    meaning: str = ""
    remedy: str = ""
    code: str = ""

    @classmethod
    def of(cls, name: str, error: UserError, level: str = BAD) -> "Finding":
        """The finding that an error is."""
        return cls(name, level, error.what, error.meaning, error.remedy, error.code)


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of a machine that need no network.

    Attributes:
        python: version of Python, and the system.
        directory: folder in which state is kept, or would be.
        free_bytes: room on its disk.
        can_write: True if files may be made there.
        memory_bytes: memory that is free now.
        fits: largest named size of model that fits into it, "" for none.
        needs_bytes: memory that the model of the run takes, 0 if it is not known.
        torch: version of torch, or the reason why it cannot be loaded.
        device: device that `--device auto` takes, "" without torch.
        is_cuda_idle: True if torch brings CUDA, and no card was found.
        gflops: speed of that device with one thread.
        numerics: words of the arithmetic probe, "" where all is well.
        cores: number of cores that this process may use.
        now_s: seconds since 1970, by the clock.
        installed_s: seconds since 1970 at which this program was installed.
        files: number of files that may be open.
        ipv6: address by which IPv6 networks would be reached, "" for none.
        congestion: TCP's congestion control, "" if the system does not say.
        router: router of this network, None if none is known.
    """

    python: str
    directory: Path
    free_bytes: int
    can_write: bool
    memory_bytes: int
    fits: str
    needs_bytes: int
    torch: str
    device: str
    is_cuda_idle: bool
    gflops: float
    numerics: str
    cores: int
    now_s: float
    installed_s: float
    files: int
    ipv6: str
    congestion: str
    router: Router | None


def of_machine(machine: Machine) -> Iterator[Finding]:
    """Yield a finding for each fact."""
    yield Finding("python", OK, machine.python)
    yield from _of_torch(machine)
    threads = "; join trains with 1 unless --threads says more" if machine.cores > 1 else ""
    yield Finding("cores", OK, f"{machine.cores}{threads}")
    yield _of_memory(machine)
    yield _of_disk(machine)
    yield _of_files(machine)
    yield _of_clock(machine)
    yield _of_ipv6(machine)
    if machine.congestion:
        yield Finding("congestion", OK, f"TCP goes by {machine.congestion}")
    if machine.router is not None:
        yield _of_router(machine.router)


def _of_torch(machine: Machine) -> Iterator[Finding]:
    if not machine.device:
        yield Finding(
            "torch", BAD, f"cannot be loaded: {machine.torch}", "A peer trains with it.",
            "Install swarmtrain in a fresh environment, with torch first.", "SWT-E102",
        )  # fmt: skip
        return
    speed = f"{machine.torch}, trains on {machine.device} ({machine.gflops:.0f} Gflop/s)"
    if machine.is_cuda_idle:
        yield Finding(
            "torch", NOTE, f"{speed}; no card was found",
            "This build brings gigabytes for NVIDIA's cards, which are of no use here.",
            "With a card: install its driver. Without: the build of torch's index \"cpu\" saves "
            "the room.", "SWT-E460",
        )  # fmt: skip
    else:
        yield Finding("torch", OK, speed)
    if machine.numerics:
        yield Finding(
            "arithmetic", BAD, machine.numerics, "It could join no run.",
            "Install the versions of constraints.txt in a fresh environment.", "SWT-E101",
        )  # fmt: skip
    else:
        yield Finding("arithmetic", OK, "computes the same bits as all peers")


def _of_memory(machine: Machine) -> Finding:
    free = f"{human_bytes(machine.memory_bytes)} free"
    if machine.needs_bytes:
        free += f"; the run's model takes about {human_bytes(machine.needs_bytes)}"
    elif machine.fits:
        free += f"; enough for models up to size {machine.fits}"
    if machine.memory_bytes >= max(MEMORY_BYTES_MIN, machine.needs_bytes):
        return Finding("memory", OK, free)
    return Finding(
        "memory", BAD, free, "A peer would run out of it, or be ended by the system.",
        "End other programs; where the model is in stages, join with --memory.", "SWT-E407",
    )  # fmt: skip


def _of_disk(machine: Machine) -> Finding:
    free = f"{human_bytes(machine.free_bytes)} free for {machine.directory}"
    if not machine.can_write:
        return Finding(
            "disk", BAD, f"nothing can be written to {machine.directory}",
            "A peer keeps its key, the run's record and the model there.",
            "Name a folder of yours with --state-dir.", "SWT-E403",
        )  # fmt: skip
    if machine.free_bytes < DISK_BYTES_MIN:
        return Finding(
            "disk", BAD, free, "Checkpoints would fill it within minutes.",
            "Free some space, or name a folder on another disk with --state-dir.", "SWT-E401",
        )  # fmt: skip
    if machine.free_bytes < DISK_BYTES_GOOD:
        return Finding(
            "disk", NOTE, free, "It does for small models.",
            "Free some space where the model has more than some millions of parameters.",
        )  # fmt: skip
    return Finding("disk", OK, free)


def _of_files(machine: Machine) -> Finding:
    what = f"{machine.files} may be open"
    if machine.files >= FILES_MIN:
        return Finding("files", OK, what)
    return Finding(
        "files", BAD, what, f"A peer of a large run needs {FILES_MIN}, for its connections.",
        "Allow more in the shell that starts it: ulimit -n 4096.", "SWT-E409",
    )  # fmt: skip


def _of_clock(machine: Machine) -> Finding:
    if machine.now_s >= machine.installed_s - DAY_S:
        return Finding("clock", OK, "not before this program was installed")
    return clock_off("clock", "shows a time before this program was installed")


def clock_off(name: str, what: str) -> Finding:
    """The clock is wrong. A run does not go by it, so it is a note."""
    return Finding(
        name, NOTE, what, "Times in logs, and the day of --daily, are wrong by as much.",
        "Let the system set its clock by the network (NTP).", "SWT-E410",
    )  # fmt: skip


def _of_ipv6(machine: Machine) -> Finding:
    if machine.ipv6:
        return Finding("IPv6", OK, machine.ipv6)
    return Finding(
        "IPv6", NOTE, "none",
        "Peers with IPv6 need no help of routers to reach each other; others need it more often.",
        "Turn it on in the router, if the provider has it.",
    )  # fmt: skip


def _of_router(router: Router) -> Finding:
    if not router.speaks:
        what = f"{router.host} speaks neither PCP nor NAT-PMP; join --map tries UPnP too"
        return Finding("router", OK, what)
    if router.external and is_private(router.external):
        return Finding(
            "router", NOTE, f"{router.host} has no public address itself, but {router.external}",
            "It stands behind another router, the provider's perhaps, which forwards nothing.",
            "Ask the provider for a public address, or for IPv6; if the other router is yours, "
            "let it pass all on to this one.",
        )  # fmt: skip
    seen = f"; its public address is {router.external}" if router.external else ""
    return Finding(
        "router", OK, f"{router.host} forwards ports by {router.speaks}, with join --map{seen}"
    )


def in_words(finding: Finding) -> list[str]:
    """The finding as lines: the fact, then meaning and remedy under each other."""
    code = f" ({finding.code})" if finding.code else ""
    head = f"{finding.level.upper() if finding.level == BAD else finding.level:<5} "
    more = [part for part in (finding.meaning, finding.remedy) if part]
    return [
        f"{head}{finding.name:<{_WIDTH}}{' '.join(finding.what.split())}{code}",
        *(" " * (len(head) + _WIDTH) + " ".join(part.split()) for part in more),
    ]


def conclusion(findings: Iterable[Finding]) -> str:
    """The last line."""
    known = list(findings)
    bad = [one.name for one in known if one.level == BAD]
    if bad:
        return f"Not all that is needed is well: {', '.join(bad)}."
    noted = sum(one.level == NOTE for one in known)
    return "All that is needed is well." + (" The notes tell what would be better." * (noted > 0))


def exit_status(findings: Iterable[Finding]) -> int:
    """Status of the first finding that is bad, 0 without one."""
    for one in findings:
        if one.level == BAD:
            return TABLE[one.code].exit_status if one.code in TABLE else EXIT_BUG
    return EXIT_DONE


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """All of it as one object."""
    known = list(findings)
    status = exit_status(known)
    return {"ok": status == EXIT_DONE, "exit": status, "findings": [asdict(one) for one in known]}
