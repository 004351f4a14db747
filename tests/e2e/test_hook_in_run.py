"""The hook in a real run: two loops in two threads of this process against a real coordinator."""

import logging
import threading
from pathlib import Path

import pytest
import torch
from e2e_rig import Place, place
from torch import Tensor, nn

import swarmtrain
from swarmtrain.foundation.errors import UserError
from swarmtrain.status import ask

pytestmark = pytest.mark.timeout(400)

RUN = """
[run]
name = "{name}"
rounds = {rounds}
[model]
kind = "custom"
[data]
source = "own"
[outer]
inner_steps = 3
lr = 0.7
momentum = 0.0
[exchange]
start_peers = {start}
min_contributors = 1
wait_ready_s = 10.0
deadline_floor_s = 10.0
deadline_cap_s = 20.0
block = 64
chunk_values = 65536
"""


class Tied(nn.Module):
    """Frozen, tied, bfloat16 and buffered: whatever a model of somebody else may have."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.inside.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.short = nn.Linear(4, 1).to(torch.bfloat16)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        inner = self.again(torch.tanh(self.frozen(self.inside(x))))
        return self.short(inner.to(torch.bfloat16)).float()


def run_file(here: Place, name: str, *, rounds: int, start: int) -> Path:
    return here.run_file(RUN.format(name=name, rounds=rounds, start=start), name)


class Loop(threading.Thread):
    """A plain loop that ends when the swarm says so."""

    def __init__(self, invite: str, state_dir: Path | None, seed: int, steps: int = 10_000) -> None:
        super().__init__(daemon=True)
        torch.manual_seed(seed)
        self.model = Tied()
        self.frozen = self.model.frozen.weight.clone()
        self.kept = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [{"params": self.model.inside.parameters()}, {"params": self.model.short.parameters()}],
            lr=1e-2,
        )
        self.invite, self.state_dir, self.steps = invite, state_dir, steps
        self.chance = torch.Generator().manual_seed(seed)
        self.swarm = swarmtrain.Swarm()
        self.joined = threading.Event()
        self.begin, self.leave = threading.Event(), threading.Event()
        self.begin.set()
        self.leave.set()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with swarmtrain.join(
                self.model, self.optimizer, self.invite, state_dir=self.state_dir, strict=True
            ) as self.swarm:
                self.joined.set()
                self.begin.wait()
                for _ in range(self.steps):
                    self.step()
                    if self.swarm.should_stop:
                        break
                self.leave.wait()
        except BaseException as error:
            self.failure = error
        finally:
            self.joined.set()

    def step(self) -> None:
        x = torch.randn(8, 4, generator=self.chance)
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.swarm.log(loss=loss, samples=8)

    def ended(self) -> "Loop":
        self.join(90.0)
        assert not self.is_alive(), "the loop hangs"
        if self.failure is not None:
            raise self.failure
        return self


def test_two_loops_end_with_the_same_bits_and_everything_else_is_left_alone(tmp_path):
    with place(tmp_path) as here:
        up = here.up(run_file(here, "hooked", rounds=4, start=2))
        first, second = (Loop(up.invite, tmp_path / str(n), seed=n) for n in (1, 2))
        for loop in (first, second):
            loop.start()
        for loop in (first, second):
            loop.ended()
        assert first.swarm.state_root == second.swarm.state_root != ""
        assert first.swarm.round == second.swarm.round == 4
        assert first.swarm.should_stop and first.swarm.error is None
        for name, ours in first.model.named_parameters():
            theirs = second.model.get_parameter(name)
            assert torch.equal(ours, theirs) == ours.requires_grad, name
        for loop in (first, second):
            assert torch.equal(loop.model.frozen.weight, loop.frozen)
            assert all(a is b for a, b in zip(loop.kept, loop.model.parameters(), strict=True))
            assert loop.model.again.weight is loop.model.inside.weight
            assert not loop.optimizer._optimizer_step_post_hooks
            steps = {int(state["step"]) for state in loop.optimizer.state.values()}
            assert min(steps) > 3, "more than a round's: else the inner optimizer's state was lost"
        assert up.running.end() == 0


def test_two_copies_of_one_script_exchange_in_pairs_and_say_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    caplog.set_level("INFO", logger="swarmtrain")
    with place(tmp_path) as here:
        text = RUN.format(name="paired", rounds=3, start=2)
        text = text.replace("contributors = 1", "contributors = 2")
        text = text.replace("momentum = 0.0", 'momentum = 0.5\nstrategy = "noloco"')
        up = here.up(here.run_file(text, "paired"))
        loops = [Loop(up.invite, None, seed=n) for n in (1, 2)]
        for loop in loops:
            loop.start()
        first, second = (loop.ended().swarm for loop in loops)
        assert first.state_root == second.state_root != ""  # two that always meet stay equal
        assert first.round == second.round == 3 and first.error is None
        places = tmp_path / "state" / "swarmtrain" / "runs" / "paired" / "peers"
        assert {place.name for place in places.iterdir()} == {"hook", "hook-2"}
        said = [record.getMessage() for record in caplog.records if record.name == "swarmtrain"]
        for beginning in ("Joined the run paired as ", "Round 1: averaged with ", "The run is fin"):
            assert sum(line.startswith(beginning) for line in said) == 2, said
        assert up.running.end() == 0


def test_a_latecomer_of_a_finished_run_is_told_so(tmp_path):
    with place(tmp_path) as here:
        up = here.up(run_file(here, "over", rounds=1, start=1))
        slow = Loop(up.invite, tmp_path / "slow", seed=1)
        slow.begin.clear()  # it is in, and does not get to the last round's result
        slow.leave.clear()
        quick = Loop(up.invite, tmp_path / "quick", seed=2)
        slow.start()
        assert slow.joined.wait(60.0)
        quick.start()
        up.status_when(lambda view: view["phase"] == "finished")
        with pytest.raises(UserError) as told:
            swarmtrain.join(*_small(), up.invite, state_dir=tmp_path / "late")
        assert (told.value.code, told.value.exit_status) == ("SWT-E705", 75)
        slow.begin.set()  # somebody else holds the result, and quick may go
        root = quick.ended().swarm.state_root
        with pytest.raises(UserError, match="finished"):
            swarmtrain.join(*_small(), up.invite, state_dir=tmp_path / "quick")
        told_again = ask(tmp_path / "quick")
        assert (told_again["process"], told_again["state"]) == ("has ended", "finished")
        assert "1 round, the model is in the newest folder of" in told_again["result"]
        slow.leave.set()
        assert slow.ended().swarm.state_root == root
        assert up.running.end() == 0


def _small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_what_goes_wrong_later_is_said_and_never_reaches_a_loop_that_is_not_strict(
    tmp_path, caplog
):
    with place(tmp_path) as here:
        ups = {
            strict: here.up(
                run_file(here, f"lost-{strict}".lower(), rounds=50, start=1), state=str(strict)
            )
            for strict in (False, True)
        }
        for strict, up in ups.items():
            model, optimizer = _small()
            state_dir = tmp_path / f"member-{strict}"
            with swarmtrain.join(
                model, optimizer, up.invite, state_dir=state_dir, strict=strict
            ) as swarm:
                (state_dir / "results").rmdir()  # the first result will find no place
                if strict:
                    with pytest.raises(UserError) as raised:
                        _steps(model, optimizer, 3)
                    assert raised.value is swarm.error
                else:
                    _steps(model, optimizer, 7)
                assert swarm.error.code == "SWT-E403"
                assert not optimizer._optimizer_step_post_hooks
                assert not swarm.should_stop
            gone = up.status_when(lambda view: not view["peers"])
            assert gone["events"][-1]["event"] == "left"
        warned = [one for one in caplog.records if one.levelno >= logging.WARNING]
        said = [record for record in warned if record.name == "swarmtrain"]
        assert len(said) == 1
        assert "training goes on alone" in said[0].getMessage()
        assert "SWT-E403" in said[0].getMessage()


FAILING = """
import swarmtrain, torch
model = torch.nn.Linear(2, 2)
swarm = swarmtrain.join(model, None, when="step", name="hasty")
swarm.step()
1 / 0
"""


def test_a_program_that_fails_without_with_says_goodbye_all_the_same(tmp_path):
    with place(tmp_path) as here:
        up = here.up(run_file(here, "hasty", rounds=50, start=1))
        script = tmp_path / "failing.py"
        script.write_text(FAILING)
        failing = here.start(script, SWARMTRAIN_INVITE=up.invite)
        assert failing.process.wait(60.0) == 1
        gone = up.status_when(lambda view: view["events"][-1]["event"] == "left")
        assert "its program ended" in str(gone["events"][-1])


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
