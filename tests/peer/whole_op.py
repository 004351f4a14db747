"""One op with real codecs and a real coordinator's decisions, message by message, no clock."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from swarmtrain.config.values import WHOLE_VECTOR_RULES
from swarmtrain.peer.arithmetic import CodecArithmetic, TensorContribution, decode_result
from swarmtrain_optimizers.codec_facts import facts_of
from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.coordinator.ops.slicing import best_shares, cut
from swarmtrain_transport.ledger.fold import OpDecision, num_chunks, window_of
from swarmtrain_transport.ledger.plan_rules import check_plan, window_floor
from swarmtrain_transport.ledger.sample_weights import weights_of
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.result import OpResult, SliceResult
from swarmtrain_transport.wire.messages import Got, Hashes, Have, Roots, SliceDone, Withdraw
from swarmtrain_transport.wire.records import Member, Plan, SliceSpec
from tests.transport.collective.bench import Bench
from tests.transport.rig import BOOT, plan_body

BLOCK = 16
CHUNK = 64
HEARD = (Got, Have, Roots, SliceDone, Withdraw)

Tamper = Callable[[PeerId, Any], Any]


def plan_of(
    rule: str, codec: str, samples: Mapping[PeerId, int], num_values: int, centre: int = 0
) -> Plan:
    """As the coordinator plans it, with equal slices."""
    weights = weights_of(dict(sorted(samples.items())))
    bounds = cut(num_values, BLOCK, best_shares([0.0] * len(weights)))
    result = facts_of(codec).result
    plan = plan_body(
        tuple(weights),
        members=tuple(Member(peer, BOOT, weight) for peer, weight in weights.items()),
        slices=tuple(
            SliceSpec(*place, peer) for peer, place in zip(weights, bounds, strict=True)
        ),
        codec=codec, exact=False, block=BLOCK, chunk_values=CHUNK,
        e_min=window_floor(0, sum(weights.values())), e_max=0, min_contributors=3,
        result_codec=result if result != codec else "", rule=rule,
        scalars=WHOLE_VECTOR_RULES.get(rule, ""), op=centre + 1, centre=centre,
    )  # fmt: skip
    check_plan(plan, num_values)
    return plan


class WholeOp:
    """Peers with a coordinator that hears what they say.

    Args:
        rule: in the place of the mean.
        codec: of parts.
        given: everybody's values, of one length.
        samples: of everybody; the same if None.
        tamper: what becomes of a peer's report on its way.
        before: the op whose result the rule begins from, of the same peers.
    """

    def __init__(
        self,
        rule: str,
        codec: str,
        given: Mapping[PeerId, Tensor],
        samples: Mapping[PeerId, int] | None = None,
        tamper: Tamper = lambda peer, message: message,
        before: "WholeOp | None" = None,
    ) -> None:
        self.num_values = len(next(iter(given.values())))
        centre = 0 if before is None else before.plan.op
        told = samples or dict.fromkeys(given, 4)
        self.plan = plan_of(rule, codec, told, self.num_values, centre)
        contributions = {peer: TensorContribution(values) for peer, values in given.items()}
        earlier = None if before is None else before.bench
        self.bench = Bench(self.plan, CodecArithmetic(), contributions, earlier)
        self.view = self.bench.view
        self.log: list[OpDecision] = []
        self.alive = set(given)
        self._tamper = tamper
        self.restart()
        self.bench.begin()

    def restart(self) -> None:
        """The coordinator's new life: it has forgotten every report, so peers say them again."""
        self.op = OpDecider(self.view, 0.0)
        self._heard = {peer: 0 for peer in self.bench.told}
        for messages in self.bench.told.values():
            messages.clear()
        for peer, exchange in self.bench.peers.items():
            self.bench.take(peer, exchange.resend(self.bench.now_s))

    def lose(self, peer: PeerId) -> None:
        """End its process, with what it has sent and not delivered."""
        self.alive.discard(peer)
        del self.bench.peers[peer]
        for ends, frames in self.bench.wires.items():
            if peer in ends:
                frames.clear()

    def _hear(self) -> bool:
        """Hear what was said; True if anything was new."""
        count = 0
        for peer in list(self.bench.peers):
            told = self.bench.told[peer]
            for message in told[self._heard[peer] :]:
                self._heard[peer] += 1
                if isinstance(message, HEARD):
                    count += 1
                    self._relay(
                        self.op.reports.hear(peer, self._tamper(peer, message), self.bench.now_s)
                    )
        return bool(count)

    def _relay(self, hashes: Hashes | None) -> None:
        """Everybody hears of a result and gets what it lacks."""
        if hashes is None:
            return
        blobs = self.bench.blobs[self.view.owners[hashes.slice_index]]
        for peer, exchange in self.bench.peers.items():
            self.bench.take(peer, exchange.hashes(hashes, self.bench.now_s))
            for digest in hashes.chunk_hashes:
                body = blobs.get(digest) or b""
                self.bench.take(peer, exchange.blob_arrived(digest, body, self.bench.now_s))

    def decide(self) -> OpDecision | None:
        """The next decision after all that is under way, told to everybody."""
        while any(self.bench.wires.values()) or self._hear():
            self.bench.deliver_all()
        decision = self.op.decide(self.alive, self.bench.now_s)
        if decision is None:
            return None
        self.log.append(decision)
        self.bench.decide(decision)
        return decision

    def until(self, kind: type) -> Any:
        """Decisions until one of this kind; time passes when nothing else does."""
        for _ in range(400):
            decision = self.decide()
            if isinstance(decision, kind):
                return decision
            if decision is None:
                self.bench.tick(self.bench.now_s + 0.5)
        raise AssertionError(f"no {kind.__name__} after {self.log}")

    def result(self) -> Tensor:
        """Return what everybody decodes."""
        pieces = []
        for index, owner in enumerate(self.view.owners):
            done = [
                one for one in self.bench.said(owner, SliceDone)
                if (one.slice_index, one.attempt) == (index, self.view.attempts[index])
            ]  # fmt: skip
            chunks = [self.bench.blobs[owner].get(digest) for digest in done[-1].chunk_hashes]
            assert len(chunks) == num_chunks(self.plan, index)
            spec, named = self.plan.slices[index], self.view.slice_sets[index] or ()
            pieces.append(
                SliceResult(spec.start, spec.stop, named, tuple(chunk or b"" for chunk in chunks))
            )
        window = window_of(self.plan)
        return decode_result(
            OpResult(1, window, CHUNK, self.num_values, tuple(pieces), b"", b"", False)
        )


def step_of(values: Tensor, codec: str) -> Tensor:
    """Return how far rounding apart may end: a step of the result's codec, or of float32, per
    value."""
    if facts_of(codec).result == "none":
        return values.abs() * 2**-22 + 1e-9
    amax = values.reshape(-1, BLOCK).abs().amax(dim=1, keepdim=True)
    return (amax / 127 * (1 + 2**-6) + 1e-9).expand(-1, BLOCK).reshape(-1)


def drawn(seed: int, count: int, num_values: int) -> list[Tensor]:
    """Contributions with something in common."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(num_values, generator=generator)
    own = [torch.randn(num_values, generator=generator) for _ in range(count)]
    return [0.02 * (common + 0.5 * noise) for noise in own]
