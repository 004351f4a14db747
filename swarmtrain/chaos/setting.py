"""The run that chaos drives: as small as a run can be, so that a round takes a second."""

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.local_run.place import FOUNDERS, Place

MIN_CONTRIBUTORS = 2


def names(peers: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Founders, and those who may come later.

    Args:
        peers: founders, fewer than there are names.
    """
    return FOUNDERS[:peers], FOUNDERS[peers:]


def write_run_file(
    place: Place, seed: int, peers: int, inner_steps: int, wait_ready_s: float
) -> RunConfig:
    """Write the run file and read it back as everybody will read it.

    Args:
        peers: founders.
        wait_ready_s: longest wait of the first that is ready.
    """
    text = _RUN_FILE.format(
        seed=seed, start_peers=peers, min_contributors=MIN_CONTRIBUTORS, inner_steps=inner_steps,
        wait_ready_s=wait_ready_s,
    )  # fmt: skip
    place.run_file.write_text(text, encoding="utf-8")
    return config_file.load(place.run_file)


_RUN_FILE = """\
# The run file of a chaos. Rounds are short and many, deadlines as tight as a busy machine allows.

[run]
name = "chaos"
seed = {seed}
rounds = 1000000              # it is ended from outside

[model]
kind = "byte-transformer"
layers = 1
width = 32
heads = 2
context = 32

[data]
source = "python-stdlib"
piece_bytes = 8192
lease_pieces = 2
validation_pieces = 1

[inner]
batch = 2

[outer]
inner_steps = {inner_steps}

[exchange]
codec = "int8"
block = 256
chunk_values = 2048           # several chunks per slice, so that a deed can fall between two
start_peers = {start_peers}
min_contributors = {min_contributors}
wait_ready_s = {wait_ready_s}
deadline_floor_s = 5.0
deadline_cap_s = 20.0

[checkpoint]
every_rounds = 5
snapshot_rounds = 4
"""
