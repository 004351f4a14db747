"""The committed result of one op, as a peer hands it to its strategy."""

from dataclasses import dataclass

from swarmtrain_transport.arithmetic import Buffer, Window
from swarmtrain_transport.kinds import MEAN
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import Turn


@dataclass(frozen=True, slots=True)
class SliceResult:
    """One slice of the result: the encoded mean over exactly these contributors; of a gather op
    one contributor's own values; of a pair op our partner's, and `contributors` are both of us.

    Attributes:
        start: first value of the slice in the padded vector.
        stop: one past its last value.
        contributors: S_j of protocol.md, sorted; whose differences are in the mean.
        chunks: encoded chunks in order; chunk k covers values from start + k * chunk_values.
    """

    start: int
    stop: int
    contributors: tuple[PeerId, ...]
    chunks: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class OpResult:
    """Complete input of one op's outer step.

    Attributes:
        op: number of the op; the state before it is that of op - 1.
        window: codec, block and scale window of every chunk.
        chunk_values: values per chunk; the last chunk of a slice may be shorter.
        num_values: length of the padded vector; slices cover [0, num_values) in order.
        slices: slices in vector order. A gather op has one per contribution, in PLAN's order, each
            covering [0, num_values). A pair op has one, our partner's half, which covers that
            too, or none for a peer that is in no pair that has exchanged.
        checkpoint_by: the peer that PLAN named to write the checkpoint, or b"".
        evaluate_by: the peer that PLAN named to report the validation loss, or b"".
        replayed: True if this op was fetched afterwards, not taken part in.
        root: COMMIT's result root, from which every chunk's hash follows; b"" where it is not
            known.
        samples_before: samples in all results before this one, where the run counts them.
        samples: samples in this one.
        shares: weights of COMMIT's contributors.
        fastest_steps_per_s: PLAN's word on whom to keep pace with, 0 for none.
        weights: one per slice of a gather op, for the weighted mean that everybody makes; None
            where the slices are the mean, and of a pair op.
        kind: kind of the op, one of `kinds.KINDS`.
        chain: end of our chain after a pair op that we are in (`pairing`), as far as it is known
            here; else b"".
        group: group of the op.
        turns: turns of the run's subspace in which the state after it lies.
        is_kept: True if the state after it is kept for others whether it is its turn or not.
    """

    op: int
    window: Window
    chunk_values: int
    num_values: int
    slices: tuple[SliceResult, ...]
    checkpoint_by: PeerId
    evaluate_by: PeerId
    replayed: bool
    root: bytes = b""
    samples_before: int = 0
    samples: int = 0
    shares: tuple[int, ...] = ()
    fastest_steps_per_s: float = 0.0
    weights: tuple[int, ...] | None = None
    kind: str = MEAN
    chain: bytes = b""
    group: int = FIRST_GROUP
    is_kept: bool = False
    turns: tuple[Turn, ...] = ()

    @property
    def ranges(self) -> tuple[tuple[int, int, tuple[PeerId, ...]], ...]:
        """(start, stop, contributors): whose differences are in the mean of which values."""
        if self.weights is None:
            return tuple((piece.start, piece.stop, piece.contributors) for piece in self.slices)
        named = tuple(peer for piece in self.slices for peer in piece.contributors)
        return ((0, self.num_values, named),)
