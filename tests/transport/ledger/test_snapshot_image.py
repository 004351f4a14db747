"""The image of a fold: the same for all who have folded the same, and a fold again from it."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack
import msgspec
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import LedgerView, OpView
from swarmtrain_transport.ledger.snapshots import become, from_image, image_of
from swarmtrain_transport.wire.records import (
    Attest,
    BodyReader,
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


class Drawn:
    """Draws a value of any type that stands in a fold."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.keys = [self.rng.randbytes(32) for _ in range(9)]
        self.ops = list(eventful(seed % 4, 6).view.first.commits.values())

    def value(self, hint: Any) -> Any:
        rng, origin, args = self.rng, get_origin(hint), get_args(hint)
        if hint is OpView:
            return rng.choice(self.ops)
        if hint is bytes:
            return rng.choice([b"", rng.randbytes(8), rng.randbytes(64), *self.keys])
        if hint in (int, float, bool, str):
            return hint(rng.choice((0, 1, 5, 300, 1 << 40))) if rng.random() < 0.7 else hint()
        if is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
            shape = fields(hint) if is_dataclass(hint) else msgspec.structs.fields(hint)
            hints = get_type_hints(hint)
            return hint(*(self.value(hints[one.name]) for one in shape))
        if origin in (Union, UnionType):
            return rng.choice([None, self.value(next(one for one in args if one is not NoneType))])
        if origin is tuple and args[-1] is not Ellipsis:
            return tuple(map(self.value, args))
        many = range(rng.choice((0, 0, 1, 3)))
        if origin in (dict, Mapping):
            return {self.value(args[0]): self.value(args[1]) for _ in many}
        if origin is Counter:
            return Counter({self.value(args[0]): self.value(int) for _ in many})
        return origin(self.value(args[0]) for _ in many)


@pytest.mark.parametrize("seed", range(60))
def test_any_fold_is_the_same_again_from_its_image(seed: int) -> None:
    drawn = Drawn(seed)
    view, plans = drawn.value(LedgerView), drawn.value(list[tuple[int, int, bytes]])
    for group in view.groups.values():
        for op in group.commits.values():
            op.turns = ()
    reader = BodyReader(plans)
    data = image_of(view, reader)
    found, read = from_image(data)
    assert found == view and read.plans() == reader.plans()
    assert image_of(found, read) == data
    assert all(data.count(key) <= 1 + b"".join(body for *_, body in plans).count(key)
               for key in drawn.keys)  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", msgpack.packb([]), msgpack.packb([[], []]), msgpack.packb([[], [1] * 10]),
        msgpack.packb([[], [], b""]), msgpack.packb([[], [1] * 10, b""]), msgpack.packb({(1,): 2}),
        b"\x91" * 1000 + b"\xc0", b"\xdd\xff\xff\xff\xff", RUN_KEY,
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteFault):
        from_image(data)


def other(change: Callable[[list[Any], list[bytes]], None]) -> bytes:
    """The image of a run, with its values and its table changed."""
    plans, view, table = msgpack.unpackb(image(eventful(1, 4)), strict_map_key=False)
    keys = [table[at : at + 32] for at in range(0, len(table), 32)]
    change(view, keys)
    return bytes(msgpack.packb([plans, view, b"".join(keys)]))


ROSTER, EVER = 3, 6


@pytest.mark.parametrize(
    "change",
    [
        lambda view, keys: keys.pop(),
        lambda view, keys: keys.append(b"?" * 32),
        lambda view, keys: keys.append(b"?" * 31),
        lambda view, keys: keys.append(keys[0]),
        lambda view, keys: keys.insert(0, keys[0]),
        lambda view, keys: keys.reverse(),
        lambda view, keys: view[ROSTER].__setitem__(0, 0),
        lambda view, keys: view[ROSTER].__setitem__(0, -1),
        lambda view, keys: view[ROSTER].__setitem__(0, True),
        lambda view, keys: view[ROSTER].__setitem__(0, 1 << 40),
        lambda view, keys: view[ROSTER].__setitem__(0, keys[view[ROSTER][0] - 1]),
        lambda view, keys: view[ROSTER].__iadd__(view[ROSTER][:2]),
        lambda view, keys: view[ROSTER].pop(),
        lambda view, keys: view[EVER].reverse(),
        lambda view, keys: view[EVER].append(view[EVER][0]),
        lambda view, keys: view.append([]),
    ],
)
def test_an_image_has_one_form(change: Callable[[list[Any], list[bytes]], None]) -> None:
    from_image(other(lambda view, keys: None))
    with pytest.raises(RemoteFault) as caught:
        from_image(other(change))
    assert caught.value.reason == "snapshot"


def test_an_image_of_too_many_values_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "IMAGE_VALUES_MAX", 100)
    with pytest.raises(RemoteFault, match="more than 100 values"):
        from_image(image(eventful(1, 4)))


def test_an_altered_image_is_refused_or_another_fold() -> None:
    whole, rng = image(eventful(1, 4)), random.Random(1)
    for _ in range(300):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            view, reader = from_image(bytes(data))
        except RemoteFault:
            continue
        assert image_of(view, reader) == data
