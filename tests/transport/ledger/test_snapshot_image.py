"""The image of a fold: the same for all who have folded the same, and a fold again from it."""

import os
import random
import subprocess
import sys

import msgpack
import pytest

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.snapshots import become, from_image, image_of
from swarmtrain_transport.wire.records import (
    Attest,
    Conviction,
    Freeze,
    Gone,
    Join,
    Reassign,
    Rewind,
    SignedRoot,
    Skip,
    SliceFreeze,
)
from tests.transport.rig import (
    RUN_KEY,
    A,
    B,
    C,
    Chain,
    D,
    E,
    genesis_body,
    join_body,
    run_body,
)


def eventful(seed: int, ops: int = 30) -> Chain:
    """A run in which much goes wrong."""
    rng = random.Random(seed)
    chain = Chain(run_body(), *(join_body(peer) for peer in (A, B, C, D)), genesis_body(32))
    for _ in range(ops):
        chain.add(chain.plan((A, B, C, D)))
        view = chain.view.first.op
        assert view is not None
        op, out = view.plan.op, rng.sample((A, B, C, D), rng.randrange(2))
        if rng.random() < 0.3:
            said = {peer: "absent" for peer in rng.sample((A, B, C), 2)}
            chain.add(Reassign(op, 3, 1, A, "owner silent", said))
        given = tuple(peer for peer in (A, B, C, D) if peer not in out)
        roots = {peer: SignedRoot(peer, peer * 2) for peer in given}
        chain.add(Freeze(op, given, dict.fromkeys(out, "late"), {}, roots, b"",
                         {peer: (A, B) for peer in out if peer not in (A, B)}))  # fmt: skip
        if view.slice_sets[3] is None:
            chain.add(SliceFreeze(op, 3, 1, given[1:], {given[0]: "roots"}))
        if rng.random() < 0.2:
            chain.add(Skip(op, "deadline", dict.fromkeys(out, "owner silent")))
        else:
            chain.commit(*given)
            chain.add(Attest(op, rng.randbytes(32)))
        if rng.random() < 0.1:
            chain.add(Rewind(chain.view.first.last_op - 1, "lost"))
        if rng.random() < 0.2:
            chain.add(Gone(E, True, "removed"))
            chain.add(Join(E, rng.randbytes(8), "eve", E, "invite"))
    chain.add(Gone(E, True, "wrong sum", Conviction(1, 0, 0, bytes(32))))
    chain.add(chain.plan((A, B)))
    return chain


def image(chain: Chain) -> bytes:
    return image_of(chain.view, chain.ledger.reader)


@pytest.mark.parametrize("seed", range(8))
def test_a_fold_is_the_same_again_from_its_image_and_goes_on_alike(seed: int) -> None:
    chain = eventful(seed)
    view, reader = from_image(image(chain))
    assert view == chain.view and image_of(view, reader) == image(chain)
    assert view.first.op is next(iter(view.first.ops.values()))
    known = len(chain.records)
    for _ in range(3):
        chain.commit(A, B)
        chain.add(Attest(chain.view.first.last_op, bytes(32)))
        chain.add(chain.plan((B, A)))
        chain.add(Skip(chain.view.first.last_op + 1, "deadline", {A: "behind"}))
        chain.add(chain.plan((A, B)))
    for record in chain.records[known:]:
        view.apply(record, reader.read(record))
    assert view == chain.view and image_of(view, reader) == image(chain)


def image_hash() -> str:
    return content_hash(image(eventful(5))).hex()


def test_every_process_makes_the_same_image() -> None:
    code = "from tests.transport.ledger.test_snapshot_image import image_hash; print(image_hash())"
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == image_hash()


def test_an_image_does_not_grow_with_the_rounds() -> None:
    short, long = (image(eventful(3, ops)) for ops in (80, 240))
    assert len(long) - len(short) < 160 * 250, "how an op ended, and its root"


def test_a_view_that_others_hold_becomes_another() -> None:
    chain = eventful(2)
    held = Chain(run_body()).view
    first = held.first
    become(held, from_image(image(chain))[0])
    assert held == chain.view and held.first is first and first.last_op > 10


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", msgpack.packb([]), msgpack.packb([[], []]), msgpack.packb([[], [1] * 10]),
        msgpack.packb({(1,): 2}), RUN_KEY,
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteFault):
        from_image(data)


def test_an_altered_image_is_refused_or_another_fold() -> None:
    whole, rng = image(eventful(1, 4)), random.Random(1)
    for _ in range(300):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            view, reader = from_image(bytes(data))
        except RemoteFault:
            continue
        image_of(view, reader)
