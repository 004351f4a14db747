"""Averaging vectors without a model: what is given, what comes back, and what state there is."""

import queue

import pytest
import torch

from benchmarks.averager import Averager
from swarmtrain.config.settings import ExchangeSection, OuterSection, RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_transport import actions as do
from swarmtrain_transport.arithmetic import Window
from swarmtrain_transport.blocks.manifest import manifest_from_bytes
from swarmtrain_transport.collective.local_stats import LocalStats
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.result import OpResult, SliceResult

ME, OTHER = b"m" * 32, b"o" * 32
WINDOW = Window("int8", 16, -24, 0)


class FakeParticipant:
    """Keeps what the averager tells it."""

    def __init__(self):
        self.stats = LocalStats(bytes_in=1, bytes_out=2, control_bytes_in=10, control_bytes_out=20)
        self.ready_for = []
        self.states = []

    def attach(self, op, manifest, chunks, snapshot_rounds, now_s):
        self.states.append((op, manifest, chunks))
        return ()

    def ready(self, op, contribution, samples, now_s, pace, group=0, since=-1, loss=None):
        self.ready_for.append((op, contribution))
        return ()

    def applied(self, op, manifest, chunks, now_s, group=0):
        self.states.append((op, manifest, chunks))
        return ()


class FakeThread:
    def __init__(self):
        self.inbox = queue.SimpleQueue()
        self.participant = FakeParticipant()

    def machine(self, event):
        event(self.participant, 0.0)


def started(num_values):
    thread = FakeThread()
    config = RunConfig(RunSection("r"), exchange=ExchangeSection(block=16, chunk_values=32))
    averager = Averager(ME, thread, config, num_values)
    thread.inbox.put(do.LoadState(0, *state_of(thread, averager)))
    averager.start()
    return averager, thread


def state_of(thread, averager):
    manifest, chunks = averager._state.after(bytes(32))
    return manifest, chunks


def result(op, values, contributors=(ME, OTHER)):
    chunks = tuple(
        codec_named("int8").encode(values[start : start + 32], WINDOW)
        for start in range(0, len(values), 32)
    )
    piece = SliceResult(0, len(values), contributors, chunks)
    root = content_hash(b"".join(chunks))
    return do.ApplyResult(OpResult(op, WINDOW, 32, len(values), (piece,), b"", b"", False, root))


def padded(values):
    rest = -len(values) % 16
    return torch.cat([values, torch.zeros(rest)])


def answering(thread, outcome_of):
    """From now on every READY has this outcome."""
    original = thread.participant.ready

    def ready(op, contribution, samples, now_s, pace, group=0, since=-1, loss=None):
        thread.inbox.put(outcome_of(op))
        return original(op, contribution, samples, now_s, pace)

    thread.participant.ready = ready


def test_the_mean_comes_back_without_padding():
    averager, thread = started(70)
    mean = torch.linspace(-0.1, 0.1, 70)
    answering(thread, lambda op: result(op, padded(mean)))
    found = averager.all_reduce(torch.ones(70))
    assert found.shape == (70,) and torch.allclose(found, mean, atol=1e-3)
    assert averager.included and averager.op == 1


def test_peers_with_different_means_report_different_states():
    roots = set()
    for factor in (1, 1, 3):
        averager, thread = started(70)
        mean = padded(torch.linspace(-0.1, 0.1, 70) * factor)
        answering(thread, lambda op, mean=mean: result(op, mean))
        averager.all_reduce(torch.ones(70))
        op, manifest, _ = thread.participant.states[-1]
        assert op == 1
        roots.add(manifest.root)
    assert len(roots) == 2


def test_an_outcome_that_came_before_the_call_is_not_its_answer():
    averager, thread = started(16)
    thread.inbox.put(result(1, torch.full((16,), 0.25)))
    answering(thread, lambda op: result(op, torch.full((16,), 0.5)))
    assert averager.all_reduce(torch.ones(16))[0] == pytest.approx(0.5, rel=0.01)
    assert [op for op, _ in thread.participant.ready_for] == [2]


def test_what_ends_the_peer_ends_the_call():
    averager, thread = started(16)
    answering(thread, lambda op: UserError("SWT-E502", "The peer stopped."))
    with pytest.raises(UserError, match="The peer stopped"):
        averager.all_reduce(torch.ones(16))
    averager, thread = started(16)
    thread.inbox.put(do.RunFinished(0))
    with pytest.raises(UserError, match="no next round"):
        averager.all_reduce(torch.ones(16))


def test_a_skipped_op_is_followed_by_another_try_with_the_same_values():
    averager, thread = started(16)
    outcomes = [do.OpSkipped(1, "deadline"), result(2, torch.full((16,), 0.25), (OTHER,))]
    answering(thread, lambda op: outcomes[op - 1])
    averager.all_reduce(torch.ones(16))
    parts = [
        (op, contribution.encode(0, 16, WINDOW))
        for op, contribution in thread.participant.ready_for
    ]
    assert [op for op, _ in parts] == [1, 2] and parts[0][1] == parts[1][1]
    assert not averager.included


def test_a_vector_of_another_shape_or_type_is_refused():
    averager, _ = started(16)
    for wrong in (torch.ones(15), torch.ones(16, dtype=torch.float64), torch.ones(4, 4)):
        with pytest.raises(ValueError, match=r"expected \(16,\) float32"):
            averager.all_reduce(wrong)
    with pytest.raises(ValueError, match="cannot be averaged"):
        Averager(ME, FakeThread(), RunConfig(RunSection("r")), 0)
    with pytest.raises(ValueError, match="in pairs"):
        Averager(ME, FakeThread(), RunConfig(RunSection("r"), outer=OuterSection("noloco")), 9)


@pytest.mark.parametrize("num_values", [1, 262_144, 262_143, 300_000, 524_288])
def test_the_state_is_a_legal_manifest_of_the_vectors_length(num_values):
    averager, thread = started(num_values)
    manifest, chunks = state_of(thread, averager)
    again = manifest_from_bytes(manifest.to_bytes())
    assert again == manifest and manifest.arrays[0].num_values == num_values
    assert sum(len(chunk) for chunk in chunks) == manifest.total_bytes
    assert len(chunks) == len(manifest.chunk_hashes)


def test_traffic_counts_both_lanes():
    averager, _ = started(16)
    traffic = averager.traffic()
    assert (traffic.bytes_up, traffic.bytes_down) == (22, 11)


def test_a_parameter_is_averaged_without_its_gradient():
    """Tensors that go through the network must not fail there because autograd watches them."""
    averager, thread = started(16)
    answering(thread, lambda op: result(op, torch.full((16,), 0.25)))
    vector = torch.ones(16, requires_grad=True)
    found = averager.all_reduce(vector, out=vector)
    assert found is vector and vector.requires_grad
    assert torch.equal(vector, torch.full((16,), vector[0].item()))
    (_, contribution), *_ = thread.participant.ready_for
    assert contribution.encode(0, 16, WINDOW)


@pytest.mark.parametrize("wrong", [torch.ones(16, device="meta"), torch.ones(16).to_sparse()])
def test_a_vector_that_is_not_in_memory_is_refused_at_the_call(wrong):
    averager, thread = started(16)
    with pytest.raises(ValueError, match="on the CPU"):
        averager.all_reduce(wrong)
    with pytest.raises(ValueError, match="on the CPU"):
        averager.all_reduce(torch.ones(16), out=wrong)
    assert not thread.participant.ready_for


def test_memory_given_to_a_call_that_failed_is_not_written_to_later():
    averager, thread = started(16)
    outcomes = [UserError("SWT-E502", "The peer stopped."), result(2, torch.full((16,), 0.5))]
    answering(thread, lambda op: outcomes.pop(0))
    mine = torch.full((16,), 7.0)
    with pytest.raises(UserError, match="The peer stopped"):
        averager.all_reduce(torch.ones(16), out=mine)
    thread.inbox.put(result(1, torch.full((16,), 0.25)))
    averager.all_reduce(torch.ones(16))
    assert torch.equal(mine, torch.full((16,), 7.0))


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_the_mean_may_overlap_what_was_given(shift):
    averager, thread = started(70)
    memory = torch.linspace(-0.5, 0.5, 70 + shift)
    before = memory[:70].clone()
    mean = torch.linspace(-0.1, 0.1, 70)
    given = []

    def outcome(op):
        _, contribution = thread.participant.ready_for[-1]
        given.append(contribution.encode(0, 80, WINDOW))
        return result(op, padded(mean))

    original = thread.participant.ready

    def ready(op, contribution, samples, now_s, pace, group=0, since=-1, loss=None):
        original(op, contribution, samples, now_s, pace)
        thread.inbox.put(outcome(op))
        return ()

    thread.participant.ready = ready
    found = averager.all_reduce(memory[:70], out=memory[shift : 70 + shift])
    assert torch.allclose(found, mean, atol=1e-3)
    assert given == [codec_named("int8").encode(padded(before), WINDOW)]
