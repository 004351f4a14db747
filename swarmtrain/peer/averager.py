"""Averaging vectors among the peers of a run: the exchange alone, without model and strategy.

`all_reduce` gives this peer's vector to the next op and returns the committed mean. There is no
shared state but the digest of the newest result, so that a peer whose result differs is still
found out. State keeps the vector's length, because PLAN takes it from there: it is an array of
zeros, whose chunks are one and the same object, and the digest behind it. So a late comer
downloads one chunk of zeros, the digest, and nothing else.

Not here: what is averaged and why. Training is the affair of driver and session.
"""

import hashlib
import queue
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmtrain.config.pairs import PAIRED
from swarmtrain.config.settings import RunConfig
from swarmtrain.errors import UserError
from swarmtrain.peer.arithmetic import TensorContribution, decode_result
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.network.thread import PeerThread
from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.blocks.manifest import ArraySpec, StateManifest
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.result import OpResult

WORTH_PREPARING_VALUES = 2_000_000
"""From this length on a codec is prepared, which costs seconds the first time."""

_SAMPLES = 1
"""Everybody's vector counts alike."""

_FLOAT_BYTES = 4

_Image = tuple[StateManifest, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of this peer since it came in, both lanes with their frames, without TCP and TLS."""

    bytes_up: int
    bytes_down: int


class Averager:
    """One peer that averages vectors of one length with the others of its run.

    Args:
        me: own id.
        thread: the network side, started, with WELCOME already taken from its inbox.
        config: the run file.
        num_values: length of every vector.

    Attributes:
        op: newest op whose outcome is known here, -1 before `start`.
        included: whether our vector is in the newest mean, in all of its slices.
        is_finished: the run has made its rounds; there will be no more.

    Raises:
        ValueError: `num_values` is not positive, or the run exchanges in pairs.
    """

    def __init__(self, me: PeerId, thread: PeerThread, config: RunConfig, num_values: int) -> None:
        if num_values < 1:
            raise ValueError(f"a vector of {num_values} values cannot be averaged")
        if config.outer.strategy in PAIRED:
            raise ValueError(f"{config.outer.strategy} exchanges in pairs: there is no mean")
        self.op = -1
        self.included = False
        self.is_finished = False
        self._me = me
        self._thread = thread
        self._num_values = num_values
        block = config.exchange.block
        self._padded = -(-num_values // block) * block
        self._snapshot_rounds = config.checkpoint.snapshot_rounds
        self._codec = codec_named(config.exchange.codec)
        self._out: Tensor | None = None
        self._state = _State(num_values)

    @classmethod
    def of(cls, membership: Membership, num_values: int) -> "Averager":
        """An averager for a peer that was let in."""
        return cls(membership.identity.peer_id, membership.thread, membership.config, num_values)

    def start(self) -> None:
        """Wait until the run's state is in place here.

        Long vectors are worth some seconds of preparing the codec, once per machine.

        Raises:
            UserError: the run averages vectors of another length, or the coordinator refused.
        """
        manifest, chunks = self._state.after(bytes(limits.HASH_BYTES))
        rounds = self._snapshot_rounds
        self._thread.machine(
            lambda participant, now_s: participant.attach(0, manifest, chunks, rounds, now_s)
        )
        if self._num_values >= WORTH_PREPARING_VALUES:
            self._codec.prepare()
        while self.op < 0:
            self._take(self._thread.inbox.get())

    def all_reduce(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """The mean of the vectors that the peers gave to the next op.

        Blocks until the op is committed; a skipped op changes nothing, and the vector is given
        to the one after it. Whoever is late or lost is left out of the mean, and that may be
        this peer: see `included`.

        Args:
            vector: (num_values,) float32 on the CPU; must not change until this returns. No
                gradient flows through the exchange.
            out: (num_values,) contiguous float32 on the CPU to write the mean to; may be `vector`,
                and is untouched if this raises UserError. New memory if None.

        Returns:
            `out`, or a new (num_values,) float32.

        Raises:
            UserError: what ended this peer; or SWT-E705, the run is over.
            ValueError: `vector` or `out` has another shape, type or device.
        """
        self._check_vector(vector)
        if out is not None:
            self._check_vector(out)
            if not out.is_contiguous():
                raise ValueError("`out` must be contiguous")
        given = TensorContribution(vector.detach().contiguous(), self._padded)
        self._catch_up()
        # Memory is given for this call alone: what `_catch_up` takes is nobody's.
        self._out = None if out is None else out.detach()
        try:
            mean = self._mean_of_next(given)
        finally:
            self._out = None
        return mean if out is None else out

    def traffic(self) -> Traffic:
        """What was sent and heard so far, asked of the network thread."""
        answer: queue.SimpleQueue[Traffic] = queue.SimpleQueue()

        def ask(participant: Participant, now_s: float) -> Actions:
            stats = participant.stats
            answer.put(
                Traffic(
                    stats.bytes_out + stats.control_bytes_out,
                    stats.bytes_in + stats.control_bytes_in,
                )
            )
            return ()

        self._thread.machine(ask)
        return answer.get()

    # ---- parts

    def _mean_of_next(self, given: TensorContribution) -> Tensor:
        mean = None
        given_to = -1
        while mean is None:
            if self.is_finished:
                raise UserError("SWT-E705", "The run is over: there is no next round.")
            if given_to <= self.op:
                given_to = self.op + 1
                self._give(given_to, given)
            mean = self._take(self._thread.inbox.get())
        return mean

    def _catch_up(self) -> None:
        """Take what came since the last call: means of ops that it was too late for."""
        while True:
            try:
                item = self._thread.inbox.get_nowait()
            except queue.Empty:
                return
            self._take(item)

    def _check_vector(self, vector: Tensor) -> None:
        found = f"{tuple(vector.shape)} {vector.dtype} on {vector.device}"
        if vector.shape != (self._num_values,) or vector.dtype != torch.float32:
            raise ValueError(f"expected ({self._num_values},) float32, got {found}")
        if vector.device.type != "cpu" or vector.layout != torch.strided:
            raise ValueError(f"expected a dense vector on the CPU, got {found}, {vector.layout}")

    def _give(self, op: int, contribution: TensorContribution) -> None:
        self._thread.machine(
            lambda participant, now_s: participant.ready(op, contribution, _SAMPLES, now_s)
        )

    def _take(self, item: object) -> Tensor | None:
        """Handle one word of the network thread; the mean, if it brought one."""
        match item:
            case UserError():
                raise item
            case do.LoadState():
                image = (item.manifest, item.chunks)
                self._report(item.op, lambda: image)
            case do.ApplyResult():
                return self._apply(item.result)
            case do.OpSkipped():
                self.op = item.op
            case do.RunFinished():
                self.is_finished = True
        return None

    def _apply(self, result: OpResult) -> Tensor:
        out = torch.empty(self._num_values) if self._out is None else self._out
        mean = decode_result(result, out)
        self.included = all(self._me in named for _, _, named in result.ranges)
        # Whoever waits for the mean need not wait for its digest: the network thread makes it.
        self._report(result.op, lambda: self._state.after(result.root))
        return mean

    def _report(self, op: int, make_state: Callable[[], _Image]) -> None:
        self.op = op

        def tell(participant: Participant, now_s: float) -> Actions:
            manifest, chunks = make_state()
            pinned = chunks if op % self._snapshot_rounds == 0 else None
            return participant.applied(op, manifest, pinned, now_s)

        self._thread.machine(tell)


class _State:
    """What PLAN and late comers need of a run without state: zeros, then a digest.

    Args:
        num_values: length of the vectors.
    """

    def __init__(self, num_values: int) -> None:
        self._layout = hashlib.sha256(f"swarmtrain averages {num_values}".encode()).digest()
        self._arrays = (
            ArraySpec("zeros", num_values),
            ArraySpec("digest", limits.HASH_BYTES // _FLOAT_BYTES),
        )
        self._zeros = bytes(limits.STATE_CHUNK_BYTES)
        self._zeros_hash = content_hash(self._zeros)
        whole, rest = divmod(_FLOAT_BYTES * num_values, limits.STATE_CHUNK_BYTES)
        self._num_whole = whole
        self._rest = bytes(rest)

    def after(self, digest: bytes) -> _Image:
        """The state with this digest, 32 bytes, as manifest and chunks."""
        tail = self._rest + digest
        step = limits.STATE_CHUNK_BYTES
        tails = tuple(tail[start : start + step] for start in range(0, len(tail), step))
        hashes = (self._zeros_hash,) * self._num_whole
        hashes += tuple(content_hash(chunk) for chunk in tails)
        manifest = StateManifest(self._layout, self._arrays, hashes)
        return manifest, (self._zeros,) * self._num_whole + tails
