"""Speed of the simulator: ops a minute of CPU time, and events, calls, messages and CPU per op.

    python benchmarks/simulator.py [--seeds 40] [--kind mean] [--json]

CPU time of one process, not of the clock: other work on the machine changes it little. The same
seeds make the same worlds, so two versions are compared by running them in turns. Calls are those
of Python and of C that cProfile counts in a second run; no load of the machine changes them.
"""

import argparse
import cProfile
import json
import pstats
import time

import torch

from swarmtrain.simulate.seeds import world_of
from swarmtrain_transport.kinds import KINDS, MEAN

_PEERS, _OPS = 4, 3


def run(seeds: int, kind: str) -> tuple[int, int, int]:
    """Run so many worlds and count their ops, messages and events."""
    ops = messages = events = 0
    for seed in range(seeds):
        world = world_of(seed, _PEERS, _OPS, kind=kind)
        world.start()
        world.run()
        decided = world.invariants.decided
        ops += decided.commits + decided.skips
        messages += world.scene.boundary
        events += world.scene.clock.happened
    return ops, messages, events


def measured(seeds: int, kind: str) -> dict[str, float]:
    """Run so many worlds and say what they cost."""
    world_of(0, _PEERS, _OPS).start()  # what is made once is made now
    began_s = time.process_time()
    ops, messages, events = run(seeds, kind)
    cpu_s = time.process_time() - began_s
    profile = cProfile.Profile()
    profile.runcall(run, seeds, kind)
    return {
        "ops": ops,
        "ops_per_cpu_minute": round(60 * ops / cpu_s),
        "cpu_ms_per_op": round(1e3 * cpu_s / ops, 2),
        "events_per_op": round(events / ops, 1),
        "calls_per_op": round(pstats.Stats(profile).total_calls / ops),
        "messages_per_op": round(messages / ops, 1),
        "cpu_us_per_message": round(1e6 * cpu_s / messages, 1),
    }


def main(argv: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--kind", choices=sorted(KINDS), default=MEAN)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    found = measured(args.seeds, args.kind)
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<20} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
