from types import SimpleNamespace

import pytest

from swarmtrain.simulate.checks.holding import holders_of_rarest

LIST = b"a" * 32 + b"b" * 32 + b"c" * 32


def peer_with(chunks, root=b"root"):
    """A peer that has a slice's hash list, if any, and these chunks of it."""
    blobs = {chunk.encode() * 32: b"" for chunk in chunks} | ({root: LIST} if root else {})
    return SimpleNamespace(machine=SimpleNamespace(groups={0: SimpleNamespace(blobs=blobs)}))


@pytest.mark.parametrize(
    ("held", "rarest"), [(("abc", "ab", "bc"), [0, 1]), (("ab", "ab"), []), ((), [])]
)
def test_the_chunk_that_fewest_have_says_how_well_a_slice_is_held(held, rarest):
    """Seed 781 of 40 peers: two had a slice as a whole, and four of six each of its chunks."""
    peers = [peer_with(chunks) for chunks in held]
    assert holders_of_rarest(peers, b"root") == [peers[index] for index in rarest]


def test_chunks_without_the_list_that_names_them_are_nobodys():
    assert holders_of_rarest([peer_with("abc", root=None)], b"root") == []
