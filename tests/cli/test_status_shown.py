"""Words that `swarmtrain status` makes of an answer, for people."""

import json
import os
import sqlite3
import struct
import zlib

from swarmtrain.cli.main import main
from swarmtrain.cli.status import describe
from swarmtrain.config.caps import Caps
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.foundation import dirs
from swarmtrain.peer.disk.ledger_file import segment_of
from swarmtrain_transport.wire.records import Record

PEER = {"name": "ann", "round": 3, "state_root": "ab" * 32}


def test_a_run_of_pairs_shows_each_peers_chain_instead_of_one_wanted_root():
    peers = [PEER | {"chain": "cd" * 32}, PEER | {"name": "bob", "chain": ""}]
    lines = list(describe({"run": "t", "wanted_root": "", "peers": peers}))
    assert not any(line.startswith("state root") for line in lines)
    assert lines[-3].split() == ["peer", "round", "state", "root", "chain"]
    assert lines[-2].split() == ["ann", "3", "ab" * 8, "cd" * 8]
    assert lines[-1].split() == ["bob", "3", "ab" * 8]


def test_other_runs_have_no_column_of_chains():
    lines = list(describe({"round": 3, "wanted_root": "ab" * 32, "peers": [PEER | {"chain": ""}]}))
    assert not any("chain" in line for line in lines)
    assert lines[1] == f"state root       {'ab' * 8} after round 3"


def test_a_peers_own_answer_shows_its_chain():
    assert list(describe({"chain": "cd" * 32})) == ["chain            cdcdcdcdcdcdcdcd"]


def test_a_model_in_stages_shows_who_serves_them_and_what_became_of_micro_batches():
    peers = [
        {"peer": "aa", "name": "otter", "stages": [0, 1], "rests": "in stage 1: owns nothing"},
        {"peer": "bb", "name": "lynx", "stages": [1], "loss": 0.0},
        {"peer": "cc", "name": "crane", "stages": []},
    ]
    later = {"group": 1, "round": 2, "wanted_root": "cd" * 32, "num_values": 400, "peers": []}
    pipeline = {
        "stages": [
            {"peers": ["aa"], "counted": 7, "keepers": ["cc", "bb"]},
            {"peers": ["bb", "aa"], "counted": 6, "keepers": []},
        ],
        "made": 20, "whole": 17, "lost": 2, "redone": 5, "suspects": {"aa": "bb"},
    }  # fmt: skip
    first = {"run": "t", "round": 3, "wanted_root": "ab" * 32, "num_values": 800}
    first["events"] = [
        {"round": 2, "peer": "bb", "event": "moved", "reason": "to stage 1: nobody served it"},
    ]
    assert list(describe({**first, "peers": peers, "groups": [later], "pipeline": pipeline})) == [
        "run              t",
        "round            3",
        "model            1 200 parameters in 2 stages",
        f"stage 0          otter, kept by crane, lynx; state root {'ab' * 8} after round 3; "
        "7 micro-batches in the newest round",
        f"stage 1          lynx, otter; state root {'cd' * 8} after round 2; "
        "6 micro-batches in the newest round",
        "moved            lynx to stage 1: nobody served it (round 2)",
        "micro-batches    20 made, 17 counted in all stages, 2 lost, "
        "1 counted in some stages only, 5 times sent or made again",
        "at odds          otter compares routes and suspects lynx",
        "",
        "peer   stages",
        "otter  0-1",
        "lynx   1",
        "crane",
        "otter in stage 1: owns nothing",
    ]


def test_who_was_cut_for_flooding_is_named():
    events = [
        {"round": 3, "peer": "ab" * 32, "event": "flood", "reason": "lease_request", "times": 2},
        {"round": 4, "peer": "cd" * 32, "event": "joined", "reason": "", "times": 1},
        {"round": 4, "peer": "ef" * 32, "event": "fault", "reason": "length", "times": 1},
    ]
    lines = [line for line in describe({"events": events}) if "was cut off" in line]
    assert lines[0].startswith("flood") and lines[0].endswith(
        "peer abababab was cut off 2 times for too many messages (lease_request)"
    )
    assert lines[1].startswith("fault") and lines[1].endswith(
        "peer efefefef was cut off once for what is no message of the protocol (length)"
    )


def test_a_coordinators_answer_is_in_words_without_what_is_as_ever():
    view = {
        "run": "t", "term": 1, "round": 8, "committed": 8, "rounds": 40, "phase": "gather",
        "num_values": 853120, "checkpoint_op": -1, "directory": "/x",
    }  # fmt: skip
    assert list(describe(view)) == [
        "run              t",
        "round            8 of 40",
        "state            exchanging: the result is spread",
        "model            853 120 parameters",
        "directory        /x",
    ]
    later = list(describe(view | {"term": 3, "committed": 6, "checkpoint_op": 5}))
    assert "coordinator      started 3 times" in later
    assert "with a result    6 rounds; the others were skipped" in later
    assert "checkpoint       after round 5" in later


def test_a_peers_answer_is_in_words():
    view = {"connected": True, "tokens_per_s": 9042.1, "tokens": 221184, "bytes_up": 4_600_000}
    assert list(describe(view)) == [
        "coordinator      connected",
        "speed            9042 tokens/s",
        "trained on       221 184 tokens",
        "sent             4.6 MB",
    ]
    (line,) = describe({"connected": False})
    assert line == "coordinator      does not answer; it is looked for"


def test_what_a_program_counts_is_called_by_its_own_word():
    peer = PEER | {"state": "training", "tokens_per_s": 7093.9}
    for unit, title in (("tokens", "tok/s"), ("samples", "samples/s")):
        titles, row = list(describe({"peers": [peer], "unit": unit}))[-2:]
        assert title in titles.split() and "7094" in row.split()


def test_each_later_group_is_told_below_with_its_own_peers():
    group = {
        "group": 1, "round": 2, "rounds": 9, "wanted_root": "cd" * 32, "ops_under_way": [3],
        "peers": [{"name": "bob", "round": 2, "state_root": "cd" * 32}], "losses": {},
        "waiting_for": "1 more peer", "waiting_seen_s": None,
    }  # fmt: skip
    view = {"run": "t", "round": 8, "rounds": 9, "peers": [PEER], "groups": [group]}
    lines = list(describe(view))
    below = lines[lines.index("group            1") :]
    assert below[1] == "round            2 of 9"
    assert f"state root       {'cd' * 8} after round 2" in below
    assert "waiting for      1 more peer" in below
    assert below[-1].split() == ["bob", "2", "cd" * 8]


def test_a_directory_in_which_nothing_ran_says_where_it_looked_and_what_is_near(capsys, tmp_path):
    peer = tmp_path / "peers" / "bob"
    peer.mkdir(parents=True)
    (peer / "status.json").write_text("{}")
    for words in (["status"], ["why", "3"]):
        assert main([*words, "--state-dir", str(tmp_path)]) == 66
        err = capsys.readouterr().err
        assert err.startswith(f"SWT-E806  {tmp_path} is no state directory")
        assert "status.json" in err and f"\n            {peer}" in err


def test_a_narrow_terminal_goes_without_what_matters_least():
    peer = PEER | {"state": "training", "step": 9, "loss": 2.0, "tokens_per_s": 7093.9}
    peer |= {"bytes_up": 10_900_000, "bytes_down": 6_500_000}
    for width, gone in ((0, []), (64, ["step", "tok/s"]), (40, ["step", "tok/s", "down", "up"])):
        *_, titles, row = describe({"peers": [peer]}, width)
        assert not width or max(len(titles), len(row)) <= max(width, 47)
        for title in ("step", "tok/s", "down", "up"):
            assert (title in titles.split()) == (title not in gone), (width, title)
        assert row.endswith("ab" * 8)


def test_who_gives_against_the_others_is_seen_in_its_row():
    seen = {"norm": 1.023, "cosine": -0.91, "left_out": 3}
    unseen = {"norm": None, "cosine": None, "left_out": 0}
    lines = list(describe({"peers": [PEER | seen, PEER | {"name": "bob"} | unseen]}))
    assert "norm  cosine  left out  state root" in lines[-3]
    assert lines[-2].split()[2:5] == ["1.02", "-0.91", "3"]
    assert lines[-1].split()[2] == "0" and "None" not in lines[-1]
    assert not any("left out" in line for line in describe({"peers": [PEER | unseen]}))


def test_who_says_what_of_whom_and_who_sits_out_is_told():
    said = "says that the part of cdcdcdcd never came; its slice went to efefefef"
    events = [{"round": 7, "peer": "ab" * 32, "event": "at odds", "reason": said, "times": 1}]
    rests = "gives nothing up to round 9: at fault too often"
    lines = list(describe({"events": events, "peers": [PEER | {"rests": rests}]}))
    assert f"at odds          peer abababab {said} (round 7)" in lines
    assert lines[-1] == f"ann {rests}"


def test_status_of_what_no_process_could_go_on_from_says_so(tmp_path, capsys):
    store = tmp_path / "coordinator" / "ledger.sqlite"
    store.parent.mkdir()
    store.write_bytes(b"this is not a database " * 100)
    assert main(["status", "--state-dir", str(store.parent)]) == 65
    assert capsys.readouterr().err.startswith("SWT-E805")
    store.unlink()
    Store.open(store.parent).close()
    with sqlite3.connect(store) as raw:
        raw.execute("UPDATE meta SET value = 1 WHERE key = 'schema'")
    raw.close()
    assert main(["status", "--state-dir", str(store.parent)]) == 78
    assert capsys.readouterr().err.startswith("SWT-E810")
    packed = segment_of([Record(0, bytes(32), 1, b"", b"s" * 64)])[12:]
    old = struct.pack("<III", len(packed), len(packed), zlib.crc32(packed)) + packed
    (tmp_path / "ledger.bin").write_bytes(old)
    assert main(["status", "--state-dir", str(tmp_path)]) == 78
    assert capsys.readouterr().err.startswith("SWT-E810")


def test_status_of_a_whole_ledger_says_that_nothing_runs(tmp_path, capsys):
    Store.open(tmp_path).close()
    assert main(["status", "--state-dir", str(tmp_path)]) == 69
    assert capsys.readouterr().err.startswith("SWT-E204")


def test_a_coordinator_whose_log_is_in_a_database_is_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dirs, "runs_dir", lambda: tmp_path)
    for seconds, name, mark in ((100, "old", "ledger.sqlite"), (200, "new", "coordinator.lock")):
        place = tmp_path / name
        place.mkdir()
        (place / mark).touch()
        (place / "status.json").write_text('{"socket": "nowhere"}')
        os.utime(place / "status.json", (seconds, seconds))
    new = str(tmp_path / "new")
    for words in (["invite", "ls"], ["status"], ["peers", "ls"]):
        assert main(words) == 69
        assert f"SWT-E204  Not running: {new}" in capsys.readouterr().err
    for words in (["why", "1"], ["verify", new]):
        assert main(words) == 66
        assert "keep it in a database" in capsys.readouterr().err
    assert main(["page"]) == 2
    assert "is a coordinator's" in capsys.readouterr().err


def test_a_run_in_a_database_is_not_begun_anew_by_an_option_that_was_forgotten(tmp_path, capsys):
    file, place = tmp_path / "run.toml", tmp_path / "state"
    file.write_text('[run]\nname = "tiny"\n')
    place.mkdir()
    (place / "coordinator.lock").touch()
    (place / "status.json").write_text("{}")
    assert main(["up", str(file), "--state-dir", str(place)]) == 2
    assert "has its log in a database" in capsys.readouterr().err
    assert main(["up", str(file), "--state-dir", str(place), "--key-file", str(file)]) == 2
    assert "--key-file seals keys in a database" in capsys.readouterr().err
    assert sorted(one.name for one in place.iterdir()) == ["coordinator.lock", "status.json"]


def test_a_key_file_that_others_may_read_is_warned_of(tmp_path, capsys):
    file, key = tmp_path / "run.toml", tmp_path / "run.key"
    file.write_text('[run]\nname = "tiny"\n[data]\nsource = "own"\n')
    key.write_text("a secret that all coordinators have")
    for mode, is_told in ((0o644, True), (0o600, False)):
        key.chmod(mode)
        words = ["up", str(file), "--state-dir", str(tmp_path / "state"), "--key-file", str(key)]
        assert main([*words, "--store", "postgresql://ann@127.0.0.1:1/runs"]) == 75
        assert ("chmod 600" in capsys.readouterr().err) is is_told


def test_numbers_without_measure_in_what_a_process_left_are_no_sensible_answer(tmp_path, capsys):
    left = {"socket": "nowhere", "last": {"bytes_up": 10**400}}
    (tmp_path / "status.json").write_text(json.dumps(left))
    assert main(["status", "--state-dir", str(tmp_path)]) == 76
    assert capsys.readouterr().err.startswith("SWT-E501")


def test_nobody_looks_for_the_coordinator_of_a_process_that_has_ended() -> None:
    shown = list(describe({"process": "has ended", "state": "finished", "connected": False}))
    assert shown == ["process          has ended", "state            finished"]


def test_a_peer_that_has_left_says_so_with_its_own_units_and_limits():
    """Its last answer stays behind, as that of a finished run does."""
    lines = list(describe({
        "process": "has ended", "run": "t", "state": "has left", "tokens": 240, "unit": "samples",
        "tokens_per_s": 12.0, "limits": Caps(625_000, 0, 10**10).in_words(),
    }))  # fmt: skip
    assert lines[1:] == [
        "run              t",
        "state            has left the run; the command that joined it comes back",
        "trained on       240 samples",
        "speed            12 samples/s",
        "limits           625 kB/s up, 10 GB a day",
    ]


def test_the_pages_numbers_are_shown_as_they_were_computed():
    traffic = {"up": 154_000_000, "down": 1, "relayed": 0, "fewer": 20.1}
    numbers = {"tokens": 120_000, "tokens_per_s": 5210.4, "left_s": 3000.0, "loss": 2.539,
               "loss_round": 39, "traffic": traffic}  # fmt: skip
    assert [*describe({"losses": {"39": 9.0}, "numbers": numbers})] == [
        "validation loss  2.539 nats after round 39",
        "in results       120 000 tokens",
        "speed of all     5210 tokens/s",
        "left             about 50 min",
        "sent by all      154 MB, 20.1 times less than data-parallel",
    ]


def test_a_peers_quota_is_shown_beside_what_was_moved_today():
    told = {"today": 126_000_000, "caps": {"up": 0, "down": 0, "daily": 500_000_000}}
    assert [*describe(told)] == ["moved today      126 MB of 500 MB"]
    assert not [*describe({"today": 126_000_000, "caps": {"up": 0, "down": 0, "daily": 0}})]


def test_of_hundreds_of_peers_those_are_shown_that_are_not_as_most_are():
    peers = [PEER | {"name": f"p{n}", "peer": f"{n:064x}", "state": "training"} for n in range(300)]
    peers[7]["state"] = peers[290]["state"] = "syncing"
    peers[123]["rests"] = "sits out until round 9"
    peers[5]["ways"] = {"p7": "relayed", "p8": "dialled"}
    lines = list(describe({"peers": peers}, 0, 32))
    begin = next(at for at, line in enumerate(lines) if line.split()[:1] == ["peer"])
    rows = lines[begin + 1 : begin + 33]
    shown = [row.split()[0] for row in rows]
    assert {"p7", "p123", "p290"} <= set(shown) and len(set(shown)) == 32
    assert shown == sorted(shown, key=lambda name: int(name[1:]))
    assert "1 relayed" in rows[shown.index("p7")] and "dialled" not in rows[shown.index("p8")]
    assert lines[begin + 33].startswith("and 268 training; --all shows them")
    assert lines[begin + 34 :] == ["p123 sits out until round 9"]
    assert len(list(describe({"peers": peers}))) == begin + 302


def test_peers_are_listed_by_pages(capsys, monkeypatch, tmp_path):
    row = {"peer": "ab" * 32, "state": "in", "round": 1, "since_round": 1, "since_group": 0}
    row |= {"contributed": 0, "excluded": 0, "last_reason": "", "last_round": 0, "last_group": 0}
    known = [row | {"name": f"p{n}"} for n in range(230)]
    monkeypatch.setattr("swarmtrain.cli.peers.obeyed", lambda *given, **order: {"peers": known})

    def told(*words: str) -> list[str]:
        assert main(["peers", "ls", "--state-dir", str(tmp_path), *words]) == 0
        return capsys.readouterr().out.splitlines()

    for words, first, count, last in (
        ((), "p0", 100, "page 1 of 3, 230 peers: --page 2 goes on"),
        (("--page", "3"), "p200", 30, "page 3 of 3, 230 peers: it is the last one"),
        (("--page", "9"), "p200", 30, "page 3 of 3, 230 peers: it is the last one"),
    ):
        lines = told(*words)
        assert lines[1].split()[0] == first and len(lines) == count + 2 and lines[-1] == last
    assert len(told("--page", "0")) == 231
    assert len(json.loads("".join(told("--json")))["peers"]) == 230
    known[:] = known[:100]
    assert len(told()) == 101, "what fits on one page says nothing of pages"
