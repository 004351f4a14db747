"""Rates at which a peer reads, writes, encodes and decodes a model on its device.

    python benchmarks/devices.py [--device auto] [--values 124000000] [--dtype float32] [--json]

Reading and writing are `Layout.read` and `Layout.write`, as at both ends of an exchange; on a card
they include waiting for the last byte. Encoding and decoding are the codec's, on one core. How long
a step takes alone and joined tells `steps.py`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from figures import parser_of
from torch import nn

from swarmtrain.models.device import device_of
from swarmtrain.models.tensors import Layout
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.limits import CHUNK_VALUES

WIDTH = 2048


def rate(work: Callable[[], object], values: int, repeat: int, device: torch.device) -> float:
    """Median of values a second."""
    seconds = []
    for _ in range(repeat + 1):
        begin_s = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin_s)
    return values / statistics.median(seconds[1:])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one device and size."""
    device, dtype = device_of(options.device), getattr(torch, options.dtype)
    layers = [
        nn.Linear(WIDTH, WIDTH, bias=False, device=device, dtype=dtype)
        for _ in range(max(1, options.values // WIDTH**2))
    ]
    model = nn.Sequential(*layers)
    layout = Layout.of(model, block=1024)
    vector = layout.read(model)
    codec, window = Int8(), Window("int8", 1024, -24, 0)
    compiled = codec.prepare()
    pieces = torch.split(vector, CHUNK_VALUES)
    parts = [codec.encode(piece, window) for piece in pieces]

    def decode() -> None:
        for piece, part in zip(pieces, parts, strict=True):
            codec.decode(part, len(piece), window, piece)

    works: dict[str, Callable[[], object]] = {
        "read": lambda: layout.read(model, vector),
        "write": lambda: layout.write(model, vector),
        "encode": lambda: [codec.encode(piece, window) for piece in pieces],
        "decode": decode,
    }
    values = layout.num_values
    rates = {name: rate(work, values, options.repeat, device) for name, work in works.items()}
    return {"device": str(device), "values": values, "dtype": options.dtype, "compiled": compiled,
            "values_per_s": rates}  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--values", type=int, default=124_000_000)
    parser.add_argument("--dtype", default="float32", help="of the parameters")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['values'] / 1e6:.0f} M values of {found['dtype']} on {found['device']}")
    for name, each in found["values_per_s"].items():
        print(f"{name:7} {each / 1e6:8.0f} M values a second")


if __name__ == "__main__":
    main()
