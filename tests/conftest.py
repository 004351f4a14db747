"""Conditions that every test may count on."""

import signal


def pytest_configure() -> None:
    # Started with nohup, all tests and the processes that they start would ignore closed terminals.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
