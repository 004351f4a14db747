"""Runs in stages over real sockets: threads, lanes, ledger and disks as in life."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from staged_run import STEPS, Coordinator, Peer, config_of

from swarmtrain.config.settings import OuterSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.events import Evaluated, Serving
from swarmtrain.peer.network.shell import GIVEN_UP
from swarmtrain.pipeline.cut import run_stages
from swarmtrain.pipeline.evaluation import validation_loss
from swarmtrain.pipeline.places import Places
from swarmtrain.pipeline.span import Span
from swarmtrain.verify.peer_state import prove_peer

torch.set_num_threads(1)

ROUNDS = 6
Begin = Callable[..., tuple[Coordinator, list[Peer]]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    begun: list[Coordinator] = []

    def run(
        *spans: tuple[int, int], rounds: int = ROUNDS, **pipeline: Any
    ) -> tuple[Coordinator, list[Peer]]:
        config = config_of(rounds, len(spans), **{"activations": "none", **pipeline})
        coordinator = Coordinator(config, tmp_path / "run")
        begun.append(coordinator)
        return coordinator, [
            Peer(coordinator.invite, tmp_path / f"{number}", *span)
            for number, span in enumerate(spans)
        ]

    yield run
    for coordinator in begun:
        coordinator.stop()


def wait_for(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until_s
        threading.Event().wait(0.01)


def places_of(peer: Peer) -> Places:
    return peer.peer.membership.thread.shell._stages.peer.places


def assert_ended(peers: list[Peer], *, own_states: bool = False) -> None:
    """All peers have ended well, with one root per stage unless each has a state of its own."""
    for one in peers:
        one.thread.join(60)
        assert not one.thread.is_alive()
        if one.error is not None:
            raise one.error
    for stage in range(3):
        roots = {one.roots()[stage] for one in peers if stage in one.roots()}
        assert own_states or len(roots) == 1


def assert_whole(coordinator: Coordinator, peers: list[Peer]) -> None:
    """All have ended well, and each micro-batch is in the books of every stage."""
    assert_ended(peers)
    for books in coordinator.books[:ROUNDS]:
        made = sum(books.made.values())
        assert made and books.counted == (made,) * 3 and not books.lost and not books.partial


EAGER = OuterSection(strategy="eager", inner_steps=STEPS, momentum=0.5)


@pytest.mark.parametrize(
    ("activations", "outer"), [("none", None), ("int8", EAGER), ("subspace-16", None)]
)
def test_peers_of_three_stages_and_a_full_replica_train_one_model(
    begin, activations: str, outer: OuterSection | None, tmp_path: Path
) -> None:
    coordinator, peers = begin((0, 0), (1, 1), (2, 2), (0, 2), activations=activations, outer=outer)
    assert_whole(coordinator, peers)
    losses = [one.losses for one in peers if one.losses]
    assert losses and all(min(some) < 0.85 * some[0] for some in losses)
    judged = {one.round: one.loss for one in peers[3].events if isinstance(one, Evaluated)}
    assert judged[ROUNDS] < 0.85 * judged[0]
    assert coordinator.machine.first.chronicle.losses[1] == judged[1]  # PLAN has named it
    assert not any(isinstance(one, Evaluated) for peer in peers[:3] for one in peer.events)
    roots = peers[3].peer.roots
    assert roots == {str(stage): root for one in peers[:3] for stage, root in one.roots().items()}
    assert Serving(0, 2, "as it asked") in peers[3].events
    assert all(prove_peer(tmp_path / str(number)).ok for number in (0, 3))


@pytest.mark.parametrize("schedule", ["free", "flush"])
def test_a_subspace_turns_while_a_peer_dies_and_another_one_comes(
    begin, schedule: str, tmp_path: Path
) -> None:
    """Whoever trains, comes late or checks the disk has the same bits after each turn."""
    coordinator, peers = begin(
        (0, 0), (1, 1), (1, 1), (2, 2), (0, 2), rounds=10, schedule=schedule,
        activations="subspace-16", turn_rounds=2, turn_angle=0.3,
    )  # fmt: skip
    view = coordinator.machine.view
    wait_for(lambda: len(view.turns) >= 1)
    victim = peers.pop(2)
    victim.die()
    coordinator.gives_up(victim.peer_id)
    wait_for(lambda: len(view.turns) >= 2)
    peers.append(Peer(coordinator.invite, tmp_path / "new", 0, 1))
    assert_ended(peers)
    assert len(view.turns) >= 3 and {one.op for one in view.turns} <= set(range(3, 11))
    losses = [one.losses for one in peers if one.losses]
    assert losses and all(min(some) < 0.85 * some[0] for some in losses)
    assert all(prove_peer(tmp_path / name).ok for name in ("0", "1", "3", "4", "new"))
    turned = peers[0].peer._here.trainer.span.subspace
    assert turned.turns and turned.turns == view.turns[: len(turned.turns)]


def test_flushed_steps_are_made_by_all_stages_together(begin) -> None:
    coordinator, peers = begin((0, 0), (1, 1), (2, 2), schedule="flush")
    assert_whole(coordinator, peers)
    steps = {one.peer._here.trainer.num_steps.total() for one in peers}
    assert len(steps) == 1
    assert_evaluated_as_by_a_full_replica(coordinator, peers)


def test_in_a_turned_subspace_the_loss_through_the_stages_is_that_of_a_full_replica(begin) -> None:
    coordinator, peers = begin(
        (0, 0), (1, 1), (2, 2), schedule="flush", activations="subspace-16", turn_rounds=2,
        turn_angle=1.0,
    )  # fmt: skip
    assert_whole(coordinator, peers)
    assert len(coordinator.machine.view.turns) >= 2
    assert_evaluated_as_by_a_full_replica(coordinator, peers, within=1e-4)


def assert_evaluated_as_by_a_full_replica(
    coordinator: Coordinator, peers: list[Peer], within: float = 0.0
) -> None:
    """The end of the run at least is, as nothing overtakes that; by the only source."""
    told = {one.round: one.loss for one in peers[0].events if isinstance(one, Evaluated)}
    assert coordinator.machine.first.chronicle.losses == told and ROUNDS in told
    config = peers[0].peer.membership.config
    model, cut = run_stages(config)
    whole = Span(model, cut, range(3), seed=config.run.seed)
    here = [one.peer._here.anchors((ROUNDS,) * 3) for one in peers]
    anchors = {stage: anchor for some in here for stage, anchor in some.items()}
    loss = validation_loss(whole, anchors, peers[0].peer._validation)
    assert abs(told[ROUNDS] - loss) <= within


def test_a_peer_dies_with_micro_batches_and_another_one_comes(begin, tmp_path: Path) -> None:
    coordinator, peers = begin((0, 0), (0, 0), (1, 1), (1, 1), (2, 2), (2, 2), rounds=12)
    victim = peers.pop(2)
    wait_for(lambda: len(coordinator.books) >= 2)
    wait_for(lambda: len(places_of(victim)) > 1)
    victim.die()
    died_in = len(coordinator.books)
    coordinator.gives_up(victim.peer_id)
    wait_for(lambda: len(coordinator.books) >= died_in + 2)
    peers.append(Peer(coordinator.invite, tmp_path / "new", 1, 1))
    assert_ended(peers)
    assert any(books.counted[1] for books in coordinator.books[died_in:])
    for number, books in enumerate(coordinator.books):
        made = sum(books.made.values())
        assert not books.disputed and all(count <= made for count in books.counted)
        if not died_in - 1 <= number <= died_in + 1:
            assert books.counted == (made,) * 3 and not books.lost and not books.partial


@pytest.mark.parametrize("strategy", ["diloco", "noloco"])
def test_a_stage_that_lost_its_only_peer_goes_on_from_what_others_have_kept(
    begin, tmp_path: Path, strategy: str
) -> None:
    """Where ops go by pairs that is some member's state, and nobody waits until it is kept."""
    are_pairs = strategy == "noloco"
    coordinator, peers = begin(
        (0, 0), (0, 0), (1, 1), (2, 2), rounds=10,
        outer=OuterSection(strategy=strategy, inner_steps=STEPS, momentum=0.5),
        exchange={"codec": "none", "min_contributors": 2} if are_pairs else {},
    )  # fmt: skip
    stage = coordinator.machine.groups[1]
    enough = 0 if are_pairs else 2
    wait_for(lambda: stage.keepers.newest >= 2 and len(stage.keepers.holding) >= enough)
    victim = peers.pop(2)
    victim.die()
    coordinator.gives_up(victim.peer_id)
    wait_for(lambda: not stage.view.members)
    newest = stage.view.last_op
    assert newest >= 2 and "keepers" in coordinator.machine.status(0.0).groups[0].waiting_for
    peers.append(Peer(coordinator.invite, tmp_path / "new", 1, 1))
    assert_ended(peers, own_states=are_pairs)
    assert stage.view.committed == 10 and not stage.view.rewinds
    assert stage.view.cancelled_op == 0 and newest in stage.view.commits


def test_who_was_given_up_meanwhile_begins_anew(begin) -> None:
    coordinator, peers = begin((0, 0), (1, 1), (2, 2), (0, 2), rounds=1000)
    wait_for(lambda: len(coordinator.books) >= 1)
    given_up = threading.Event()
    peers[1].lose_coordinator(until=given_up.is_set)
    coordinator.gives_up(peers[1].peer_id)
    given_up.set()
    peers[1].thread.join(60)
    assert isinstance(peers[1].error, UserError) and peers[1].error.code == GIVEN_UP
    for one in peers[:1] + peers[2:]:
        one.die()
