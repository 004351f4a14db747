"""Strategies that ask more of a session than weights do, over real links, and their proof."""

import json

import pytest
from e2e_rig import SMALL_MODEL, answer, place

pytestmark = pytest.mark.timeout(200)

DDP = 'strategy = "ddp"\n[exchange]\ncodec = "int8"\nrounding = "stochastic"\n'
DYNAMIC = (
    'strategy = "delayed_nesterov"\nerror_feedback = true\n'
    '[exchange]\ncodec = "two_bit"\nblock = 256\n'
)
SCAFFOLD = 'strategy = "scaffold_m"\n[exchange]\n'
WAVES = 'strategy = "decoupled_momentum"\n[exchange]\nmin_contributors = 2\n'
MERGED = 'strategy = "local"\nlast_merge = true\nbudget = 12\n[exchange]\nmin_contributors = 2\n'
ONE_BYTE = 'strategy = "one_byte"\n[exchange]\nstart_peers = 2\nmin_contributors = 2\n'


@pytest.mark.parametrize(("name", "text"), [("ddp", DDP), ("dynamic", DYNAMIC), ("own", SCAFFOLD)])
def test_two_peers_end_with_the_same_bits_and_can_prove_it(tmp_path, name, text):
    run = f'[run]\nname = "{name}"\nrounds = 6\n{SMALL_MODEL}{text}start_peers = 2\n'
    with place(tmp_path) as here:
        up = here.up(here.run_file(run))
        peers = [here.join(up.invite, one) for one in ("ann", "bob")]
        left = [peer.event("left") for peer in peers]
        assert [peer.end() for peer in peers] == [0, 0]
        assert len({event["root"] for event in left}) == 1
        assert {event["round"] for event in left} == {6}
        up.stop()
        answer("verify", here.folder / "ann")


@pytest.mark.parametrize("name", ["noloco", "gossip", "decentralized_adam"])
def test_two_partners_end_with_the_same_chain_and_can_prove_their_exchanges(tmp_path, name):
    run = f'[run]\nname = "pairs"\nrounds = 6\n{SMALL_MODEL}strategy = "{name}"\n'
    with place(tmp_path) as here:
        up = here.up(here.run_file(run))
        peers = [here.join(up.invite, one) for one in ("ann", "bob")]
        left = [peer.event("left") for peer in peers]
        assert [peer.end() for peer in peers] == [0, 0]
        assert {event["round"] for event in left} == {6}
        ends = [peer.event("round", round=6, outcome="merged") for peer in peers]
        assert len({event["chain"] for event in ends}) == 1 and ends[0]["chain"]
        assert len({event["root"] for event in left}) == 1  # two that always meet stay equal
        up.stop()
        for one in ("ann", "bob"):
            found = json.loads(answer("verify", here.folder / one, "--json"))
            assert found["chain"] == ends[0]["chain"] and found["ops"] == 6


@pytest.mark.parametrize(("name", "text"), [("waves", WAVES), ("merged", MERGED)])
def test_a_run_goes_on_through_a_death_and_a_newcomer(tmp_path, name, text):
    run = f'[run]\nname = "{name}"\nrounds = 24\n{SMALL_MODEL}{text}start_peers = 2\n'
    with place(tmp_path) as here:
        up = here.up(here.run_file(run))
        ann, bob = (here.join(up.invite, one) for one in ("ann", "bob"))
        ann.event("round", round=2)
        bob.kill()
        cleo = here.join(up.invite, "cleo")
        left = [peer.event("left") for peer in (ann, cleo)]
        assert [peer.end() for peer in (ann, cleo)] == [0, 0]
        assert len({event["root"] for event in left}) == 1  # also where only the last op merges all
        up.stop()
        proof = here.command("verify", here.folder / "ann")
        assert proof.end() == 0, proof


def test_forward_passes_go_on_from_trained_weights_through_a_death_and_a_newcomer(tmp_path):
    first = f'[run]\nname = "first"\nrounds = 1\n{SMALL_MODEL}'
    tuned = f'[run]\nname = "tuned"\nrounds = 30\n{SMALL_MODEL}{ONE_BYTE}'
    with place(tmp_path) as here:
        up = here.up(here.run_file(first, "first"), state="first")
        assert here.join(up.invite, "teacher").end() == 0
        model = here.folder / "trained"
        answer("export", here.folder / "teacher", "--to", model)
        tuned_file = here.run_file(tuned)
        refused = here.up(tuned_file, state="fresh").running
        assert refused.end() == 78
        assert "outer.strategy" in refused.said and "--from" in refused.said
        up = here.up(tuned_file, "--from", model)
        ann, bob = (here.join(up.invite, one) for one in ("ann", "bob"))
        ann.event("round", round=3)
        bob.kill()
        cleo = here.join(up.invite, "cleo")
        left = [peer.event("left") for peer in (ann, cleo)]
        assert [peer.end() for peer in (ann, cleo)] == [0, 0]
        assert len({event["root"] for event in left}) == 1
        assert {event["round"] for event in left} == {30}
        up.stop()
        answer("verify", here.folder / "ann")
