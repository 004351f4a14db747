"""Work of the coordinator's machine, without sockets, for each kind of message.

    python benchmarks/coordinator_machine.py --peers 1000 [--json]

It feeds the machine alone, and tells its processor time for each kind of message, which is the same
on a busy machine: a peer comes, says PROGRESS with and without news, APPLIED and READY; a PLAN is
looked for; another peer comes; `status` is asked. Of an image of the fold it tells bytes for each
peer, and the time to make and to read it. `coordinator_load.py` has the sockets.
"""

import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from coordinator_load import LAYOUT, NUM_VALUES, config_of, root_after, show
from figures import parser_of

from swarmtrain.coordinator.service import run_terms
from swarmtrain_transport.actions import SendToPeer
from swarmtrain_transport.coordinator.members.meetings import Means
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.snapshots import from_image, image_of
from swarmtrain_transport.wire.messages import (
    Applied,
    Hello,
    Offer,
    PeerMessage,
    Places,
    Progress,
    Ready,
    Records,
)


class Alone:
    """The machine, fed with messages, and the time that it takes for them."""

    def __init__(self, peers: int, joiners: int) -> None:
        self.seconds, self.numbers = Counter[str](), Counter[str]()
        self.sent: Counter[str] = Counter()
        self.now_s = 0.0
        self.peers = [os.urandom(32) for _ in range(peers + joiners)]
        self._heads: dict[bytes, int] = {}
        self._steps = 0
        terms = run_terms(config_of(2 * len(self.peers)))
        self.machine = Rendezvous(
            terms, bytes(32), (), lambda data: bytes(64), lambda *signed: True, 1, 0.0,
            places=2 * len(self.peers), means=Means(lambda: os.urandom(32), True),
        )  # fmt: skip
        self.machine.start(0.0)

    def feed(self, kind: str, event: Callable[[], Sequence[Any]], passes_s: float = 2e-4) -> None:
        """Have the machine hear of an event."""
        self.now_s += passes_s
        began_s = time.process_time()
        actions = event()
        self.seconds[kind] += time.process_time() - began_s
        self.numbers[kind] += 1
        for action in actions:
            if isinstance(action, SendToPeer):
                self.sent[kind] += 1
                if isinstance(action.message, Records):
                    newest = action.message.first_index + len(action.message.records) - 1
                    self._heads[action.peer] = newest

    def say(self, kind: str, peer: bytes, *messages: PeerMessage) -> None:
        """Have it hear a peer."""
        for message in messages:
            self.feed(kind, lambda one=message: self.machine.received(peer, one, self.now_s))

    def join(self, kind: str, number: int) -> None:
        """Have a peer come that is new, and is let in without waiting for others."""
        peer, host = self.peers[number], f"127.1.{number >> 8}.{1 + number % 250}"
        hello = Hello(b"%08d" % number, "light", content_hash(peer), host, 5000, -1, b"", 1 << 30)
        machine = self.machine

        def come() -> Sequence[Any]:
            heard = machine.connected(peer, hello, self.now_s, invite_id="i", remote=host)
            return *heard, *machine.admit(self.now_s)

        self.feed(kind, come)
        self.say(kind, peer, Places(()))

    def progress(self, kind: str, peer: bytes) -> None:
        """PROGRESS of a peer that has what it was sent."""
        self._steps += 1
        told = Progress(self._heads.get(peer, -1), self._steps, self._steps, "training")
        self.say(kind, peer, told)


def measure_image(machine: Rendezvous, times: int = 5) -> dict[str, float]:
    """For each peer: bytes of an image, and microseconds to make and to read one, at best."""
    view, reader = machine.writer.view, machine.writer.ledger.reader
    image = image_of(view, reader)

    def best(work: Callable[[], object]) -> float:
        spent = []
        for _ in range(times):
            began_s = time.process_time()
            work()
            spent.append(time.process_time() - began_s)
        return 1e6 * min(spent) / len(view.roster)

    return {
        "bytes": len(image) / len(view.roster),
        "made_us": best(lambda: image_of(view, reader)),
        "read_us": best(lambda: from_image(image)),
    }


def measure_machine(peers: int, joiners: int = 50) -> dict[str, Any]:
    """Microseconds of processor time that each kind of message takes."""
    alone = Alone(peers, joiners)
    root, here = root_after(0), alone.peers[:peers]
    for number in range(peers):
        alone.join("filling", number)
        if not number:
            alone.say("offer", here[0], Offer(root, NUM_VALUES, LAYOUT))
    for kind in ("progress news", "progress news", "progress", "progress"):
        for peer in here:
            alone.progress(kind, peer)
    for peer in here:
        alone.say("applied", peer, Applied(0, root))
    for peer in here:
        alone.progress("progress", peer)
    for peer in here:
        alone.say("ready", peer, Ready(1, 32, 0, root))
    for _ in range(24):
        alone.feed("look", lambda: alone.machine.tick(alone.now_s), 0.26)
    for peer in here:
        alone.progress("progress in an op", peer)
    for number in range(peers, peers + joiners):
        alone.join("join", number)
        for _ in range(40):
            alone.progress("progress while some join", random.choice(here))
    alone.feed("status", lambda: (alone.machine.status(alone.now_s), ())[1])
    plan = alone.machine.first.view.op
    return {
        "peers": peers,
        "microseconds": {
            kind: 1e6 * alone.seconds[kind] / count for kind, count in alone.numbers.items()
        },
        "sent": {kind: alone.sent[kind] / count for kind, count in alone.numbers.items()},
        "image of a peer": measure_image(alone.machine),
        "planned": len(plan.plan.members) if plan is not None else 0,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    options = parser.parse_args()
    show(measure_machine(options.peers), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
