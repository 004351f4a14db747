"""In cells an owner answers for its cell's sums and for its means, and for nothing else."""

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.arithmetic import Buffer, Window
from swarmtrain_transport.blocks.retention import Retention
from swarmtrain_transport.collective.finisher import Finisher
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.audit import (
    Proof,
    convicted,
    draw,
    may_judge,
    proof_from_bytes,
    sheets_of,
)
from swarmtrain_transport.ledger.fold import OpView, chunk_range
from swarmtrain_transport.ledger.signed_roots import sum_payload
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import FrameKind, pack, pack_sum, unpack, unpack_sum
from swarmtrain_transport.wire.records import Gone, bodies_of
from tests.transport.cells_rig import peers_of, plan_in_cells
from tests.transport.plain_arithmetic import PlainArithmetic, PlainSum
from tests.transport.rig import sign_as, verify, view_of
from tests.transport.swarm import Swarm

PEERS = peers_of(8)


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds here are seconds, and the next COMMIT ends an audit."""
    monkeypatch.setattr(limits, "AUDIT_PAUSE_S", 0.1)


LIAR = PEERS[-1]


class _WrongCellSum(PlainSum):
    """Adds one to the first value."""

    def unrounded(self) -> bytes:
        self._sums[0] += 1
        total = super().unrounded()
        self._sums[0] -= 1
        return total


class WrongSums(PlainArithmetic):
    """Passes wrong sums on to the owners in other cells."""

    def accumulator(
        self, num_values: int, window: Window, scalars: tuple[float, ...] = (), centre: Any = b""
    ) -> PlainSum:
        return _WrongCellSum(num_values, scalars)


class WrongMeans(PlainArithmetic):
    """Makes wrong means of right sums."""

    def finish_sums(
        self, sums: Sequence[Buffer], num_values: int, window: Window, weight: int
    ) -> bytes:
        return super().finish_sums([*sums, *sums[:1]], num_values, window, weight)


def swarm_with(seed: int, arithmetic: PlainArithmetic | None = None, rounds: int = 60) -> Swarm:
    swarm = Swarm(seed, rounds=rounds, start_peers=8, cell_peers=4)
    for peer in PEERS[:-1]:
        swarm.add(peer)
    swarm.add(LIAR, arithmetic)
    return swarm


def evicted(swarm: Swarm) -> list[PeerId]:
    bodies = bodies_of(swarm.records)
    return [body.peer for body in bodies if isinstance(body, Gone) and body.conviction is not None]


def proved(arithmetic: PlainArithmetic, *, of_sum: bool) -> tuple[Proof, OpView]:
    """A proof of one of the looks that an honest peer has kept, and the view of its op."""
    for seed in range(9):
        found = first_proof(swarm_with(seed, arithmetic))
        if found is not None and bool(found[0].chunk_hashes) != of_sum:
            return found
    raise AssertionError("nobody has found anything")


def first_proof(swarm: Swarm) -> tuple[Proof, OpView] | None:
    for _ in range(20_000):
        for member in (swarm.members[peer] for peer in PEERS[:-1]):
            if member.proofs:
                kept = member.proofs[0]
                return proof_from_bytes(kept.data), member.machine.view.first.commits[kept.op]
        swarm.step()
    return None


@pytest.mark.parametrize("arithmetic", [WrongSums(), WrongMeans()], ids=["sums", "means"])
@pytest.mark.parametrize("seed", range(2))
def test_who_sums_wrongly_is_convicted_and_nobody_else(
    seed: int, arithmetic: PlainArithmetic
) -> None:
    swarm = swarm_with(seed, arithmetic, rounds=400)
    for _ in range(40_000):
        if evicted(swarm):
            break
        swarm.step()
    assert evicted(swarm) == [LIAR]


def test_both_looks_take_place_and_find_honest_work_right() -> None:
    swarm = swarm_with(5, rounds=24)
    assert swarm.run(40_000)
    views = swarm.members[PEERS[0]].machine.view.first.commits.values()
    drawn = [(one, view) for view in views if (one := draw(view)) is not None]
    assert {one.is_of_sum for one, _ in drawn} == {True, False}
    for one, view in drawn:
        assert one.owner == view.owners[one.place] != one.auditor
        assert view.cells.cell_of(one.auditor) == view.cells.cell_of(one.owner) == one.cell
        assert len(one.passed) == 1 and len(sheets_of(view, one)) == 2
        assert sum(may_judge(view, one, peer) for peer in PEERS) == 4
    counts = [member.machine.first.audits.counts for member in swarm.members.values()]
    assert not any(count["wrong"] for count in counts)
    assert sum(count["right"] for count in counts) >= 5
    assert not evicted(swarm) and not any(member.faults for member in swarm.members.values())


@pytest.mark.parametrize(
    ("arithmetic", "of_sum"), [(WrongSums(), True), (WrongMeans(), False)], ids=["sum", "mean"]
)
def test_a_proof_convicts_the_owner_and_nothing_else_does(
    arithmetic: PlainArithmetic, of_sum: bool
) -> None:
    proof, view = proved(arithmetic, of_sum=of_sum)
    assert convicted(proof, view, PlainArithmetic(), verify) == LIAR
    assert proof_from_bytes(proof.to_bytes()) == proof
    (cell, passed), *_ = proof.passed.items()
    other, unsigned, unused, longer = (
        msgspec.structs.replace(passed, **changes)
        for changes in (
            {"data": passed.data[:-1] + b"\x01"},
            {"signature": b"s" * 32},
            {"use": b"s" * 32},
            {"data": passed.data + bytes(8)},
        )
    )
    peer, shown = next(iter(proof.shown.items()))
    false = msgspec.structs.replace(shown, part=shown.part + b"x")
    for words, changes in (
        ("sums are missing", {"passed": {}}),
        ("sums are missing", {"passed": {**proof.passed, 7: passed}}),
        ("illegal: signature", {"passed": {**proof.passed, cell: other}}),
        ("illegal: signature", {"passed": {**proof.passed, cell: unsigned}}),
        ("illegal: signature", {"passed": {**proof.passed, cell: unused}}),
        ("illegal: length", {"passed": {**proof.passed, cell: longer}}),
        ("not the sheets", {"sheets": ()}),
        ("not the sheets", {"sheets": proof.sheets[::-1]}),
        ("not the sheets", {"sheets": (proof.sheets[0], proof.sheets[1] + b"x")}),
        ("parts are missing", {"shown": {peer: shown}}),
        ("contributor has signed", {"shown": {**proof.shown, peer: false}}),
    ):
        with pytest.raises(RemoteFault, match=words):
            convicted(msgspec.structs.replace(proof, **changes), view, PlainArithmetic(), verify)
    with pytest.raises(RemoteFault, match="the sum is right"):
        convicted(proof, view, arithmetic, verify)


def honest_mean() -> tuple[Proof, OpView]:
    """What the drawn auditor of an honest mean was shown, as if it were a proof."""
    seen: list[tuple[Proof, OpView]] = []
    swarm = swarm_with(5, rounds=24)
    for member in swarm.members.values():
        audits = member.machine.first.audits

        def note(case: Any, now_s: float, audits: Any = audits, judge: Any = audits._judge) -> Any:
            op, drawn = case.view, case.drawn
            listed = audits._blobs.get(op.outcome.slices[drawn.slice_index].root)
            if listed is not None and not drawn.is_of_sum:
                hashes = tuple(bytes(listed)[at : at + 32] for at in range(0, len(listed), 32))
                sheets = tuple(bytes(audits._blobs.get(one)) for one in sheets_of(op, drawn))
                place = (op.plan.op, drawn.slice_index, drawn.chunk)
                seen.append((Proof(*place, hashes, case.shown, 0, case.passed, sheets), op))
            return judge(case, now_s)

        audits._judge = note  # type: ignore[method-assign]
    while not seen:
        swarm.step()
    return seen[0]


def test_who_gave_a_sum_cannot_convict_its_finisher_with_another_one() -> None:
    """A cell's owner may sign two sums for a chunk, and have the auditor for a friend."""
    proof, view = honest_mean()
    with pytest.raises(RemoteFault, match="the sum is right"):
        convicted(proof, view, PlainArithmetic(), verify)
    (cell, passed), *_ = proof.passed.items()
    data = passed.data[:-1] + bytes([passed.data[-1] ^ 1])
    place = view.cells.owned(cell, proof.slice_index)
    signature = sign_as(view.owners[place])(
        sum_payload(
            view.plan_hash, (place, view.attempts[place]), (proof.slice_index, proof.chunk),
            view.given_set_id(place) or 0, content_hash(data),
        )
    )  # fmt: skip
    other = msgspec.structs.replace(passed, data=data, signature=signature)
    framed = msgspec.structs.replace(proof, passed={**proof.passed, cell: other})
    with pytest.raises(RemoteFault, match="illegal: signature"):
        convicted(framed, view, PlainArithmetic(), verify)


def test_a_sum_that_a_mean_was_made_of_is_not_replaced() -> None:
    view = view_of(plan_in_cells(PEERS))
    finisher = Finisher(view, 0, 0, PlainArithmetic(), Retention(), verify)
    place, name = view.cells.owned(1, 0), view.given_set_id(view.cells.owned(1, 0)) or 0
    span = chunk_range(view.plan, 0, 0)
    given = [struct.pack("<4q", *[n] * (span[1] - span[0])) for n in range(3)]
    for data, number in ((given[0], name), (given[1], 77), (given[2], name)):
        payload = sum_payload(view.plan_hash, (place, 0), (0, 0), number, content_hash(data))
        finisher.take(1, 0, number, data, sign_as(view.owners[place])(payload))
    assert finisher.sums_of(0)[1][0] == given[0]


def test_a_sum_with_a_wrong_signature_is_refused_and_comes_again() -> None:
    swarm = swarm_with(3, rounds=2)
    spoilt = False
    while not spoilt:
        swarm.step()
        for (_, target), queue in swarm.data.items():
            for place, (header, body) in enumerate(queue):
                frame = unpack(header, body)
                if frame.kind is FrameKind.SUM and not spoilt:
                    data, signature = unpack_sum(frame.body)
                    assert len(signature) == 32
                    body = pack_sum(data, signature[::-1])
                    header, body = pack(with_body(frame, body))
                    queue[place] = header, bytes(body)
                    victim, spoilt = target, True
    assert swarm.run(30_000)
    assert [fault.reason for fault in swarm.members[victim].faults] == ["signature"]
    assert len({dict(one.roots)[0, 2] for one in swarm.members.values()}) == 1


def with_body(frame: Any, body: bytes) -> Any:
    """The same frame with another body."""

    return dataclasses.replace(frame, body=body, digest=b"")


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x05abcd", b"\xff"])
def test_a_sum_without_a_signature_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteFault) as caught:
        unpack_sum(body[::-1] if body == b"\x05abcd" else body)
    assert caught.value.reason == "length"
