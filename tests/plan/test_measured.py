"""A run beside its forecast, from a state directory."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmtrain.cli.main import main
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.foundation.errors import UserError
from swarmtrain.plan.forecast import forecast, parse_peers
from swarmtrain.plan.measured import Work, beside, measured
from swarmtrain_transport.wire.records import (
    GENESIS_HASH,
    Body,
    Books,
    BooksOfMember,
    Join,
    Run,
    make_record,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\1")
A, B = bytes([1]) * 32, bytes([2]) * 32


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nname = "t"\n[pipeline]\nstages = 2\nmicro_batch = 2\n')
    return config_file.load(path)


def books_of(round: int, counts: tuple[int, int], seconds: float, busy_s: float) -> Books:
    members = (
        BooksOfMember(A, 0, counts[:1], counts[0], 0, True, busy_s=busy_s),
        BooksOfMember(B, 1, counts[1:], 0, 0, True),
    )
    return Books(round, counts[0], min(counts), counts, members, 2, bytes(32), seconds=seconds)


def left_by(place: Path, config: RunConfig, *books: Books) -> Path:
    public = KEY.public_key().public_bytes_raw()
    bodies: list[Body] = [Run("t", public, config_file.config_hash(config), 1)]
    bodies += [
        Join(peer, b"boot", name, bytes([9]) + peer[1:]) for peer, name in ((A, "ann"), (B, "bob"))
    ]
    store = Store.open(place)
    head = GENESIS_HASH
    for index, body in enumerate([*bodies, *books]):
        record = make_record(index, head, store.term, body, KEY.sign)
        head = record.hash
        store.append(record)
    store.close()
    return place


def test_rates_are_counts_by_the_length_of_the_rounds(tmp_path: Path, config: RunConfig) -> None:
    books = (
        books_of(0, (30, 28), 10.0, 4.0),
        books_of(1, (99, 99), 0.0, 1.0),  # a coordinator that began anew does not know how long
        books_of(2, (50, 50), 10.0, 8.0),
    )
    found = measured(left_by(tmp_path / "up", config, *books), config)
    assert (found.rounds, found.seconds, found.micro_batches_s) == (2, 20.0, 3.9)
    assert found.stage_rates == (4.0, 3.9)
    assert found.tokens_s == pytest.approx(3.9 * 2 * config.model.context)
    assert found.peers == (Work("ann", (0, 0), 4.0, 0.6), Work("bob", (1, 1), 3.9, 0.0))
    lines = beside(found, forecast(config, parse_peers("2*small@dsl")))
    shown = "\n".join(lines)
    assert "60 %" in shown and "6.67" in shown  # alone, as 4 of them took it 0.6 s


def test_a_directory_that_tells_nothing_of_this_run_is_refused(
    tmp_path: Path, config: RunConfig
) -> None:
    up = left_by(tmp_path / "up", config)
    (tmp_path / "empty").mkdir()
    path = tmp_path / "other.toml"
    path.write_text('[run]\nname = "t"\n[pipeline]\nstages = 2\nmicro_batch = 4\n')
    other = config_file.load(path)
    path.write_text('[run]\nname = "t"\n')
    in_one_piece = config_file.load(path)
    for place, asked, code, words in (
        (up, config, "SWT-E808", "no round that is over"),
        (up, other, "SWT-E606", "was not one of this file"),
        (up, in_one_piece, "SWT-E610", "in one piece"),
        (tmp_path / "empty", config, "SWT-E806", "neither a coordinator nor a peer"),
        (tmp_path / "nowhere", config, "SWT-E806", "There is no state directory"),
    ):
        with pytest.raises(UserError) as caught:
            measured(place, asked)
        assert caught.value.code == code and words in caught.value.what


@pytest.mark.parametrize(
    "told",
    [
        {"seconds": math.nan},
        {"seconds": math.inf},
        {"counted": (1,)},
        {"members": (BooksOfMember(A, 0, (), 1, 0, True),)},
        {"members": (BooksOfMember(A, 1, (1, 1), 1, 0, True),)},
        {"members": (BooksOfMember(A, 0, (1,), 1, 0, True, busy_s=math.nan),)},
    ],
    ids=str,
)
def test_books_that_somebody_made_up_are_refused(
    tmp_path: Path, config: RunConfig, told: dict[str, Any]
) -> None:
    books = msgspec.structs.replace(books_of(0, (30, 28), 10.0, 4.0), **told)
    with pytest.raises(UserError) as caught:
        measured(left_by(tmp_path / "up", config, books), config)
    assert caught.value.code == "SWT-E812"


def test_the_command_puts_a_run_beside_its_forecast(
    tmp_path: Path, config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    up = left_by(tmp_path / "up", config, books_of(0, (30, 28), 10.0, 4.0))
    words = ["plan", str(tmp_path / "run.toml"), "--peers", "2*small@dsl", "--measured", str(up)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Bottleneck" in shown and "Measured     rounds: 1, " in shown and "ann" in shown
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["micro_batches_s"] == 2.8
