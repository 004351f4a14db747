"""A subspace that moves beside one that stays where it is: held-out loss after equal steps.

    python benchmarks/pipelines/moving.py [--steps 2000] [--seeds 3] [--processes 2] [--json]

Protocol Models (arXiv 2506.01260) keep what is written to the residual stream inside the span of U,
(width, rank), beside a fixed part by token, and move U now and then along the Grassmann manifold,
so that less of the last boundary's gradient falls outside. A run in stages (`pipeline.subspace`)
leaves U where it is, as the first channels, unless it has `turn_rounds`. Here one model in one
piece is trained with any U: weights that write are projected after each step, in all blocks but the
last. Those that move begin where `drawn` stays.

A move takes G, (tokens, width), the gradient at the last block's input summed as G^T G over the
steps since the last move, and goes along the geodesic of (I - U U^T) G^T G U so far that the
largest angle is `angle`. `random` goes as far in a direction by chance. The bar was written down
before the first run: moves are worth a record of the run if the best of them wins 1 %. Exit status
0 where they do.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import mean, stdev
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from swarmtrain.config.settings import ModelSection
from swarmtrain.data.corpus import build_corpus
from swarmtrain.models.transformer import build_model

BAR = 0.99
"""Loss of the best moves by that of a subspace that stays, at most."""

WIDTH, CONTEXT, WINDOWS, VALIDATION_WINDOWS = 128, 128, 16, 256
FIXED_STD, RATE, WARMUP = 0.14, 0.003, 100
WRITERS = ("attention_out.weight", "mlp_down.weight")


class Way(NamedTuple):
    """A way to choose U, if there is one; it moves every so many steps, 0 for never."""

    is_thin: bool = True
    is_drawn: bool = False
    every: int = 0
    angle: float = 0.0
    is_random: bool = False


WAYS = {
    "no subspace": Way(is_thin=False),
    "first channels": Way(),
    "drawn": Way(is_drawn=True),
    "0.03 every 20": Way(every=20, angle=0.03),
    "0.1 every 100": Way(every=100, angle=0.1),
    "0.3 every 500": Way(every=500, angle=0.3),
    "1.0 every 500": Way(every=500, angle=1.0),
    "0.1 every 100, random": Way(every=100, angle=0.1, is_random=True),
    "1.0 every 500, random": Way(every=500, angle=1.0, is_random=True),
}


def moved(basis: Tensor, direction: Tensor, angle: float) -> Tensor:
    """The end of a geodesic of the Grassmann manifold (Edelman et al. 1998, theorem 2.3).

    Args:
        basis: (width, rank), orthonormal.
        direction: (width, rank), any; its part inside the span says nothing.
        angle: the largest principal angle between both ends, in radians.
    """
    tangent = direction - basis @ (basis.T @ direction)
    left, sizes, right = torch.linalg.svd(tangent, full_matrices=False)
    angles = angle * sizes / sizes[0]
    end = basis @ right.T @ torch.diag(angles.cos()) + left @ torch.diag(angles.sin())
    return torch.linalg.qr(end @ right).Q


def windows(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, CONTEXT + 1) tokens."""
    at = torch.randint(len(text) - CONTEXT - 1, (count,), generator=generator)
    return text[at[:, None] + torch.arange(CONTEXT + 1)]


def loss_of(way: Way, rank: int, seed: int, steps: int, device: str) -> float:
    """Nats per byte of held-out text after training."""
    corpus = build_corpus(4096, validation_pieces=64)
    joined = (b"".join(map(corpus.piece, part)) for part in (corpus.train, corpus.validation))
    text, held_out = (torch.frombuffer(bytearray(one), dtype=torch.uint8).long() for one in joined)
    section = ModelSection(kind="transformer", layers=4, width=WIDTH, heads=4, context=CONTEXT)
    model = build_model(section, seed).to(device)
    draws = torch.Generator().manual_seed(seed)
    fixed = FIXED_STD * torch.randn(256, WIDTH, generator=draws).to(device)
    turned = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=draws)).Q.to(device)
    basis = (turned if way.is_drawn or way.every else torch.eye(WIDTH, device=device))[:, :rank]
    written = [
        parameter
        for name, parameter in model.named_parameters()
        if name.endswith(WRITERS) and not name.startswith("blocks.3.")
    ]

    def confine() -> None:
        if not way.is_thin:
            return
        with torch.no_grad():
            for weight in written:
                weight.copy_(basis @ (basis.T @ weight))
            table = model.embedding.weight
            table.copy_((table - fixed) @ basis @ basis.T + fixed)

    if way.is_thin:
        with torch.no_grad():
            model.embedding.weight.add_(fixed)
    confine()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP) * (1.0 - 0.9 * step / steps)
    )
    gathered = torch.zeros(WIDTH, WIDTH, device=device)

    def gather(gradient: Tensor) -> None:
        by_token = gradient.flatten(0, 1)
        gathered.addmm_(by_token.T, by_token)

    def watch(_: object, inputs: tuple[Tensor, ...]) -> None:
        if model.training and way.every:
            inputs[0].register_hook(gather)

    model.blocks[-1].register_forward_pre_hook(watch)
    reading = torch.Generator().manual_seed(1000 + seed)
    for step in range(1, steps + 1):
        tokens = windows(text, WINDOWS, reading).to(device)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        if way.every and step % way.every == 0 and step <= 0.9 * steps:
            chance = torch.randn(WIDTH, rank, generator=draws).to(device)
            basis = moved(basis, chance if way.is_random else gathered @ basis, way.angle)
            gathered.zero_()
        confine()
    model.eval()
    reading.manual_seed(7)
    with torch.inference_mode():
        tokens = windows(held_out, VALIDATION_WINDOWS, reading).to(device)
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


def one(task: tuple[str, int], rank: int, steps: int, device: str) -> float:
    torch.set_num_threads(1)
    return loss_of(WAYS[task[0]], rank, task[1], steps, device)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, default=32, help="of a width of 128")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    tasks = [(name, seed) for seed in range(options.seeds) for name in WAYS]
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        losses = pool.map(
            partial(one, rank=options.rank, steps=options.steps, device=options.device), tasks
        )
        found = dict(zip(tasks, losses, strict=True))
    by_still = {
        name: [found[name, seed] / found["drawn", seed] for seed in range(options.seeds)]
        for name in WAYS
    }
    best = min(
        mean(by_still[name]) for name, way in WAYS.items() if way.every and not way.is_random
    )
    figures = {
        "losses": {name: [found[name, seed] for seed in range(options.seeds)] for name in WAYS},
        "by_still": {
            name: [mean(some), stdev(some) if len(some) > 1 else 0.0]
            for name, some in by_still.items()
        },
        "best_moves": best, "bar": BAR, "holds": best <= BAR,
    }  # fmt: skip
    if options.json:
        print(json.dumps(figures))
    else:
        for name, (ratio, spread) in figures["by_still"].items():
            print(f"{name:24} {ratio:.4f} +- {spread:.4f} of the loss of one that stays")
        print(f"best moves {best:.4f} (bar {BAR})")
    return 0 if best <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
