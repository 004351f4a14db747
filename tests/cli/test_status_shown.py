"""What `swarmtrain status` makes of an answer, for people."""

from swarmtrain.cli.status import describe

PEER = {"name": "ann", "round": 3, "state_root": "ab" * 32}


def test_a_run_of_pairs_shows_each_peers_chain_instead_of_one_wanted_root():
    peers = [PEER | {"chain": "cd" * 32}, PEER | {"name": "bob", "chain": ""}]
    lines = list(describe({"run": "t", "wanted_root": "", "peers": peers}))
    assert not any("wanted root" in line for line in lines)
    assert lines[-3].split() == ["peer", "round", "state", "root", "chain"]
    assert lines[-2].split() == ["ann", "3", "ab" * 8, "cd" * 8]
    assert lines[-1].split() == ["bob", "3", "ab" * 8]


def test_other_runs_have_no_column_of_chains():
    lines = list(describe({"wanted_root": "ab" * 32, "peers": [PEER | {"chain": ""}]}))
    assert not any("chain" in line for line in lines)
    assert lines[0].split() == ["wanted", "root", "ab" * 8]


def test_a_peers_own_answer_shows_its_chain():
    assert list(describe({"chain": "cd" * 32})) == ["chain            cdcdcdcdcdcdcdcd"]


def test_who_was_cut_for_flooding_is_named():
    events = [
        {"round": 3, "peer": "ab" * 32, "event": "flood", "reason": "lease_request", "times": 2},
        {"round": 4, "peer": "cd" * 32, "event": "joined", "reason": "", "times": 1},
    ]
    (line,) = [line for line in describe({"events": events}) if line.startswith("flood")]
    assert line.endswith("peer abababab was cut off 2 times for too many messages (lease_request)")
