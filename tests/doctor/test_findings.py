"""What is found about a machine: each lack is named, with what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from swarmtrain.doctor import findings as f
from swarmtrain.doctor.findings import BAD, NOTE, OK, Finding, Machine, of_machine
from swarmtrain.doctor.router import Router
from swarmtrain.foundation.error_table import TABLE

WELL = Machine(
    python="3.13.1 on Linux", directory=Path("runs"), free_bytes=50 << 30, can_write=True,
    memory_bytes=8 << 30, fits="125M", needs_bytes=0, torch="2.13.0", device="cpu",
    is_cuda_idle=False, gflops=100.0, numerics="", cores=4, now_s=2e9, installed_s=1.9e9,
    files=4096, ipv6="2001:db8::7", congestion="cubic",
    router=Router("192.168.1.1", "PCP", "203.0.113.7"),
)  # fmt: skip


def test_a_machine_that_is_fit_has_a_line_for_each_fact_and_status_0() -> None:
    found = list(of_machine(WELL))
    assert {one.level for one in found} == {OK} and not any(one.code for one in found)
    assert f.exit_status(found) == 0 and f.as_json(found)["ok"]
    assert f.conclusion(found) == "All that is needed is well."
    assert len({one.name for one in found}) == len(found)


@pytest.mark.parametrize(
    ("lack", "name", "level", "code"),
    [
        ({"free_bytes": 1 << 20}, "disk", BAD, "SWT-E401"),
        ({"free_bytes": 1 << 30}, "disk", NOTE, ""),
        ({"can_write": False}, "disk", BAD, "SWT-E403"),
        ({"memory_bytes": 100 << 20}, "memory", BAD, "SWT-E407"),
        ({"needs_bytes": 9 << 30}, "memory", BAD, "SWT-E407"),
        ({"torch": "no module", "device": ""}, "torch", BAD, "SWT-E102"),
        ({"is_cuda_idle": True}, "torch", NOTE, "SWT-E460"),
        ({"numerics": "differs in rounding"}, "arithmetic", BAD, "SWT-E101"),
        ({"files": 256}, "files", BAD, "SWT-E409"),
        ({"now_s": 0.0}, "clock", NOTE, "SWT-E410"),
        ({"ipv6": ""}, "IPv6", NOTE, ""),
        ({"router": Router("192.168.1.1", "NAT-PMP", "100.64.3.4")}, "router", NOTE, ""),
        ({"router": Router("192.168.1.1", "NAT-PMP", "192.168.178.20")}, "router", NOTE, ""),
    ],
)
def test_each_lack_is_named_and_says_what_it_means_and_what_to_do(
    lack: dict, name: str, level: str, code: str
) -> None:
    found = list(of_machine(replace(WELL, **lack)))
    (named,) = [one for one in found if one.level != OK]
    assert (named.name, named.level, named.code) == (name, level, code)
    assert named.what and named.meaning and named.remedy
    assert f.exit_status(found) == (TABLE[code].exit_status if level == BAD else 0)
    assert (name in f.conclusion(found)) == (level == BAD)


def test_a_finding_is_the_fact_with_meaning_and_remedy_below_it() -> None:
    lines = f.in_words(Finding("disk", BAD, "full", "It is full.", "Empty it.", "SWT-E401"))
    assert lines == [
        "BAD   disk          full (SWT-E401)",
        "                    It is full.",
        "                    Empty it.",
    ]


def test_looking_at_this_machine_writes_nothing(tmp_path: Path) -> None:
    from swarmtrain.doctor.machine import look

    machine = look(tmp_path / "not" / "there")
    assert machine.can_write and machine.free_bytes and machine.memory_bytes and machine.cores
    assert machine.device and not machine.numerics
    assert list(tmp_path.iterdir()) == []


def test_a_router_that_is_not_known_or_forwards_nothing_is_no_fault() -> None:
    for router in (None, Router("192.168.1.1")):
        found = list(of_machine(replace(WELL, router=router)))
        assert {one.level for one in found} == {OK}
        assert ("router" in [one.name for one in found]) == (router is not None)
