"""Advice on an invite that works on this machine only."""

from pathlib import Path

import pytest

from swarmtrain.cli.up import for_others
from swarmtrain.config.options import Endpoint, UpOptions
from swarmtrain_transport.credentials.invite import Invite


@pytest.mark.parametrize(
    ("listen", "public", "advice"),
    [
        ("127.0.0.1", "", "--listen 0.0.0.0:8400, and --public-host with a name or address"),
        ("127.0.0.1", "localhost", "--listen 0.0.0.0:8400, and --public-host with"),
        ("0.0.0.0", "localhost", "For others give --public-host with a name or address"),
    ],
)
def test_no_option_is_advised_that_was_given(listen, public, advice):
    options = UpOptions(Path("run.toml"), Endpoint(listen, 8400), public, None, json_events=False)
    said = for_others(options, Invite(public or listen, 8400, "tiny", bytes(32), bytes(16)))
    assert advice in said and (f", not {public}" if public else "can reach") in said
    assert ("--map" in said) == ("--listen" in said)
