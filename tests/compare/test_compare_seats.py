"""Runs side by side, a process each: the same bits, none held back, and a dead process told."""

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from compare_text import TINY

from swarmtrain.compare import seats
from swarmtrain.data.corpus import build_corpus
from swarmtrain.foundation.errors import UserError


class Deadly:
    """Ends the process that reads it, as the system does where memory is short."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)


def test_two_seats_make_what_one_process_makes():
    plans = [replace(TINY, seed=seed, peers=2, steps=2, windows=1) for seed in range(3)]
    text = build_corpus(65_536)
    found = seats.run_plans(plans, 2, lambda: True, text)
    beside = {plan: result for plan, result, _ in found}
    ((_, here, _),) = seats.run_plans(plans[2:], 1, lambda: True, text)
    assert set(beside) == set(plans)
    assert beside[plans[2]] == here


def test_a_process_that_the_system_ends_is_told_and_nobody_waits_for_it():
    with pytest.raises(UserError, match="ended by the system") as caught:
        list(seats.run_plans([Deadly(), Deadly()], 2, lambda: True, None))
    assert caught.value.code == "SWT-E406"


def test_what_goes_wrong_in_a_process_is_told_as_if_it_had_gone_wrong_here():
    for processes in (1, 2):
        with pytest.raises(AttributeError, match="no attribute"):
            list(seats.run_plans(["no plan"], processes, lambda: True, build_corpus(65_536)))


STARTER = """
from swarmtrain.compare import seats

class Slow:
    def __reduce__(self):
        words = "import os, time; os.write(1, b'%d\\\\n' % os.getpid()); time.sleep(60)"
        return exec, (words,)

if __name__ == "__main__":
    list(seats.run_plans([Slow(), Slow()], 2, lambda: True, None))
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_processes_end_with_who_has_started_them_however_that_ends(tmp_path):
    script = tmp_path / "starter.py"
    script.write_text(STARTER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        handles = [os.pidfd_open(int(starter.stdout.readline())) for _ in range(2)]
        starter.kill()
    for handle in handles:
        assert select.select([handle], [], [], 30.0)[0]
        os.close(handle)


def test_there_is_at_least_one_core():
    assert seats.cores() >= 1


def test_a_process_is_never_told_of_ctrl_c_from_its_first_moment():
    def blocked() -> bool:
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, set())

    with seats._without_interrupts():
        assert blocked()
    assert not blocked()
