"""Evaluation over routes with the production machines and real tensors: the bits of the loss that a
full replica measures, and a run that does not notice."""

import pytest
import torch
from one_process_pipeline import Pipeline, Trainer
from test_passes import EXAMPLE, MODEL, SEED, STAGES, Peer, peer, rate, read, values_of

from swarmtrain.data.batches import Batch
from swarmtrain.models.tensors import Layout
from swarmtrain.pipeline.evaluation import validation_loss
from swarmtrain.pipeline.span import Span
from swarmtrain_transport.pipeline.coordinator.rounds import Rounds
from swarmtrain_transport.pipeline.peer.rules import Rules
from swarmtrain_transport.pipeline.wire import route

torch.set_num_threads(1)

JUDGED, ROUNDS = 3, 2


def judged_text(part: int) -> Batch:
    return Batch(*read(route.MicroBatch(b"validation", b"boot", 0, 0, 0, part)))


def read_both(name: route.MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    if not name.judged:
        return read(name)
    batch = judged_text(name.number % JUDGED)
    return batch.x_BT, batch.y_BT


def world_of(peers: list[Peer], *, evaluates: bool, steps: int = 2, loss: float = 0.0) -> Pipeline:
    for _, trainer, _ in peers:
        trainer._read = read_both
    world = Pipeline(
        [(span, trainer) for span, trainer, _ in peers],
        Rules(3, 3, steps > 0, step_micro_batches=2, tokens=EXAMPLE.numel(), judged=JUDGED),
        Rounds(3, 4, steps),
        rate,
        None if steps else 3,
        loss,
    )
    world.evaluates = evaluates
    return world


def run(codec: str, *, evaluates: bool) -> tuple[Pipeline, list[Peer]]:
    """Some rounds of one peer per stage, and the end of the last evaluation."""
    peers = [peer(stage, stage, codec) for stage in range(3)]
    world = world_of(peers, evaluates=evaluates)
    world.run(until_round=ROUNDS)
    if evaluates:
        world.run_until(lambda: world.evaluated[-1:] and world.evaluated[-1].op == ROUNDS)
    return world, peers


def loss_of_a_full_replica(world: Pipeline, op: int) -> float:
    whole = Span(MODEL, STAGES, range(3), seed=SEED)
    anchors: dict[int, tuple[Layout, torch.Tensor]] = {}
    for one in world.peers.values():
        anchors.update(one.anchors_of[op])
    return validation_loss(whole, anchors, [judged_text(part) for part in range(JUDGED)])


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_small_peers_measure_what_a_full_replica_would_and_the_run_does_not_notice(
    codec: str,
) -> None:
    (_, quiet), (world, judged) = run(codec, evaluates=False), run(codec, evaluates=True)
    assert world.counts["Judged"] >= JUDGED
    expected = values_of(quiet)
    assert all(torch.equal(expected[name], value) for name, value in values_of(judged).items())
    for one in world.peers.values():
        assert not any(name.judged for step in one.trainer.stepped for name, _ in step)
    told = {one.op: one.loss for one in world.evaluated if one.loss is not None}
    assert ROUNDS in told
    for op, loss in told.items():
        exact = loss_of_a_full_replica(world, op)
        assert loss == (exact if codec == "none" else pytest.approx(exact, rel=0.01))


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_an_evaluation_comes_to_its_end_on_random_routes_whatever_gets_lost(loss: float) -> None:
    peers = [peer(stage, stage) for stage in (0, 0, 1, 1, 2, 2)] + [peer(1, 2)]
    world = world_of(peers, evaluates=True, steps=0, loss=loss)
    world.rounds.wanted = 1
    world.run(until_round=1)
    world.run_until(lambda: bool(world.evaluated))
    (evaluated,) = world.evaluated
    assert evaluated.op == 1 and evaluated.loss is not None and 0 < evaluated.loss < 10
    assert not any(one.peer.machine.evaluation.refused for one in world.peers.values())
    assert all(not one.peer.machine._flight.judged for one in world.peers.values()) or loss


def test_an_evaluation_ends_without_a_loss_where_a_hop_has_gone_on() -> None:
    world = world_of([peer(stage, stage) for stage in range(3)], evaluates=True, steps=0)
    world.rounds.wanted = 1
    world.run(until_round=1)
    list(world.peers.values())[1].op = 2
    world.run_until(lambda: bool(world.evaluated))
    assert [(one.op, one.loss) for one in world.evaluated] == [(1, None)]
    world.run_until(lambda: world.now_s > 100)
    assert not any(len(one.peer.places) for one in world.peers.values())


def test_a_pass_of_an_evaluation_leaves_weights_chance_and_gradients_as_they_were() -> None:
    _, trainer, span = peer(1, 1)
    assert isinstance(trainer, Trainer)
    module = span.modules[1]
    live = {name: value.clone() for name, value in module.state_dict().items()}
    places = [one.data_ptr() for one in module.parameters()]
    layout = Layout.of(module, 4)
    chance, other = torch.get_rng_state(), torch.randn(layout.padded)
    torch.set_rng_state(chance)
    with span.judged({1: (layout, other)}):
        assert not module.training
        assert torch.equal(layout.read(module)[: layout.num_values], other[: layout.num_values])
        span.forward(torch.zeros(2, EXAMPLE.shape[1], 32), stages=(1,), seed=0)
    assert module.training and [one.data_ptr() for one in module.parameters()] == places
    assert all(torch.equal(value, live[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(one.grad is None for one in module.parameters())
