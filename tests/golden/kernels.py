"""Hashes of everything that may enter a state root, with 1 and with 2 threads, as one JSON object.

    python tests/golden/kernels.py           prints {"capability": ..., "1": {...}, "2": {...}}
    python tests/golden/kernels.py --write   writes the hashes of one thread to kernels.json

A new hash means that old ledgers no longer replay to their roots: only write the file when that
is what you want, and say so in the CHANGELOG.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATHS = ("transport", "optimizers", "", "tests/optimizers")
sys.path[:0] = [str(ROOT / path) for path in PATHS]

import torch  # noqa: E402  the paths come first
from strategy_kernels import hash_strategies  # noqa: E402
from window import part_of  # noqa: E402

from swarmtrain.foundation import numerics  # noqa: E402
from swarmtrain_optimizers.codecs import CODECS  # noqa: E402
from swarmtrain_optimizers.codecs.base import Codec, StochasticCodec  # noqa: E402
from swarmtrain_optimizers.codecs.e3m0 import E3M0  # noqa: E402
from swarmtrain_optimizers.codecs.int4 import Int4  # noqa: E402
from swarmtrain_optimizers.codecs.int8 import Int8  # noqa: E402
from swarmtrain_optimizers.codecs.topk import TopK  # noqa: E402
from swarmtrain_optimizers.outer import nesterov, outer_step  # noqa: E402
from swarmtrain_optimizers.robust import RULES  # noqa: E402
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo  # noqa: E402
from swarmtrain_optimizers.strategies.one_byte.scalars import (  # noqa: E402
    Signs,
    start_of,
    value_of,
)

NUM_VALUES = 299_008
"""Odd multiple of the block, above every threshold at which torch divides work among threads."""


@dataclass(frozen=True, slots=True)
class PlanWindow:
    block: int = 1024
    e_min: int = -24
    e_max: int = 0


def values(label: str, lowest_exponent: int = -30) -> torch.Tensor:
    return numerics.probe_values(label, NUM_VALUES, lowest_exponent=lowest_exponent)


def sha256(*chunks: bytes | torch.Tensor) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk if isinstance(chunk, bytes) else chunk.numpy().tobytes())
    return digest.hexdigest()


def hash_codec(codec: Codec) -> dict[str, str]:
    window = PlanWindow()
    acc = torch.zeros(NUM_VALUES, dtype=torch.float64)
    parts = [codec.encode(values(f"part {index}", -38), window) for index in range(3)]
    for part, weight in zip(parts, (255, 7, 101), strict=True):
        codec.add_(acc, part, weight, window)
    hashes = {"encode": sha256(*parts), "add": sha256(acc)}
    if codec.exact:
        codec.subtract_(acc, parts[0], 255, window)
    if isinstance(codec, TopK):  # for gather ops: every part is decoded, and there is no mean
        hashes["decode"] = sha256(*(codec.decode(part, NUM_VALUES, window) for part in parts))
    else:
        result = codec.finish(acc, 108, window)
        hashes["finish"] = sha256(result)
        hashes["decode"] = sha256(codec.decode(result, NUM_VALUES, window))
    return {f"{codec.name} {name}": value for name, value in hashes.items()}


def hash_stochastic(codec: StochasticCodec) -> dict[str, str]:
    drawn = values("part 0", -38)
    part = codec.encode_stochastic(drawn, PlanWindow(), seed=2**63 + 5, first_index=2**33 + 1024)
    return {f"{codec.name} stochastic": sha256(part)}


def hash_outer_step() -> str:
    params, mean, momentum = values("params"), values("mean"), values("momentum")
    transform = nesterov(0.7, 0.9)
    after, momentum_after = torch.empty_like(params), torch.empty_like(params)
    outer_step(transform, mean, params, (momentum,), after, (momentum_after,))
    return sha256(after, momentum_after)


def hash_diloco() -> str:
    codec, window = Int8(), PlanWindow()
    strategy = DiLoCo(NUM_VALUES, inner_steps=1, lr=0.9, momentum=0.8, error_feedback=True)
    weights = values("weights")
    strategy.set_initial(weights)
    for op in range(3):
        part = codec.encode(strategy.pseudo_gradient(weights + values(f"inner {op}", -36)), window)
        own = codec.decode(part, NUM_VALUES, window)
        included = [(0, 1024 * 100, op != 1), (1024 * 100, NUM_VALUES, True)]
        weights = strategy.apply(own, included, weights, part_of(own))
    arrays = [tensor for _, tensor in (*strategy.state_arrays(), *strategy.local_arrays())]
    return sha256(*arrays, weights)


def hash_directions() -> dict[str, str]:
    """All bytes of one_byte, and a direction from a place inside a word."""
    told = torch.tensor([value_of(code) for code in range(-127, 128)], dtype=torch.float64)
    direction = Signs(start_of(2**63 - 1, 7, bytes(32), 3), 1e-3)
    first = 2**33 + 5
    signs = direction.signs(first, first + NUM_VALUES)
    return {"one_byte values": sha256(told), "one_byte direction": sha256(signs)}


def hash_robust_rules() -> dict[str, str]:
    rows = [values(f"contribution {index}") for index in range(4)]
    previous = values("previous")
    return {
        f"robust {name}": sha256(rule.aggregate(rows, (255, 7, 101, 64), previous=previous))
        for name, rule in RULES.items()
    }


def hash_all() -> dict[str, str]:
    return {
        **{f"door: {name}": value for name, value in numerics.probe().items()},
        **numerics.probe(NUM_VALUES),
        **{key: value for codec in CODECS.values() for key, value in hash_codec(codec).items()},
        **hash_stochastic(Int8()),
        **hash_stochastic(Int4()),
        **hash_stochastic(E3M0()),
        "outer step": hash_outer_step(),
        "diloco": hash_diloco(),
        **hash_robust_rules(),
        **hash_directions(),
        **hash_strategies(NUM_VALUES, PlanWindow(), values, sha256),
    }


def main() -> None:
    report: dict[str, object] = {"capability": torch.backends.cpu.get_cpu_capability()}
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        report[str(num_threads)] = hash_all()
    if "--write" in sys.argv:
        golden = Path(__file__).with_name("kernels.json")
        golden.write_text(json.dumps(report["1"], indent=2) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
