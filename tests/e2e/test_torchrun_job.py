"""A torchrun job of two ranks beside a plain peer: one model; a rank that is killed comes back."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from e2e_rig import ROOT, Running, place

from swarmtrain.foundation.events import RoundEnded, parse

pytestmark = pytest.mark.timeout(400)

JOB = ROOT / "examples" / "torchrun_fsdp.py"
LOOP = ROOT / "examples" / "plain_loop.py"
RUN_FILE = ROOT / "examples" / "custom_run.toml"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)


def test_a_job_whose_rank_dies_comes_back_with_the_others_state(tmp_path):
    with place(tmp_path) as here:
        up = here.up(here.run_file(RUN_FILE.read_text().replace("rounds = 6", "rounds = 100000")))
        loops = tmp_path / "loop.py"
        # Endless: the test ends it. Slow enough that rounds go on while a job starts again.
        loops.write_text(
            LOOP.read_text().replace("STEPS = 1000", "STEPS = 10**9").replace("64, 2", "2048, 2")
            .replace("64, 1", "2048, 1")
        )  # fmt: skip
        jobs = tmp_path / "job.py"
        jobs.write_text(JOB.read_text().replace("STEPS = 1000", "STEPS = 10**9"))
        events = {name: tmp_path / f"{name}.jsonl" for name in ("job", "plain")}
        job = here.start(
            *TORCHRUN, "--max-restarts", 2, jobs, "job",
            SWARMTRAIN_INVITE=up.invite, SWARMTRAIN_EVENTS=str(events["job"]),
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )  # fmt: skip
        here.start(
            loops, "plain", SWARMTRAIN_INVITE=up.invite, SWARMTRAIN_EVENTS=str(events["plain"])
        )  # fmt: skip

        def both_have(rounds: int, after: int) -> Any:
            ours, theirs = (merged(events[name]) for name in ("job", "plain"))
            common = [one for one in ours.keys() & theirs.keys() if one > after]
            assert all(ours[one] == theirs[one] for one in common)
            return max(common) if len(common) >= rounds else None

        before = up.status_when(lambda view: both_have(2, 0)) and both_have(2, 0)
        os.kill(rank_of(job, 1), signal.SIGKILL)
        # Rounds that both were in after it, which the job's next life has come to by itself.
        up.status_when(lambda view: "state" in "".join(job_lives(events["job"])[1:]))
        up.status_when(lambda view: both_have(2, before + 1))
        assert job.process.poll() is None, str(job)
        # Killed, torchrun would leave its ranks behind.
        job.process.send_signal(signal.SIGTERM)
        job.process.wait(60)


@pytest.mark.parametrize(
    "example", ["loop_accelerate", "trainer_lightning", "trainer_transformers"]
)
def test_a_trainer_that_torchrun_starts_is_one_peer_beside_a_plain_one(tmp_path, example):
    script = ROOT / "examples" / f"{example}.py"
    short = RUN_FILE.read_text().replace("rounds = 6", "rounds = 2")
    with place(tmp_path) as here:
        up = here.up(here.run_file(short.replace("inner_steps = 25", "inner_steps = 3")))
        job = here.start(*TORCHRUN, script, "ann", SWARMTRAIN_INVITE=up.invite)
        plain = here.start(script, "bob", SWARMTRAIN_INVITE=up.invite)
        assert plain.end() == 0, str(plain)
        assert job.end() == 0, str(job)
        told = re.findall("round 2  state root [0-9a-f]{64}", "".join(job.lines + plain.lines))
        assert len(told) == 3 and len(set(told)) == 1, str(job) + str(plain)
        assert up.running.end() == 0


def merged(file: Path) -> dict[int, str]:
    """State roots after the rounds that a peer was in with somebody."""
    told = map(parse, file.read_bytes().splitlines()) if file.exists() else ()
    rounds = [one for one in told if isinstance(one, RoundEnded)]
    return {one.round: one.root for one in rounds if one.outcome == "merged"}


def job_lives(file: Path) -> list[str]:
    """The events of each life of a peer."""
    return file.read_text().split('{"event":"in"')[1:]


def rank_of(job: Running, rank: int) -> int:
    """The process of a rank, a child of torchrun's."""
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children")
    for pid in children.read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return int(pid)
    raise AssertionError(f"{job} has no rank {rank}")
