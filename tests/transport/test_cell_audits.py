"""In cells an owner answers for its cell's sums and for its means, and for nothing else."""

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from swarmtrain_transport import actions as do
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
    holders_of,
    may_judge,
    proof_from_bytes,
    sheets_of,
)
from swarmtrain_transport.ledger.cell_sums import check_sum
from swarmtrain_transport.ledger.fold import OpView, chunk_range
from swarmtrain_transport.ledger.signed_roots import root_over
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.records import Gone, Reassign, bodies_of
from tests.transport.cells_rig import peers_of, plan_in_cells
from tests.transport.plain_arithmetic import (
    ILLEGAL_SCALE,
    PlainArithmetic,
    PlainSum,
    encode_part,
)
from tests.transport.rig import verify, view_of
from tests.transport.swarm import Member, Swarm

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


class Quiet(Swarm):
    """A swarm in which some peers answer no auditor."""

    silent: Collection[PeerId] = ()

    def _carry(self, member: Member, actions: Iterable[do.PeerAction]) -> None:
        def is_said(action: do.PeerAction) -> bool:
            is_frame = isinstance(action, do.SendFrame)
            return not (is_frame and action.frame.kind is FrameKind.EVIDENCE)

        is_silent = member.peer in self.silent
        super()._carry(member, [one for one in actions if not is_silent or is_said(one)])


def swarm_with(seed: int, arithmetic: PlainArithmetic | None = None, rounds: int = 60) -> Quiet:
    swarm = Quiet(seed, rounds=rounds, start_peers=8, cell_peers=4)
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


@pytest.mark.parametrize("arithmetic", [WrongSums(), WrongMeans()], ids=["sums", "means"])
def test_who_sums_wrongly_and_answers_no_auditor_is_convicted_all_the_same(
    arithmetic: PlainArithmetic,
) -> None:
    swarm = swarm_with(1, arithmetic, rounds=400)
    swarm.silent = {LIAR}
    for _ in range(40_000):
        if evicted(swarm):
            break
        swarm.step()
    assert evicted(swarm) == [LIAR]


def test_where_all_who_have_a_sum_are_silent_nobody_is_convicted() -> None:
    swarm = swarm_with(2, WrongMeans(), rounds=12)
    swarm.silent = set(PEERS)
    assert swarm.run(40_000)
    counts = [member.machine.first.audits.counts for member in swarm.members.values()]
    assert sum(count["unanswered"] for count in counts) >= 5
    assert not any(count["wrong"] for count in counts)
    assert not evicted(swarm)


def test_both_looks_take_place_and_find_honest_work_right() -> None:
    swarm = swarm_with(5, rounds=24)
    assert swarm.run(40_000)
    views = swarm.members[PEERS[0]].machine.view.first.commits.values()
    drawn = [(one, view) for view in views if (one := draw(view)) is not None]
    assert {one.is_of_sum for one, _ in drawn} == {True, False}
    for one, view in drawn:
        assert one.owner == view.owners[one.place] != one.auditor
        assert view.cells.cell_of(one.auditor) == view.cells.cell_of(one.owner) == one.cell
        assert len(one.passed) == 2 - one.is_of_sum and len(sheets_of(view, one)) == 2
        assert len(one.contributors) == 3 * one.is_of_sum and one.owner not in one.contributors
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
    other = msgspec.structs.replace(passed, data=passed.data[:-1] + b"\x01")
    longer = msgspec.structs.replace(passed, data=passed.data + bytes(8))
    unnamed = msgspec.structs.replace(
        longer,
        chunk_hashes=tuple(
            content_hash(longer.data) if number == proof.chunk else digest
            for number, digest in enumerate(passed.chunk_hashes)
        ),
    )
    for words, changes in (
        ("sums are missing", {"passed": {}}),
        ("sums are missing", {"passed": {**proof.passed, 7: passed}}),
        ("not what the owner has named", {"passed": {**proof.passed, cell: other}}),
        ("not what the owner has named", {"passed": {**proof.passed, cell: longer}}),
        ("not what the owner has named", {"passed": {**proof.passed, cell: unnamed}}),
        ("not one root", {"made": ()}),
        ("not one root", {"made": (*proof.made, bytes(32))}),
        ("not one root", {"made": (b"short", *proof.made[1:])}),
        ("not signed", {"made": (bytes(32), *proof.made[1:])}),
        ("not signed", {"made": (*proof.made[:-1], bytes(32))}),
        ("not the sheets", {"sheets": ()}),
        ("not the sheets", {"sheets": proof.sheets[::-1]}),
        ("not the sheets", {"sheets": (proof.sheets[0], proof.sheets[1] + b"x")}),
    ):
        with pytest.raises(RemoteFault, match=words):
            convicted(msgspec.structs.replace(proof, **changes), view, PlainArithmetic(), verify)
    with pytest.raises(RemoteFault, match="the sum is right"):
        convicted(proof, view, arithmetic, verify)


def test_a_proof_of_a_wrong_sum_has_the_parts_of_all_others_as_they_were_signed() -> None:
    proof, view = proved(WrongSums(), of_sum=True)
    assert LIAR not in proof.shown
    peer, shown = next(iter(proof.shown.items()))
    false = msgspec.structs.replace(shown, part=shown.part + b"x")
    for words, parts in (
        ("parts are missing", {peer: shown}),
        ("contributor has signed", {**proof.shown, peer: false}),
    ):
        with pytest.raises(RemoteFault, match=words):
            changed = msgspec.structs.replace(proof, shown=parts)
            convicted(changed, view, PlainArithmetic(), verify)


def honest_looks() -> dict[bool, tuple[Proof, OpView]]:
    """What the drawn auditors of an honest sum and of an honest mean were shown, as if each were a
    proof, by whether it is of a sum."""
    seen: dict[bool, tuple[Proof, OpView]] = {}
    swarm = swarm_with(5, rounds=24)
    for member in swarm.members.values():
        audits = member.machine.first.audits

        def note(case: Any, now_s: float, audits: Any = audits, judge: Any = audits._judge) -> Any:
            op, drawn = case.view, case.drawn
            listed = audits._blobs.get(op.outcome.slices[drawn.slice_index].root)
            if listed is not None:
                hashes = tuple(bytes(listed)[at : at + 32] for at in range(0, len(listed), 32))
                sheets = tuple(bytes(audits._blobs.get(one)) for one in sheets_of(op, drawn))
                place = (op.plan.op, drawn.slice_index, drawn.chunk)
                named = () if drawn.is_of_sum else hashes
                shown = (case.shown, 0, case.passed, case.made)
                seen[drawn.is_of_sum] = Proof(*place, named, *shown, sheets), op
            return judge(case, now_s)

        audits._judge = note  # type: ignore[method-assign]
    while len(seen) < 2:
        swarm.step()
    return seen


@pytest.mark.parametrize("of_sum", [True, False], ids=["sum", "mean"])
def test_whoever_lies_beside_an_honest_owner_cannot_convict_it(of_sum: bool) -> None:
    """An auditor that is a friend of all others can show other sums, and say that it named them."""
    proof, view = honest_looks()[of_sum]
    with pytest.raises(RemoteFault, match="the sum is right"):
        convicted(proof, view, PlainArithmetic(), verify)
    (cell, passed), *_ = proof.passed.items()
    data = passed.data[:-1] + bytes([passed.data[-1] ^ 1])
    hashes = list(passed.chunk_hashes)
    hashes[proof.chunk] = content_hash(data)
    other = type(passed)(tuple(hashes), data)
    framed = msgspec.structs.replace(proof, passed={**proof.passed, cell: other})
    with pytest.raises(RemoteFault, match="not what the owner has named"):
        convicted(framed, view, PlainArithmetic(), verify)
    old, new = root_over(passed.chunk_hashes), root_over(hashes)
    made = tuple(new if one == old else one for one in proof.made)
    assert made != proof.made
    with pytest.raises(RemoteFault, match="not signed"):
        convicted(msgspec.structs.replace(framed, made=made), view, PlainArithmetic(), verify)


def test_who_makes_a_mean_of_a_sum_that_no_parts_have_is_convicted() -> None:
    """Whoever has made that sum, an honest owner does not use it."""

    class Refusing(PlainArithmetic):
        def check_sum(self, data: Buffer, num_values: int, window: Window, weight: int) -> None:
            raise RemoteFault("sum", "none has it")

    proof, view = honest_looks()[False]
    drawn = draw(view)
    assert drawn is not None
    assert convicted(proof, view, Refusing(), verify) == drawn.owner


def test_the_part_behind_a_sum_is_checked_as_any_part() -> None:
    view = view_of(plan_in_cells(PEERS))
    start, stop = chunk_range(view.plan, 0, 0)
    summed, values = bytes(8 * (stop - start)), [1] * (stop - start)
    for legal in (b"", encode_part(values)):
        check_sum(view, 0, 1, 0, summed + legal, PlainArithmetic())
    for reason, part in (
        ("scale", encode_part(values, ILLEGAL_SCALE)),
        ("length", encode_part(values)[:-1]),
        ("length", encode_part(values) + b"x"),
    ):
        with pytest.raises(RemoteFault) as caught:
            check_sum(view, 0, 1, 0, summed + part, PlainArithmetic())
        assert caught.value.reason == reason


def test_an_auditor_asks_first_who_is_not_looked_at() -> None:
    _, view = honest_looks()[False]
    drawn = draw(view)
    assert drawn is not None and not drawn.is_of_sum and len(drawn.passed) == 2
    for cell in drawn.passed:
        first, last = holders_of(view, drawn, cell)
        assert first != drawn.owner == last
        assert view.cells.cell_of(first) != view.cells.cell_of(last)


def test_a_sum_that_a_mean_was_made_of_is_not_replaced() -> None:
    view = view_of(plan_in_cells(PEERS))
    finisher = Finisher(view, 0, 0, PlainArithmetic(), Retention())
    name = view.given_set_id(view.cells.owned(1, 0)) or 0
    span = chunk_range(view.plan, 0, 0)
    given = [struct.pack("<4q", *[n] * (span[1] - span[0])) for n in range(3)]
    for data, number in ((given[0], name), (given[1], 77), (given[2], name)):
        finisher.take((0, 1), 0, number, data)
    assert finisher.sum_of((0, 1), 0) == given[0]


def test_sums_that_nobody_is_to_send_are_refused() -> None:
    view = view_of(plan_in_cells(PEERS))
    finisher = Finisher(view, 0, 0, PlainArithmetic(), Retention())
    assert finisher.sources == [(0, 0), (0, 1), (1, 1)]
    data = struct.pack("<4q", 0, 0, 0, 0)
    for source, chunk in (((1, 0), 0), ((2, 0), 0), ((0, 2), 0), ((0, 1), 2), ((0, 1), -1)):
        with pytest.raises(RemoteFault, match="not planned"):
            finisher.take(source, chunk, 1, data)
    for wrong in (b"", data[:-1], data + b"x", data * 2):
        with pytest.raises(RemoteFault) as caught:
            finisher.take((0, 1), 0, 1, wrong)
        assert caught.value.reason == "length"


def test_a_sum_that_its_owner_names_otherwise_than_it_gave_it_is_in_no_result() -> None:
    """One says so, the other so: first the mean is made by somebody else, then the sum is."""
    swarm = swarm_with(3, rounds=6)
    liar = swarm.members[LIAR].machine.first

    def otherwise(hashes_to: Any) -> Any:
        def given(piece: int) -> Any:
            hashes = hashes_to(piece)
            return hashes and (bytes(32), *hashes[1:])

        return given

    while not swarm.members[LIAR].finished:
        swarm.step()
        for exchange in liar.exchanges.values():
            for reducer in exchange._reducers.values():
                if not hasattr(reducer.hashes_to, "is_false"):
                    reducer.hashes_to = otherwise(reducer.hashes_to)
                    reducer.hashes_to.is_false = True
    moved = [one for one in bodies_of(swarm.records) if isinstance(one, Reassign)]
    assert moved and {one.reason for one in moved} == {"owners differ on a sum"}
    assert swarm.run(30_000)
    assert len({dict(one.roots)[0, 2] for one in swarm.members.values()}) == 1
    assert not evicted(swarm)


def test_sums_of_who_does_not_own_the_range_are_in_no_mean_and_cost_nobody_its_slice() -> None:
    """They come before the true ones, legal and under their names."""
    swarm, met = swarm_with(3, rounds=3), set[tuple[PeerId, int, int]]()
    for _ in range(40_000):
        for peer, member in swarm.members.items():
            for exchange in list(member.machine.first.exchanges.values()):
                view = exchange.view
                for index, finisher in list(exchange._finishers.items()):
                    if (peer, view.plan.op, index) not in met:
                        met.add((peer, view.plan.op, index))
                        for frame, owner in false_sums(view, finisher, member.machine.view.run_tag):
                            for stranger in sorted(view.boots.keys() - {owner, peer}):
                                swarm._framed(member, stranger, frame)
        swarm.step()
        if all(member.finished for member in swarm.members.values()):
            break
    ignored = sum(member.machine.stats.ignored["stale"] for member in swarm.members.values())
    assert len(met) >= 24 and ignored >= 6 * len(met)
    assert not any(isinstance(one, Reassign) for one in bodies_of(swarm.records))
    assert not any(member.machine.first.audits.counts["wrong"] for member in swarm.members.values())
    assert not evicted(swarm)


def false_sums(view: OpView, finisher: Finisher, tag: int) -> Iterator[tuple[Frame, PeerId]]:
    """The sums of other cells that an owner waits for, all zeros, and who is to send each."""
    for index, cell in finisher.sources:
        place = view.cells.owned(cell, index)
        name = view.given_set_id(place)
        if place != finisher.slice_index and name is not None:
            start, stop = chunk_range(view.plan, index, 0)
            data, attempt = bytes(8 * (stop - start)), view.attempts[index]
            frame = Frame(FrameKind.SUM, tag, view.plan_id, index, attempt, 0, name, data)
            yield frame, view.owners[place]
