"""The archive for a bug report: secrets of each kind are planted in each file, none comes out."""

import getpass
import json
import os
import socket
import tarfile
from pathlib import Path

import pytest

from swarmtrain.cli.main import main
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import ModelSection, RunConfig, RunSection
from swarmtrain.doctor import bundle
from swarmtrain.doctor.scrub import Scrubber
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.disk.storage import PeerStorage
from swarmtrain_transport.credentials.identity import Identity, verify
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.ledger.chain import Ledger
from swarmtrain_transport.wire.records import Body, Gone, Join, Run, make_record

KEY = Identity.create()
CONFIG = RunConfig(run=RunSection(name="tests"), model=ModelSection(layers=1, width=16, heads=2))
TEXT = "It was the best of times, it was the worst of times"
PEM = "MC4CAQAwBQYDK2VwBCIEIJ+/aGVsbG8gd29ybGQgaGVsbG8gd29ybGQgaGVsbG8g"
INVITE = str(Invite("coordinator.example.org", 8400, "tests", b"c" * 32, b"0123456789abcdef"))
NEAR = INVITE.replace(".org", "")
LINK = "https://198.51.100.7:8400/#6f1a7c9e42c275a78c30bb72e50a0b61"
COOKIE = "viewer.2caeb49a86b9.Zm9vYmFyYmF6"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "maryhome"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(getpass, "getuser", lambda: "marypoppins")
    monkeypatch.setattr(socket, "gethostname", lambda: "cherrytree17.lane")
    return tmp_path


def planted(home: Path, identity: Identity) -> dict[str, str]:
    """Lines by what must not come out of them."""
    return {
        identity.signing_secret.hex(): f"key {identity.signing_secret.hex()}",
        identity.curve_secret.hex(): f"key={identity.curve_secret.hex()}",
        PEM[10:30]: f"-----BEGIN PRIVATE KEY-----\n{PEM}\n-----END PRIVATE KEY-----",
        PEM[30:60]: f"alone {PEM} in a line",
        INVITE.partition("#")[2][:20]: f"swarmtrain join '{INVITE}' failed",
        "coordinator.example": f"coordinator.example has no address; {NEAR} again",
        "cherryhost.example": "cherryhost.example:8400 is silent, https://cherryhost.example/x?y#z",
        "6f1a7c9e42c275a7": f"Watch it: {LINK}.",
        "8c30bb72e50a0b61": "secret 6f1a7c9e42c275a78c30bb72e50a0b61 of the link",
        "2caeb49a86b9": f"Cookie: {COOKIE}; path=/",
        "Zm9vYmFyYmF6": json.dumps({"set-cookie": COOKIE, "authorization": f"Bearer {COOKIE}"}),
        "maryhome": f"{home}/maryhome/models/run.toml is missing",
        "johnsmith": "File /home/johnsmith/train.py, and C:\\Users\\johnsmith\\x",
        "marypoppins": "user marypoppins, MARYPOPPINS@cherrytree17",
        "cherrytree17": "on cherrytree17.lane",
        "burt@": "mail burt@sweep.example about it",
        "198.51.100.23": "peer at 198.51.100.23:4711, tcp:198.51.100.23",
        "2001:db8::17": "peer at [2001:db8::17]:4711 or 2001:db8::17",
        "52:54:00:ab:cd:ef": "card 52:54:00:ab:cd:ef",
        "jane-banks": "jane-banks was late",
    }


def directory(home: Path) -> tuple[Path, dict[str, str]]:
    """A peer's directory with such lines in all that is gathered, and in what is not."""
    place = home / "state" / "swarmtrain" / "runs" / "tests" / "peers" / "ann"
    place.mkdir(parents=True)
    storage = PeerStorage(place)
    identity = storage.identity()
    storage.of(0).keep_run(config_file.canonical(CONFIG))
    lines = planted(home, identity)
    ledger = Ledger(verify)
    bodies: list[Body] = [
        Run("tests", KEY.peer_id, config_file.config_hash(CONFIG), 1),
        Join(b"p" * 32, b"b" * 16, "jane-banks", b"c" * 32),
        *(Gone(b"p" * 32, True, f"banned: {line}"[:200]) for line in lines.values()),
    ]
    for body in bodies:
        record = make_record(len(ledger), ledger.head_hash, 1, body, KEY.sign, ledger.reader)
        ledger.append(record)
        storage.append_records([record])
    storage.close()
    everything = "\n".join([*lines.values(), "round 7: merged, SWT-E203, state a3af8fa7482a8024"])
    said = {"name": "jane-banks", "said": list(lines.values()), "round": 7}
    said |= {"peers": [{"name": "zoe-tube"}, "zoe-tube is here"], **dict.fromkeys(lines.values())}
    (place / "status.json").write_text(json.dumps({"socket": "/nowhere", "last": said}))
    metrics = [{"round": 7.0, TEXT: 1.0, "text": TEXT, line: 2, "said": line} for line in lines]
    (place / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)) + f"\n{TEXT}\n")
    (place / "limits.json").write_text(json.dumps({"nice": 5, "hours": TEXT, TEXT: everything}))
    (place / "tls.pem").write_text(f"-----BEGIN PRIVATE KEY-----\n{PEM}\n")
    for name in ("logs", "reports", "text"):
        (place / name).mkdir()
    for name in ("peer.log", "logs/marypoppins.log", "reports/fault-1.txt"):
        (place / name).write_text(everything)
    for name in ("text/piece", "own.safetensors", "results/00000001.bin"):
        (place / name).write_text(f"{TEXT}\n{everything}")
    for number, line in enumerate(lines.values()):
        (place / f"{number} {line.replace('/', ' ').replace(chr(10), ' ')[:120]}").touch()
    return place, lines


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert all(one.isreg() and not (one.uname or one.uid or one.mtime) for one in members)
        return {one.name: archive.extractfile(one).read().decode() for one in members}


def test_no_secret_of_any_kind_comes_out_of_any_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines = directory(home)
    out = home / "out.tar.gz"
    assert main(["logs", "bundle", "tests", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "nothing was sent" in told and "Look before you send" in told
    files = unpacked(out)
    names = {name.rpartition("peer-1/")[2] for name in files}
    wanted = "files.txt status.json run-file.json metrics.jsonl ledger.txt logs/1-peer.log"
    assert {*wanted.split(), "logs/2-[name].log", "logs/3-fault-1.txt"} <= names
    for name, text in files.items():
        for secret in (*lines, "zoe-tube", TEXT, TEXT[:20]):
            assert secret.lower() not in f"{name}\n{text}".lower(), (name, secret)
    log = next(text for name, text in files.items() if name.endswith("peer.log"))
    assert "round 7: merged, SWT-E203, state a3af8fa7482a8024" in log  # what helps stays
    assert "peer at [address 1]:4711, tcp:[address 1]" in log
    assert "[peer 1] was late" in log and "~/models/run.toml" in log
    assert '"round": 7.0' in next(text for name, text in files.items() if "metrics" in name)
    assert out.stat().st_mode & 0o077 == 0
    assert main(["logs", "bundle", "tests", "--out", str(out)]) == 2


def test_links_pipes_and_endless_files_are_left_and_the_archive_is_bounded(home: Path) -> None:
    place, _ = directory(home)
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "private.log").write_text("diary of a stranger")
    (place / "linked.log").symlink_to(elsewhere / "private.log")
    for name in ("logs", "reports"):
        for one in (place / name).iterdir():
            one.unlink()
        (place / name).rmdir()
    (place / "logs").symlink_to(elsewhere)
    os.mkfifo(place / "pipe.log")
    (place / f"{'long' * 50}.log").write_bytes(b"\xff\xfe not text")
    odd = '{"socket": "/nowhere", "last": {"round": "x", "y": "\\ud800"}}'
    (place / "status.json").write_text(odd)
    (place / "limits.json").unlink()
    (place / "limits.json").symlink_to(elsewhere / "private.log")
    for number in range(24):
        (place / f"{number:02}.log").write_text("a line of a log\n" * 30_000)
    (place / "00.log").write_text("a line of a log\n" + "a1" * 100_000 + "\na1.A" * 9_000)
    files = bundle.gathered([place])
    bundle.write(home / "out.tar.gz", files)
    assert sum(map(len, files.values())) <= bundle.BYTES_MAX
    assert not any(b"diary" in data for data in files.values())
    assert not any("private" in name or "pipe" in name or "limits" in name for name in files)
    assert files["peer-1/logs/2-01.log"].startswith(b"a line of a log")


def test_an_archive_that_finds_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"out\.tar\.gz") as caught:
            bundle.write(tmp_path / "out.tar.gz", {"a": b"b"})
        assert caught.value.code == "SWT-E401"
    assert not list(tmp_path.iterdir())
    bundle.write(tmp_path / "out.tar.gz", {"a": b"b"})


def test_what_is_no_state_directory_says_so(home: Path) -> None:
    for given in (["nosuch"], [str(home)], []):
        with pytest.raises(UserError) as caught:
            bundle.directories_of(given)
        assert caught.value.code == "SWT-E806"


def test_peers_that_have_left_are_not_named_by_stories_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger.sqlite").touch()
    answers = {"/status": {"round": 1}, "/why/1": {"story": ["Contributors: jane and zoe."]}}
    monkeypatch.setattr(bundle.status, "ask", lambda place, path="/status": dict(answers[path]))
    monkeypatch.setattr(
        bundle.status, "order", lambda place, said: {"peers": [{"name": "zoe"}, {"name": "jane"}]}
    )
    files = bundle.gathered([tmp_path])
    assert b"[peer 1] and [peer 2]" in files["coordinator-1/status.json"]


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("at 10:08:16, version 2.13.0, 127.0.0.1:8400 and ::1", None),
        ('File "/usr/lib/python3.11/asyncio/base_events.py", line 12', None),
        ('events.py:123 tokens=4096 {"tokens": 1024}', None),
        ("fe80::1%eth0 and ::ffff:10.1.2.3.", "[address 1]%eth0 and [address 2]."),
        ("10.1.2.3 and 10.1.2.4 and 10.1.2.3", "[address 1] and [address 2] and [address 1]"),
        ("a.dom.org:80 b.dom.org:80 A.dom.org:80", "[host 1]:80 [host 2]:80 [host 1]:80"),
        ("roots of al: 'al'", "roots of al: '[name]'"),
        ("password: hunter2", "password: [secret]"),
        ("run tiny in PostgreSQL runs at db7-lane.", "run tiny in PostgreSQL [database]"),
        ("PostgreSQL its default database at this machine: gone",
         "PostgreSQL [database]: gone"),
        ('to server at "db7", port 5432 failed: no password for user "carol"',
         'to server at "[name]", port 5432 failed: no password for user "[name]"'),
        ("/srv/of-carol/state/peer.log", "[directory 1]/peer.log"),
        ("SWARMTRAIN_TOKEN=abc def", "SWARMTRAIN_TOKEN=[secret]"),
    ],
)  # fmt: skip
def test_words_of_each_form(text: str, scrubbed: str | None) -> None:
    scrubber = Scrubber("/root", {"al", "root"}, {"bob"}, (), ["/srv/of-carol/state"])
    assert scrubber.text(text) == (text if scrubbed is None else scrubbed)
