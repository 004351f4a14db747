"""A model goes on in other shapes: in one piece, in three stages, in two, and in one again. Each
run begins with what the one before ended with, every bit of it."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from e2e_rig import SMALL_MODEL, Place, answer, place
from torch import Tensor

pytestmark = pytest.mark.timeout(400)

RUN = """
[run]
name = "{name}"
rounds = 1
{model}
[checkpoint]
keep = 8
[exchange]
start_peers = {peers}
[pipeline]
stages = {stages}
"""


def of_run(here: Place, name: str, stages: int, *begins: str, peers: dict[str, str]) -> list[Path]:
    """Train a round; state directories of its peers."""
    text = RUN.format(name=name, model=SMALL_MODEL, peers=len(peers), stages=stages)
    given = [word for one in begins for word in ("--from", one)]
    up = here.up(here.run_file(text, name), *given, state=f"{name}-coordinator")
    joined = [
        here.join(up.invite, peer, *(("--span", span) if span else ()))
        for peer, span in peers.items()
    ]
    assert [one.end() for one in joined] == [0] * len(joined), "".join(map(str, joined))
    assert up.running.end() == 0, str(up.running)
    return [here.folder / peer for peer in peers]


def state(peers: list[Path], *, newest: bool) -> dict[str, Tensor]:
    """The run's last state or its first one: weights by name, and momentum by stage, all without
    padding and in the order of the stages."""
    found: dict[str, Tensor] = {}
    momentum: dict[int, Tensor] = {}
    for peer in peers:
        for stage in (peer, *peer.glob("groups/*")):
            folders = sorted((stage / "checkpoints").glob("op-*"))
            if folders:
                folder = folders[-1 if newest else 0]
                assert newest or folder.name == "op-000000"
                weights = safetensors.torch.load_file(folder / "model.safetensors")
                size = sum(one.numel() for one in weights.values())
                found |= weights
                other = safetensors.torch.load_file(folder / "outer.safetensors")["momentum"]
                number = int(stage.name) if stage != peer else 0
                momentum[number] = other[:size]
    return {**found, "momentum": torch.cat([momentum[one] for one in sorted(momentum)])}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name].view(torch.int32), other[name].view(torch.int32)) for name in one
    )


def test_whole_three_stages_two_stages_whole_keeps_every_bit(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        one = of_run(here, "one", 1, peers={"ann": ""})
        last = state(one, newest=True)
        assert last["momentum"].any()
        three = of_run(here, "three", 3, str(one[0]), peers={"bob": "0-1", "cat": "2"})
        assert same(state(three, newest=False), last)
        last = state(three, newest=True)
        two = of_run(here, "two", 2, *map(str, three), peers={"dan": "0-1"})
        assert same(state(two, newest=False), last)
        last = state(two, newest=True)
        again = of_run(here, "again", 1, str(two[0]), peers={"eve": ""})
        assert same(state(again, newest=False), last)
        assert "Proved" in answer("verify", again[0])
