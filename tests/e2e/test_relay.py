"""A process that only relays stands in the status while it is there, and ends when asked to."""

from e2e_rig import SMALL_MODEL, place


def test_a_relay_is_known_to_the_run_and_leaves_cleanly(tmp_path):
    with place(tmp_path) as here:
        up = here.up(here.run_file(f'[run]\nname = "relayed"\n{SMALL_MODEL}'))
        relay = here.command(
            "relay", up.invite, "--name", "bridge", "--rate", "10mbit", "--listen", "127.0.0.1:0"
        )
        view = up.status_when(lambda told: told["relays"])
        assert [(one["name"], one["bytes_per_s"]) for one in view["relays"]] == [
            ("bridge", 1_250_000)
        ]
        assert not view["peers"]
        relay.interrupt()
        assert relay.end() == 0, str(relay)
        assert "Passed on 0" in relay.said
        up.stop()
