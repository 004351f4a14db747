"""Strategies that ask more of a session than weights do, over real links, and their proof."""

import pytest
from e2e_rig import SMALL_MODEL, place

pytestmark = pytest.mark.timeout(200)

DDP = 'strategy = "ddp"\n[exchange]\ncodec = "int8"\nrounding = "stochastic"\n'
DYNAMIC = (
    'strategy = "delayed_nesterov"\nerror_feedback = true\n'
    '[exchange]\ncodec = "two_bit"\nblock = 256\n'
)


@pytest.mark.parametrize(("name", "text"), [("ddp", DDP), ("dynamic", DYNAMIC)])
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
        proof = here.command("verify", here.folder / "ann")
        assert proof.end() == 0, proof
