"""Proofs of wrong sums in a peer's directory, with the production arithmetic and real keys."""

from pathlib import Path

import pytest
import torch

from swarmtrain.peer.arithmetic import CodecArithmetic, TensorContribution
from swarmtrain.peer.disk.group_storage import PROOFS
from swarmtrain.verify.wrong_sums import wrong_sums
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.audit import Proof, Shown, draw
from swarmtrain_transport.ledger.fold import GroupView, OpView, chunk_range, num_chunks, window_of
from swarmtrain_transport.ledger.signed_roots import (
    contribution_payload,
    inputs_of,
    result_payload,
    root_over,
)
from swarmtrain_transport.wire.records import (
    Commit,
    Member,
    Plan,
    SignedRoot,
    SliceOutcome,
    SliceSpec,
)

BLOCK, CHUNK, VALUES = 64, 128, 512


class Committed:
    """An op of two peers whose second owner's every chunk is named by a hash of our choice."""

    def __init__(self, *, is_wrong: bool) -> None:
        self.keys = [Identity.from_secrets(bytes([n]) * 32, bytes([n]) * 32) for n in (1, 2)]
        self.peers = sorted(key.peer_id for key in self.keys)
        by_id = {key.peer_id: key for key in self.keys}
        half = VALUES // 2
        plan = Plan(
            1, b"", tuple(Member(peer, b"boot", 3) for peer in self.peers),
            tuple(SliceSpec(n * half, (n + 1) * half, peer) for n, peer in enumerate(self.peers)),
            "int8", True, BLOCK, CHUNK, -30, 0, 1, 9.0, b"", b"",
        )  # fmt: skip
        self.view = view = OpView.of(plan, b"p" * 32)
        window = window_of(plan)
        parts: dict[bytes, list[list[bytes]]] = {}
        for number, peer in enumerate(self.peers):
            mine = TensorContribution(torch.linspace(-0.5, 0.4 + number, VALUES))
            parts[peer] = [
                [mine.encode(*chunk_range(plan, j, k), window) for k in range(num_chunks(plan, j))]
                for j in (0, 1)
            ]
        hashes = {p: [tuple(map(content_hash, row)) for row in rows] for p, rows in parts.items()}
        roots = {peer: tuple(map(root_over, rows)) for peer, rows in hashes.items()}
        everybody = tuple(self.peers)
        view.frozen, view.slice_sets = everybody, [everybody, everybody]
        for peer in self.peers:
            payload = contribution_payload(view.plan_hash, root_over(roots[peer]))
            signed = SignedRoot(root_over(roots[peer]), by_id[peer].sign(payload))
            view.roots[peer] = signed
        # What was drawn is known only once there is a COMMIT; every chunk gets its hash before.
        view.outcome_hash = bytes(24) + b"h" * 8
        view.outcome = Commit(
            1, view.plan_hash, everybody, tuple(SliceOutcome(0, everybody, b"") for _ in (0, 1)),
            b"", (b"", b""),
        )  # fmt: skip
        drawn = draw(view)
        assert drawn is not None
        self.drawn, j = drawn, drawn.slice_index
        self.evidence = {
            peer: Shown(roots[peer], hashes[peer][j], parts[peer][j][drawn.chunk])
            for peer in self.peers
        }
        start, stop = chunk_range(plan, j, drawn.chunk)
        total = CodecArithmetic().accumulator(stop - start, window)
        for peer, shown in self.evidence.items():
            total.add(shown.part, view.weights[peer])
        right = content_hash(total.finish(sum(view.weights.values())))
        self.published = tuple(
            content_hash(right) if is_wrong else right for _ in range(num_chunks(plan, j))
        )
        root, inputs = root_over(self.published), inputs_of({p: roots[p][j] for p in self.peers})
        payload = result_payload(view.plan_hash, j, 0, root, inputs)
        signature = by_id[drawn.owner].sign(payload)
        view.outcome = Commit(
            1, view.plan_hash, everybody, (SliceOutcome(0, everybody, root),) * 2, b"",
            (signature, signature),
        )  # fmt: skip

    def proof(self) -> Proof:
        place = (self.drawn.slice_index, self.drawn.chunk)
        return Proof(1, *place, self.published, dict(self.evidence))


def kept(directory: Path, data: bytes) -> Path:
    (directory / PROOFS).mkdir(exist_ok=True)
    (directory / PROOFS / "00000001.proof").write_bytes(data)
    return directory


def ledger_of(committed: Committed) -> GroupView:
    return GroupView(commits={1: committed.view})


def test_a_directory_without_proofs_says_nothing(tmp_path: Path) -> None:
    assert wrong_sums(tmp_path, GroupView()) == ()


def test_a_proof_convicts_with_the_production_arithmetic_and_real_keys(tmp_path: Path) -> None:
    committed = Committed(is_wrong=True)
    (found,) = wrong_sums(kept(tmp_path, committed.proof().to_bytes()), ledger_of(committed))
    assert (found.op, found.problem) == (1, "")
    assert found.owner == committed.drawn.owner.hex()


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_right_sum_an_altered_proof_and_another_ledger_convict_nobody(
    tmp_path: Path, is_wrong: bool
) -> None:
    committed = Committed(is_wrong=is_wrong)
    data = committed.proof().to_bytes()
    if not is_wrong:
        (found,) = wrong_sums(kept(tmp_path, data), ledger_of(committed))
        assert found.owner == "" and "right" in found.problem
        return
    altered = bytearray(data)
    for place in range(0, len(data), 97):
        altered[place] ^= 1
        (found,) = wrong_sums(kept(tmp_path, bytes(altered)), ledger_of(committed))
        assert found.owner == "" and found.problem
        altered[place] ^= 1
    (found,) = wrong_sums(kept(tmp_path, data), GroupView())
    assert found.owner == "" and "forgotten" in found.problem
