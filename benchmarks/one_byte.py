"""Fine-tuning by forward passes alone, beside AdamW on adapters: loss, bytes, bits and memory.

    python benchmarks/one_byte.py start --folder DIR [--steps 2000]          # once: a trained model
    python benchmarks/one_byte.py learn --folder DIR [--passes 20000] [--json]
    python benchmarks/one_byte.py memory --folder DIR [--json]

`start` trains the demo's model on Python's standard library, but for its manual. `learn` goes on
with it on that manual, which is prose: a coordinator and two peers on loopback as `swarmtrain`
starts them, and beside them AdamW on adapters of rank 4 of every matrix, in one process, with the
same batches' size and as many forward passes in all (a backward pass counts nothing). Each rate of
adapters is tried and the best counts. Both are judged on the same held-out end of the manual.
`memory` is the most resident memory (RssAnon) of a peer, from before it makes its model on, by that
of a process that only computes losses of the same batches with the same model.

The bars were written down before the first run. Exit status 1 where one is missed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from figures import parser_of, resident

BAR_SHARE = 1 / 3
"""Share of what AdamW's adapters take off the loss that one_byte takes off at least."""

BAR_MEMORY = 1.15
"""Memory of a peer by that of inference at most."""

ADAPTER_RATES = (1e-3, 3e-3, 1e-2)
ADAPTER_RANK = 4

HELD_OUT = 0.1
CONTEXT, BATCH = 128, 8
PIECE_BYTES = 65_536
LOOK_S = 0.0005

RUN_FILE = """\
[run]
name = "one-byte"
rounds = {rounds}
[model]
layers = {layers}
width = {width}
heads = {heads}
context = {context}
[data]
source = "{text}/train.txt"
validation = "{text}/validation.txt"
lease_pieces = 1
[inner]
batch = {batch}
lr = {rate}
[outer]
strategy = "one_byte"
inner_steps = {steps}
lr = {outer_rate}
[exchange]
start_peers = {peers}
min_contributors = {peers}
wait_ready_s = 60.0
[checkpoint]
every_rounds = 1000
snapshot_rounds = 16
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def settings(options: argparse.Namespace, text: Path, rounds: int, steps: int) -> str:
    return RUN_FILE.format(
        layers=options.layers, width=options.width, heads=4 if options.width < 256 else 8,
        context=CONTEXT, batch=BATCH, rate=options.rate, peers=options.peers, text=text,
        rounds=rounds, steps=steps, outer_rate=options.outer_rate or float(options.peers),
    )  # fmt: skip


def write_texts(folder: Path) -> None:
    """The manual in two files."""
    from pydoc_data import topics

    text = "\n".join(part for _, part in sorted(topics.topics.items())).encode()
    cut = int(len(text) * (1 - HELD_OUT))
    (folder / "train.txt").write_bytes(text[:cut])
    (folder / "validation.txt").write_bytes(text[cut:])


def pieces_of(text: bytes) -> list[bytes]:
    return [text[start : start + PIECE_BYTES] for start in range(0, len(text), PIECE_BYTES)]


def trainer_of(config: Any, train: list[bytes], validation: list[bytes]) -> Any:
    from swarmtrain.data.batches import ByteStream
    from swarmtrain.peer.training.trainer import BuiltinTrainer

    return BuiltinTrainer(
        config, batches=ByteStream.of(config, train, 1).next_batch, validation=validation,
        seed=1,
    )  # fmt: skip


def loaded(folder: Path, options: argparse.Namespace, rounds: int = 1, steps: int = 20) -> Any:
    """The run file's settings, read as everybody reads them."""
    from swarmtrain.config import file as config_file

    place = folder / "run.toml"
    place.write_text(settings(options, folder, rounds, steps))
    return config_file.load(place)


# ---- a model to begin with


def start(options: argparse.Namespace) -> int:
    import msgspec
    import safetensors.torch
    import torch

    from swarmtrain.config.settings import OuterSection
    from swarmtrain.data.corpus import library_folder, read_sources

    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    write_texts(options.folder)
    sources = read_sources(library_folder())
    text = [one.data for one in sources if not one.path.startswith("pydoc_data")]
    config = loaded(options.folder, options, rounds=options.steps)
    config = msgspec.structs.replace(
        config,
        inner=msgspec.structs.replace(config.inner, lr=2e-3, batch=16),
        outer=OuterSection(inner_steps=1),
    )
    trainer = trainer_of(config, pieces_of(b"\n".join(text)), [])
    for step in range(options.steps):
        loss = trainer.inner_step()
        if step % 200 == 0:
            say(f"step {step}: loss {loss:.3f}")
    weights = {name: one.detach() for name, one in trainer.model.named_parameters()}
    safetensors.torch.save_file(weights, options.folder / "model.safetensors")
    return 0


# ---- learning


def learn(options: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1)
    steps = 31
    rounds = -(-options.passes // (2 * steps * options.peers))
    passes = 2 * steps * options.peers * rounds
    begun = judged(options, options.folder / "model.safetensors")
    say(f"{passes} forward passes; the start loses {begun:.4f}")
    adapters = {}
    for rate in ADAPTER_RATES:
        adapters[rate] = with_adapters(options, rate, passes)
        say(f"adapters at {rate:g}: {adapters[rate]:.4f}")
    swarm = with_one_byte(options, rounds, steps)
    best = min(adapters.values())
    share = (begun - swarm["loss"]) / (begun - best)
    found = {
        "passes": passes, "begun": begun, "adapters": adapters, "one_byte": swarm,
        "share": share, "bar": BAR_SHARE, "replicas_equal": len(set(swarm["roots"])) == 1,
    }  # fmt: skip
    print(json.dumps(found) if options.json else words(found))
    return 0 if share >= BAR_SHARE and found["replicas_equal"] else 1


def words(found: dict[str, Any]) -> str:
    swarm = found["one_byte"]
    adapters = ", ".join(f"{loss:.4f} at {rate:g}" for rate, loss in found["adapters"].items())
    return (
        f"{found['passes']} forward passes from {found['begun']:.4f}: adapters {adapters}; "
        f"one_byte {swarm['loss']:.4f}, {found['share']:.2f} of what they take off (bar "
        f"{BAR_SHARE:.2f}); {swarm['payload_bytes']} bytes of payload and "
        f"{swarm['bytes_up_round']:.0f} in all sent a round and peer; roots "
        + ("equal" if found["replicas_equal"] else "DIFFER")
    )


def judged(options: argparse.Namespace, weights: Path | dict[str, Any]) -> float:
    """Loss of weights on all of the held-out text that fits into windows."""
    import safetensors.torch
    import torch
    import torch.nn.functional as F

    config = loaded(options.folder, options)
    trainer = trainer_of(config, [], [])
    named = safetensors.torch.load_file(weights) if isinstance(weights, Path) else weights
    with torch.no_grad():
        for name, one in trainer.model.named_parameters():
            one.copy_(named[name])
    text = (options.folder / "validation.txt").read_bytes()
    values = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    count = (len(values) - 1) // CONTEXT
    x = values[: count * CONTEXT].view(count, CONTEXT)
    y = values[1 : count * CONTEXT + 1].view(count, CONTEXT)
    total = 0.0
    with torch.no_grad():
        for rows in range(0, count, 32):
            logits = trainer.model(x[rows : rows + 32])
            target = y[rows : rows + 32].reshape(-1)
            total += F.cross_entropy(
                logits.reshape(-1, logits.shape[-1]), target, reduction="sum"
            ).item()
    return total / (count * CONTEXT)


def with_adapters(options: argparse.Namespace, rate: float, passes: int) -> float:
    """Loss after as many steps of AdamW on adapters of rank 4 as there are forward passes."""
    import random

    import safetensors.torch
    import torch
    import torch.nn.functional as F
    from torch import nn

    from swarmtrain.data.batches import ByteStream
    from swarmtrain.models.build import build_model
    from swarmtrain_optimizers.schedule import warmup_cosine

    class Adapted(nn.Module):
        def __init__(self, frozen: nn.Linear) -> None:
            super().__init__()
            self.frozen = frozen
            self.a = nn.Linear(frozen.in_features, ADAPTER_RANK, bias=False)
            self.b = nn.Linear(ADAPTER_RANK, frozen.out_features, bias=False)
            nn.init.zeros_(self.b.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(x) + self.b(self.a(x))

    torch.manual_seed(0)
    model = build_model(loaded(options.folder, options), 0)
    model.load_state_dict(
        safetensors.torch.load_file(options.folder / "model.safetensors"), strict=False
    )
    model.requires_grad_(False)
    adapted: dict[str, Adapted] = {}
    for owner_name, owner in list(model.named_modules()):
        for name, child in list(owner.named_children()):
            if isinstance(child, nn.Linear):
                path = f"{owner_name}.{name}".lstrip(".")
                adapted[path] = Adapted(child)
                setattr(owner, name, adapted[path])
    trained = [p for one in adapted.values() for p in (one.a.weight, one.b.weight)]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.1)
    text = (options.folder / "train.txt").read_bytes()
    stream = ByteStream(
        pieces_of(text), batch=BATCH, context=CONTEXT, rng=random.Random(1), width=1
    )
    for step in range(passes):
        for group in optimizer.param_groups:
            group["lr"] = warmup_cosine(
                step, peak=rate, warmup_steps=20, total_steps=passes, end_fraction=0.1
            )
        batch = stream.next_batch()
        logits = model(batch.x_BT)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch.y_BT.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    weights = {
        name.replace(".frozen", ""): one.detach()
        for name, one in model.named_parameters()
        if not name.endswith((".a.weight", ".b.weight"))
    }
    for path, one in adapted.items():
        weights[f"{path}.weight"] = (one.frozen.weight + one.b.weight @ one.a.weight).detach()
    return judged(options, weights)


def with_one_byte(options: argparse.Namespace, rounds: int, steps: int) -> dict[str, Any]:
    """The run, by the commands that people type."""
    from swarmtrain_optimizers.codecs import codec_named

    with tempfile.TemporaryDirectory(prefix="swarmtrain-one-byte-") as name:
        place = Path(name)
        for text in ("train.txt", "validation.txt"):
            (place / text).write_bytes((options.folder / text).read_bytes())
        (place / "run.toml").write_text(settings(options, place, rounds, steps))
        begun_s = time.monotonic()
        with coordinator(options, place) as invite:
            peers = [joined(place, invite, f"peer{number}") for number in range(options.peers)]
            events = [[json.loads(line) for line in peer.communicate()[0].splitlines()]
                      for peer in peers]  # fmt: skip
        seconds = time.monotonic() - begun_s
        left = [next(one for one in told if one["event"] == "left") for told in events]
        folder = re.search(r"the model is in (\S+)", left[0]["result"])
        if folder is None:
            sys.exit(f"a peer has not finished: {left[0]}")
        loss = judged(options, Path(folder[1]) / "model.safetensors")
        curve = {
            one["round"]: one["loss"]
            for told in events
            for one in told
            if one["event"] == "evaluated"
        }
    blocks = -(-steps // 31)
    return {
        "loss": loss, "rounds": rounds, "peers": options.peers, "rate": options.rate,
        "roots": [one["root"] for one in left], "seconds": seconds,
        "payload_bytes": codec_named("int8").payload_bytes(32 * blocks, 32),
        "bytes_up_round": max(one["bytes_up"] for one in left) / rounds,
        "curve": {number: curve[number] for number in sorted(curve)[:: max(1, len(curve) // 20)]},
    }  # fmt: skip


@contextmanager
def coordinator(options: argparse.Namespace, place: Path) -> Iterator[str]:
    """A coordinator of the run file there, from its invite on."""
    command = [
        sys.executable, "-m", "swarmtrain", "up", str(place / "run.toml"), "--state-dir",
        str(place / "up"), "--listen", "127.0.0.1:0", "--from",
        str(options.folder / "model.safetensors"), "--linger", "0",
    ]  # fmt: skip
    with (place / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        invite = process.stdout.readline().strip()
        if not invite:
            sys.exit((place / "up.log").read_text())
        yield invite
    finally:
        process.terminate()
        process.wait()


def joined(place: Path, invite: str, name: str) -> "subprocess.Popen[str]":
    with (place / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "swarmtrain", "join", "--name", name, "--state-dir",
             str(place / name), "--json-events", "--device", "cpu", "--no-map", invite],
            stdout=subprocess.PIPE, stderr=log, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip


# ---- memory


class Peak:
    """Most resident memory of this process, without pages of files, from `begin` on, by phases."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._phase, self._most, self._base = "", 0, 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self._most = max(self._most, resident())
            time.sleep(LOOK_S)

    def begin(self) -> None:
        """What is here now is the interpreter's and its libraries'."""
        self._base = self._most = resident()
        self._phase = "begin"

    def switch(self, phase: str) -> None:
        """Another phase begins."""
        now = max(self._most, resident()) - self._base
        if self._phase:
            self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), now)
        self._phase, self._most = phase, 0


def memory(options: argparse.Namespace) -> int:
    """Peaks of inference and of two peers, the second of which downloads the state."""
    with tempfile.TemporaryDirectory(prefix="swarmtrain-one-byte-") as name:
        place = Path(name)
        write_texts(place)
        make_weights(options, place)
        (place / "run.toml").write_text(settings(options, place, 4, 4))
        asked = argparse.Namespace(**vars(options) | {"folder": place})
        plain = told(options, "--inference", place)
        with coordinator(asked, place) as invite:
            lives = [asks(options, "--peer", place, invite, f"peer{number}") for number in range(2)]
            peers = [json.loads(life.communicate()[0]) for life in lives]
    inference = plain["inference"]
    ratios = {
        phase: max(one.get(phase, 0) for one in peers) / inference
        for phase in dict.fromkeys(phase for one in peers for phase in one)
    }
    found = {
        "values": plain["values"], "inference_bytes": inference, "peers": peers, "ratios": ratios,
        "ratio": max(ratios.values()), "bar": BAR_MEMORY,
    }  # fmt: skip
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{plain['values'] / 1e6:.1f} M values, inference {inference / 1e6:.0f} MB")
        for phase, ratio in ratios.items():
            print(f"{phase:12} {ratio:.3f}")
        print(f"peak {found['ratio']:.3f} of inference (bar {BAR_MEMORY})")
    return 0 if found["ratio"] <= BAR_MEMORY else 1


def make_weights(options: argparse.Namespace, place: Path) -> None:
    """Any weights: what they know takes no memory."""
    import safetensors.torch

    from swarmtrain.models.build import build_model

    model = build_model(loaded(place, options), 0)
    weights = {name: one.detach() for name, one in model.named_parameters()}
    safetensors.torch.save_file(weights, place / "model.safetensors")


def asks(options: argparse.Namespace, *what: str | Path) -> "subprocess.Popen[str]":
    """This script in a process of its own."""
    shape = (f"--layers={options.layers}", f"--width={options.width}")
    command = [sys.executable, __file__, "memory", *shape, *map(str, what)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def told(options: argparse.Namespace, *what: str | Path) -> Any:
    return json.loads(asks(options, *what).communicate()[0])


def inference(options: argparse.Namespace, place: Path) -> int:
    """The losses of some batches, by the model alone."""
    import torch

    from swarmtrain.peer.network.memory import keep_freed_chunks

    torch.set_num_threads(1)
    keep_freed_chunks()  # as a peer asks of its allocator
    config = loaded(place, options)
    warm(torch)
    peak = Peak()
    peak.begin()
    trainer = trainer_of(config, pieces_of((place / "train.txt").read_bytes()), [])
    for _ in range(16):
        trainer._gradients.loss(trainer._next_batch())
    peak.switch("")
    values = sum(one.numel() for one in trainer.model.parameters())
    print(json.dumps({"inference": peak.peaks["begin"], "values": values}))
    return 0


def warm(torch: Any) -> None:
    """Whatever torch loads for a first pass is no model's."""
    from torch import nn

    nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))(torch.randn(1, 64)).sum().backward()
    torch.optim.AdamW(nn.Linear(2, 2).parameters())


def peer(options: argparse.Namespace, place: Path, invite: str, name: str) -> int:
    """A peer of the run in this process, and its peaks by phase."""
    import torch

    from swarmtrain.config.options import Endpoint, JoinOptions
    from swarmtrain.peer import run
    from swarmtrain.peer.training.driver import Driver
    from swarmtrain.peer.training.saves import Saves
    from swarmtrain.peer.training.session import Session
    from swarmtrain_transport.credentials.invite import Invite

    torch.set_num_threads(1)
    warm(torch)
    peak = Peak()

    def wrap(owner: Any, method: str, phase: str, then: str) -> None:
        inner = getattr(owner, method)

        def watched(*args: Any, **given: Any) -> Any:
            peak.switch(phase)
            try:
                return inner(*args, **given)
            finally:
                peak.switch(then)

        setattr(owner, method, watched)

    wrap(Session, "attach", "begin", "download")
    wrap(Driver, "load", "load", "inner steps")
    wrap(Driver, "contribute", "contribute", "exchange")
    wrap(Driver, "end_op", "end_op", "inner steps")
    wrap(Saves, "save", "checkpoint", "inner steps")
    wrap(Session, "_evaluate", "evaluation", "inner steps")
    make = run.BuiltinTrainer.__init__

    def made(trainer: Any, *args: Any, **given: Any) -> None:
        peak.begin()
        make(trainer, *args, **given)

    asked = JoinOptions(
        invite=Invite.parse(invite), name=name, listen=Endpoint("127.0.0.1", 0),
        state_dirs=(place / name,), json_events=True,
    )  # fmt: skip
    with patch.object(run.BuiltinTrainer, "__init__", made):
        run.run_peer(asked, say=say, emit=lambda event: None)
    peak.switch("")
    print(json.dumps(peak.peaks))
    return 0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("start", "learn", "memory"))
    parser.add_argument("--folder", type=Path, help="of start, learn: the model and its texts")
    parser.add_argument("--steps", type=int, default=2000, help="of start")
    parser.add_argument("--passes", type=int, default=20_000, help="of learn: forward passes")
    parser.add_argument("--rate", type=float, default=3e-4, help="of learn: inner.lr of one_byte")
    parser.add_argument("--outer-rate", type=float, default=0.0, help="0: the number of peers")
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--layers", type=int, help="of memory; the others take the demo's 4")
    parser.add_argument("--width", type=int, help="of memory; the others take the demo's 128")
    parser.add_argument("--inference", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    is_memory = options.what == "memory"
    options.layers = options.layers or (8 if is_memory else 4)
    options.width = options.width or (768 if is_memory else 128)
    if options.inference:
        return inference(options, options.inference)
    if options.peer:
        return peer(options, Path(options.peer[0]), *options.peer[1:])
    if options.folder is None and not is_memory:
        parser.error("--folder is missing")
    return {"start": start, "learn": learn, "memory": memory}[options.what](options)


if __name__ == "__main__":
    sys.exit(main())
