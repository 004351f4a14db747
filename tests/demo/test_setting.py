"""The run file that is written for readers is the one that everybody uses."""

import pytest

from swarmtrain.config.options import DEMO_CHURN_ROUNDS_MIN, DemoOptions
from swarmtrain.demo.setting import KILL_ROUND, NEWCOMER, Cast, write_run_file
from swarmtrain.foundation.errors import UserError
from swarmtrain.local_run.place import FOUNDERS, Place
from swarmtrain_transport.coordinator.ops.slicing import best_shares


def options(peers: int = 4, *, churn: bool = True) -> DemoOptions:
    return DemoOptions(peers=peers, rounds=8, seed=5, churn=churn, json=False, state_dir=None)


@pytest.mark.parametrize("peers", [1, 2, 16])
def test_the_run_file_says_what_was_asked_for(tmp_path, peers):
    config = write_run_file(Place.make(tmp_path / "demo"), options(peers, churn=False))
    assert (config.run.rounds, config.run.seed) == (8, 5)
    assert config.exchange.start_peers == peers
    assert config.exchange.min_contributors == min(2, peers)
    assert (config.outer.lr, config.outer.momentum, config.outer.inner_steps) == (0.9, 0.8, 20)
    assert config.exchange.codec == "int8"


def test_slices_of_the_largest_demo_still_have_two_chunks(tmp_path):
    config = write_run_file(Place.make(tmp_path / "demo"), options(16))
    padded_values = 800_000
    assert padded_values / 16 > config.exchange.chunk_values


def test_no_peer_owns_every_slice_whatever_its_rate_seems_to_be(tmp_path):
    """Three processes that share two cores measure rates that differ fourfold; by these one would
    own all, send nothing in the round of its death, and live."""
    config = write_run_file(Place.make(tmp_path / "demo"), options(peers=3))
    assert best_shares([4.0, 1.0, 1.0]) == pytest.approx([1.0, 0.0, 0.0])
    assert config.exchange.slices == "equal"


def test_with_churn_one_founder_is_the_victim_and_one_more_comes():
    cast = Cast.of(options(3))
    assert cast.victim in cast.founders
    assert len(cast.survivors) == 2
    assert cast.everybody == (*cast.founders, NEWCOMER)
    assert Cast.of(options(1, churn=False)).everybody == FOUNDERS[:1]


def test_there_is_a_name_for_every_peer_and_no_name_twice():
    assert len({*FOUNDERS, NEWCOMER}) == 17
    assert len(Cast.of(options(16)).founders) == 16


def test_the_newcomer_has_a_round_left_after_the_death():
    assert KILL_ROUND + 2 <= DEMO_CHURN_ROUNDS_MIN


def test_a_directory_that_holds_a_run_is_refused(tmp_path):
    place = Place.make(tmp_path / "demo")
    assert place.logs.is_dir()
    place.coordinator.mkdir()
    with pytest.raises(UserError, match="already holds a run") as refused:
        Place.make(tmp_path / "demo")
    assert refused.value.exit_status == 2


def test_without_a_wish_the_directory_is_a_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = Place.make(None), Place.make(None)
    assert first.root != second.root
    assert first.root.parent == tmp_path
