"""Rules of whole vectors over links give what one process gives that sees everything."""

import random
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from swarmtrain.config.values import WHOLE_VECTOR_RULES
from swarmtrain.peer.arithmetic import (
    CodecArithmetic,
    TensorContribution,
    codec_of,
    decode_result,
)
from swarmtrain.peer.training.own_work import OwnPart
from swarmtrain.simulate.processes.memory import SimFile
from swarmtrain_optimizers.robust import RULES
from swarmtrain_transport.blocks.retention import Retention
from swarmtrain_transport.collective.reducer import Reducer
from swarmtrain_transport.ledger.fold import chunk_range, num_chunks, window_of
from swarmtrain_transport.ledger.inner_products import Table, totals
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import Got, Roots
from swarmtrain_transport.wire.records import Commit, Freeze, Reassign, SliceFreeze
from tests.peer.one_process import exchanged
from tests.peer.whole_op import BLOCK, CHUNK, WholeOp, drawn, plan_of, step_of
from tests.transport.rig import A, B, C, D, E, view_of

torch.set_num_threads(1)
PEERS = (A, B, C, D, E)
SIZE = 5 * 3 * CHUNK + 5 * BLOCK
SAMPLES = {A: 8, B: 4, C: 8, D: 3, E: 8}
RULE = pytest.mark.parametrize("rule", sorted(RULES))
OF_VECTORS = pytest.mark.parametrize("rule", sorted(WHOLE_VECTOR_RULES))
CODEC = pytest.mark.parametrize("codec", ["int8", "int4", "none"])


def values(seed: int = 1) -> dict[PeerId, Tensor]:
    return dict(zip(PEERS, drawn(seed, len(PEERS), SIZE), strict=True))


def in_one_process(
    rule: str,
    codec: str,
    given: dict[PeerId, Tensor],
    lost: tuple[PeerId, ...] = (),
    before: dict[PeerId, Tensor] | None = None,
) -> Tensor:
    """With `before`, of a second op: the first had those values."""
    found = None
    for op, values_of in enumerate([given] if before is None else [before, given]):
        parts = {
            peer: OwnPart(op, TensorContribution(one), SAMPLES[peer])
            for peer, one in values_of.items()
            if values_of is not given or peer not in lost
        }
        results = exchanged(parts, SIZE, codec, BLOCK, rule=rule, previous=found)
        found = decode_result(next(iter(results.values())))
    assert found is not None
    return found


def assert_near(found: Tensor, wanted: Tensor, codec: str) -> None:
    assert ((found - wanted).abs() <= step_of(wanted, codec)).all()
    assert wanted.abs().max() > 1e-3


def test_what_a_rule_asks_for_in_a_run_is_what_it_needs():
    needs = {name: rule.needs.value for name, rule in RULES.items()}
    told = {name: WHOLE_VECTOR_RULES.get(name, "coordinates") for name in RULES}
    assert told["centered-clip"] == "centred"  # products, of the last result too
    told["centered-clip"] = "products"
    assert told == needs


@CODEC
@RULE
def test_over_links_a_rule_gives_what_it_gives_in_one_process(rule: str, codec: str):
    given = values()
    op = WholeOp(rule, codec, given, SAMPLES)
    op.until(Commit)
    assert_near(op.result(), in_one_process(rule, codec, given), codec)


@CODEC
@OF_VECTORS
def test_a_peer_that_is_lost_before_freeze_is_in_no_slice(rule: str, codec: str):
    given = values()
    op = WholeOp(rule, codec, given, SAMPLES)
    op.lose(C)
    frozen = op.until(Freeze)
    assert frozen.contributors == (A, B, D, E) and frozen.excluded == {C: "lost"}
    op.until(Commit)
    assert [type(one) for one in op.log] == [Reassign, Freeze, SliceFreeze, Commit]
    assert_near(op.result(), in_one_process(rule, codec, given, (C,)), codec)


@CODEC
@OF_VECTORS
def test_a_slice_that_is_made_again_after_freeze_has_the_whole_vectors_of_who_is_left(
    rule: str, codec: str
):
    given = values()
    op = WholeOp(rule, codec, given, SAMPLES)
    op.until(Freeze)
    op.lose(C)
    op.until(Commit)
    assert [type(one) for one in op.log] == [Freeze, Reassign, SliceFreeze, Commit]
    assert op.view.slice_sets[2] == (A, B, D, E)
    with_all = in_one_process(rule, codec, given)
    spec = op.plan.slices[2]
    wanted = with_all.clone()
    wanted[spec.start : spec.stop] = in_one_process(rule, codec, given, (C,))[
        spec.start : spec.stop
    ]
    assert_near(op.result(), wanted, codec)


@OF_VECTORS
def test_a_flipped_contribution_is_bounded_and_destroys_the_mean(rule: str):
    given = values()
    clean = torch.stack([given[peer] for peer in PEERS if peer != B]).mean(dim=0)
    given[B] = -10 * given[B]
    op = WholeOp(rule, "int8", given)
    op.until(Commit)
    plain = torch.stack(list(given.values())).mean(dim=0)
    assert (plain - clean).norm() > 1.9 * clean.norm()
    assert (op.result() - clean).norm() < 0.6 * clean.norm()
    assert torch.cosine_similarity(op.result(), clean, dim=0) > 0.9


@OF_VECTORS
def test_totals_are_those_of_the_decoded_vectors_and_their_bits_those_of_every_order(rule: str):
    given, seen = values(), set()
    for order in (PEERS, PEERS[::-1], (C, A, E, D, B)):
        op = WholeOp(rule, "int8", {peer: given[peer] for peer in order}, SAMPLES)
        seen.add(op.until(Freeze).scalars)
    (totals,) = seen
    window = window_of(op.plan)
    rows = torch.stack(
        [
            codec_of(window).decode(TensorContribution(given[peer]).encode(0, SIZE, window),
                                    SIZE, window)
            for peer in PEERS
        ]
    ).double()  # fmt: skip
    naive = rows @ rows.T
    upper = naive[tuple(torch.triu_indices(5, 5))]
    wanted = naive.diagonal() if rule == "norm-clip" else upper
    found = torch.frombuffer(bytearray(totals), dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


@OF_VECTORS
def test_a_coordinator_that_died_before_freeze_hears_the_same_numbers_again(rule: str):
    given = values()
    wanted = WholeOp(rule, "int8", given).until(Freeze)
    op = WholeOp(rule, "int8", given)
    while any(op.bench.wires.values()) or op._hear():
        op.bench.deliver_all()
    op.restart()
    assert op.until(Freeze) == wanted
    op.restart()
    op.until(Commit)
    assert op.log[0] == wanted


@OF_VECTORS
@pytest.mark.parametrize("factor", [0.0, 1e-3, 1e6])
def test_an_owner_that_measures_others_wrongly_is_relieved_of_its_slice(rule: str, factor: float):
    """The owner cannot make an honest contribution look longer or shorter than it is."""
    honest = WholeOp(rule, "int8", values())
    frozen = honest.until(Freeze)
    honest.until(Commit)

    def lies(peer: PeerId, message: object) -> object:
        if peer != D or not isinstance(message, Got):
            return message
        rows = {
            one: b"".join(
                _packed(number * factor) if one != D else _packed(number)
                for number in memoryview(row).cast("d")
            )
            for one, row in message.scalars.items()
        }
        return msgspec.structs.replace(message, scalars=rows)

    op = WholeOp(rule, "int8", values(), tamper=lies)
    found = op.until(Freeze)
    moved = op.log[0]
    assert isinstance(moved, Reassign)
    assert (moved.slice_index, moved.reason) == (3, "unreachable for most")
    assert set(moved.lacked.values()) == {"scalars"}
    assert found.contributors == PEERS and found.scalars == frozen.scalars
    op.until(Commit)
    assert torch.equal(op.result(), honest.result())


def _packed(number: float) -> bytes:
    return torch.tensor([number], dtype=torch.float64).numpy().tobytes()


@OF_VECTORS
def test_a_contributor_that_says_another_length_than_it_has_is_left_out(rule: str):
    def lies(peer: PeerId, message: object) -> object:
        if peer == B and isinstance(message, Roots):
            return msgspec.structs.replace(message, norms=(0.0,) * 5)
        return message

    given = values()
    given[B] = -10 * given[B]
    op = WholeOp(rule, "int8", given, SAMPLES, tamper=lies)
    frozen = op.until(Freeze)
    assert frozen.contributors == (A, C, D, E) and frozen.excluded == {B: "roots"}
    op.until(Commit)
    assert_near(op.result(), in_one_process(rule, "int8", given, (B,)), "int8")


# ---- a rule that remembers


def flipped() -> dict[PeerId, Tensor]:
    """With somebody hostile it shows where the rule begins."""
    return {peer: one * (-10 if peer == B else 1) for peer, one in values().items()}


def earlier() -> dict[PeerId, Tensor]:
    return {peer: 1.1 * one for peer, one in values().items()}


def after_one_op(codec: str, given: dict[PeerId, Tensor], **changes: Any) -> WholeOp:
    """The second op of a run with centered clipping, the first with other values."""
    first = WholeOp("centered-clip", codec, earlier(), SAMPLES)
    first.until(Commit)
    return WholeOp("centered-clip", codec, given, SAMPLES, before=first, **changes)


@CODEC
@pytest.mark.parametrize("dies", ["", "before FREEZE", "after FREEZE"])
def test_centered_clipping_begins_from_the_last_result(codec: str, dies: str):
    given, before = flipped(), earlier()
    op = after_one_op(codec, given)
    if dies == "before FREEZE":
        op.lose(C)
    frozen = op.until(Freeze)
    assert len(frozen.scalars) == 8 * (21 if C in frozen.contributors else 15)
    if dies == "after FREEZE":
        op.lose(C)
    op.until(Commit)
    wanted = in_one_process("centered-clip", codec, given, before=before)
    without = in_one_process("centered-clip", codec, given, (C,), before=before)
    spec = op.plan.slices[2]
    if dies == "before FREEZE":
        wanted = without
    elif dies:
        wanted[spec.start : spec.stop] = without[spec.start : spec.stop]
    # The centre itself went through the codec, and one process begins from what was not rounded.
    centre = in_one_process("centered-clip", codec, before)
    bound = step_of(wanted, codec) + step_of(centre, codec)
    assert ((op.result() - wanted).abs() <= bound).all()
    if codec == "none":  # after five iterations the difference drowns in codes
        from_zero = in_one_process("centered-clip", codec, given)
        assert not ((op.result() - from_zero).abs() <= bound).all()


def test_an_owner_that_has_forgotten_the_last_result_is_relieved_of_its_slice():
    given = flipped()
    wanted = after_one_op("int8", given)
    wanted.until(Commit)
    first = WholeOp("centered-clip", "int8", earlier(), SAMPLES)
    first.until(Commit)
    first.bench.blobs[D].forget(first.plan.op)
    op = WholeOp("centered-clip", "int8", given, SAMPLES, before=first)
    assert op.until(Freeze).contributors == PEERS
    moved = op.log[0]
    assert isinstance(moved, Reassign)
    assert (moved.slice_index, moved.reason) == (3, "unreachable for most")
    op.until(Commit)
    assert torch.equal(op.result(), wanted.result())


@pytest.mark.parametrize("factor", [-10.0, 40.0])
def test_from_the_last_result_a_hostile_contribution_moves_little(factor: float):
    given = values()
    clean = torch.stack([given[peer] for peer in PEERS if peer != B]).mean(dim=0)
    first = WholeOp("centered-clip", "int8", {**given, B: given[A]})
    first.until(Commit)
    given[B] = factor * given[B]
    op = WholeOp("centered-clip", "int8", given, before=first)
    op.until(Commit)
    assert (op.result() - clean).norm() < 0.2 * clean.norm()


@pytest.mark.parametrize("rule", ["norm-clip", "flag"])
def test_whatever_part_comes_first_an_owner_finds_the_same_bits(rule: str):
    plan = plan_of(rule, "int8", SAMPLES, SIZE)
    view, spec = view_of(plan), plan.slices[1]
    chunks = range(num_chunks(plan, 1))
    parts = {
        (peer, chunk): TensorContribution(one).encode(*chunk_range(plan, 1, chunk), window_of(plan))
        for peer, one in values().items()
        for chunk in chunks
    }
    seen = set()
    for seed in range(4):
        owner = Reducer(view, 1, 0, CodecArithmetic(), Retention(SimFile(), 200 * seed))
        places, rows = list(parts), {}
        random.Random(seed).shuffle(places)
        for peer, chunk in places:
            owner.accept(peer, chunk, parts[peer, chunk])
            rows |= owner.measured()
        assert rows == owner.measured(again=True)
        table = Table(plan.scalars, PEERS)
        table.report(rows)
        seen.add(totals(plan.scalars, PEERS, [table]))
    (found,) = seen
    decoded = torch.stack(
        [
            torch.cat(
                [
                    codec_of(window_of(plan)).decode(
                        parts[peer, chunk], CHUNK if chunk < len(chunks) - 1 else
                        (spec.stop - spec.start - 1) % CHUNK + 1, window_of(plan),
                    )
                    for chunk in chunks
                ]
            )
            for peer in PEERS
        ]
    ).double()  # fmt: skip
    naive = decoded @ decoded.T
    upper = naive[tuple(torch.triu_indices(5, 5))]
    wanted = naive.diagonal() if rule == "norm-clip" else upper
    numbers = torch.frombuffer(bytearray(found), dtype=torch.float64)
    torch.testing.assert_close(numbers, wanted, rtol=1e-12, atol=0)
