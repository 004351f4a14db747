"""Peers on a card and peers without one train the same run. Needs a CUDA device."""

import pytest
import torch
from e2e_rig import SMALL_MODEL, answer, place, saved_root

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROUNDS = 5

RUN = f"""
[run]
name = "cards"
rounds = {ROUNDS}
{SMALL_MODEL}
[exchange]
start_peers = 3
wait_ready_s = 30.0
"""

DEVICES = {"ann": "cuda", "bob": "cuda", "cat": "cpu"}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_peers_on_cards_and_on_processors_have_one_state(tmp_path, precision):
    with place(tmp_path) as here:
        run_file = here.run_file(RUN.replace("[inner]", f'[inner]\nprecision = "{precision}"'))
        up = here.up(run_file)
        peers = [here.join(up.invite, name, "--device", kind) for name, kind in DEVICES.items()]
        for peer in peers:
            assert peer.end() == 0, str(peer)
        assert up.running.end() == 0
        roots = {saved_root(tmp_path / name) for name in DEVICES}
        assert len(roots) == 1
        assert roots.pop()[0] == ROUNDS


@pytest.mark.parametrize(
    ("form", "turns"), [("int8", ""), ("subspace-8", ""), ("subspace-8", "turn_rounds = 1\n")]
)
def test_stages_on_cards_and_on_processors_have_one_state(tmp_path, form, turns):
    with place(tmp_path) as here:
        pipeline = f'[pipeline]\nstages = 2\nactivations = "{form}"\n{turns}'
        run = RUN.replace("layers = 1", "layers = 2")
        up = here.up(here.run_file(run + pipeline))
        spans = {"ann": "0", "bob": "1", "cat": "0-1"}
        peers = [
            here.join(up.invite, name, "--span", span, "--device", DEVICES[name])
            for name, span in spans.items()
        ]
        for peer in peers:
            assert peer.end() == 0, str(peer)
        assert up.running.end() == 0
        first, second, both = (peer.event("left")["roots"] for peer in peers)
        assert first | second == both


@pytest.mark.parametrize("strategy", ["asynchronous", "co2", "decoupled_momentum", "one_byte"])
def test_other_strategies_on_cards_and_on_processors_have_one_state(tmp_path, strategy):
    rule = f'strategy = "{strategy}"\n[exchange]'
    with place(tmp_path) as here:
        given = []
        if strategy == "one_byte":
            up = here.up(here.run_file(RUN, "first"), state="first")
            first = [here.join(up.invite, name) for name in ("one", "two", "three")]
            assert [peer.end() for peer in first] == [0, 0, 0]
            answer("export", here.folder / "one", "--to", here.folder / "trained")
            given = ["--from", here.folder / "trained"]
        up = here.up(here.run_file(RUN.replace("[exchange]", rule)), *given)
        peers = [here.join(up.invite, name, "--device", kind) for name, kind in DEVICES.items()]
        for peer in peers:
            assert peer.end() == 0, str(peer)
        assert len({peer.event("left")["root"] for peer in peers}) == 1
