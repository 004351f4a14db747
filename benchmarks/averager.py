"""Averaging vectors among the peers of a run: the exchange alone, without model and strategy.

`all_reduce` gives this peer's vector to the next op and returns the committed mean. There is no
shared state but the digest of the newest result, so that a peer whose result differs is still
found out. State keeps the vector's length, because PLAN takes it from there: it is an array of
zeros, whose chunks are one and the same object, and the digest behind it. So a late comer
downloads one chunk of zeros, the digest, and nothing else.

A call is one inner step to the training machine, and the vector is what it gives. Not here: what
is averaged and why.
"""

import hashlib
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from swarmtrain.config.pipeline import refuse_stages
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.arithmetic import TensorContribution, decode_result
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.network.shell import ForTrainer
from swarmtrain.peer.network.thread import PeerThread
from swarmtrain.peer.training.machine import Applied, Ready, TrainingMachine, tell
from swarmtrain.peer.training.own_work import Known, OwnPart
from swarmtrain_optimizers.codecs import codec_named
from swarmtrain_optimizers.strategies.facts import OpKind
from swarmtrain_transport import actions as do
from swarmtrain_transport import limits
from swarmtrain_transport.blocks.manifest import ArraySpec, StateManifest
from swarmtrain_transport.blocks.retention import Piece
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.peer.participant import Actions, Participant
from swarmtrain_transport.result import OpResult

WORTH_PREPARING_VALUES = 2_000_000
"""From this length on a codec is prepared, which costs seconds the first time."""

_SAMPLES = 1
"""Everybody's vector counts alike."""

_FLOAT_BYTES = 4

_Made = tuple[StateManifest, tuple[Piece, ...]]


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

    Raises:
        ValueError: `num_values` is not positive, or the run exchanges in pairs.
    """

    def __init__(self, me: PeerId, thread: PeerThread, config: RunConfig, num_values: int) -> None:
        if num_values < 1:
            raise ValueError(f"a vector of {num_values} values cannot be averaged")
        if config.facts.kind is OpKind.PAIR:
            raise ValueError(f"{config.outer.strategy} exchanges in pairs: there is no mean")
        self._thread = thread
        self._num_values = num_values
        self._snapshot_rounds = config.checkpoint.snapshot_rounds
        self._codec = codec_named(config.exchange.codec)
        self._state = _State(num_values)
        block = config.exchange.block
        padded = -(-num_values // block) * block
        self._vectors = _Vectors(me, num_values, padded, self._state, self._snapshot_rounds)
        self._machine = TrainingMachine(
            me, self._vectors, rounds=config.run.rounds, steps_per_round=1
        )

    @classmethod
    def of(cls, membership: Membership, num_values: int) -> "Averager":
        """An averager for a peer that was let in.

        Raises:
            UserError: SWT-E605, the run has its model in stages.
        """
        refuse_stages(membership.config)
        return cls(membership.identity.peer_id, membership.thread, membership.config, num_values)

    @property
    def op(self) -> int:
        """Newest op whose outcome is known here, -1 before `start`."""
        return self._vectors.op

    @property
    def included(self) -> bool:
        """True if our vector is in the newest mean, in all of its slices."""
        return self._vectors.included

    @property
    def is_finished(self) -> bool:
        """True if the run has made its rounds; there will be no more."""
        return self._machine.is_finished

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
            self._hear(self._thread.inbox.get())

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
        self._catch_up()
        vectors = self._vectors
        vectors.give(vector, out)
        try:
            self._machine.stepped(_SAMPLES, time.monotonic())
            self._advance()
            while vectors.outcome is None:
                if self.is_finished:
                    raise UserError("SWT-E705", "The run is over: there is no next round.")
                self._hear(self._thread.inbox.get())
            return vectors.outcome if out is None else out
        finally:
            vectors.forget()

    def traffic(self) -> Traffic:
        """Ask the network thread for the bytes sent and heard so far."""
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

    def _catch_up(self) -> None:
        """Take what came since the last call: means of ops that it was too late for."""
        while True:
            try:
                item = self._thread.inbox.get_nowait()
            except queue.Empty:
                return
            self._hear(item)

    def _check_vector(self, vector: Tensor) -> None:
        found = f"{tuple(vector.shape)} {vector.dtype} on {vector.device}"
        if vector.shape != (self._num_values,) or vector.dtype != torch.float32:
            raise ValueError(f"expected ({self._num_values},) float32, got {found}")
        if vector.device.type != "cpu" or vector.layout != torch.strided:
            raise ValueError(f"expected a dense vector on the CPU, got {found}, {vector.layout}")

    def _hear(self, item: ForTrainer) -> None:
        """Handle one word of the network thread."""
        match item:
            case UserError():
                raise item
            case do.LoadState() | do.ApplyResult() | do.OpSkipped() | do.RunFinished():
                self._machine.heard(item)
                self._advance()

    def _advance(self) -> None:
        while actions := self._machine.advance(time.monotonic()):
            for action in actions:
                if isinstance(action, Ready | Applied):
                    self._thread.machine(partial(tell, action))


class _Vectors:
    """The task that the training machine steps: the vector of the call under way, and the newest
    mean.

    Args:
        me: own id.
        num_values: length of every vector.
        padded: with the zeros that fill the last block.
        state: makes what others load.
        snapshot_rounds: ops between two states that others may have.

    Attributes:
        outcome: the mean of the op that the vector was given to, None until it is committed.
    """

    keeps_pace = is_paired = is_alone = False

    def __init__(
        self, me: PeerId, num_values: int, padded: int, state: "_State", snapshot_rounds: int
    ) -> None:
        self.op = -1
        self.included = False
        self.outcome: Tensor | None = None
        self._me = me
        self._num_values = num_values
        self._padded = padded
        self._state = state
        self._snapshot_rounds = snapshot_rounds
        self._given: TensorContribution | None = None
        self._out: Tensor | None = None
        self._given_to = -1

    def give(self, vector: Tensor, out: Tensor | None) -> None:
        """Average this vector; the mean is written to `out`, which is nobody's afterwards."""
        self._given = TensorContribution(vector.detach().contiguous(), self._padded)
        self._out = None if out is None else out.detach()
        self._given_to = -1

    def forget(self) -> None:
        """The call is over."""
        self._given = self._out = self.outcome = None

    @property
    def is_waiting(self) -> bool:
        """True if the vector is given and its op has no outcome yet."""
        return self._given_to > self.op

    @property
    def is_at_place(self) -> bool:
        """A mean has its place where it comes."""
        return self.is_waiting

    @property
    def has_steps(self) -> bool:
        """True if there is a vector that was not averaged yet."""
        return self._given is not None and self.outcome is None

    @property
    def is_due(self) -> bool:
        """A vector is given to every op until one has an outcome."""
        return self.op >= 0 and self.has_steps and not self.is_waiting

    def stepped(self, samples: int) -> None:
        """Everybody's vector counts alike."""

    def contribute(self) -> OwnPart:
        """The vector for the next op."""
        assert self._given is not None
        self._given_to = self.op + 1
        return OwnPart(self._given_to, self._given, _SAMPLES)

    def known_ahead(self) -> tuple[int, Known] | None:
        """Nothing is."""
        return None

    def load(self, action: do.LoadState) -> "_Image":
        """The run's state is that of an op, and nothing else."""
        self.op = action.op
        is_kept = action.op % self._snapshot_rounds == 0
        return _Image(action.op, lambda: (action.manifest, action.chunks), is_kept=is_kept)

    def end_op(self, result: OpResult) -> "_Image":
        """Decode a mean for the call that waits for it."""
        if self._given is not None:
            out = torch.empty(self._num_values) if self._out is None else self._out
            self.outcome = decode_result(result, out)
        self.op = result.op
        self.included = all(self._me in named for _, _, named in result.ranges)
        is_kept = result.op % self._snapshot_rounds == 0
        return _Image(result.op, lambda: self._state.after(result.root), is_kept=is_kept)

    def skip(self, op: int) -> None:
        """No mean: the vector is given to the next op."""
        self.op = op

    def settle(self) -> None:
        """There are no weights to settle."""

    def keep_pace(self, own_steps_per_s: float, fastest_steps_per_s: float) -> None:
        """There are no inner steps."""


class _Image:
    """A state that is made by whoever looks first: the network thread, so that whoever waits for
    the mean need not wait for its digest."""

    def __init__(self, op: int, make: Callable[[], _Made], *, is_kept: bool) -> None:
        self.op = op
        self._make = make
        self._is_kept = is_kept

    @cached_property
    def _made(self) -> _Made:
        return self._make()

    @property
    def manifest(self) -> StateManifest:
        """Describes it."""
        return self._made[0]

    @property
    def chunks(self) -> tuple[Piece, ...] | None:
        """Bytes of the result, where others may have them."""
        return self._made[1] if self._is_kept else None


class _State:
    """Return the state of a run without state, for PLAN and late comers: zeros, then a digest.

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

    def after(self, digest: bytes) -> _Made:
        """The state with this digest, 32 bytes, as manifest and chunks."""
        tail = self._rest + digest
        step = limits.STATE_CHUNK_BYTES
        tails = tuple(tail[start : start + step] for start in range(0, len(tail), step))
        hashes = (self._zeros_hash,) * self._num_whole
        hashes += tuple(content_hash(chunk) for chunk in tails)
        manifest = StateManifest(self._layout, self._arrays, hashes)
        return manifest, (self._zeros,) * self._num_whole + tails
