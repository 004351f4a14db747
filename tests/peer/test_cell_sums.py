"""Sums of cells: exact whatever they hold, refused where no parts can have made them."""

import numpy as np
import pytest
import torch

from swarmtrain.peer.arithmetic import CodecArithmetic, TensorContribution
from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.plan_rules import window_floor

VALUES, BLOCK = 256, 64
ARITHMETIC = CodecArithmetic()


def window_for(peers: int, codec: str = "int8") -> Window:
    return Window(codec, BLOCK, window_floor(10, peers * limits.WEIGHT_MAX), 10)


def parts_of(peers: int, window: Window, kinds: int = 24) -> list[bytes]:
    """Parts whose scales lie all over the window, at its ends above all; so many different ones,
    given by turns, as encoding takes long."""
    rng = np.random.default_rng(peers)
    found = []
    for number in range(kinds):
        span = window.e_max - window.e_min
        low = (0, span, number % (span + 1))[number % 3]
        bits = 6 if window.codec == "int8" else 2
        values = rng.uniform(-1, 1, VALUES) * 2.0 ** (window.e_min + bits + low)
        contribution = TensorContribution(torch.from_numpy(values).float())
        found.append(contribution.encode(0, VALUES, window))
    return [found[number % kinds] for number in range(peers)]


def flat(parts: list[bytes], window: Window) -> bytes:
    total = ARITHMETIC.accumulator(VALUES, window)
    for number, part in enumerate(parts):
        total.add(part, 1 + number % limits.WEIGHT_MAX)
    return total.finish(sum(1 + number % limits.WEIGHT_MAX for number in range(len(parts))))


def sums(parts: list[bytes], cells: int, window: Window) -> list[bytes]:
    found = []
    for cell in range(cells):
        total = ARITHMETIC.accumulator(VALUES, window)
        for number in range(cell, len(parts), cells):
            total.add(parts[number], 1 + number % limits.WEIGHT_MAX)
        found.append(total.unrounded())
    return found


@pytest.mark.parametrize("codec", ["int8", "int4"])
@pytest.mark.parametrize(("peers", "span"), [(64, 24), (512, 21), (4096, 18)])
def test_the_mean_of_cells_has_the_bits_of_the_flat_one(peers: int, span: int, codec: str) -> None:
    window = window_for(peers, codec)
    assert window.e_max - window.e_min == span
    parts = parts_of(peers, window)
    weight = sum(1 + number % limits.WEIGHT_MAX for number in range(peers))
    wanted = flat(parts, window)
    for cells in {2, -(-peers // 64)} - {1}:
        given = sums(parts, cells, window)
        for one in given:
            ARITHMETIC.check_sum(one, VALUES, window, weight)
        assert ARITHMETIC.finish_sums(given, VALUES, window, weight) == wanted
        assert ARITHMETIC.finish_sums(given[::-1], VALUES, window, weight) == wanted


def test_the_smallest_part_of_all_is_not_lost_beside_the_largest() -> None:
    window = window_for(4096)
    unit = 2.0 ** (window.e_min - 7)
    small = np.zeros(VALUES)
    small[0] = unit
    large = np.full(VALUES, 2.0 ** (window.e_max + 7) * 255 * 4095)
    total = np.frombuffer(large.tobytes()) + small
    assert total[0] - large[0] == unit


def changed(value: float, window: Window) -> bytes:
    values = np.zeros(VALUES)
    values[7] = value
    return values.astype("<f8").tobytes()


def test_a_sum_that_no_parts_can_have_is_refused() -> None:
    window, weight = window_for(512), 3 * 255
    unit, most = 2.0 ** (window.e_min - 7), weight * 2.0 ** (window.e_max + 8)
    for legal in (0.0, -0.0, unit, -3 * unit, most, -most):
        ARITHMETIC.check_sum(changed(legal, window), VALUES, window, weight)
    for illegal in (unit / 2, 1.5 * unit, most + unit, 2.0**53 * unit * 2, 5e-324, 1e308):
        for value in (illegal, -illegal):
            with pytest.raises(RemoteFault) as caught:
                ARITHMETIC.check_sum(changed(value, window), VALUES, window, weight)
            assert caught.value.reason == "sum"
    for value in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(RemoteFault, match="no number"):
            ARITHMETIC.check_sum(changed(value, window), VALUES, window, weight)
    for length in (0, 8 * VALUES - 1, 8 * VALUES + 8):
        with pytest.raises(RemoteFault) as caught:
            ARITHMETIC.check_sum(bytes(length), VALUES, window, weight)
        assert caught.value.reason == "length"


def test_a_sum_beyond_what_float64_counts_in_units_is_refused() -> None:
    """In a window too wide for the weights, too, which no PLAN has."""
    window = Window("int8", BLOCK, -40, 10)
    most = 2.0 ** (53 - 40 - 7)
    ARITHMETIC.check_sum(changed(most, window), VALUES, window, 255)
    with pytest.raises(RemoteFault) as caught:
        ARITHMETIC.check_sum(changed(2 * most, window), VALUES, window, 255)
    assert caught.value.reason == "sum"
