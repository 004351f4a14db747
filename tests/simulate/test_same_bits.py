"""One seed, one history: the same ledger bit for bit, in any process."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from swarmtrain.simulate.faults.plan import COORDINATOR, Fault
from swarmtrain.simulate.world import World

ROOT = Path(__file__).resolve().parents[2]

FAULTS = (Fault(50, (1, COORDINATOR)), Fault(90, newcomers=1), Fault(120, blinkers=(0,)))


def ledger_of(seed: int) -> bytes:
    world = World(3, rounds=3, seed=seed, faults=FAULTS)
    world.start()
    world.run()
    assert not world.violations
    return b"".join(record.to_bytes() for record in world.swarm.coordinator.disk)


def test_the_same_seed_gives_the_same_ledger_and_another_seed_another():
    assert ledger_of(1) == ledger_of(1)
    assert ledger_of(1) != ledger_of(2)


def test_the_ledger_does_not_depend_on_how_a_process_orders_its_sets():
    folders = [ROOT, ROOT / "transport", ROOT / "optimizers", Path(__file__).parent]
    digests = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "PYTHONHASHSEED": hash_seed,
        }
        code = (
            "import hashlib, test_same_bits as t; print(hashlib.sha256(t.ledger_of(1)).hexdigest())"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout.strip())
    assert digests == {hashlib.sha256(ledger_of(1)).hexdigest()}
