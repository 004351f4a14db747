"""The probe at the door: does this machine compute the same bits as everybody else's?

All peers apply the same bytes and must reach the same state root, so a machine whose CPU, library
or flush mode rounds otherwise would be found out after its first round, at everybody's cost. The
probe hashes what single operations make of 64 KiB of fixed input each (protocol.md rule 4), then
the way of an op: encode, add, subtract, finish, decode, and the steps that everybody makes. One
hash each, so that a machine that differs is told where. The input is made with SHAKE-256 and
integer operations: random generators and their seeds differ between versions. A probe proves
nothing about a machine that lies; state roots do that.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarmtrain_optimizers.codecs.base import Codec
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.codecs.raw import Raw
from swarmtrain_optimizers.outer import OuterTransform, State, nesterov, outer_step
from swarmtrain_optimizers.schedule import warmup_cosine
from swarmtrain_optimizers.strategies.ddp.strategy import AdamW

EXPECTED = {
    "addition": "23469edb495eebe9fc79de2138925e7543ce40dd41894045d283783f55e18106",
    "subtraction": "ba7e47f89518cb1af6ee0564cc26f5612b2980fb3b865213c1fee6dee7ca298f",
    "multiplication": "4784c3ff5e6f3c16a5a1301c49bed1e82627ed8775314062b3e8c48e29fbfb45",
    "division": "f25d30808849b98caa34f9f860d713e35955dd263b1c3926427c216c4b9ffe28",
    "square root": "176a16fc0624d5a959b04ebfe611af7cd2b58f53d1e3b643df944023a88ac3ac",
    "rounding": "63b9cf4d268b578db1cbfb49b63206b59edcb849ecb18510ec972e10156559af",
    "int8 mean": "2addb82918fd77eadd3db477209f7ff4ba905976e2ff78dd7aae30bdf4fbdf5e",
    "float32 mean": "573538bf70bbac8b3642ad2baa62929e15bff10358ab3300868c987f96e4dbe1",
    "outer step": "68c732fde09f55d46f98f0c42f23576643b9902c521a18fef5e0631945fefb53",
    "adamw step": "ea87911c321b4e2508dcffbfcdb54a7a117dccf1b527082d94fb547fcc7d56c0",
    "learning rate": "c7799d553e31ab86ca8df2e47f34e4e8296192ec7d4fcb2a7ea22a3992ec10c7",
}
"""SHA-256 of every byte that an operation makes, the same on every machine that may join."""

_NUM_VALUES = 16_384
_HARD = 1_024
_WEIGHTS = (255, 1, 93)


@dataclass(frozen=True, slots=True)
class _Window:
    block: int = 1024
    e_min: int = -24
    e_max: int = 0


class NumericsError(RuntimeError):
    """This machine cannot take part.

    Attributes:
        reason: always ``numerics``.
        operations: operations whose bits differ here.
    """

    reason = "numerics"

    def __init__(self, message: str, operations: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.operations = operations


def probe_values(label: str, num_values: int, *, lowest_exponent: int) -> Tensor:
    """Fixed pseudo-random float32 with exponents spread over sixteen powers of two per block.

    Args:
        label: name of one of the inputs; another label gives other values.
        lowest_exponent: exponent of the first block's smallest values; it rises by one a block and
            starts again after sixteen, so that blocks fall on both sides of a window's edge.

    Returns:
        (num_values,) float32, normal and finite.
    """
    stream = hashlib.shake_256(f"swarmtrain numerics {label}".encode()).digest(4 * num_values)
    words = np.frombuffer(stream, dtype="<u4")
    block_index = np.arange(num_values, dtype=np.uint32) // np.uint32(1024)
    exponents = ((words >> np.uint32(23)) & np.uint32(15)) + (block_index & np.uint32(15))
    exponents += np.uint32(127 + lowest_exponent)
    sign_and_mantissa = words & np.uint32(0x807F_FFFF)
    bits = sign_and_mantissa | (exponents << np.uint32(23))
    return torch.from_numpy(bits.astype(np.int32)).view(torch.float32)


def hard_squares(precision: int, count: int) -> list[int]:
    """Integers of so many significant bits whose roots lie as near as can be to the middle between
    two floating-point numbers: a root that is off before it is rounded goes wrong here first.

    With n odd, c small and n^2 = c modulo 2^(precision + 2), the number is n^2 - c, and n / 2 units
    in the last place are such a middle. The root of c is found bit by bit, for c = 1 modulo 8.

    >>> hard_squares(24, 1)[0] == (2**24 + 1) ** 2 - 1
    True
    """
    found = []
    for index in range(count):
        c = 1 + 8 * ((index + 1) // 2 if index % 2 else -(index // 2))
        root = 1
        for bit in range(3, precision + 2):
            root += ((root * root - c) >> bit & 1) << (bit - 1)
        half = 1 << (precision + 1)
        n = next(n for n in (root % half, -root % half) if n >= half // 2)
        found.append(n * n - c)
    return found


def probe(num_values: int = _NUM_VALUES) -> dict[str, str]:
    """SHA-256, in hexadecimal, of what each operation makes, by its name. Takes milliseconds.

    Args:
        num_values: a multiple of 1024.
    """
    return {
        **_single_operations(num_values),
        "int8 mean": _mean_of(Int8(), num_values),
        "float32 mean": _mean_of(Raw(), num_values),
        "outer step": _steps_of(lambda _: nesterov(0.7, 0.9), num_values),
        "adamw step": _steps_of(lambda op: AdamW().transform(op, 3e-4), num_values),
        "learning rate": _sha256(_rates()),
    }


def check() -> None:
    """Refuse a machine that computes other bits, before it can disturb a run.

    Raises:
        NumericsError: a digest is not the expected one.
    """
    found = probe()
    differing = tuple(name for name, digest in EXPECTED.items() if found.get(name) != digest)
    if differing:
        raise NumericsError(
            "this machine does not compute the same bits as the others: its arithmetic probe "
            f"differs in {', '.join(differing)} (torch {torch.__version__}, numpy "
            f"{np.__version__}, CPU capability {torch.backends.cpu.get_cpu_capability()}). It "
            "would end every round with another state, so it cannot join. Install the versions "
            "of torch and numpy that the run's constraints file names, or use another machine.",
            differing,
        )


def _single_operations(num_values: int) -> dict[str, str]:
    """Operations that IEEE 754 fixes to the last bit, by torch and numpy, in both precisions."""
    singles = [probe_values(name, num_values, lowest_exponent=-20) for name in ("left", "right")]
    doubles = [_probe_doubles(name, num_values) for name in ("left", "right")]
    pairs = [(left, right, left.numpy(), right.numpy()) for left, right in (singles, doubles)]
    roots = [np.abs(left) for _, _, left, _ in pairs]
    roots += [np.array(hard_squares(24, _HARD), "f4"), np.array(hard_squares(53, _HARD), "f8")]
    return {
        "addition": _sha256(*(part for x, y, u, v in pairs for part in (x + y, u + v))),
        "subtraction": _sha256(*(part for x, y, u, v in pairs for part in (x - y, u - v))),
        "multiplication": _sha256(*(part for x, y, u, v in pairs for part in (x * y, u * v))),
        "division": _sha256(*(part for x, y, u, v in pairs for part in (x / y, u / v))),
        "square root": _sha256(*(np.sqrt(values) for values in roots)),
        "rounding": _sha256(
            *(part for x, _, u, _ in pairs for part in (torch.round(x), np.rint(u))),
            doubles[0].float(),
            doubles[0].numpy().astype("f4"),
        ),
    }


def _probe_doubles(label: str, num_values: int) -> Tensor:
    """Return (num_values,) float64 of magnitudes between 2^-8 and 2^8; see `probe_values`."""
    stream = hashlib.shake_256(f"swarmtrain numerics {label} 64".encode()).digest(8 * num_values)
    words = np.frombuffer(stream, dtype="<u8")
    exponents = ((words >> np.uint64(52)) & np.uint64(15)) + np.uint64(1023 - 8)
    bits = words & np.uint64(0x800F_FFFF_FFFF_FFFF) | exponents << np.uint64(52)
    return torch.from_numpy(bits.astype(np.int64)).view(torch.float64)


def _steps_of(transform_of: Callable[[int], OuterTransform], num_values: int) -> str:
    """Three steps on fixed means: the parameters and the optimizer's state after each."""
    params = probe_values("weights", num_values, lowest_exponent=-20)
    state: State = transform_of(1).init(params)
    made: list[Tensor] = []
    for op in range(1, 4):
        mean = probe_values(f"mean {op}", num_values, lowest_exponent=-30)
        params_out, state_out = torch.empty_like(params), transform_of(op).init(params)
        outer_step(transform_of(op), mean, params, state, params_out, state_out)
        params, state = params_out, state_out
        made += [params, *state]
    return _sha256(*made)


def _rates() -> npt.NDArray[np.float64]:
    """A schedule's learning rates, which with ddp are everybody's."""
    shape = {"warmup_steps": 100, "total_steps": 1000}
    rates = [warmup_cosine(s, peak=3e-4, end_fraction=0.1, **shape) for s in range(1100)]
    return np.array(rates, "f8")


def _mean_of(codec: Codec, num_values: int) -> str:
    """Parts, sum, result and decoded mean of three parts, one taken back if the codec can."""
    window = _Window()
    acc = torch.zeros(num_values, dtype=torch.float64)
    parts = []
    for index, weight in enumerate(_WEIGHTS):
        # The range of exponents reaches below what the window keeps.
        values = probe_values(f"part {index}", num_values, lowest_exponent=-40)
        part = codec.encode(values, window)
        codec.check(part, num_values, window)
        codec.add_(acc, part, weight, window)
        parts.append(part)
    made: list[bytes | Tensor] = [*parts, acc.clone()]
    total_weight = sum(_WEIGHTS)
    if codec.exact:
        codec.subtract_(acc, parts[1], _WEIGHTS[1], window)
        total_weight -= _WEIGHTS[1]
        made.append(acc.clone())
    result = codec.finish(acc, total_weight, window)
    return _sha256(*made, result, codec.decode(result, num_values, window))


def _sha256(*made: "bytes | Tensor | npt.NDArray[Any]") -> str:
    digest = hashlib.sha256()
    for part in made:
        array = part.numpy() if isinstance(part, Tensor) else part
        digest.update(array if isinstance(array, bytes) else array.tobytes())
    return digest.hexdigest()
