"""Tokens a second of inner steps: a plain loop, the built-in trainer, and a joined peer.

    python benchmarks/steps.py [--repeat 9] [--steps 40] [--json]

All three train the built-in model of 0.85 M parameters on the same text in one process, in turns,
so that they meet the same machine; the joined peer is the production one, against a coordinator in
another process, and no exchange falls into what is timed. Exit status 1 if the joined peer is more
than 5 % slower than the plain loop.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F

from swarmtrain.config import file as config_file
from swarmtrain.config.options import Endpoint, JoinOptions
from swarmtrain.config.settings import RunConfig
from swarmtrain.data.batches import ByteStream
from swarmtrain.data.corpus import build_corpus
from swarmtrain.models.build import build_model
from swarmtrain.peer import run as peer_run
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.telling import Telling
from swarmtrain.peer.training.trainer import BuiltinTrainer
from swarmtrain_transport.credentials.invite import Invite

BAR = 0.95
RUN = """\
[run]
name = "steps"
[outer]
inner_steps = 100_000
[exchange]
start_peers = 1
min_contributors = 1
"""

Steps = Callable[[], object]


def plain_loop(config: RunConfig, pieces: list[bytes]) -> Steps:
    """What a person would write."""
    model = build_model(config, seed=1)
    inner = config.inner
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=inner.lr, weight_decay=inner.weight_decay,
        betas=(inner.beta1, inner.beta2), fused=True,
    )  # fmt: skip
    batches = ByteStream.of(config, pieces, 1)

    def step() -> float:
        batch = batches.next_batch()
        logits = model(batch.x_BT)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch.y_BT.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), inner.grad_clip)
        optimizer.step()
        return loss.item()

    return step


def trainer_alone(config: RunConfig, pieces: list[bytes]) -> Steps:
    batches = ByteStream.of(config, pieces, 1).next_batch
    trainer = BuiltinTrainer(config, batches=batches, validation=(), seed=1)
    return trainer.inner_step


@contextmanager
def joined_peer(folder: Path, run_file: Path) -> Iterator[Steps]:
    """A production peer that has its first state and text."""
    coordinator = subprocess.Popen(
        [sys.executable, "-m", "swarmtrain", "up", str(run_file), "--state-dir",
         str(folder / "coordinator")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert coordinator.stdout is not None
        invite = next(line for line in coordinator.stdout if line.startswith("swarm://"))
        options = JoinOptions(
            invite=Invite.parse(invite.strip()), name="timed", listen=Endpoint("127.0.0.1", 0),
            state_dirs=(folder / "peer",),
        )  # fmt: skip
        membership = Membership.enter(options)
        try:
            peer = peer_run._Peer(membership, options, Telling(lambda line: None, None))
            peer.start()
            yield peer.step
            peer.leave("timed", save=False)
        finally:
            membership.close()
    finally:
        coordinator.terminate()
        coordinator.communicate(timeout=30)


def rates(
    ways: dict[str, Steps], steps: int, repeat: int, tokens: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Tokens a second of each, in turns; one turn before does not count."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeat + 1):
        for name, step in ways.items():
            begin = clock()
            for _ in range(steps):
                step()
            if turn:
                found[name].append(steps * tokens / (clock() - begin))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--cpu", action="store_true",
        help="by processor time of the training thread, not by the clock: for a busy machine",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swarmtrain-steps-") as made:
        folder = Path(made)
        run_file = folder / "run.toml"
        run_file.write_text(RUN)
        config = config_file.load(run_file)
        corpus = build_corpus(config.data.piece_bytes, validation_pieces=1)
        pieces = [corpus.piece(name) for name in corpus.train[: config.data.lease_pieces]]
        torch.set_num_threads(1)
        with joined_peer(folder, run_file) as joined:
            ways = {
                "plain loop": plain_loop(config, pieces),
                "trainer": trainer_alone(config, pieces),
                "joined peer": joined,
            }
            tokens = config.inner.batch * config.model.context
            clock = time.thread_time if options.cpu else time.perf_counter
            found = rates(ways, options.steps, options.repeat, tokens, clock)
    medians = {name: statistics.median(each) for name, each in found.items()}
    # Turn by turn, so that what else the machine did falls out.
    shares = {
        name: statistics.median(
            one / plain for one, plain in zip(each, found["plain loop"], strict=True)
        )
        for name, each in found.items()
    }
    if options.json:
        print(json.dumps({"tokens_s": medians, "of_plain": shares, "turns": found, "bar": BAR}))
    else:
        for name, median in medians.items():
            print(f"{name:12} {median:9.0f} tokens/s  {shares[name]:.3f} of the plain loop")
    return 0 if shares["joined peer"] >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
