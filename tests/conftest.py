"""Conditions that every test may count on."""

import gc
import os
import signal
import tempfile

# Before torch is loaded, here and in the processes that tests start: a thread of its that waits for
# the others sleeps. It would spin, and on cores that other tests share that is most of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Peers of tests are nobody's credit.
_LIFETIME = tempfile.TemporaryDirectory(prefix="swarmtrain-lifetime-")
os.environ["SWARMTRAIN_LIFETIME"] = _LIFETIME.name

# Hundreds of processes that tests start share what the first of them has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure() -> None:
    # Started with nohup, all tests and the processes that they start would ignore closed terminals.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    # All modules, torch's above all, and all tests stay to the end: nobody needs to look through
    # them for garbage again and again.
    gc.collect()
    gc.freeze()
