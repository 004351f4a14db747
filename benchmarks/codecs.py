"""Speed of one core that encodes, sums, decodes and makes the outer step, in G values per second.

    python benchmarks/codecs.py [--json] [--repeat K] [--chunks N]

Chunks are those of the wire (262144 values) and are visited in turn, so that inputs come from
memory and not from a warm cache. The best of K passes is reported: other programs only slow down.
int8 is measured with numpy's loops and, where numba is installed, compiled; the others in blocks of
the size that suits them. `mean_of_4` counts the values of all four parts, and includes encoding
the mean. `decode_and_add` adds one part after the other to the same chunk's sum, as an owner does;
in `add_to_memory` each part has its own, so that 16 bytes of sum per value go through memory too.
`bytes` are those of one value.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "transport"), str(ROOT / "optimizers"), str(ROOT)]

import torch  # noqa: E402  the paths come first

from swarmtrain_optimizers.codecs import CODECS  # noqa: E402
from swarmtrain_optimizers.outer import nesterov, outer_step  # noqa: E402

CHUNK_VALUES = 262_144
OTHERS = {"int4": 128, "e3m0": 1024, "two_bit": 4096, "sign": 4096, "topk": 4096, "none": 1024}
"""The block that suits each codec."""


@dataclass(frozen=True, slots=True)
class BenchWindow:
    block: int
    e_min: int = -24
    e_max: int = 0


def best_rate(call: Callable[[int], object], num_chunks: int, repeat: int) -> float:
    best_s = float("inf")
    for _ in range(repeat):
        started_s = time.perf_counter()
        for index in range(num_chunks):
            call(index)
        best_s = min(best_s, time.perf_counter() - started_s)
    return round(num_chunks * CHUNK_VALUES / best_s / 1e9, 3)


def measure_codec(name: str, block: int, num_chunks: int, repeat: int) -> dict[str, object]:
    codec, window = CODECS[name], BenchWindow(block)
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(CHUNK_VALUES, generator=generator) * 0.01 for _ in range(num_chunks)]
    parts = [codec.encode(chunk, window) for chunk in values]
    sums = [torch.zeros(CHUNK_VALUES, dtype=torch.float64) for _ in range(num_chunks)]
    decoded = torch.empty(CHUNK_VALUES)

    def rate(call: Callable[[int], object]) -> float:
        return best_rate(call, num_chunks, repeat)

    row = {
        "codec": name,
        "block": block,
        "bytes": round(len(parts[0]) / CHUNK_VALUES, 4),
        "encode": rate(lambda i: codec.encode(values[i], window)),
        "check": rate(lambda i: codec.check(parts[i], CHUNK_VALUES, window)),
        "decode_and_add": rate(lambda i: codec.add_(sums[0], parts[i], 255, window)),
        "add_to_memory": rate(lambda i: codec.add_(sums[i], parts[i], 255, window)),
        "decode": rate(lambda i: codec.decode(parts[i], CHUNK_VALUES, window, decoded)),
    }
    if name != "topk":  # for gather ops, which have no mean
        row["finish"] = rate(lambda i: codec.finish(sums[i], 255, window))
        row["mean_of_4"] = 4 * rate(lambda i: codec.mean([(parts[i], 1)] * 4, CHUNK_VALUES, window))
    return row


def measure_outer_step(num_chunks: int, repeat: int) -> float:
    transform = nesterov(0.9, 0.8)
    size = num_chunks * CHUNK_VALUES
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(size, generator=generator) * 0.01
    params = torch.randn(size, generator=generator)
    state, state_out = transform.init(params), transform.init(params)
    params_out = torch.empty_like(params)

    def step(_: int) -> None:
        outer_step(transform, mean, params, state, params_out, state_out)

    return round(best_rate(step, 1, repeat) * num_chunks, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Codec speed on one core.")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--repeat", type=int, default=20, help="passes; the best counts (1..200)")
    parser.add_argument("--chunks", type=int, default=8, help="chunks of 262144 values (1..64)")
    arguments = parser.parse_args()
    repeat, num_chunks = min(200, max(1, arguments.repeat)), min(64, max(1, arguments.chunks))
    torch.set_num_threads(1)
    rows = [measure_codec("int8", block, num_chunks, repeat) for block in (1024, 4096)]
    if CODECS["int8"].prepare():
        compiled = [measure_codec("int8", block, num_chunks, repeat) for block in (1024, 4096)]
        rows += [{**row, "codec": "int8, compiled"} for row in compiled]
    rows += [measure_codec(name, block, num_chunks, repeat) for name, block in OTHERS.items()]
    report = {
        "unit": "G values/s, one thread",
        "codecs": rows,
        "outer_step_nesterov": measure_outer_step(num_chunks, repeat),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
    }
    if arguments.json:
        print(json.dumps(report))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(f"outer step (nesterov) {report['outer_step_nesterov']}")


if __name__ == "__main__":
    main()
