"""Runs in stages over real sockets: threads, lanes, ledger and disks as in life."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from staged_run import Coordinator, Peer, config_of

torch.set_num_threads(1)

ROUNDS = 6
Begin = Callable[..., tuple[Coordinator, list[Peer]]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    begun: list[Coordinator] = []

    def run(*spans: tuple[int, int], **pipeline: str) -> tuple[Coordinator, list[Peer]]:
        config = config_of(ROUNDS, len(spans), **{"activations": "none", **pipeline})
        coordinator = Coordinator(config, tmp_path / "run")
        begun.append(coordinator)
        return coordinator, [
            Peer(coordinator.invite, tmp_path / str(number), *span)
            for number, span in enumerate(spans)
        ]

    yield run
    for coordinator in begun:
        coordinator.stop()


def assert_whole(coordinator: Coordinator, peers: list[Peer]) -> None:
    """All peers have ended well, with one root per stage, and each micro-batch is in the books of
    every stage."""
    for one in peers:
        one.thread.join(60)
        assert not one.thread.is_alive()
        if one.error is not None:
            raise one.error
    for stage in range(3):
        roots = {one.roots()[stage] for one in peers if stage in one.roots()}
        assert len(roots) == 1
    for books in coordinator.books[:ROUNDS]:
        made = sum(books.made.values())
        assert made and books.counted == (made,) * 3 and not books.lost and not books.partial


@pytest.mark.parametrize("activations", ["none", "int8"])
def test_peers_of_three_stages_and_a_full_replica_train_one_model(begin, activations: str) -> None:
    coordinator, peers = begin((0, 0), (1, 1), (2, 2), (0, 2), activations=activations)
    assert_whole(coordinator, peers)
    losses = [one.losses for one in peers if one.losses]
    assert losses and all(min(some) < 0.85 * some[0] for some in losses)


def test_flushed_steps_are_made_by_all_stages_together(begin) -> None:
    coordinator, peers = begin((0, 0), (1, 1), (2, 2), schedule="flush")
    assert_whole(coordinator, peers)
    steps = {one.peer._here.trainer.num_steps for one in peers}
    assert len(steps) == 1
