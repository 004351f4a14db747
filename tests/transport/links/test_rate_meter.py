"""Rates and caps of a link, from counters and a clock that the tests turn."""

from swarmtrain_transport import limits
from swarmtrain_transport.links.rate_meter import LinkRates, RateMeter

MB = 1_000_000


def run_at(meter: RateMeter, start_s: float, phases: list[tuple[float, float]], total: int = 0):
    """Feed (seconds, bytes per second) phases in steps of 0.1 s; time and total at the end."""
    now_s = start_s
    for seconds, rate in phases:
        for _ in range(round(seconds * 10)):
            now_s += 0.1
            total += int(rate * 0.1)
            meter.counted(total, now_s)
    return now_s, total


def test_a_steady_link_is_measured_at_its_rate() -> None:
    meter = RateMeter(0, 10.0)
    run_at(meter, 10.0, [(3.0, 5 * MB)])
    assert abs(meter.bytes_per_s - 5 * MB) < 1000


def test_waiting_for_others_does_not_make_a_link_slow() -> None:
    meter = RateMeter(0, 0.0)
    run_at(meter, 0.0, [(0.4, 25 * MB), (8.0, 1 * MB)])
    assert meter.bytes_per_s > 20 * MB


def test_acknowledgements_that_were_held_up_do_not_make_a_link_fast() -> None:
    meter = RateMeter(0, 0.0)
    now_s, total = run_at(meter, 0.0, [(4.0, 1 * MB), (1.0, 0)])
    meter.counted(total + 1 * MB, now_s + 0.2)  # what the silent second held back, all at once
    run_at(meter, now_s + 0.2, [(5.0, 1 * MB)], total + 1 * MB)
    assert meter.bytes_per_s < 1.2 * MB


def test_a_small_exchange_says_nothing() -> None:
    meter = RateMeter(0, 0.0)
    meter.settle(int(1.9 * limits.RATE_WINDOW_BYTES), 0.3)  # one window, with its round trips
    assert meter.bytes_per_s == 0
    now_s, total = run_at(meter, 0.3, [(1.0, 10 * MB)], int(1.9 * limits.RATE_WINDOW_BYTES))
    meter.settle(total, now_s)
    assert meter.bytes_per_s > 0


def test_the_best_of_the_last_exchanges_counts_and_older_ones_fade() -> None:
    meter = RateMeter(0, 0.0)
    now_s, total = run_at(meter, 0.0, [(2.0, 20 * MB)])
    meter.settle(total, now_s)
    for _ in range(limits.RATE_KEEP_OPS - 1):
        now_s, total = run_at(meter, now_s, [(2.0, 4 * MB)], total)
        meter.settle(total, now_s)
    assert meter.bytes_per_s > 19 * MB
    now_s, total = run_at(meter, now_s, [(2.0, 4 * MB)], total)
    meter.settle(total, now_s)
    assert meter.bytes_per_s < 5 * MB


def test_time_between_exchanges_is_no_part_of_a_rate() -> None:
    rates = LinkRates()
    rates.counted(0, 0, None, 0.0)
    rates.counted(0, 0, None, 100.0)
    total = 0
    for number in range(20):
        rates.counted(total, 2 * total, 1, 100.05 + 0.1 * number)
        total += MB
    rates.counted(total, 2 * total, None, 102.05)
    assert abs(rates.up_bytes_per_s - 10 * MB) < MB
    assert abs(rates.down_bytes_per_s - 20 * MB) < 2 * MB


def test_told_rates_are_within_the_caps_and_a_cap_is_told_before_any_measurement() -> None:
    rates = LinkRates(up_cap=3 * MB, down_cap=50 * MB)
    assert (rates.up_bytes_per_s, rates.down_bytes_per_s) == (3 * MB, 50 * MB)
    for number in range(20):
        rates.counted(number * MB, number * MB, 1, 0.1 * number)
    assert rates.up_bytes_per_s == 3 * MB
    assert abs(rates.down_bytes_per_s - 10 * MB) < MB
