"""The probe at the door: does this machine compute the same bits as everybody else's?

All peers apply the same bytes and must reach the same state root, so a machine whose CPU, library
or flush mode rounds otherwise would be found out after its first round, at everybody's cost. The
probe runs the whole path of an op (encode, add, subtract, finish, decode, outer step; protocol.md
rules 4 to 6) on 64 KiB of fixed input and compares one SHA-256. The input is made with SHAKE-256
and integer operations: random generators and their seeds differ between versions. A probe proves
nothing about a machine that lies; state roots do that.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swarmtrain_optimizers.codecs.base import Codec
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.codecs.raw import Raw
from swarmtrain_optimizers.outer import State, nesterov, outer_step

EXPECTED = "330d78b230e92fc6a93fc8e9a2be609fc76cb5bc4fc135b48f290103be7bbd36"
"""SHA-256 of every byte that the probe makes, the same on every machine that may join."""

_NUM_VALUES = 16_384
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
    """

    reason = "numerics"


def probe_values(label: str, num_values: int, *, lowest_exponent: int) -> Tensor:
    """Fixed pseudo-random float32 with exponents spread over sixteen powers of two per block.

    Args:
        label: which of the inputs; another label gives other values.
        num_values: how many.
        lowest_exponent: of the first block's smallest values; it rises by one per block, and
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


def probe() -> str:
    """SHA-256, in hexadecimal, of all bytes on the way through three ops. Takes milliseconds."""
    digest = hashlib.sha256()
    params = probe_values("weights", _NUM_VALUES, lowest_exponent=-20)
    transform = nesterov(0.7, 0.9)
    state: State = transform.init(params)
    for op in range(3):
        codec: Codec = Raw() if op == 2 else Int8()
        mean = _probe_mean(codec, op, digest)
        params_out, state_out = torch.empty_like(params), transform.init(params)
        outer_step(transform, mean, params, state, params_out, state_out)
        params, state = params_out, state_out
        _absorb(digest, params, *state)
    return digest.hexdigest()


def check() -> None:
    """Refuse a machine that computes other bits, before it can disturb a run.

    Raises:
        NumericsError: the probe's digest is not the expected one.
    """
    found = probe()
    if found != EXPECTED:
        raise NumericsError(
            "this machine does not compute the same bits as the others: its arithmetic probe "
            f"gave {found[:16]}, wanted {EXPECTED[:16]} (torch {torch.__version__}, CPU "
            f"capability {torch.backends.cpu.get_cpu_capability()}). It would end every round "
            "with another state, so it cannot join. Install the torch version that the run's "
            "constraints file names, or use another machine."
        )


def _probe_mean(codec: Codec, op: int, digest: "hashlib._Hash") -> Tensor:
    """The decoded mean of three parts, one of which is taken back if the codec can."""
    window = _Window()
    acc = torch.zeros(_NUM_VALUES, dtype=torch.float64)
    parts = []
    for index, weight in enumerate(_WEIGHTS):
        # The range of exponents reaches below what the window keeps.
        values = probe_values(f"part {op} {index}", _NUM_VALUES, lowest_exponent=-40)
        part = codec.encode(values, window)
        codec.check(part, _NUM_VALUES, window)
        codec.add_(acc, part, weight, window)
        digest.update(part)
        parts.append(part)
    _absorb(digest, acc)
    total_weight = sum(_WEIGHTS)
    if codec.exact:
        codec.subtract_(acc, parts[1], _WEIGHTS[1], window)
        total_weight -= _WEIGHTS[1]
        _absorb(digest, acc)
    result = codec.finish(acc, total_weight, window)
    digest.update(result)
    mean = codec.decode(result, _NUM_VALUES, window)
    _absorb(digest, mean)
    return mean


def _absorb(digest: "hashlib._Hash", *tensors: Tensor) -> None:
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
