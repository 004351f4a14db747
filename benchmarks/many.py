"""Hundreds of peers on one machine: do they come in, exchange, and hold one state, and what do they
hold open meanwhile?

    python benchmarks/many.py --peers 128 [--rounds 3] [--per-process 8] [--values 65536] [--json]
    python benchmarks/many.py --peers 64 --per-process 1 --rest    # also between two rounds
    python benchmarks/many.py --peers 32 --torch                   # whole peers, with tensors
    python benchmarks/many.py --peers 64 --links                   # one data lane among 63 others

The coordinator is production's, and so are a peer's control lane over TLS, data lane over ZeroMQ
with CURVE, meetings and machine; its numbers are whole ones in plain Python, so that torch's memory
and start are not in the way. With --torch each is a process of `allreduce.py`, with everything, and
what that prints is printed: it ends with an error unless everybody's vector is in each mean.

All come in, then round 1 begins. Each round's time is from the last READY to the last peer that has
the state after it. Descriptors and resident memory are a process's, by its peers; the first are
looked at twenty times a second, and once more with --rest when nothing was sent for as long as an
idle way is kept (LINK_IDLE_S).

With --links there is no coordinator: one peer's data lane beside all others', which have a process
of their own and answer each frame. Descriptors and memory are of the one: when it has been told of
all, with ways to and from all, and at rest; and the seconds, and the processor's, in which it
has an answer of everybody: at first, with ways that stand, and after the rest.

Bars, written down before the first run: all rounds are made, every peer has one root after each,
and nobody refuses a frame. A round may be skipped where the machine is too busy for so many. At
rest a peer of 64 has no connection to any other, and at most 48 descriptors. Exit status 1 beyond a
bar.
"""

import argparse
import asyncio
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / one) for one in (".", "transport", "optimizers")]

from benchmarks.figures import resident_mb  # noqa: E402  the paths come first
from swarmtrain.config.caps import NO_CAPS  # noqa: E402
from swarmtrain.foundation.file_descriptors import raise_limit  # noqa: E402
from swarmtrain.peer.network.bandwidth import Bandwidth  # noqa: E402
from swarmtrain.peer.network.control import ControlClient  # noqa: E402
from swarmtrain.peer.network.meetings import Meetings  # noqa: E402
from swarmtrain_transport import actions as do  # noqa: E402
from swarmtrain_transport import limits  # noqa: E402
from swarmtrain_transport.blocks.manifest import ArraySpec, describe_state  # noqa: E402
from swarmtrain_transport.credentials.identity import Identity, verify  # noqa: E402
from swarmtrain_transport.credentials.invite import Invite  # noqa: E402
from swarmtrain_transport.errors import RemoteFault  # noqa: E402
from swarmtrain_transport.links.link import Address  # noqa: E402
from swarmtrain_transport.links.outbox import TokenBucket  # noqa: E402
from swarmtrain_transport.links.zmq_link import ZmqLink  # noqa: E402
from swarmtrain_transport.peer.local_peer import Card  # noqa: E402
from swarmtrain_transport.peer.participant import Actions, Participant  # noqa: E402
from swarmtrain_transport.wire import messages as say  # noqa: E402
from swarmtrain_transport.wire.frames import Frame, FrameKind  # noqa: E402

REST_DESCRIPTORS_MAX = 48
SAMPLE_S = 0.05
START_GAP_S = 0.05
LAYOUT = b"many".ljust(32, b"\0")


def run_file(peers: int, rounds: int) -> str:
    """Run of peers that bring their own vectors; all of them are waited for."""
    return f"""
[run]
name = "many"
rounds = {rounds}
[model]
kind = "custom"
[data]
source = "own"
[admission]
peers_max = {peers}
[exchange]
start_peers = {peers}
min_contributors = {min(peers, limits.CELL_PEERS_MAX) // 2}
wait_ready_s = 600.0
deadline_floor_s = 120.0
chunk_values = 4096
"""


class Seat:
    """One peer: production's lanes and machine, and a trainer that answers at once.

    Attributes:
        is_finished: True once it has the run's last state.
        skipped: ops without a result.
        roots: root of the state after each op.
        ready_s, had_s: time of READY for each op, and of its state.
        faults: what this peer has refused, and why it has halted.
    """

    def __init__(self, number: int, num_values: int, pause_s: float) -> None:
        self._number, self._pause_s = number, pause_s
        self._numbers = [0] * num_values
        self.roots: dict[int, str] = {}
        self.ready_s: dict[int, float] = {}
        self.had_s: dict[int, float] = {}
        self.faults: list[str] = []
        self.skipped: list[str] = []
        self.is_finished = False
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, invite: Invite, directory: Path) -> None:
        """Listen, and go to the door."""
        from tests.transport.plain_arithmetic import PlainArithmetic

        self._loop, rng = asyncio.get_running_loop(), random.Random(self._number)
        identity, gate = Identity.create(os.urandom), TokenBucket(0, time.monotonic())
        self.link = await ZmqLink.open(identity, "127.0.0.1", 0, self, gate)
        self._lane = Bandwidth(self.link, self._loop, NO_CAPS, directory, gate)
        self._meetings = Meetings(
            self._loop, self.link, lambda: self._control.other_end, self._say,
            lambda peer: peer.hex()[:8],
        )  # fmt: skip
        card = Card(
            identity.peer_id, os.urandom(8), f"peer-{self._number}", identity.curve_key,
            "127.0.0.1", self.link.address.port, brings=say.Brings(run=invite.run),
        )  # fmt: skip
        self.machine = Participant(
            card, PlainArithmetic(), identity.sign, verify,
            lambda peers: rng.sample(list(peers), len(peers)), (), self._now_s,
        )  # fmt: skip
        self._control = ControlClient(invite, identity, self.machine.hello, self, rng=rng)
        self._act(self.machine.start(self._now_s))
        self._act(self.machine.attach(0, *self._state(), 1, self._now_s))
        self.task = self._loop.create_task(self._control.run())

    async def close(self) -> None:
        """Leave, and end all that was opened."""
        if self._timer is not None:
            self._timer.cancel()
        self._act(self.machine.leave("done", self._now_s))
        await self._control.close()
        await asyncio.gather(self.task, return_exceptions=True)
        self._meetings.close()
        self._lane.close()
        self.link.close()

    @property
    def _now_s(self) -> float:
        return time.monotonic()

    def _state(self) -> tuple[Any, tuple[bytes, ...]]:
        data = struct.pack(f"<{len(self._numbers)}I", *self._numbers)
        manifest, chunks = describe_state(LAYOUT, (ArraySpec("anchor", len(self._numbers)),), data)
        return manifest, tuple(bytes(chunk) for chunk in chunks)

    def _say(self, message: say.PeerMessage) -> None:
        self._control.send(message)

    # ---- what is heard

    def on_up(self, *, is_first: bool) -> None:
        """The knock was sent."""

    def on_down(self) -> None:
        """The control lane went away."""
        self._act(self.machine.control_down(self._now_s))

    def on_message(self, message: say.CoordinatorMessage) -> None:
        """Hear the coordinator."""
        if isinstance(message, say.LeaseGrant | say.Waiting | say.Released | say.Tried):
            return
        if not self._meetings.heard(message):
            if isinstance(message, say.Welcome):
                self._meetings.welcomed()
            self._act(self.machine.control(message, self._now_s))

    def on_frame(self, peer: bytes, frame: Frame) -> None:
        """Hear another peer."""
        self._act(self.machine.frame(peer, frame, self._now_s))

    def on_fault(self, peer: bytes | None, fault: RemoteFault) -> None:
        """Count a refusal. Whose key is not known yet, and whose first bytes take long on a busy
        machine, comes again."""
        if fault.reason not in ("key", "preamble"):
            self.faults.append(str(fault))

    def _wake(self) -> None:
        stats = self.machine.stats
        stats.unreached = self.link.unreached(limits.UNREACHED_S)[: limits.CELL_PEERS_MAX]
        self._lane.look(self.machine, 0, self._now_s)
        self._act(self.machine.tick(self._now_s))

    # ---- what is done

    def _act(self, actions: Actions) -> None:
        for action in actions:
            match action:
                case do.SendControl():
                    self._say(action.message)
                case do.SendFrame():
                    self._lane.send(action.peer, action.frame)
                case do.AllowPeer():
                    self._lane.allow(action.address)
                case do.WarmWays():
                    self._lane.warm(action.peers)
                case do.RevokePeer():
                    self._lane.revoke(action.peer)
                case do.LoadState():
                    data = b"".join(bytes(chunk) for chunk in action.chunks)
                    self._numbers = list(struct.unpack(f"<{len(self._numbers)}I", data))
                    self._applied(action.op)
                case do.ApplyResult():
                    self._take(action.result)
                    self._applied(action.result.op)
                case do.OpSkipped():
                    self.skipped.append(f"op {action.op}: {action.reason}")
                    self._ready(action.op + 1)
                case do.RunFinished():
                    self.is_finished = True
                case do.Halt() | do.PeerFault():
                    self.faults.append(str(action)[:200])
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self.machine.next_wakeup_s, self._wake)

    def _take(self, result: Any) -> None:
        from tests.transport.swarm import after

        self._numbers = after(self._numbers, result)

    def _applied(self, op: int) -> None:
        manifest, chunks = self._state()
        self.roots[op], self.had_s[op] = manifest.root.hex(), self._now_s
        self._act(self.machine.applied(op, manifest, chunks, self._now_s))
        if self.machine.applied_op == op:
            self._loop.call_later(self._pause_s if op else 0.0, self._ready, op + 1)

    def _ready(self, op: int) -> None:
        from tests.transport.plain_arithmetic import PlainContribution

        values = range(self._number, self._number + len(self._numbers))
        given = PlainContribution([(value * 7 + op) % 1000 for value in values])
        self.ready_s[op] = self._now_s
        self._act(self.machine.ready(op, given, 8, self._now_s))


# ---- a lane alone


class End:
    """One peer's data lane, which answers each frame or counts answers."""

    def __init__(self, *, answers: bool) -> None:
        self._answers, self.heard = answers, 0

    async def open(self) -> None:
        """Listen on loopback."""
        self.link = await ZmqLink.open(Identity.create(os.urandom), "127.0.0.1", 0, self)

    def on_frame(self, peer: bytes, frame: Frame) -> None:
        """Hear another peer."""
        self.heard += 1
        if self._answers:
            self.link.send(peer, frame)

    def on_fault(self, peer: bytes | None, fault: RemoteFault) -> None:
        """Ignore who comes before it is known; its link comes again."""


def answer(arguments: argparse.Namespace) -> None:
    """Ends of many peers, which know the one whose address is the line on stdin."""
    asyncio.run(_answer(arguments.count))


async def _answer(count: int) -> None:
    raise_limit()
    ends = [End(answers=True) for _ in range(count)]
    for end in ends:
        await end.open()
    print(json.dumps([_told(end.link.address) for end in ends]), flush=True)
    one = _address(json.loads(sys.stdin.readline()))
    for end in ends:
        end.link.allow(one)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for end in ends:
        end.link.close()


def _told(at: Address) -> list[Any]:
    return [at.peer_id.hex(), at.curve_key.hex(), at.port]


def _address(told: Sequence[Any]) -> Address:
    peer, key, port = told
    return Address(bytes.fromhex(peer), bytes.fromhex(key), "127.0.0.1", port)


async def measure_links(count: int) -> dict[str, Any]:
    """Figures of one end among so many others."""
    raise_limit()
    one, rows = End(answers=False), dict[str, Any]()
    await one.open()
    process = _start("answer", f"--count={count}")
    others = [_address(told) for told in json.loads(process.stdout.readline())]
    process.stdin.write(json.dumps(_told(one.link.address)) + "\n")
    process.stdin.flush()
    process.stdout.readline()
    begin = len(os.listdir("/proc/self/fd")), resident_mb(os.getpid())

    def note(name: str) -> None:
        files, memory = len(os.listdir("/proc/self/fd")), resident_mb(os.getpid())
        rows[name] = {"descriptors": files - begin[0], "mb": round(memory - begin[1], 1)}

    async def ask() -> tuple[float, float]:
        one.heard, begun_s, cpu_s = 0, time.perf_counter(), time.process_time()
        for other in others:
            one.link.send(other.peer_id, Frame(FrameKind.GET, run_tag=1, body=bytes(32)))
        while one.heard < count:
            await asyncio.sleep(0.001)
        return round(time.perf_counter() - begun_s, 3), round(time.process_time() - cpu_s, 3)

    for other in others:
        one.link.allow(other)
    note("told")
    rows["first"] = await ask()
    note("in_use")
    rows["warm"] = min([await ask() for _ in range(5)])
    await asyncio.sleep(limits.LINK_IDLE_S + 4 * limits.LINK_LOOK_S)
    note("at_rest")
    rows["cold"] = await ask()
    process.stdin.write("\n")
    process.stdin.flush()
    one.link.close()
    process.wait(60)
    return rows


# ---- roles


def coordinate(arguments: argparse.Namespace) -> None:
    """Serve the run; the invite is the line on stdout."""
    from swarmtrain.config.file import load
    from swarmtrain.coordinator.service import serve

    async def main(state_dir: Path) -> None:
        path = state_dir / "run.toml"
        path.write_text(run_file(arguments.peers, arguments.rounds), encoding="utf-8")
        config = load(path)
        await serve(
            config, state_dir, "127.0.0.1", 0, "127.0.0.1",
            on_ready=lambda invite: print(invite, flush=True), stop=asyncio.Event(),
        )  # fmt: skip

    with tempfile.TemporaryDirectory(prefix="many-") as directory:
        asyncio.run(main(Path(directory)))


def host(arguments: argparse.Namespace) -> None:
    """Some of the peers, in one process; one JSON object on stdout once they have all rounds and
    the other processes' have, too."""
    asyncio.run(_host(arguments))


async def _host(arguments: argparse.Namespace) -> None:
    raise_limit()
    invite = Invite.parse(arguments.invite)
    own_mb = resident_mb(os.getpid())
    seats = [
        Seat(number, arguments.values, arguments.pause)
        for number in range(arguments.first, arguments.first + arguments.count)
    ]
    descriptors = most = len(os.listdir("/proc/self/fd"))
    with tempfile.TemporaryDirectory(prefix="many-") as directory:
        for seat in seats:
            await seat.open(invite, Path(directory))
            await asyncio.sleep(START_GAP_S)
        alone = len(os.listdir("/proc/self/fd"))
        ways_most = 0
        while not all(seat.is_finished or seat.task.done() for seat in seats):
            await asyncio.sleep(SAMPLE_S)
            most = max(most, len(os.listdir("/proc/self/fd")))
            ways_most = max([ways_most, *(len(seat.link.ways()) for seat in seats)])
        peak_mb = resident_mb(os.getpid())
        if arguments.rest:
            await asyncio.sleep(limits.LINK_IDLE_S + 4 * limits.LINK_LOOK_S)
        at_rest = len(os.listdir("/proc/self/fd")), [len(seat.link.ways()) for seat in seats]
        report = {
            "descriptors": [descriptors, alone, most, at_rest[0]], "ways_most": ways_most,
            "ways_at_rest": at_rest[1], "own_mb": own_mb, "peak_mb": peak_mb,
            "seats": [
                {
                    "roots": seat.roots, "ready_s": seat.ready_s, "had_s": seat.had_s,
                    "faults": seat.faults, "skipped": seat.skipped,
                    "is_finished": seat.is_finished,
                }
                for seat in seats
            ],
        }  # fmt: skip
        print(json.dumps(report), flush=True)
        sys.stdin.readline()  # the others may still need what these hold
        for seat in seats:
            await seat.close()


def drive(arguments: argparse.Namespace) -> dict[str, Any]:
    """Coordinator and peers as processes on loopback; what they tell."""
    begun_s = time.monotonic()
    started = [_start("coordinator", f"--peers={arguments.peers}", f"--rounds={arguments.rounds}")]
    try:
        invite = started[0].stdout.readline().strip()
        if not invite:
            raise SystemExit("the coordinator did not start; what it said is above")
        for first in range(0, arguments.peers, arguments.per_process):
            count = min(arguments.per_process, arguments.peers - first)
            started.append(_start(
                "host", f"--invite={invite}", f"--first={first}", f"--count={count}",
                f"--rounds={arguments.rounds}", f"--values={arguments.values}",
                f"--pause={arguments.pause}", *["--rest"] * arguments.rest,
            ))  # fmt: skip
        told = [json.loads(process.stdout.readline() or "null") for process in started[1:]]
        coordinator_mb = resident_mb(started[0].pid)
        for process in started[1:]:
            process.stdin.write("\n")
            process.stdin.flush()
            process.wait(60)
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            process.wait()
    if None in told:
        raise SystemExit("a process of peers failed; see above")
    return summary_of(arguments, told) | {
        "coordinator_mb": round(coordinator_mb, 1), "seconds": round(time.monotonic() - begun_s, 1),
    }  # fmt: skip


def _start(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def summary_of(arguments: argparse.Namespace, told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all processes, and whether they are within the bars."""
    seats = [seat for process in told for seat in process["seats"]]
    ops = sorted({op for seat in seats for op in seat["roots"]}, key=int)[1:]
    roots = [{seat["roots"][op] for seat in seats if op in seat["roots"]} for op in ops]
    skipped = sorted({skip for seat in seats for skip in seat["skipped"]})
    faults = [fault for seat in seats for fault in seat["faults"]]
    times = dict[str, float]()
    for op in ops:
        ready = [seat["ready_s"][op] for seat in seats if op in seat["ready_s"]]
        had = [seat["had_s"][op] for seat in seats if op in seat["had_s"]]
        times[op] = round(max(had) - max(ready), 3) if had and ready else -1.0
    per = arguments.per_process
    counts = [[figure - process["descriptors"][0] for figure in process["descriptors"]]
              for process in told]  # fmt: skip
    rest = max(count[3] for count in counts) / per
    is_one = len(ops) == arguments.rounds and all(len(found) == 1 for found in roots)
    are_done = sum(seat["is_finished"] for seat in seats)
    is_well = is_one and not faults and are_done == arguments.peers
    if arguments.rest:
        ways = max(max(process["ways_at_rest"]) for process in told)
        is_well = is_well and ways == 0 and rest <= REST_DESCRIPTORS_MAX
    return {
        "peers": arguments.peers, "rounds": arguments.rounds, "values": arguments.values,
        "one_root": is_one, "finished": are_done, "faults": faults[:5], "skipped": skipped,
        "round_s": times,
        "ways_most": max(process["ways_most"] for process in told),
        "descriptors_alone": max(count[1] for count in counts) / per,
        "descriptors_most": max(count[2] for count in counts) / per,
        "descriptors_at_end": rest,
        "mb_per_peer": round(median(p["peak_mb"] - p["own_mb"] for p in told) / per, 1),
        "is_well": is_well,
    }  # fmt: skip


def main() -> None:
    """Play the role that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "role", nargs="?", default="drive", choices=("drive", "coordinator", "host", "answer")
    )
    parser.add_argument("--peers", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-process", type=int, default=8)
    parser.add_argument("--values", type=int, default=65_536)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds from a round to READY")
    parser.add_argument("--rest", action="store_true", help="look again once all is idle")
    parser.add_argument("--torch", action="store_true", help="whole peers, by allreduce.py")
    parser.add_argument("--links", action="store_true", help="one data lane among the others'")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--invite", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role != "drive":
        {"coordinator": coordinate, "host": host, "answer": answer}[arguments.role](arguments)
        return
    if arguments.links:
        rows = asyncio.run(measure_links(arguments.peers - 1))
        print(json.dumps(rows, indent=None if arguments.json else 2))
        return
    if arguments.torch:
        rounds, script = f"--repeat={arguments.rounds}", Path(__file__).with_name("allreduce.py")
        numel = f"--numel={arguments.values}"
        words = [sys.executable, script, f"--peers={arguments.peers}", rounds, numel]
        sys.exit(subprocess.run([*words, *["--json"] * arguments.json], check=False).returncode)
    found = drive(arguments)
    print(json.dumps(found, indent=None if arguments.json else 2))
    sys.exit(not found["is_well"])


if __name__ == "__main__":
    main()
