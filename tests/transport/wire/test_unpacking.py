"""What a message would become is known before any of it is made."""

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.unpacking import num_values_in, unpack_limited

LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=300) | st.binary(max_size=300)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.binary(max_size=3), inner),
    max_leaves=60,
)


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(count(key) + count(one) for key, one in value.items())
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@given(value=VALUES)
def test_the_count_is_that_of_the_decoded_message(value: Any) -> None:
    data = msgpack.packb(value)
    assert num_values_in(data, limits.VALUES_MAX) == count(value)
    with pytest.raises(RemoteFault, match="length"):
        num_values_in(data, count(value) - 1)


@given(value=VALUES, cut=st.integers(1, 50), more=st.binary(min_size=1, max_size=3))
def test_a_message_that_does_not_end_where_its_bytes_do_is_refused(
    value: Any, cut: int, more: bytes
) -> None:
    data = msgpack.packb(value)
    for wrong in (data[:-cut], data + more):
        with pytest.raises(RemoteFault, match="msgpack"):
            num_values_in(wrong, limits.VALUES_MAX)


@pytest.mark.parametrize("fixed", ["d4", "d5", "d6", "d7", "d8", "c7", "c8", "c9"])
def test_extensions_are_one_value_each(fixed: str) -> None:
    sizes = {"d4": 1, "d5": 2, "d6": 4, "d7": 8, "d8": 16, "c7": 3, "c8": 300, "c9": 70_000}
    data = msgpack.packb([msgpack.ExtType(5, bytes(sizes[fixed]))] * 2)
    assert data[1] == int(fixed, 16)
    assert num_values_in(data, 3) == 3


PEER_BOMBS = {
    "empty lists": b"\xdd\x00\x40\x00\x00" + b"\x90" * (1 << 22),
    "lists of lists": b"\xdc\x04\x00" + (b"\xdc\x0f\xff" + b"\x90" * 4095) * 1024,
    "claims within claims": b"\xdd\x00\x3f\xff\xf0" * 800_000,
    "deep": b"\x91" * (1 << 22),
    "maps of small keys": b"\xdf\x00\x10\x00\x00" + b"\x01\x90" * (1 << 20),
}


@pytest.mark.parametrize("place", ["alone", "in a knock", "in a got", "in a have", "as a record"])
@pytest.mark.parametrize("bomb", PEER_BOMBS)
def test_a_message_of_millions_of_values_is_refused_before_it_is_decoded(
    bomb: str, place: str
) -> None:
    data = PEER_BOMBS[bomb][: limits.CONTROL_BYTES_MAX - 64]
    heads = {"in a knock": b"\x86\xa1t\xa5knock", "in a got": b"\x87\xa1t\xa3got",
             "in a have": b"\x86\xa1t\xa4have"}  # fmt: skip
    data = heads.get(place, b"") + (b"\xa6chunks" if place == "in a have" else b"") + data
    tracemalloc.start()
    try:
        with pytest.raises(RemoteFault):
            (unpack_limited if place == "as a record" else m.decode_from_peer)(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_stranger_has_nothing_large_to_say_and_a_word_is_short() -> None:
    knock = m.Knock(2, bytes(32), bytes(16), bytes(limits.KNOCK_BYTES_MAX), bytes(64))
    many = m.Got(1, 0, 0, {number.to_bytes(32, "big"): bytes(32) for number in range(2000)})
    for large in (knock, m.Leave("x" * 5000), many):
        with pytest.raises(RemoteFault, match="length"):
            m.weigh(m.encode(large))


def test_what_peers_have_to_say_at_most_fits() -> None:
    keys = [bytes([number]) * 32 for number in range(limits.CELL_PEERS_MAX)]
    row = bytes(8 * (limits.CELL_PEERS_MAX + 1))
    states = tuple(m.Applied(1 << 40, bytes(32), bytes(32), 2**31) for _ in keys)
    hello = m.Hello(bytes(64), "x" * 64, bytes(32), "::" * 20, 65535, 1 << 40, bytes(32), 1 << 50,
                    states=states)  # fmt: skip
    seen = m.Gauged(1, 2**63, 3, {key: (0.1, 0.2) for key in keys})
    held = tuple(m.Leased(bytes(32), 1000) for _ in range(2 * 4096))
    for message in (
        m.Knock(2, bytes(32), bytes(16), m.encode(hello), bytes(64)), hello,
        m.Got(2**63, 63, 15, {key: key for key in keys}, {key: "above-window" for key in keys},
              {key: row for key in keys}),
        m.Roots(2**63, tuple(keys), bytes(64), (0.1,) * limits.CELL_PEERS_MAX),
        m.Offer(bytes(32), 1 << 39, bytes(32), (1 << 39,) * limits.FRAGMENTS_MAX),
        m.Progress(1, 2, 3, "training", gauged=seen), m.LeaseRequest(1, held, held),
        m.SliceDone(1, 2, 3, 4, (bytes(32),) * 100_000, bytes(32), bytes(64)),
        m.Have(1, 2, 3, 4, (True,) * 100_000), m.Withdraw(2**63, "above-window"),
        m.PipelineReport(1, 2, bytes(limits.REPORT_BYTES_MAX)),
    ):  # fmt: skip
        m.weigh(m.encode(message))
