"""A model of one's own in three stages: no peer has all of it, and no code travels.

    python examples/pipeline_custom_model.py              # five peers on this machine
    swarmtrain up examples/pipeline_custom_run.toml       # or a run with others; prints an invite
    SWARMTRAIN_INVITE='swarm://...' python examples/pipeline_custom_model.py NAME    # once per peer

It learns to guess the next byte of a text, which is this file. The run file names the model by its
digest: who changes the model is refused, and told the new digest.
"""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import swarmtrain
from swarmtrain.errors import UserError, render

RUN_FILE = Path(__file__).with_name("pipeline_custom_run.toml")
WIDTH, CONTEXT, MICRO_BATCH = 64, 64, 4
STAGES, NAMES = 3, ("ann", "bob", "cat", "dan", "eve")


class Causal(nn.Module):
    """A residual convolution that sees what came before, and drops a part of it by chance."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, kernel_size=3, dilation=reach)
        self.drop = nn.Dropout(0.05)
        self.before = 2 * reach

    def forward(self, hidden: Tensor) -> Tensor:
        seen = nn.functional.pad(self.norm(hidden).mT, (self.before, 0))
        return hidden + self.drop(torch.relu(self.conv(seen)).mT)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def build() -> swarmtrain.StagedModel:
    """The same at every peer; on the meta device, so that each makes the values of its own stages
    alone."""
    with torch.device("meta"):
        layers = (Causal(reach) for reach in (1, 2, 4, 8, 1, 2))
        model = nn.Sequential(
            nn.Embedding(256, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
        )
    example = torch.zeros(MICRO_BATCH, CONTEXT, dtype=torch.int64)
    return swarmtrain.StagedModel(model, loss_of, example=(example, example), classes=256)


def batches(name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Micro-batches without end, other ones for each name."""
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    chance = random.Random(name)
    while True:
        starts = [chance.randrange(len(text) - CONTEXT) for _ in range(MICRO_BATCH)]
        windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        yield windows[:, :-1], windows[:, 1:]


def peer(name: str) -> None:
    """Train until the run is over."""
    torch.set_num_threads(1)
    logging.basicConfig(format=f"{name}: %(message)s", level=logging.INFO)
    left = swarmtrain.join_stages(build(), batches(name), name=name)
    for stage, root in left.roots.items():
        print(f"stage {stage}  state root {root} {name}", flush=True)


def run_here() -> bool:
    """A coordinator and five peers on this machine; True if the peers of each stage end alike."""
    running: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        places = {**os.environ, "XDG_STATE_HOME": folder}

        def start(*words: str, **more: str) -> subprocess.Popen[str]:
            command, environment = [sys.executable, *words], {**places, **more}
            running.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            )
            return running[-1]

        listen = ("--listen", "127.0.0.1:0", "--json-events")
        try:
            up = start("-m", "swarmtrain", "up", str(RUN_FILE), *listen)
            assert up.stdout is not None
            invite = json.loads(up.stdout.readline())["invite"]
            peers = [start(__file__, name, SWARMTRAIN_INVITE=invite) for name in NAMES]
            ends = sorted(line for peer in peers for line in peer.communicate()[0].splitlines())
        finally:
            for process in running:
                process.kill()
                process.wait()
    print(*ends, sep="\n")
    roots = {line.rpartition(" ")[0] for line in ends}  # without the name
    return len(roots) == STAGES


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            peer(sys.argv[1])
        else:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no peer is left
            sys.exit(0 if run_here() else 1)
    except UserError as error:
        print(render(error), file=sys.stderr)
        sys.exit(error.exit_status)
