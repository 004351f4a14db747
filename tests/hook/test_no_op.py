"""Without an invite `swarmtrain.join` is nothing at all."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import swarmtrain
from swarmtrain.foundation.errors import UserError


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.delenv("SWARMTRAIN_INVITE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    torch.set_num_threads(1)


def train(model: nn.Module, swarm=None) -> list[float]:
    """Twenty steps, with or without the three lines."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chance = torch.Generator().manual_seed(7)
    losses = []

    def loop(swarm) -> None:
        for _ in range(20):
            x = torch.randn(16, 3, generator=chance)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if swarm is not None:
                swarm.log(loss=loss, samples=16)
                if swarm.should_stop:
                    break

    if swarm is None:
        loop(None)
    else:
        with swarm(model, optimizer) as joined:
            assert not optimizer._optimizer_step_post_hooks
            loop(joined)
            assert (joined.round, joined.peers, joined.state_root, joined.error) == (0, 0, "", None)
            joined.finish_round()
            joined.leave()
    return losses


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))


def test_losses_and_weights_are_the_same_bit_for_bit():
    plain, hooked = build(), build()
    torch.manual_seed(5)
    expected = train(plain)
    torch.manual_seed(5)
    assert train(hooked, swarmtrain.join) == expected
    for ours, theirs in zip(plain.parameters(), hooked.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_nothing_is_started_and_nothing_is_written(tmp_path):
    threads = threading.active_count()
    train(build(), swarmtrain.join)
    assert threading.active_count() == threads
    assert not (tmp_path / "state").exists()


def test_an_empty_variable_is_no_invite(monkeypatch):
    monkeypatch.setenv("SWARMTRAIN_INVITE", "")
    train(build(), swarmtrain.join)


def test_an_invite_that_is_none_is_loud_whatever_strict_says(monkeypatch):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setenv("SWARMTRAIN_INVITE", "swarm://nonsense")
    with pytest.raises(UserError) as told:
        swarmtrain.join(model, optimizer)
    assert told.value.code == "SWT-E312"
    assert str(told.value).startswith("SWT-E312: ") and "copy it whole" in str(told.value)
    with pytest.raises(UserError, match="samples_per_step"):
        swarmtrain.join(model, optimizer, samples_per_step=0)
    assert not optimizer._optimizer_step_post_hooks


def test_importing_swarmtrain_loads_no_torch_and_starts_nothing():
    code = (
        "import sys, threading, swarmtrain\n"
        "assert 'join' in dir(swarmtrain)\n"
        "heavy = {'torch', 'zmq', 'aiohttp', 'numpy'} & set(sys.modules)\n"
        "assert not heavy and threading.active_count() == 1, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_beside_a_clone_the_package_is_found_and_not_the_folder(tmp_path):
    """A folder without __init__.py is a package too, for Python, unless a real one is on its path:
    the finder of an editable install comes too late."""
    for part in ("swarmtrain", "transport", "optimizers"):
        (tmp_path / "swarmtrain" / part).mkdir(parents=True)
    code = "import swarmtrain; swarmtrain.join, swarmtrain.Swarm"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'jion'"):
        swarmtrain.jion  # noqa: B018
