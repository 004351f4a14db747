"""Rules of whole vectors over links give what one process gives that sees everything."""

import msgspec
import pytest
import torch
from torch import Tensor

from swarmtrain.compare.encoding import Encoder
from swarmtrain.compare.exchange import MeanExchange
from swarmtrain.config_limits import WHOLE_VECTOR_RULES
from swarmtrain.peer.arithmetic import TensorContribution, codec_of, decode_result
from swarmtrain.peer.driver import OwnPart
from swarmtrain_optimizers.robust import RULES, rule_named
from swarmtrain_transport.fold import window_of
from swarmtrain_transport.ledger import Commit, Freeze, Reassign, SliceFreeze
from swarmtrain_transport.link import PeerId
from swarmtrain_transport.messages import Got, Roots
from tests.peer.whole_op import BLOCK, CHUNK, WholeOp, drawn, step_of
from tests.transport.rig import A, B, C, D, E

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
    rule: str, codec: str, given: dict[PeerId, Tensor], lost: tuple[PeerId, ...] = ()
) -> Tensor:
    parts = {
        peer: OwnPart(1, TensorContribution(one), SAMPLES[peer]) for peer, one in given.items()
    }
    exchange = MeanExchange(Encoder(codec, BLOCK), rule_named(rule))
    outcome = exchange.run(parts, lost, PEERS, ((0, SIZE),))
    return decode_result(outcome.results[A])


def assert_near(found: Tensor, wanted: Tensor, codec: str) -> None:
    assert ((found - wanted).abs() <= step_of(wanted, codec)).all()
    assert wanted.abs().max() > 1e-3


def test_what_a_rule_asks_for_in_a_run_is_what_it_needs():
    needs = {name: rule.needs.value for name, rule in RULES.items()}
    told = {name: WHOLE_VECTOR_RULES.get(name, "coordinates") for name in RULES}
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
    """It cannot make an honest contribution look longer or shorter than it is."""
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
    assert op.log[0] == Reassign(1, 3, 1, A, "unreachable for most")
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
