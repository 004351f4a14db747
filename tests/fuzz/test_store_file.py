"""A coordinator's file with any bytes altered: read whole, or refused with an error of its own."""

import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain.coordinator.disk.store import FILE_NAME, Store
from swarmtrain.coordinator.disk.store_errors import StoreError
from tests.coordinator.rig import Chain, join_body, run_body


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    store = Store.open(folder)
    chain = Chain(store.term)
    store.append(chain.next(run_body()))
    for number in range(20):
        store.append(chain.next(join_body(bytes([number]) * 32)))
    store.close()
    return folder / FILE_NAME


def read(folder: Path) -> int | None:
    """Return how many records are read, None for a refusal."""
    try:
        store = Store.open_to_read(folder)
        try:
            return len(store.records())
        finally:
            store.close()
    except StoreError:
        return None


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 12), near=st.booleans())
def test_any_alteration_is_refused_as_documented_or_changes_nothing(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, near: bool
) -> None:
    rng = random.Random(seed)
    data = bytearray(whole.read_bytes())
    start = rng.randrange(len(data))
    for _ in range(count):
        at = (start + rng.randrange(64)) % len(data) if near else rng.randrange(len(data))
        data[at] ^= rng.randrange(1, 256)
    folder = tmp_path_factory.mktemp("altered")
    (folder / FILE_NAME).write_bytes(data)
    assert read(folder) in (None, 21)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log SET bytes = CAST('text' AS BLOB) WHERE idx = 3",
        "UPDATE log SET bytes = x'' WHERE idx = 0",
        "UPDATE meta SET value = 99 WHERE key = 'schema'",
        "DELETE FROM meta",
        "DROP TABLE log",
        "ALTER TABLE log ADD COLUMN more TEXT",
        "DELETE FROM log WHERE idx = 0",
    ],
)
def test_a_file_of_another_shape_is_refused(whole: Path, tmp_path: Path, statement: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(whole.read_bytes())
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute(statement)
    database.commit()
    database.close()
    assert read(tmp_path) is None
