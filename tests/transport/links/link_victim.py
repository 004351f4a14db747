"""A peer's link in a process of its own, so that an abort of libzmq is seen as its exit status.

It reads one command a line and answers each with a line of JSON when it is done.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import IO, Self

import psutil

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.frames import Frame
from tests.transport.links.link_rig import DEADLINE_S, identity_of, part


class _Cap(TokenBucket):
    """Lets nothing in until it is told to."""

    def __init__(self) -> None:
        super().__init__(1 << 30, 0.0)
        self.may_pass = True

    def is_open(self, now_s: float) -> bool:
        self._now_s = now_s
        return self.may_pass

    @property
    def opens_s(self) -> float:
        return self._now_s + 0.05


class Victim:
    """Started by a test; who it is follows from its name.

    Args:
        name: the victim's.
        capped: with a cap on what it takes in, open at first.
    """

    def __init__(self, name: str = "victim", *, capped: bool = False) -> None:
        command = [sys.executable, "-m", __name__, name, "capped" if capped else "open"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answers: SimpleQueue[str] = SimpleQueue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=_read, args=pair, daemon=True)
            for pair in (
                (self._process.stdout, self._answers.put),
                (self._process.stderr, self._errors.append),
            )
        ]
        for reader in self._readers:
            reader.start()
        identity = identity_of(name)
        port = int(self.answer()["port"])
        self.address = Address(identity.peer_id, identity.curve_key, "127.0.0.1", port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def say(self, *words: object) -> None:
        """Give one command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
        except OSError:
            self.fail()

    def answer(self) -> dict[str, object]:
        """To the oldest command that was not answered yet."""
        try:
            answer = self._answers.get(timeout=DEADLINE_S)
        except Empty:
            answer = ""
        if not answer:
            self.fail()
        return json.loads(answer)

    def ask(self, *words: object) -> dict[str, object]:
        """A command and its answer."""
        self.say(*words)
        return self.answer()

    def until(self, condition: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        """Ask for the figures until they are so."""
        end = time.monotonic() + DEADLINE_S
        while not condition(found := self.ask("figures")):
            assert time.monotonic() < end, found
        return found

    def memory(self) -> int:
        """Bytes that it holds in memory."""
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def fail(self) -> None:
        """Fail the test: the victim has died, or is stuck."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.returncode
        raise AssertionError(f"the victim's exit status is {status}: {''.join(self._errors)}")

    def end(self) -> int:
        """Ask it to go, and return its exit status."""
        self.say("end")
        return self._process.wait(DEADLINE_S)


def _read(pipe: IO[str], take: Callable[[str], object]) -> None:
    with pipe:
        for line in pipe:
            take(line)
    take("")


class _Tally:
    """A handler that keeps nothing but counts, as memory is measured."""

    def __init__(self) -> None:
        self.frames: Counter[bytes] = Counter()
        self.accused: set[bytes] = set()

    def on_frame(self, peer: bytes, frame: Frame) -> None:
        self.frames[peer] += 1

    def on_fault(self, peer: bytes | None, fault: RemoteFault) -> None:
        if peer is not None:
            self.accused.add(peer)


async def _live(name: str, cap: _Cap | None) -> None:
    heard = _Tally()
    link = await ZmqLink.open(identity_of(name), "127.0.0.1", 0, heard, cap)
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    answer: dict[str, object] = {"port": link.address.port}
    try:
        while True:
            print(json.dumps(answer), flush=True)
            command, *words = (await reader.readline()).decode().split() or ["end"]
            answer = {}
            if command == "end":
                return
            if command == "admit":
                whom = identity_of(words[0])
                link.allow(Address(whom.peer_id, whom.curve_key, "127.0.0.1", int(words[1])))
                link.warm((whom.peer_id,))
            elif command == "send":
                answer["sent"] = link.send(identity_of(words[0]).peer_id, part(1))
            elif command == "block":
                time.sleep(float(words[0]))
            elif command == "cap":
                assert cap is not None
                cap.may_pass = words[0] == "open"
            elif command == "figures":
                answer["refused"] = link.stats.refused
                known = {identity_of(one).peer_id: one for one in ("hostile", "honest", "dying")}
                answer["accused"] = sorted(known[peer] for peer in heard.accused)
                answer["heard"] = {one: heard.frames[peer] for peer, one in known.items()}
    finally:
        link.close()


if __name__ == "__main__":
    asyncio.run(_live(sys.argv[1], _Cap() if sys.argv[2] == "capped" else None))
