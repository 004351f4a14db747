"""Rates of a link whose owner's caps change while it is used: do they hold within 3 % over 10 s?

    python benchmarks/caps.py [--mbit 40 10 80] [--seconds 10] [--json]

Two real links on loopback with more to send than the caps allow. First the sender's cap goes
through the rates, then the receiver's; measured is what TCP has moved and what the receiver has
read, from a second after each change on. A cap on what is taken in that is set where there was none
first lets the queues fill, some 10 MB. Exit status 1 beyond the bar.
"""

import argparse
import asyncio
import json
import random
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

from swarmtrain.config.caps import NO_CAPS, Caps
from swarmtrain.peer.network.bandwidth import Bandwidth
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.links.outbox import TokenBucket
from swarmtrain_transport.links.zmq_link import ZmqLink
from swarmtrain_transport.wire.frames import Frame, FrameKind

BAR = 0.03
CHUNK_BYTES = 256 << 10
SETTLE_S = 1.0
WAITING_FRAMES = 400


class Taker:
    """A receiver that counts."""

    def __init__(self) -> None:
        self.num_bytes = self.num_frames = 0

    def on_frame(self, peer: bytes, frame: Frame) -> None:
        self.num_bytes += len(frame.body)
        self.num_frames += 1

    def on_fault(self, peer: bytes | None, fault: Any) -> None:
        raise RuntimeError(str(fault))


async def measured(mbits: list[float], seconds: float, folder: Path) -> list[dict[str, Any]]:
    loop, taker = asyncio.get_running_loop(), Taker()
    gates = [TokenBucket(0.0, loop.time()) for _ in range(2)]
    ids = [Identity.create(secrets.token_bytes) for _ in range(2)]
    links = [
        await ZmqLink.open(one, "127.0.0.1", 0, taker, gate)
        for one, gate in zip(ids, gates, strict=True)
    ]
    ends = []
    for number, (link, gate) in enumerate(zip(links, gates, strict=True)):
        (folder / str(number)).mkdir()
        ends.append(Bandwidth(link, loop, NO_CAPS, folder / str(number), gate))
        link.allow(links[1 - number].address)
    sender, receiver = ends
    body, put = random.Random(1).randbytes(CHUNK_BYTES), 0
    found = []
    for way, capped in (("up", sender), ("down", receiver)):
        other = receiver if capped is sender else sender
        other.cap(NO_CAPS)
        for mbit in mbits:
            rate = round(mbit * 125_000)
            capped.cap(Caps(up=rate, down=rate))
            begun_s, began = loop.time() + SETTLE_S, (0, 0)
            while (now_s := loop.time()) < begun_s + seconds:
                while put - taker.num_frames < WAITING_FRAMES:
                    frame = Frame(FrameKind.PART, 7, plan_id=1, chunk=put, body=body)
                    sender.send(ids[1].peer_id, frame)
                    put += 1
                moved = links[1].moved()
                at = (moved.down if moved is not None else 0, taker.num_bytes)
                if now_s < begun_s:
                    began, first_s = at, now_s
                await asyncio.sleep(0.02)
            passed_s = now_s - first_s
            off = [(b - a) / passed_s / rate - 1 for a, b in zip(began, at, strict=True)]
            found.append({"way": way, "mbit": mbit, "read": off[1], "wire": off[0]})
    for link in links:
        link.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, nargs="+", default=[40.0, 10.0, 80.0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(told.mbit, told.seconds, Path(folder)))
    if told.json:
        print(json.dumps(found))
    else:
        for one in found:
            print(
                f"{one['way']:4} {one['mbit']:6g} Mbit/s: read {100 * one['read']:+.1f} %,"
                f" on the wire {100 * one['wire']:+.1f} %"
            )
    return int(any(abs(one["read"]) > BAR for one in found))


if __name__ == "__main__":
    sys.exit(main())
