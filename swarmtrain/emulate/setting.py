"""The beginning of an emulation: names, the run file, and the environment of a program."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from swarmtrain.config import file as config_file
from swarmtrain.config.options import EmulateOptions
from swarmtrain.config.settings import RunConfig
from swarmtrain.emulate.links import Links
from swarmtrain.foundation.errors import misuse
from swarmtrain.hook import environment
from swarmtrain.local_run.place import FOUNDERS, Place
from swarmtrain_transport.credentials.invite import Invite

_RUN_FILE = """\
# The run file of an emulation. Start a coordinator with it: swarmtrain up run.toml

[run]
name = "emulation"
seed = {seed}
rounds = {rounds}              # committed rounds; then the run is over
{training}
[outer]
inner_steps = {inner_steps}          # of each peer, between two exchanges

[exchange]
start_peers = {start_peers}          # the first round waits for all
min_contributors = {min_contributors}
slices = {slices}

[checkpoint]
every_rounds = 4
snapshot_rounds = 2          # who comes back downloads the state of such a round
"""

_OWN = """
[model]
kind = "custom"              # the program brings it

[data]
source = "own"
"""

_BUILT_IN = """
[model]
kind = "byte-transformer"
layers = 2
width = 64
heads = 4
context = 64

[data]
source = "python-stdlib"

[inner]
batch = 8
lr = 2e-3
"""


def names_of(count: int) -> tuple[str, ...]:
    """Names of so many peers."""
    more = (f"peer-{number}" for number in range(len(FOUNDERS) + 1, count + 1))
    return (*FOUNDERS[:count], *more)


def run_file_of(place: Place, options: EmulateOptions) -> tuple[Path, RunConfig]:
    """Write the run file, or take the one that was given; and read it as everybody will.

    Raises:
        UserError: it cannot be read, or waits for more peers than there are.
    """
    path = options.run_file or place.run_file
    if options.run_file is None:
        text = _RUN_FILE.format(
            seed=options.seed,
            rounds=options.rounds,
            inner_steps=options.inner_steps,
            training=_OWN if options.command else _BUILT_IN,
            start_peers=options.peers,
            min_contributors=min(2, options.peers),
            slices=json.dumps("measured" if options.net else "equal"),
        )
        path.write_text(text, encoding="utf-8")
    config = config_file.load(path)
    if config.exchange.start_peers > options.peers:
        raise misuse(
            f"The run of {path} waits for {config.exchange.start_peers} peers, and {options.peers} "
            "are emulated.",
            "Ask for more --peers, or lower exchange.start_peers.",
        )
    return path, config


def variables_of(
    place: Place, name: str, invite: str, links: Links
) -> tuple[Mapping[str, str], Path]:
    """Return the environment of a program, and the file of its events."""
    up, down = links.caps()
    events = place.logs / f"{name}.events"
    known = links.invite(name, invite)
    # No proxy of the outer network stands between peers that are all on this machine.
    excepted = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    return {
        environment.INVITE: known,
        "no_proxy": f"{excepted},{Invite.parse(known).host}/24".lstrip(","),
        environment.NAME: name,
        environment.STATE_DIR: str(place.peer(name)),
        environment.ADVERTISE: links.advertised(name),
        environment.UP: up,
        environment.DOWN: down,
        environment.EVENTS: str(events),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
    }, events
