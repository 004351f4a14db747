"""The same bits under every CPU capability and thread count, and the same as when written down.

torch chooses its kernels once, when it is imported, so each capability is a process of its own;
two run at a time and both thread counts share a process. MKL chooses its own kernels too, those for
processors of another make among them: told to use these, it rounds torch's square roots otherwise
on any processor (17 % of them in float32), as on AMD.
"""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from swarmtrain.foundation import numerics

torch.set_num_threads(1)
HERE = Path(__file__).parent
CAPABILITIES = {"DEFAULT": "default", "AVX2": "avx2", "AVX512": "avx512"}
OF_ANOTHER_MAKE = {"MKL_CBWR": "COMPATIBLE"}
SECONDS = 280
"""Seconds of one process on a busy machine; on a quiet one it needs a tenth of them."""


def usable_capabilities() -> list[str]:
    """Those that this processor has; asking torch for a better one would crash it."""
    best = torch.backends.cpu.get_cpu_capability()
    names = list(CAPABILITIES)
    return names[: names.index(best) + 1] if best in CAPABILITIES else []


def environments() -> list[dict[str, str]]:
    """Return environments that make torch and MKL choose each set of kernels that this processor
    can run. One of another family has one set: it must give the same bits too."""
    found = [{"ATEN_CPU_CAPABILITY": CAPABILITIES[name]} for name in usable_capabilities()]
    return [{**OF_ANOTHER_MAKE, **setting} for setting in found[:1]] + found[1:] or [{}]


def hashes_under(setting: dict[str, str]) -> dict[str, object]:
    finished = subprocess.run(
        [sys.executable, str(HERE / "kernels.py")],
        env={**os.environ, **setting},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    report: dict[str, object] = json.loads(finished.stdout)
    return report


def differing(found: object, wanted: dict[str, str]) -> list[str]:
    """The operations whose bits are not those that were written down."""
    assert isinstance(found, dict)
    names = {**wanted, **found}
    return [name for name in names if found.get(name) != wanted.get(name)]


@pytest.mark.timeout(2 * SECONDS + 20)
def test_kernels_give_the_golden_bits_under_every_capability_and_thread_count() -> None:
    golden = json.loads((HERE / "kernels.json").read_text())
    with ThreadPoolExecutor(max_workers=2) as pool:
        reports = list(pool.map(hashes_under, environments()))
    for setting, report in zip(environments(), reports, strict=True):
        if setting:
            assert CAPABILITIES[str(report["capability"])] == setting["ATEN_CPU_CAPABILITY"]
        for num_threads in ("1", "2"):
            found = differing(report[num_threads], golden)
            assert not found, f"{setting}, {num_threads} threads: {', '.join(found)}"


def test_the_probe_at_the_door_is_the_golden_one_and_lets_this_machine_in() -> None:
    golden = json.loads((HERE / "kernels.json").read_text())
    for name, digest in numerics.EXPECTED.items():
        assert golden[f"door: {name}"] == digest, name
    assert numerics.probe().keys() == numerics.EXPECTED.keys()
    numerics.check()


def test_a_machine_with_another_square_root_is_refused_by_the_name_of_the_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true_root = np.sqrt

    def rounded_otherwise(
        values: npt.NDArray[Any], out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Off by one unit in the last place in 17 % of values, as MKL's on a processor of AMD."""
        roots: npt.NDArray[Any] = true_root(values, out=out)
        places = np.arange(roots.size) % 100 < 17
        roots[places] = np.nextafter(roots[places], np.inf)
        return roots

    monkeypatch.setattr(np, "sqrt", rounded_otherwise)
    with pytest.raises(
        numerics.NumericsError, match="differs in square root, adamw step"
    ) as caught:
        numerics.check()
    assert caught.value.reason == "numerics"
    assert caught.value.operations == ("square root", "adamw step")


@pytest.mark.parametrize(("precision", "dtype"), [(24, np.float32), (53, np.float64)])
def test_the_hard_squares_lie_where_a_root_goes_wrong_first(
    precision: int, dtype: type[np.floating[Any]]
) -> None:
    """Off by a thousandth of a unit before it is rounded, a root comes out as another number."""
    squares = numerics.hard_squares(precision, 100)
    assert [int(value) for value in np.array(squares, dtype)] == squares, "they are such numbers"
    assert len(set(squares)) == 100
    for square in squares:
        # The root has one bit more before its point than such a number has: a unit is 2.
        thousandths = math.isqrt(square * 10**6 // 4)
        assert abs(thousandths % 1000 - 500) <= 1


def test_a_machine_that_rounds_otherwise_is_told_why_it_cannot_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fused_step(
        mean: torch.Tensor, phi: torch.Tensor, m: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Do what torch.optim.SGD may do: one rounding where the rule has two (mutant M14)."""
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
    assert caught.value.operations == ("outer step", "adamw step")
