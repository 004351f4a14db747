"""Containers: the scripts can be read, and, where somebody asks for it, the run for real.

SWARMTRAIN_DOCKER=1 with a built image runs the smoke test, which takes minutes.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.transport.hall import opened
from tests.transport.rig import A, B

COMPOSE = Path(__file__).resolve().parents[2] / "compose"


@pytest.mark.parametrize("script", sorted(COMPOSE.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_can_be_read(script):
    shell = "bash" if script.name == "smoke.sh" else "sh"
    subprocess.run([shell, "-n", str(script)], check=True)


def test_text_that_was_named_and_is_not_there_begins_no_run_on_other_text():
    ran = subprocess.run(
        ["sh", str(COMPOSE / "coordinator.sh")], env=os.environ | {"TEXT": "/home/me/boks"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 78 and ran.stdout == ""
    assert ran.stderr.startswith("TEXT=/home/me/boks: no file of it can be read here.")


def test_run_files_of_the_profiles_are_run_files():
    from swarmtrain.config import file as config_file

    for path in COMPOSE.glob("*.toml"):
        assert config_file.load(path).exchange.start_peers >= 4


@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("SWARMTRAIN_DOCKER"), reason="SWARMTRAIN_DOCKER is not set")
@pytest.mark.parametrize("profile", ["open", "dsl", "pipeline", "nat", "postgres"])
def test_a_run_in_containers_loses_one_and_gains_one(profile):
    ran = subprocess.run([str(COMPOSE / "smoke.sh"), profile], capture_output=True, text=True)
    if ran.returncode == 77:
        pytest.skip(ran.stdout.strip())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "equal roots" in ran.stdout


def test_the_compose_file_can_be_read_and_all_that_it_mounts_is_there():
    yaml = pytest.importorskip("yaml")
    told = yaml.safe_load((COMPOSE / "docker-compose.yml").read_text())
    watching = {name: one for name, one in told["services"].items() if "obs" in one["profiles"]}
    assert set(watching) == {"viewing-link", "prometheus", "grafana"}
    for name, service in watching.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            is_there = (
                (COMPOSE / source).is_file() if source[0] == "." else source in told["volumes"]
            )
            assert is_there, f"{name} mounts {source}"
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r".+:v?\d+\.\d+\.\d+", watching[name]["image"]), "named by version"
    assert watching["grafana"]["ports"] == ["127.0.0.1:3000:3000"]


def test_prometheus_sends_the_secret_that_the_viewing_link_has_written():
    yaml = pytest.importorskip("yaml")
    (job,) = yaml.safe_load((COMPOSE / "obs/prometheus.yml").read_text())["scrape_configs"]
    told = yaml.safe_load((COMPOSE / "docker-compose.yml").read_text())["services"]
    file = job["authorization"]["credentials_file"]
    assert file in (COMPOSE / "viewing.sh").read_text() and "type" not in job["authorization"]
    assert job["scheme"] == "https" and "viewing:/viewing:ro" in told["prometheus"]["volumes"]
    (target,) = job["static_configs"][0]["targets"]
    assert target == "coordinator:8400" and target.split(":")[0] in told
    assert told["pipeline-coordinator"]["networks"]["default"]["aliases"] == ["coordinator"]


def test_the_board_asks_for_metrics_that_there_are():
    from swarmtrain.page import metrics
    from swarmtrain.page.history import History
    from swarmtrain.page.view import Viewed, run_view

    hall = opened(A, B)
    for op in (1, 2):
        hall.tick(hall.now_s + 5.0)
        hall.run_op(op, A, B)
    for peer in (A, B):
        hall.ack(peer, tokens=100, bytes_out=96)
    history = History(100, 100)
    history.read(hall.records)
    status = msgspec.structs.replace(hall.machine.status(hall.now_s), losses={"1": 2.5})
    text = metrics.text_of(run_view(status, history, Viewed(5, 1.0), 0.0)).decode()
    known = set(re.findall(r"^(swarmtrain_\w+)", text, re.M))
    labels = set(re.findall(r"(\w+)=\"", text))
    board = json.loads((COMPOSE / "obs/grafana/board.json").read_text())
    asked = [target for panel in board["panels"] for target in panel["targets"]]
    used = set(re.findall(r"swarmtrain_\w+", " ".join(one["expr"] for one in asked)))
    assert used <= known and len(used) >= 9, used - known
    assert set(re.findall(r"{{(\w+)}}", json.dumps(asked))) <= labels
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    source = board["panels"][0]["datasource"]["uid"]
    assert f"uid: {source}" in (COMPOSE / "obs/grafana/datasource.yml").read_text()


def test_a_viewing_link_becomes_a_secret_once(tmp_path):
    script = (COMPOSE / "viewing.sh").read_text().replace("/viewing/", f"{tmp_path}/")
    (tmp_path / "swarmtrain").write_text("#!/bin/sh\necho https://coordinator:8400/#$(echo ab12)\n")
    (tmp_path / "swarmtrain").chmod(0o755)
    for secret in ("ab12", "kept"):
        (tmp_path / "viewing.sh").write_text(script)
        path = f"{tmp_path}:{os.environ['PATH']}"
        subprocess.run(["sh", str(tmp_path / "viewing.sh")], env={"PATH": path}, check=True)
        assert (tmp_path / "secret").read_text() == secret
        (tmp_path / "secret").write_text("kept")
