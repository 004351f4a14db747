"""Tokens a second that links between stages carry, in int8 and in float16; or in a subspace.

    python benchmarks/pipelines/links.py [--net 100:50] [--pairs 3] [--rounds 3] [--json]
    python benchmarks/pipelines/links.py --subspace [--rank 64] [--json]

`swarmtrain up` and `swarmtrain join` in the lab's network namespaces, each with a link of its own
of 100 Mbit/s both ways, 50 ms there and back. Linux only; as root; iproute2, and gcc for the delay.
Exit status 1 beyond the bar. Three stages of one peer each. The one in the middle sends as much
forward as backward, and its layer is left out (`wire_peer.py`): so the links are what holds the run
back, and not two cores that three peers share. A step is of twelve micro-batches, so that as many
may be under way as fill the links; of six (`--batch 384`) fewer may, whatever the links carry.

`--subspace`: 64 coordinates of a token by int8 of all 768, context 256, over 20 Mbit/s and 50 ms;
passes take 10 ms and are paced by sleeps.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rig import STAGES, Diary, Host, Run, machine, parser_of, told

sys.path.append(str(Path(__file__).resolve().parents[1] / "lab"))

from network import NAME, Net

BAR, SUBSPACE_BAR = 1.8, 5.0

WARMUP_ROUNDS = 1

WIRE_PEER = (str(Path(__file__).with_name("wire_peer.py")),)

HOSTS = {
    name: Host(("ip", "netns", "exec", f"{NAME}-p{index}"), f"10.77.0.{index + 1}")
    for index, name in enumerate(("up", *(f"p{stage}" for stage in range(STAGES))))
}


def rate(options: argparse.Namespace, folder: Path, activations: str) -> dict[str, float]:
    """Figures of a run, after the rounds that warm up."""
    rounds = WARMUP_ROUNDS + options.rounds
    folder.mkdir()
    with Run(
        folder, time.monotonic() + options.timeout, HOSTS, activations=activations, rounds=rounds,
        steps=options.steps, layers=1, width=options.width, heads=1, context=options.context,
        batch=options.batch, micro_batch=options.micro_batch, peers=STAGES,
    ) as run:  # fmt: skip
        paced = ("--pass-seconds", str(options.pass_seconds)) if options.pass_seconds else ()
        for stage in range(STAGES):
            run.join(f"p{stage}", "--span", str(stage), "--keep", "0", *paced, program=WIRE_PEER)
        diary = Diary(run)
        for view in run.watch():
            diary.note(view)
    if len(diary.booked) < rounds:
        raise RuntimeError(f"{len(diary.booked)} rounds were seen of {rounds}")
    return diary.between(WARMUP_ROUNDS - 1, rounds - 1)


def links(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both forms in turn, on the same net."""
    forms = (f"subspace-{options.rank}", "int8") if options.subspace else ("int8", "float16")
    bar = SUBSPACE_BAR if options.subspace else BAR
    found: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
    with Net(len(HOSTS), options.net):
        for pair in range(options.pairs):
            for form, some in found.items():
                some.append(rate(options, folder / f"{form}-{pair}", form))
    rates = {form: [one["tokens_per_s"] for one in some] for form, some in found.items()}
    ratios = [thin / wide for thin, wide in zip(*rates.values(), strict=True)]
    both = [one for some in found.values() for one in some]
    ratio = statistics.median(ratios)
    return {
        **{f"{form}_tokens_per_s": statistics.median(some) for form, some in rates.items()},
        "ratio": ratio, "ratio_min": min(ratios), "ratio_max": max(ratios),
        "lost": sum(one["lost"] for one in both), "redone": sum(one["redone"] for one in both),
        "cores_busy": max(one["cores_busy"] for one in both),
        **machine(), "bar": bar, "holds": ratio >= bar,
    }  # fmt: skip


def options_of(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, timeout_s=300.0)
    parser.add_argument("--net", default="100:50", help="Mbit/s each way, and ms there and back")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each form, in turn")
    parser.add_argument("--rounds", type=int, default=3, help="of a run, after one that warms up")
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--batch", type=int, default=768, help="of a step")
    parser.add_argument("--width", type=int, default=256, help="of what passes between stages")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--pass-seconds", type=float, default=0.0, help="sleep until it has passed")
    parser.add_argument("--subspace", action="store_true", help="by int8, over 20 Mbit/s")
    parser.add_argument("--rank", type=int, default=64, help="of the subspace")
    if parser.parse_args(words).subspace:
        parser.set_defaults(
            net="20:50",
            width=768,
            context=256,
            micro_batch=4,
            batch=48,
            pass_seconds=0.01,
            timeout=900.0,
        )
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(told(options_of(), links))
