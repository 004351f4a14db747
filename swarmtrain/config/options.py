"""Options of each command, as values that the other parts can import cheaply.

They are parsed and checked here, once; no receiver need check them again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarmtrain.config.caps import NO_CAPS, Caps, or_zero, parse_size
from swarmtrain.foundation.errors import UserError, cleaned, misuse
from swarmtrain_optimizers.strategies.facts import OpKind
from swarmtrain_optimizers.strategies.registry import facts_named
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.limits import LINGER_LATE_S, NAME_CHARS_MAX, STAGES_MAX

DEMO_CHURN_PEERS_MIN = 3
"""One peer is killed, and the two that stay must still be able to average."""

DEMO_PIPELINE_PEERS = 7
"""Two for each of three stages, and one that serves all."""

DEMO_CHURN_ROUNDS_MIN = 5
"""The kill falls into round 3 and the newcomer into round 4; it must take part once."""

KILLS_PEERS_MIN = 2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address to listen at. Port 0 lets the system pick a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


RELAY_BYTES_PER_S = 1_250_000
"""10 Mbit/s: the coordinator is the last resort of peers that nothing else brings together."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """`swarmtrain up`.

    Attributes:
        public_host: the name that invites carry, or "" for the listening host.
        public_port: the port that invites carry, 0 for the one found.
        maps: ask the router to forward a port to the control port; None to ask its owner.
        state_dir: folder of log, keys and certificate, or None for the run's default.
        new_run: set an earlier run of the state directory aside.
        takes_changed_text: go on with a text that is not the one the run began with.
        rounds: rounds after which a run that has begun shall end; 0 for what is known.
        begins_with: places of the weights that a new run begins with; none for fresh ones.
        linger_s: seconds for which a finished run waits for a member that went without a word.
        relay_bytes_per_s: rate at which bytes are passed on between peers, 0 for not at all.
        store: address of the database that coordinators share, "" for the state directory.
        key_file: file whose bytes seal the run's keys there, None to ask for a passphrase.
    """

    run_file: Path
    listen: Endpoint
    public_host: str
    state_dir: Path | None
    json_events: bool
    new_run: bool = False
    takes_changed_text: bool = False
    rounds: int = 0
    begins_with: tuple[str, ...] = ()
    linger_s: float = LINGER_LATE_S
    public_port: int = 0
    maps: bool | None = None
    relay_bytes_per_s: int = RELAY_BYTES_PER_S
    trackers: tuple[str, ...] = ()
    store: str = field(default="", repr=False)
    key_file: Path | None = None


TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Trackers that `up --track` knows."""

MICRO_BATCH_AUTO = -1

DEVICE_AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Ways:
    """A peer's way to compute the run file's training; nothing here changes what others get.

    Attributes:
        modules: code of installed packages that the run may use, ``pkg.name``.
        micro_batch: examples that go through the model at a time; 0 as the run file says,
            MICRO_BATCH_AUTO as the memory holds.
        compile: let torch compile the model.
        device: device of the model: ``cpu``, ``cuda``, ``cuda:N``, ``mps``, or DEVICE_AUTO.
    """

    modules: frozenset[str] = frozenset()
    micro_batch: int = 0
    compile: bool = False
    device: str = "cpu"


AS_WRITTEN = Ways()
"""Choice of the run file, on the CPU."""


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """`swarmtrain join`.

    Attributes:
        name: name shown to others, or "" for one drawn from the peer's key.
        listen: address of the data lane.
        state_dirs: folders of identity, ledger and checkpoints: the first that no process
            uses; none need exist yet.
        advertise: address that the other peers dial, None for the listening one.
        caps: limits that the link's owner sets.
        freeze_in_round: rehearsal of a death: in this round report how many chunks are sent,
            then stop in the middle of the exchange. 0 for never.
        waits: wait for a coordinator that is not up yet.
        span: stages that the peer asks for, None for any.
        limits: limits of the owner that change, by their names in `owner_limits.Limits`.
        pass_s: rehearsal of a slow machine: a pass through a stage takes so long; 0 for none.
        data: text of this peer's own, "" for none: an absolute path, or "hf:NAME".
        maps: ask the router to forward a port to the data lane.
    """

    invite: Invite
    name: str
    listen: Endpoint
    state_dirs: tuple[Path, ...]
    advertise: Endpoint | None = None
    threads: int = 1
    caps: Caps = NO_CAPS
    freeze_in_round: int = 0
    json_events: bool = False
    waits: bool = False
    span: range | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    pass_s: float = 0.0
    ways: Ways = AS_WRITTEN
    data: str = ""
    maps: bool = False


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`swarmtrain demo`.

    Attributes:
        peers: peers at the start.
        seed: seed of the model and of the order of the data.
        churn: kill one peer in round 3 and let one in in round 4.
        json: end with one JSON object as the last line of stdout.
        state_dir: folder of everything, or None for a new temporary directory.
        pipeline: cut the model into stages, which peers of two speeds serve.
    """

    peers: int
    rounds: int
    seed: int
    churn: bool
    json: bool
    state_dir: Path | None
    strategy: str = "diloco"
    pipeline: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be shown.

        Raises:
            UserError: SWT-E610, churn with too few peers or rounds, pairs without a second peer,
                a pipeline of another number of peers or one whose states are each peer's own.
        """
        facts = facts_named(self.strategy)
        is_paired = facts.kind is OpKind.PAIR
        is_staged = facts.fits_stages and not is_paired
        if self.pipeline and (self.peers != DEMO_PIPELINE_PEERS or not is_staged):
            raise misuse(
                f"The demo of a pipeline has {DEMO_PIPELINE_PEERS} peers, two for each of three "
                "stages and one for all, and shows that those of a stage hold the same weights.",
                "Leave out --peers, and name no --strategy of pairs, with rounds of each peer's "
                "own, or with an act at each step.",
            )
        if is_paired and self.peers == 1:
            raise misuse(
                f"{self.strategy} exchanges in pairs: one peer alone has no partner.",
                "Ask for more --peers.",
            )
        if not self.churn:
            return
        if self.peers < DEMO_CHURN_PEERS_MIN:
            raise misuse(
                f"The demo with churn needs at least {DEMO_CHURN_PEERS_MIN} peers, "
                f"not {self.peers}: one is killed and two must still be able to average.",
                "Ask for more --peers, or add --no-churn.",
            )
        if self.rounds < DEMO_CHURN_ROUNDS_MIN:
            raise misuse(
                f"The demo with churn needs at least {DEMO_CHURN_ROUNDS_MIN} rounds, "
                f"not {self.rounds}: a peer is killed in round 3 and one joins in round 4.",
                "Ask for more --rounds, or add --no-churn.",
            )


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """`swarmtrain chaos`.

    Attributes:
        seconds: time from the moment when all hold the first state until all are asked to stop.
        seed: seed of the plan and of the run.
        peers: peers at the start.
        state_dir: folder of everything, or None for a temporary directory that is removed
            when everything holds.
        hostile: offences of a hostile member, which is the last of the peers; empty for a run of
            honest ones that is broken from outside.
    """

    seconds: float
    seed: int
    peers: int
    state_dir: Path | None
    hostile: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EmulateOptions:
    """`swarmtrain emulate`.

    Attributes:
        peers: copies of the program.
        command: the program and its words; empty for the built-in peers.
        run_file: run file, or None for one made of the next two.
        net: link of each peer as its owner names it, "" for open ones.
        links: "namespaces", "modelled", or "auto" for the first of these that can be had.
        routers: kinds of router that peers are behind, dealt out in turn; "" for none.
        kill_every_s: seconds between two deaths, 0 for none.
        seed: seed of the deaths and the run.
        json: end with one JSON object as the last line of stdout.
        state_dir: folder of everything, or None for a new temporary directory.
    """

    peers: int
    command: tuple[str, ...] = ()
    run_file: Path | None = None
    rounds: int = 8
    inner_steps: int = 20
    net: str = ""
    links: str = "auto"
    routers: str = ""
    kill_every_s: float = 0.0
    seed: int = 0
    json: bool = False
    state_dir: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be shown.

        Raises:
            UserError: SWT-E610, nobody would be left after a death, or routers cannot be modelled.
        """
        if self.routers and self.links == "modelled":
            raise misuse(
                "Routers are made of network namespaces, and --links modelled has none.",
                "Leave out --links, or --routers.",
            )
        if self.kill_every_s and self.peers < KILLS_PEERS_MIN:
            raise misuse(
                "One peer alone is killed by nobody: the run would stand still.",
                "Ask for more --peers, or leave out --kill-every.",
            )


_DURATION_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_tracker(text: str) -> str:
    """Read the name of a tracker of experiments.

    Raises:
        UserError: SWT-E610, there is none of this name.
    """
    if text not in TRACKERS:
        raise misuse(f"{cleaned(text)!r} is no tracker.", f"Give one of {', '.join(TRACKERS)}.")
    return text


def parse_duration(text: str) -> float:
    """``90``, ``90s``, ``10m``, ``2h`` or ``7d`` in seconds.

    Raises:
        UserError: SWT-E610.
    """
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhd]?)", text.strip())
    if match is None or float(match[1]) == 0.0:
        raise misuse(
            f"{cleaned(text)!r} is not a length of time.",
            "Write seconds, minutes, hours or days: 90s, 10m, 2h, 7d.",
        )
    return float(match[1]) * _DURATION_UNITS[match[2]]


PAUSE_S_MAX = 366 * 86_400.0
"""Longest pause of a peer that has an end."""


def parse_pause(text: str) -> float:
    """Read a length of time as `parse_duration` does, of PAUSE_S_MAX at most."""
    seconds = parse_duration(text)
    if seconds > PAUSE_S_MAX:
        raise misuse(
            f"{cleaned(text)!r} is longer than a year.",
            "Leave --for out: the peer rests until `swarmtrain resume` then.",
        )
    return seconds


parse_linger = or_zero(parse_duration)


def parse_micro_batch(text: str) -> int:
    """Read examples at a time: a number from 1, or "auto".

    Raises:
        UserError: SWT-E610.
    """
    if text == "auto":
        return MICRO_BATCH_AUTO
    if re.fullmatch(r"[1-9][0-9]{0,5}", text) is None:
        raise misuse(
            f"{cleaned(text)!r} is no micro-batch.",
            "Give the examples that go through the model at a time, as 4; or auto.",
        )
    return int(text)


def parse_device(text: str) -> str:
    """Read a device's name: "auto", "cpu", "cuda", "cuda:N" or "mps".

    Raises:
        UserError: SWT-E610.
    """
    if re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", text) is None:
        raise misuse(f"{cleaned(text)!r} is no device.", "Give auto, cpu, cuda, cuda:1 or mps.")
    return text


parse_room = or_zero(parse_size)


def parse_span(text: str) -> range:
    """``1-2`` or ``1``: first and last stage.

    Raises:
        UserError: SWT-E610.
    """
    match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", text.strip())
    span = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not span or span[-1] >= STAGES_MAX:
        raise misuse(
            f"{cleaned(text)!r} is not a span of stages.",
            "Write the first and the last one, counted from 0: --span 1-2, or --span 1.",
        )
    return span


def parse_endpoint(text: str) -> Endpoint:
    """``HOST:PORT`` or ``[IPv6]:PORT``.

    Raises:
        UserError: SWT-E611.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise UserError(
            "SWT-E611",
            f"{cleaned(text)!r} is not an address.",
            "An address is HOST:PORT, the port from 0 to 65535; 0 picks a free one.",
            "For instance --listen 127.0.0.1:8400, or --listen [::1]:8400.",
        )
    return Endpoint(host=match[1] or match[2], port=int(match[3]))


def parse_advertised(text: str) -> Endpoint:
    """The address that other peers shall dial.

    Raises:
        UserError: SWT-E611, nobody could dial it.
    """
    endpoint = parse_endpoint(text)
    if endpoint.port == 0 or endpoint.host in ("0.0.0.0", "::"):
        raise UserError(
            "SWT-E611",
            f"Others cannot dial {text}.",
            "An advertised place must be one address and one port, as others reach them.",
            "For instance --advertise home.example.org:9000, where a router forwards port 9000.",
        )
    return endpoint


def default_endpoint(invite: Invite) -> Endpoint:
    """Choose the address of a peer that was told none: all addresses of both families and any free
    port, because peers reach each other directly; loopback if the whole run is on this machine."""
    if invite.is_loopback:
        return Endpoint("::1" if ":" in invite.host else "127.0.0.1", 0)
    return Endpoint("", 0)


def parse_store(text: str) -> str:
    """Check the address of a database that coordinators share, "" for none.

    Raises:
        UserError: SWT-E610, it is none.
    """
    if text and not text.startswith(("postgresql://", "postgres://")):
        raise misuse(
            "--store takes the address of a PostgreSQL database.",
            "For instance postgresql://swarmtrain@db.example.org/runs; without --store the log "
            "lies in the state directory.",
        )
    return text


def check_host(host: str) -> str:
    """A host that invites can carry, or "" for the listening one.

    Raises:
        UserError: SWT-E611.
    """
    try:
        if host:
            Invite(host, 1, "run", bytes(32), bytes(16))
    except LocalFault as error:
        raise UserError(
            "SWT-E611",
            f"{cleaned(host)!r} is neither an IP address nor a host name.",
            "Peers would not find the coordinator by it.",
            "For instance --public-host train.example.org; another port is --public-port's.",
        ) from error
    return host


def check_name(name: str) -> str:
    """A name for a peer, or "" to have one drawn.

    Raises:
        UserError: SWT-E610, it could not serve as a directory's name.
    """
    if name and re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{NAME_CHARS_MAX - 1}}}", name) is None:
        raise misuse(
            f"{cleaned(name)!r} cannot be a peer's name.",
            f"Use up to {NAME_CHARS_MAX} letters, digits, - and _, beginning with a letter or a "
            "digit.",
        )
    return name
