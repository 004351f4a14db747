"""T12: every death and trouble at every message of one op: equal roots on all survivors."""

import json

import pytest
from enumeration import Case, cases, deaths, main, run_case, troubles

from swarmtrain.simulate.faults.plan import COORDINATOR, Fault
from swarmtrain_transport import limits

LONGEST_OP_S = {
    "death": limits.FETCH_TIMEOUT_S + limits.SUSPECT_CLOSED_S,
    "death with the coordinator": limits.SUSPECT_S + limits.FETCH_TIMEOUT_S,
    "coordinator": 1.0,
    "restart": limits.FETCH_TIMEOUT_S + 1.0,
    "goodbye": limits.NUDGE_S + 0.5,
    "blink": 1.0,
    "newcomer": 0.1,
}
"""Seconds that a trouble may cost in virtual time. D_op is 20 s: nothing waits for a deadline."""


def kind_of(case: Case) -> str:
    fault = case.faults[0]
    if fault.victims == (COORDINATOR,):
        return "coordinator"
    if fault.victims:
        return "death with the coordinator" if COORDINATOR in fault.victims else "death"
    if fault.returners:
        return "restart"
    if fault.leavers:
        return "goodbye"
    if fault.blinkers:
        return "blink"
    return "newcomer" if fault.newcomers else "silent link"


def check(findings) -> dict[str, int]:
    """All clean and quick; returns how many of what were seen."""
    seen = {"cases": 0, "skips": 0, "exclusions": 0}
    wrong = []
    for finding in findings:
        story = finding.case.story()
        if not finding.is_clean:
            wrong.append(f"{story}: {finding.violations or 'roots differ'}")
        if finding.commits != finding.case.rounds:
            wrong.append(f"{story}: {finding.commits} of {finding.case.rounds} ops committed")
        limit_s = LONGEST_OP_S.get(kind_of(finding.case))
        if limit_s is not None and finding.op_seconds > limit_s:
            wrong.append(f"{story}: an op takes {finding.op_seconds:.2f} s")
        seen["cases"] += 1
        seen["skips"] += finding.skips
        seen["exclusions"] += len(finding.excluded)
    assert not wrong, "\n".join(wrong[:20])
    return seen


@pytest.mark.timeout(600)
def test_three_peers_survive_every_death_at_every_3rd_message_with_equal_roots():
    # At every message: python tests/simulate/enumeration.py --peers 3
    seen = check(map(run_case, deaths(3, stride=3)))
    assert seen["cases"] > 150


@pytest.mark.timeout(600)
def test_three_peers_survive_troubles_at_every_5th_message_with_equal_roots():
    seen = check(map(run_case, troubles(3, stride=5)))
    assert seen["cases"] > 100
    assert seen["skips"] > 5, "everybody was needed, so deaths must have forced skips"
    assert seen["exclusions"] > 5, "silent links must have left peers out"


@pytest.mark.timeout(600)
def test_four_peers_survive_troubles_at_every_37th_message_with_equal_roots():
    # All boundaries: python tests/simulate/enumeration.py --peers 4
    seen = check(map(run_case, cases(4, stride=37)))
    assert seen["cases"] > 55


def test_a_quiet_run_has_no_skips_and_leaves_nobody_out():
    finding = run_case(Case(3, (), rounds=4))
    assert finding.is_clean
    assert (finding.commits, finding.skips, finding.excluded) == (4, 0, {})
    assert finding.op_seconds < 0.1


def test_a_case_tells_its_story():
    case = Case(3, (Fault(70, (1, COORDINATOR)), Fault(80, leavers=(2,), newcomers=1)))
    assert case.story() == (
        "3 peers, at least 1 contributors; "
        "at message 70: death of peer 1 and the coordinator; "
        "at message 80: goodbye of peer 2, arrival of a newcomer"
    )


def test_the_enumeration_is_one_command(capsys):
    assert main(["--peers", "2", "--stride", "40", "--processes", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["violations"] == 0
    assert told["cases"] > 0
    assert told["peers"] == 2
