"""The same bits under every CPU capability and thread count, and the same as when written down.

torch chooses its kernels once, when it is imported, so each capability is a process of its own;
two run at a time and both thread counts share a process.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from swarmtrain import numerics

torch.set_num_threads(1)
HERE = Path(__file__).parent
CAPABILITIES = {"DEFAULT": "default", "AVX2": "avx2", "AVX512": "avx512"}


def usable_capabilities() -> list[str]:
    """Those that this processor has; asking torch for a better one would crash it."""
    best = torch.backends.cpu.get_cpu_capability()
    names = list(CAPABILITIES)
    return names[: names.index(best) + 1] if best in CAPABILITIES else []


def hashes_under(capability: str | None) -> dict[str, object]:
    environment = dict(os.environ)
    if capability is not None:
        environment["ATEN_CPU_CAPABILITY"] = CAPABILITIES[capability]
    finished = subprocess.run(
        [sys.executable, str(HERE / "kernels.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    report: dict[str, object] = json.loads(finished.stdout)
    return report


def test_kernels_give_the_golden_bits_under_every_capability_and_thread_count() -> None:
    golden = json.loads((HERE / "kernels.json").read_text())
    # A processor of another family has one set of kernels: they must give the same bits too.
    capabilities: list[str | None] = [*usable_capabilities()] or [None]
    with ThreadPoolExecutor(max_workers=2) as pool:
        reports = list(pool.map(hashes_under, capabilities))
    for capability, report in zip(capabilities, reports, strict=True):
        if capability is not None:
            assert report["capability"] == capability
        for num_threads in ("1", "2"):
            assert report[num_threads] == golden, f"{capability}, {num_threads} threads"


def test_the_probe_at_the_door_is_the_golden_one_and_lets_this_machine_in() -> None:
    assert json.loads((HERE / "kernels.json").read_text())["probe"] == numerics.EXPECTED
    numerics.check()


def test_a_machine_that_rounds_otherwise_is_told_why_it_cannot_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fused_step(
        mean: torch.Tensor, phi: torch.Tensor, m: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """What torch.optim.SGD may do: one rounding where the rule has two (mutant M14)."""
        momentum = torch.add(mean, m, alpha=0.9)
        return torch.add(phi, torch.add(mean, momentum, alpha=0.9), alpha=-0.7), momentum

    def patched(
        _: object,
        mean: torch.Tensor,
        params: torch.Tensor,
        state: tuple[torch.Tensor, ...],
        params_out: torch.Tensor,
        state_out: tuple[torch.Tensor, ...],
    ) -> None:
        after, momentum = fused_step(mean.double(), params.double(), state[0].double())
        params_out.copy_(after)
        state_out[0].copy_(momentum)

    monkeypatch.setattr(numerics, "outer_step", patched)
    with pytest.raises(numerics.NumericsError, match="cannot join") as caught:
        numerics.check()
    assert caught.value.reason == "numerics"
