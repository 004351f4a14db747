"""Caps that a loop's owner sets for the hook: the command's, under the command's names."""

import pytest
import torch
from torch import nn

import swarmtrain
from swarmtrain.config.caps import NO_CAPS, Caps
from swarmtrain.config.options import JoinOptions
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.membership import Membership
from swarmtrain_transport.credentials.invite import Invite

INVITE = str(Invite("127.0.0.1", 1, "run", bytes(32), bytes(16)))


class Knocked(Exception):
    """The peer got as far as the door."""


@pytest.fixture
def caps_at_the_door(monkeypatch):
    """Note the caps that the membership would come in with; nobody is there to let it in."""
    found: list[Caps] = []

    def enter(options: JoinOptions, **_: object) -> None:
        found.append(options.caps)
        raise Knocked

    monkeypatch.setattr(Membership, "enter", enter)
    return found


def join(tmp_path, **caps: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swarmtrain.join(model, optimizer, INVITE, state_dir=tmp_path / "peer", **caps)


def test_the_hooks_caps_reach_the_link_as_the_commands_do(tmp_path, caps_at_the_door):
    for given, expected in (
        ({}, NO_CAPS),
        (
            {"up": "10mbit", "down": "2MB/s", "daily": "20GB"},
            Caps(1_250_000, 2_000_000, 20 * 10**9),
        ),
    ):
        with pytest.raises(Knocked):
            join(tmp_path, **given)
        assert caps_at_the_door.pop() == expected


@pytest.mark.parametrize("name", ["up", "down", "daily"])
def test_a_cap_without_a_unit_is_a_clear_error_before_anything_is_made(
    tmp_path, caps_at_the_door, name
):
    with pytest.raises(UserError) as raised:
        join(tmp_path, **{name: "10"})
    assert raised.value.code == "SWT-E610"
    assert not caps_at_the_door and not list(tmp_path.iterdir())
