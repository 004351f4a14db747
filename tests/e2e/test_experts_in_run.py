"""Experts between real processes: each has peers of its own, one dies and comes back, and the
export of all answers."""

import json

import pytest
from e2e_rig import SMALL_MODEL, answer, place

from swarmtrain.models.weights_file import read_head

pytestmark = pytest.mark.timeout(240)

RUN = (
    f'[run]\nname = "kinds"\nrounds = 12\n{SMALL_MODEL}strategy = "diloco"\n'
    "[exchange]\nstart_peers = 2\n[experts]\ncount = 2\n"
)


def test_experts_train_apart_through_a_death_and_a_newcomer_and_answer_as_one(tmp_path):
    pytest.importorskip("sklearn")
    with place(tmp_path) as here:
        up = here.up(here.run_file(RUN))
        ann, bob = here.join(up.invite, "ann"), here.join(up.invite, "bob")
        assert {ann.event("serving")["first"], bob.event("serving")["first"]} == {0, 1}
        bob.event("round", round=2)
        bob.kill()
        cleo = here.join(up.invite, "cleo")
        again = here.join(up.invite, "bob")
        left = {peer: peer.event("left") for peer in (ann, cleo, again)}
        assert [peer.end() for peer in left] == [0, 0, 0]
        assert {event["round"] for event in left.values()} == {12}
        assert len({event["root"] for event in left.values()}) == 2
        up.stop()
        model = here.folder / "model"
        peers = [here.folder / name for name in ("ann", "bob", "cleo")]
        answer("export", *peers, "--to", model)
        facts = json.loads((model / "swarmtrain.json").read_text())
        assert facts["experts"] == 2 and (model / "router.bin").is_file()
        written = answer("generate", model, "def ", "--tokens", "8", "--json")
        assert json.loads(written)["tokens"] == 8
        # A run begins with one of them, from a peer of it.
        both = here.command("export", *peers, "--to", here.folder / "both", "--moments")
        assert both.end() == 2 and "2 experts" in both.said
        answer("export", peers[0], "--to", here.folder / "alone", "--moments")
        named = read_head(here.folder / "alone" / "model.safetensors")
        assert {"norm.weight", "outer/diloco/momentum/norm.weight"} <= set(named)
        assert "expert 1 of 2" in answer("ckpt", "ls", *peers)
        (model / "router.bin").write_bytes(b"another")
        refused = here.command("generate", model, "def ")
        assert refused.end() != 0 and "router.bin" in refused.said
