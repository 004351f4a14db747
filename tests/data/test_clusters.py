"""Clusters of text: who is of which, and what a router says of a context."""

import numpy as np
import pytest

from swarmtrain.data.clusters import BUCKETS, Router, found_router
from swarmtrain.foundation.errors import UserError

KINDS = (
    "def f(self, x):\n    return self.x + len(x)\n", "The king went to the sea and wept. ",
    "SELECT name, age FROM people WHERE id = 7;\n", "0.125 3.75 -12.5 8.0625 99.5 -0.5 17\n",
)  # fmt: skip


def pieces():
    return [(kind * 40).encode()[at : at + 1000] for at in range(0, 300, 20) for kind in KINDS]


@pytest.fixture(scope="module")
def router():
    pytest.importorskip("sklearn")
    return found_router(pieces(), 4, seed=1)


def test_each_kind_of_text_is_a_cluster_of_its_own(router):
    of = [{router.cluster(piece) for piece in pieces()[number::4]} for number in range(4)]
    assert all(len(one) == 1 for one in of) and len(set.union(*of)) == 4


def test_the_same_text_and_seed_give_the_same_bytes(router):
    assert found_router(pieces(), 4, seed=1).to_bytes() == router.to_bytes()


def test_the_chances_along_a_text_are_those_of_each_beginning(router):
    text = (KINDS[0] + KINDS[1]).encode()
    along = router.chances_along(text)
    assert along.shape == (len(text), 4)
    for at in (0, 1, 2, 10, len(text) - 1):
        assert np.allclose(along[at], router.chances(text[: at + 1]), atol=1e-4)
    assert np.allclose(along.sum(axis=1), 1)


def test_a_router_comes_back_from_its_bytes():
    router = Router(np.ones(BUCKETS, np.float32), np.eye(3, BUCKETS, dtype=np.float32))
    again = Router.from_bytes(router.to_bytes())
    assert np.array_equal(again.centres, router.centres)
    assert np.array_equal(again.rarity, router.rarity)


@pytest.mark.parametrize("change", ["short", "long", "magic", "nan", "many"])
def test_what_is_no_router_is_refused(change):
    data = Router(np.ones(BUCKETS, np.float32), np.zeros((2, BUCKETS), np.float32)).to_bytes()
    broken = {
        "short": data[:-1], "long": data + b"\0", "magic": b"x" + data[1:],
        "nan": data[:-4] + b"\xff\xff\xff\xff", "many": data[:20] + b"\xff" + data[21:],
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"it |values"):
        Router.from_bytes(broken[change])


def test_too_little_text_is_refused():
    pytest.importorskip("sklearn")
    with pytest.raises(UserError, match="too few"):
        found_router([b"a", b"b"], 4, seed=0)
