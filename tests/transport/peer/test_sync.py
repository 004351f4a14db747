"""Finding the state: one's own if the ledger attests it, else piece by piece from any donor."""

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmtrain_transport import limits
from swarmtrain_transport.actions import DownloadBegun, Halt, KeepChunk, LoadState, SendControl
from swarmtrain_transport.blocks.fetch import Fetcher
from swarmtrain_transport.blocks.manifest import (
    ArraySpec,
    StateManifest,
    StateSync,
    describe_state,
    manifest_from_bytes,
)
from swarmtrain_transport.blocks.state_download import Ask, Download, tag_of
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.state_finder import StateFinder
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.messages import Offer
from swarmtrain_transport.wire.records import Attest, Skip
from tests.transport.rig import LAYOUT, A, B, C, Chain, begun_chain, genesis_body, run_body

STEP = limits.STATE_CHUNK_BYTES


@dataclasses.dataclass(frozen=True)
class State:
    """A whole state of three chunks; the first is shared by all states, the others differ."""

    manifest: StateManifest
    chunks: tuple[bytes, ...]

    @classmethod
    def of(cls, op: int, num_values: int = 2 * STEP // 4 + 3) -> "State":
        data = bytearray(4 * num_values)
        for start in range(STEP, len(data), STEP):
            data[start] = op + 1
        data[-1] = op + 1
        manifest, chunks = describe_state(LAYOUT, (ArraySpec("anchor", num_values),), bytes(data))
        return cls(manifest, tuple(bytes(chunk) for chunk in chunks))

    def blobs(self) -> dict[bytes, bytes]:
        named = dict(zip(self.manifest.chunk_hashes, self.chunks, strict=True))
        return named | {self.manifest.root: self.manifest.to_bytes()}


class World:
    """Donors and what each of them holds; `asked` counts how often a blob was asked for."""

    def __init__(self, holdings: dict[PeerId, dict[bytes, bytes]]) -> None:
        self.fetcher = Fetcher(list)
        self.download = Download(list)
        self.holdings = holdings
        self.asked: dict[bytes, int] = {}
        self.now_s = 0.0

    def sync(
        self, donors: tuple[PeerId, ...], candidates: list[tuple[int, bytes]], **kept: Any
    ) -> StateSync:
        return StateSync(
            self.fetcher, self.download, donors, candidates,
            lambda found: (found.layout, found.arrays) == (LAYOUT, NEW.manifest.arrays),
            dict(kept.get("kept", {})),
        )  # fmt: skip

    def serve(self, sync: StateSync | StateFinder) -> None:
        """Answer every request that is due, then let a little time pass."""
        for ask in self.wanted():
            self.asked[ask.digest] = self.asked.get(ask.digest, 0) + 1
            blob = self.holdings[ask.peer].get(ask.digest)
            if blob is None:
                self.download.missing(ask.peer, ask.digest, self.now_s)
            else:
                piece = blob[ask.start : ask.start + ask.length]
                frame = Frame(
                    FrameKind.PIECE, 1, chunk=ask.start, set_id=tag_of(ask.digest), body=piece
                )
                if isinstance(sync, StateFinder):
                    sync.piece(ask.peer, frame, self.now_s)
                else:
                    sync.piece(ask.peer, frame.set_id, frame.chunk, frame.body, self.now_s)
        for peer, digest in self.fetcher.requests(self.now_s):
            self.asked[digest] = self.asked.get(digest, 0) + 1
            blob = self.holdings[peer].get(digest)
            if blob is None:
                self.fetcher.missing(peer, digest, self.now_s)
            elif self.fetcher.arrived(peer, digest, self.now_s):
                sync.accept(digest, blob)
        self.now_s += limits.FETCH_RETRY_S

    def wanted(self) -> list[Ask]:
        return self.download.requests(self.now_s)

    def finish(self, sync: StateSync, steps: int = 60) -> Any:
        for _ in range(steps):
            found = sync.step()
            if found is not None:
                return *found, sync.chunks(found[1])
            self.serve(sync)
        return None


OLD, NEW, NEWEST = State.of(4), State.of(8), State.of(12)


def candidate(op: int, state: State) -> tuple[int, bytes]:
    return op, state.manifest.root


def test_a_state_comes_whole_from_many_donors() -> None:
    blobs = NEW.blobs()
    some = dict(list(blobs.items())[::2])
    world = World({A: some, B: {k: v for k, v in blobs.items() if k not in some}})
    sync = world.sync((A, B), [candidate(8, NEW)])
    assert sync.progress == (0, 0)
    assert world.finish(sync) == (8, NEW.manifest, NEW.chunks)
    assert sync.progress == (3, 3)


def test_a_vanished_snapshot_is_given_up_for_the_next_and_shared_chunks_are_kept() -> None:
    world = World({A: OLD.blobs()})
    sync = world.sync((A,), [candidate(4, OLD), candidate(8, NEW)])
    while sync.progress[0] == 0:
        assert sync.step() is None
        world.serve(sync)
    for lost in OLD.manifest.chunk_hashes[1:]:
        world.holdings[A].pop(lost)
    world.holdings[A] = NEW.blobs()
    assert world.finish(sync) == (8, NEW.manifest, NEW.chunks)
    shared = OLD.manifest.chunk_hashes[0]
    assert shared == NEW.manifest.chunk_hashes[0]
    assert world.asked[shared] == STEP // limits.STATE_PIECE_BYTES


def test_a_snapshot_that_comes_later_is_tried_when_all_known_ones_are_gone() -> None:
    world = World({A: {}})
    sync = world.sync((A,), [candidate(4, OLD)])
    assert world.finish(sync, 20) is None
    sync.add_candidates([candidate(12, NEWEST), candidate(4, OLD)])
    world.holdings[A] = NEWEST.blobs()
    assert world.finish(sync) == (12, NEWEST.manifest, NEWEST.chunks)


def test_a_donor_that_comes_later_is_asked_too() -> None:
    world = World({A: {}, B: NEW.blobs()})
    sync = world.sync((A,), [candidate(8, NEW)])
    assert world.finish(sync, 20) is None
    sync.set_donors((A, B))
    assert world.finish(sync) is not None


def test_blobs_that_were_not_asked_for_are_not_taken() -> None:
    world = World({A: NEW.blobs()})
    sync = world.sync((A,), [candidate(8, NEW)])
    sync.step()
    assert not sync.accept(NEW.manifest.chunk_hashes[0], NEW.chunks[0])
    assert not sync.accept(OLD.manifest.root, OLD.manifest.to_bytes())
    assert sync.accept(NEW.manifest.root, NEW.manifest.to_bytes())
    assert not sync.accept(NEW.manifest.root, NEW.manifest.to_bytes())


def test_an_attested_root_that_is_no_manifest_is_given_up_and_not_fetched_for_ever() -> None:
    rubbish = b"not a manifest"
    root = content_hash(rubbish)
    world = World({A: NEW.blobs() | {root: rubbish}})
    sync = world.sync((A,), [(9, root), candidate(8, NEW)])
    found = None
    for _ in range(20):
        try:
            found = found or sync.step()
            world.serve(sync)
        except RemoteFault as fault:
            assert fault.reason == "manifest"
    assert found == (8, NEW.manifest) and sync.chunks(NEW.manifest) == NEW.chunks
    assert world.asked[root] == 1


def test_a_state_of_another_model_is_refused_before_a_chunk_is_fetched() -> None:
    hashes = (bytes(32),) * 10_000
    huge = StateManifest(LAYOUT, (ArraySpec("anchor", len(hashes) * STEP // 4),), hashes)
    other = State.of(3, 50)
    for manifest in (huge, other.manifest):
        world = World({A: {manifest.root: manifest.to_bytes()}})
        sync = world.sync((A,), [(8, manifest.root)])
        sync.step()
        with pytest.raises(RemoteFault, match="not of this model"):
            world.serve(sync)
        assert sync.step() is None
        assert world.wanted() == [] and world.fetcher.requests(world.now_s) == []


def test_what_an_earlier_life_has_kept_is_not_asked_for() -> None:
    world = World({A: NEW.blobs()})
    kept = {digest: blob for digest, blob in NEW.blobs().items() if digest != NEW.manifest.root}
    lost = kept.popitem()[0]
    kept[NEW.manifest.root] = NEW.manifest.to_bytes()
    sync = world.sync((A,), [candidate(8, NEW)], kept=kept)
    assert world.finish(sync) == (8, NEW.manifest, NEW.chunks)
    assert set(world.asked) == {lost}


def test_a_state_that_an_earlier_life_began_to_fetch_is_preferred() -> None:
    chain = small_chain(State.of(3, 24).manifest.root)
    states = {}
    for op in range(1, 7):
        chain.add(chain.plan())
        chain.commit(B)
        states[op] = State.of(op, 24)
        chain.add(Attest(op, states[op].manifest.root))
    begun = states[3].manifest
    finder, world = finder_of(chain)
    finder.resume(begun.to_bytes(), [])
    finder.step()
    assert {ask.digest for ask in world.wanted()} == set(begun.chunk_hashes)


def test_close_wants_nothing_more() -> None:
    world = World({A: NEW.blobs()})
    sync = world.sync((A,), [candidate(8, NEW)])
    sync.step()
    sync.close()
    assert world.fetcher.requests(0.0) == []


# ---- manifests


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93",
        msgpack.packb([LAYOUT, [["a", 4]], []]),
        msgpack.packb([LAYOUT, [["a", 4]], [bytes(31)]]),
        msgpack.packb([LAYOUT, [["a", 4]], [bytes(32), bytes(32)]]),
        msgpack.packb([LAYOUT, [["a", -4], ["b", 8]], [bytes(32)]]),
        msgpack.packb([LAYOUT, [["a", "4"]], [bytes(32)]]),
        msgpack.packb([LAYOUT, [["a", 4, 5]], [bytes(32)]]),
        msgpack.packb({"layout": LAYOUT}),
        msgpack.packb([LAYOUT, [["a", (1 << 64) - 1]], [bytes(32)]]),
        b"\x91" * 5000,
        msgpack.packb({(1, 2): 3}),
        b"\x81\x90\x00",
    ],
)
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteFault) as caught:
        manifest_from_bytes(data)
    assert caught.value.reason == "manifest"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_are_a_manifest_or_a_remote_fault(data: bytes) -> None:
    try:
        manifest_from_bytes(data)
    except RemoteFault:
        return


def test_a_manifest_survives_its_bytes_and_names_the_state_by_its_root() -> None:
    assert manifest_from_bytes(NEW.manifest.to_bytes()) == NEW.manifest
    assert NEW.manifest.root == content_hash(NEW.manifest.to_bytes())
    assert len({state.manifest.root for state in (OLD, NEW, NEWEST)}) == 3
    assert NEW.manifest.total_bytes == sum(len(chunk) for chunk in NEW.chunks)


# ---- where from


SMALL = State.of(0, 24)


def finder_of(chain: Chain, own: State = SMALL, op: int = 0) -> tuple[StateFinder, World]:
    world = World({B: {}, C: {}})
    finder = StateFinder(A, chain.view.first, world.fetcher, list)
    world.download = finder.download
    finder.attach(op, own.manifest, own.chunks, 4)
    return finder, world


def small_chain(root: bytes = SMALL.manifest.root) -> Chain:
    chain = begun_chain()
    return Chain(*(record_body for record_body in _bodies(chain)), genesis_body(24, root))


def _bodies(chain: Chain) -> list[Any]:
    return [run_body(), *chain.view.roster.values()]


def test_the_first_peer_offers_its_own_state_once_per_connection() -> None:
    finder, _ = finder_of(Chain(run_body()))
    offer = SendControl(Offer(SMALL.manifest.root, 24, LAYOUT))
    assert finder.step() == [offer]
    assert finder.step() == []
    finder.reconnected()
    assert finder.step() == [offer]


def test_ones_own_state_is_loaded_if_the_ledger_attests_it() -> None:
    finder, world = finder_of(small_chain())
    assert finder.step() == [LoadState(0, SMALL.manifest, SMALL.chunks)]
    assert world.fetcher.requests(0.0) == []


def test_a_state_that_the_ledger_does_not_attest_is_replaced_by_the_attested_one() -> None:
    other = State.of(7, 24)
    chain = small_chain(other.manifest.root)
    finder, world = finder_of(chain)
    world.holdings[C] = {k: v for k, v in other.blobs().items()}
    actions: list[Any] = []
    for _ in range(20):
        actions += finder.step()
        world.serve(finder)
        if any(isinstance(action, LoadState) for action in actions):
            break
    begun, kept, *loaded = actions
    assert begun == DownloadBegun(other.manifest)
    assert kept == KeepChunk(other.manifest.chunk_hashes[0], other.chunks[0])
    assert loaded == [LoadState(0, other.manifest, other.chunks)]


@pytest.mark.parametrize(
    ("num_values", "layout"), [(26, LAYOUT), (24, b"other names and shapes".ljust(32))]
)
def test_a_model_of_another_shape_is_told_so_and_halted(num_values: int, layout: bytes) -> None:
    chain = begun_chain((A, B), num_values)
    finder, _ = finder_of(chain)
    manifest = dataclasses.replace(SMALL).manifest
    own = StateManifest(layout, manifest.arrays, manifest.chunk_hashes)
    finder.attach(0, own, SMALL.chunks, 4)
    (halt,) = finder.step()
    assert isinstance(halt, Halt) and halt.code == "SWT-E804"


def test_weights_that_the_organiser_gave_to_all_must_be_the_first_state() -> None:
    other = State.of(7, 24)
    for begun, is_given in ((SMALL, True), (other, True), (other, False)):
        finder, _ = finder_of(small_chain(begun.manifest.root))
        finder.attach(0, SMALL.manifest, SMALL.chunks, 4, is_given=is_given)
        halts = [one for one in finder.step() if isinstance(one, Halt)]
        assert [one.code for one in halts] == ["SWT-E453"] * (begun is other and is_given)


def test_a_joiner_whose_snapshots_all_vanished_takes_one_that_was_attested_since() -> None:
    """The joiner began to sync at op 0; meanwhile the run went on and its donors moved on with
    it."""
    other = State.of(3, 24)
    chain = small_chain(other.manifest.root)
    finder, world = finder_of(chain)
    for _ in range(5):
        assert finder.step() == []
        world.serve(finder)
    later = State.of(9, 24)
    for op in (1, 2):
        chain.add(chain.plan())
        chain.commit(B)
        chain.add(Attest(op, later.manifest.root if op == 1 else bytes(32)))
    world.holdings[B] = later.blobs()
    actions: list[Any] = []
    for _ in range(200):
        actions = finder.step()
        if any(isinstance(action, LoadState) for action in actions):
            break
        world.serve(finder)
    assert actions[-1:] == [LoadState(1, later.manifest, later.chunks)]


def test_an_attest_that_comes_after_its_commit_is_noticed() -> None:
    """An ATTEST like this may be the last one that ever comes."""
    chain = small_chain(State.of(3, 24).manifest.root)
    finder, world = finder_of(chain)
    finder.step()
    later = State.of(9, 24)
    chain.add(chain.plan())
    chain.commit(B)
    finder.step()
    chain.add(Attest(1, later.manifest.root))
    world.holdings[B] = later.blobs()
    actions: list[Any] = []
    for _ in range(200):
        actions = finder.step()
        if any(isinstance(action, LoadState) for action in actions):
            break
        world.serve(finder)
    assert actions[-1:] == [LoadState(1, later.manifest, later.chunks)]


def test_a_settled_snapshot_is_preferred_to_the_newest_state() -> None:
    other = State.of(3, 24)
    chain = small_chain(other.manifest.root)
    for op in range(1, 7):
        chain.add(chain.plan())
        if op == 5:
            chain.add(Skip(op, "test"))
            continue
        chain.commit(B)
        chain.add(Attest(op, bytes([op]) * 32))
    finder, world = finder_of(chain)
    finder.step()
    assert {digest for _, digest in world.fetcher.requests(0.0)} == {bytes([4]) * 32}
