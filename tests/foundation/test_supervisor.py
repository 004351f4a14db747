"""Words to systemd, as it would hear them."""

import socket

from swarmtrain.foundation import supervisor


def test_words_reach_the_supervisors_socket_and_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    supervisor.say("READY=1")  # nobody supervises
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        supervisor.say("READY=1\nSTATUS=in a run")
        assert heard.recv(1024) == b"READY=1\nSTATUS=in a run"
    supervisor.say("WATCHDOG=1")  # it is gone: that is no trouble of ours


def test_the_watchdog_is_fed_twice_as_often_as_it_wants(monkeypatch):
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    for said, seconds in (("180000000", 90.0), ("0", 0.0), ("x", 0.0)):
        monkeypatch.setenv("WATCHDOG_USEC", said)
        assert supervisor.watchdog_s() == seconds
    monkeypatch.setenv("WATCHDOG_USEC", "180000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert supervisor.watchdog_s() == 0.0, "it watches another process"
