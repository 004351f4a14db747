"""The hook's steps: when it counts one, and what it does when it is over. The session is a
stand-in; real runs are in tests/e2e."""

import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from swarmtrain.foundation.errors import UserError
from swarmtrain.hook.members import _forked
from swarmtrain.hook.swarm import Swarm
from tests.hook.stand_in import made


def step(model: nn.Module, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).sum() * factor
    loss.backward()
    optimizer.step()
    return loss


def test_every_step_counts_once_with_its_samples_and_the_newest_loss():
    member, session, model, optimizer = made()
    step(model, optimizer)
    member.log(loss=torch.tensor(2.5, requires_grad=True), samples=7)
    step(model, optimizer)
    member.log(loss=float("nan"))
    step(model, optimizer)
    *numbers, (samples, loss) = session.stepped_with
    assert numbers == [(4, None), (7, 2.5)]
    assert samples == 7 and math.isnan(loss)  # for the guard
    assert (member.round, member.peers, member.state_root) == (3, 2, "ab")


def test_losses_of_single_samples_are_shown_as_their_mean():
    member, session, model, optimizer = made()
    member.log(loss=torch.tensor([1.0, 2.0]))
    step(model, optimizer)
    assert session.stepped_with == [(4, 1.5)]


def test_a_loss_on_a_device_is_looked_at_once_in_a_while(monkeypatch):
    """Looking waits for all that a GPU has yet to do: in each step that would cost the overlap."""

    class Far(torch.Tensor):
        device = property(lambda self: torch.device("cuda"))
        looks = 0

        def __float__(self) -> float:
            Far.looks += 1
            return self.item()

    now_s = 100.0
    monkeypatch.setattr("swarmtrain.hook.members.monotonic", lambda: now_s)
    member, session, model, optimizer = made()
    for _ in range(9):
        member._loss = torch.tensor(2.5).as_subclass(Far)
        step(model, optimizer)
        now_s += 0.25
    assert Far.looks == 3
    assert [loss for _, loss in session.stepped_with] == [2.5, None, None, None] * 2 + [2.5]


def test_gradient_accumulation_and_schedules_do_not_disturb_the_count():
    member, session, model, optimizer = made()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule.step()
    assert len(session.stepped_with) == 1
    assert schedule.get_last_lr() == [pytest.approx(0.01)]
    assert not member.should_stop


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_grad_scaler_skips_does_not_count(fused):
    _, session, model, optimizer = made(fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(session.stepped_with) == 2
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_who_leaves_with_what_nobody_else_has_says_so(caplog):
    for is_held, said in (
        (True, []),
        (False, ["Nobody else is known to have the weights"]),
        (None, ["The coordinator does not answer, so nobo"]),
    ):
        caplog.clear()
        member, session, model, optimizer = made()
        session.is_held = is_held
        step(model, optimizer)
        member.leave()
        warned = [one.message[:40] for one in caplog.records if one.levelname == "WARNING"]
        assert session.left == ["asked to leave"] and warned == said


def test_a_finished_run_is_left_once_and_the_loop_may_go_on():
    member, session, model, optimizer = made()
    session.is_finished = True
    step(model, optimizer)
    assert member.should_stop
    assert session.left == ["run finished"]
    step(model, optimizer)
    member.leave()
    with member:
        pass
    assert (session.left, len(session.stepped_with)) == (["run finished"], 1)
    assert not optimizer._optimizer_step_post_hooks


def test_the_block_leaves_with_a_word_on_why():
    member, session, _, optimizer = made()
    with member:
        pass
    assert (session.left, session.closed) == (["finished"], ["finished"])
    assert not optimizer._optimizer_step_post_hooks
    member, session, _, _ = made()
    with pytest.raises(ZeroDivisionError), member:
        _ = 1 / 0
    assert session.left == ["its loop failed: ZeroDivisionError"]


def test_trouble_never_reaches_a_loop_that_is_not_strict(caplog):
    member, session, model, optimizer = made()
    session.trouble = UserError("SWT-E401", "No space is left.")
    for _ in range(3):
        step(model, optimizer)
    assert member.error is session.trouble
    assert len(session.stepped_with) == 1
    assert session.closed == ["failed"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "SWT-E401" in caplog.text
    assert not member.should_stop


def test_a_strict_loop_gets_the_error():
    member, session, model, optimizer = made(strict=True)
    session.trouble = OSError(28, "No space left on device")
    with pytest.raises(UserError) as raised:
        step(model, optimizer)
    assert raised.value.code == "SWT-E401"
    assert member.error is raised.value
    assert session.closed == ["failed"]


def test_an_interrupt_while_waiting_for_the_others_ends_the_loop():
    _, session, model, optimizer = made()
    session.trouble = None

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    session.stepped = interrupted
    with pytest.raises(KeyboardInterrupt):
        step(model, optimizer)


@pytest.mark.parametrize("is_job", [False, True])
def test_a_program_that_ends_says_goodbye_and_a_job_does_so_without_its_ranks(is_job):
    member, session, _, optimizer = made()
    told = []
    if is_job:
        member._job = SimpleNamespace(
            abandon=lambda: told.append("abandon"), over=lambda view: told.append("over")
        )
    member._ends()
    member._ends()
    assert session.left == ([] if is_job else ["its program ended"]), "what is saved is all ranks'"
    assert session.closed == ["its program ended"]
    assert told == (["abandon", "over"] if is_job else [])
    assert not optimizer._optimizer_step_post_hooks


def test_a_process_that_was_forked_off_trains_alone_and_says_nothing_to_the_run(caplog):
    member, session, model, optimizer = made()
    step(model, optimizer)
    _forked(weakref.ref(member))
    for _ in range(3):
        step(model, optimizer)
    member.finish_round()
    member.leave()
    assert (len(session.stepped_with), session.left, session.closed) == (1, [], [])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "forked" in caplog.text


def test_a_forked_process_that_makes_no_step_ends_without_a_word(caplog):
    member, session, _, _ = made()
    _forked(weakref.ref(member))
    member._ends()
    assert (session.left, session.closed, caplog.text) == ([], [], "")


@pytest.mark.parametrize("bad", [{"loss": "0.3"}, {"loss": [0.3]}, {"samples": "many"}])
def test_what_is_no_number_is_told_where_it_is_said_also_without_a_run(bad):
    member, _, _, _ = made()
    for swarm in (member, Swarm()):
        with pytest.raises(UserError, match=r"swarm\.log takes") as caught:
            swarm.log(**bad)
        assert caught.value.code == "SWT-E610"
