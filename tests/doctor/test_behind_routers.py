"""doctor behind routers of each kind, in namespaces: it names what each keeps from a peer."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.e2e_rig import ROOT, SMALL_MODEL, Running

NATLAB = str(ROOT / "benchmarks" / "lab" / "natlab.sh")
COMMAND = [sys.executable, "-m", "swarmtrain"]
SITES = ("org=none", "cone=cone", "restricted=restricted", "symmetric=symmetric", "mapped=mapped")
ORGANISER, PORT = "44.128.0.1", 8400

pytestmark = pytest.mark.timeout(300)


@dataclass
class Lab:
    """Sites, of which one has a coordinator."""

    invite: str
    environment: dict[str, str]

    def do(self, *words: str) -> str:
        return subprocess.run(
            [NATLAB, *words], env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def doctor(self, site: str, host: str = ORGANISER) -> tuple[int, dict[str, Any]]:
        """Exit status, and findings by their names; the last of those that share one."""
        invite = self.invite.replace(f"{ORGANISER}:", f"{host}:")
        done = subprocess.run(
            [NATLAB, "run", site, *COMMAND, "doctor", "--json"],
            env={**self.environment, "SWARMTRAIN_INVITE": invite}, capture_output=True, text=True,
        )  # fmt: skip
        told = json.loads(done.stdout)
        return done.returncode, {one["name"]: one for one in told["findings"]}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if os.geteuid():
        pytest.skip("network namespaces need root")
    if missing := [name for name in ("ip", "tc", "nft", "miniupnpd") if not shutil.which(name)]:
        pytest.skip(f"routers need {', '.join(missing)}")
    home = tmp_path_factory.mktemp("lab")
    environment = {
        **os.environ, "LAB_NET": f"d{os.getpid() % 1000}", "LAB_HOME": str(home),
        "XDG_STATE_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    for name in ("HTTPS_PROXY", "https_proxy"):
        environment.pop(name, None)
    (home / "run.toml").write_text(f'[run]\nname = "tiny"\nrounds = 3\n{SMALL_MODEL}')
    made = Lab("", environment)
    try:
        made.do("up", *SITES)
    except subprocess.CalledProcessError as failed:
        made.do("down")
        pytest.skip(f"no routers here: {failed.stderr[-200:]}")
    words = ["up", str(home / "run.toml"), "--listen", f"{ORGANISER}:{PORT}", "--json-events"]
    coordinator = Running([NATLAB, "run", "org", *COMMAND, *words], environment)
    try:
        made.invite = str(coordinator.event("ready")["invite"])
        yield made
    finally:
        made.do("down")
        coordinator.close()


@pytest.fixture(scope="module")
def told(lab: Lab) -> dict[str, tuple[int, dict[str, Any]]]:
    """What is found at each site; all at once, as most of it is waiting."""
    sites = [one.partition("=")[0] for one in SITES]
    with ThreadPoolExecutor() as pool:
        return dict(zip(sites, pool.map(lab.doctor, sites), strict=True))


@pytest.mark.parametrize(
    ("site", "address", "is_reached"),
    [
        ("org", "no router", True),
        ("cone", "keeps port numbers", True),
        ("restricted", "keeps port numbers", False),
        ("symmetric", "changes port numbers", False),
        ("mapped", "keeps port numbers", False),
    ],
)
def test_each_kind_of_router_is_told(
    told: dict[str, tuple[int, dict[str, Any]]], site: str, address: str, is_reached: bool
) -> None:
    status, found = told[site]
    assert status == 0 and found["invite"]["level"] == "ok"
    assert address in found["address"]["what"]
    back = found["way back"]
    assert (back["level"] == "ok") == is_reached, back
    assert is_reached or found["way back"]["code"] == "SWT-E206"
    assert ("NAT-PMP, with" in found.get("router", {"what": ""})["what"]) == (site == "mapped")


def test_a_line_that_is_down_a_dead_address_and_one_of_another_network_are_named(lab: Lab) -> None:
    status, found = lab.doctor("restricted", host="192.168.1.77")
    assert (status, found["connection"]["code"]) == (69, "SWT-E203")
    assert "inside somebody's network" in found["invite"]["what"]
    lab.do("cut", "restricted")
    status, found = lab.doctor("restricted")
    assert (status, found["connection"]["code"]) == (69, "SWT-E203")
    assert "may have no network" in found["connection"]["meaning"]
    lab.do("heal", "restricted")
    status, found = lab.doctor("restricted", host="44.128.0.4")
    assert (status, found["connection"]["code"]) == (69, "SWT-E203")
    assert "firewall" in found["connection"]["meaning"]
