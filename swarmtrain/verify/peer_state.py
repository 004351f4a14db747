"""The proof that a peer's directory holds: from a checkpoint, op by op, to its newest state.

It makes the peer's outer steps again, with the peer's own machinery, from the results on the disk,
whose hashes the ledger names. It compares the state's root wherever the ledger attests one or a
checkpoint names one. It starts as far back as the disk allows. `pair_state` has the proof for runs
of pair ops.
"""

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from swarmtrain import checkpoint
from swarmtrain.checkpoint import CheckpointDamaged, LoadedCheckpoint
from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig
from swarmtrain.foundation import regular_file
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.tensors import Layout, LayoutMismatch
from swarmtrain.peer.disk import identity_file, ledger_file
from swarmtrain.peer.disk.group_storage import (
    GROUPS,
    RUN_FILE,
    group_folder,
    read_result,
    result_path,
    result_paths,
)
from swarmtrain.peer.disk.storage import beginning_in
from swarmtrain.peer.training.driver import Driver
from swarmtrain.pipeline.subspace import confining
from swarmtrain.strategies import strategy_of
from swarmtrain.verify.pair_state import prove_pairs
from swarmtrain.verify.proof import Proof, Unproved, concluded, fold, of_all_groups
from swarmtrain.verify.wrong_sums import wrong_sums
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.hashing import content_hash
from swarmtrain_transport.ledger.fold import GroupView, num_chunks, slice_root
from swarmtrain_transport.peer.catchup import result_of
from swarmtrain_transport.peer.ledger_copy import Beginning, ranges_of
from swarmtrain_transport.result import OpResult
from swarmtrain_transport.wire.records import Commit, Record, Run

_PROVES = (
    "Every record is signed by the run's key and follows from the one before; the results on this"
    " disk are those that the ledger names; applied in order to the checkpoint they give this"
    " state, and every root that the ledger attests on the way is the one that came out."
    " It does not show how the contributions came about."
)

_PROVES_FROM = (
    " The ledger is proved from record {} on, a SNAPSHOT: not all records before it are here, and"
    " the run's signature alone vouches for what it says of them."
)

_PROVES_DECISIONS = (
    "Every record is signed by the run's key and follows from the one before; each op has one"
    " outcome. It proves no more: no state of this group is here."
)


def prove_peer(directory: Path) -> Proof:
    """Check a peer's state directory and return its proof. Nothing in it is changed.

    Args:
        directory: directory of a peer that does not run now.

    Raises:
        UserError: SWT-E404, the peer runs.
        OSError: a file cannot be read.
    """
    with unused(directory):
        proof = concluded(Proof("peer", _PROVES), lambda empty: _find(empty, directory))
    if not proof.from_record:
        return proof
    proves = proof.proves + _PROVES_FROM.format(proof.from_record)
    return msgspec.structs.replace(proof, proves=proves)


class _Still:
    """Weights that nobody trains."""

    def __init__(self, num_values: int) -> None:
        self._vector = torch.zeros(num_values)

    def read_weights(self, out: Tensor | None = None) -> Tensor:
        """(padded,) float32."""
        return self._vector.clone()

    def write_weights(self, vector: Tensor) -> None:
        """Taken as they are."""
        self._vector.copy_(vector)


def _find(proof: Proof, directory: Path) -> Proof:
    records, begins = records_in(directory)
    folded = fold(records, begins)
    if begins is not None:
        proof = msgspec.structs.replace(proof, from_record=begins.snapshot.index)
    run = folded.view.run
    assert run is not None  # the ledger's record 0
    proof = msgspec.structs.replace(
        proof, run=run.run_id, run_key=run.run_key.hex(), records=folded.records
    )
    numbers = {one.name for one in (directory / GROUPS).glob("*")}
    unknown = sorted(numbers - {str(number) for number in folded.view.groups})
    if unknown:
        raise Unproved(f"{directory / GROUPS / unknown[0]} is of a group that the ledger lacks.")
    many = len(folded.view.groups) > 1
    return of_all_groups(
        proof, folded, lambda view, known: _GroupProof(directory, run, view).find(known, many=many)
    )


def records_in(directory: Path, *, may_grow: bool = False) -> tuple[list[Record], Beginning | None]:
    """The records of a state directory, and the SNAPSHOT before them where older ones are not here.

    Args:
        may_grow: the peer may run, so the newest record may not be whole yet.

    Raises:
        Unproved: they do not hold together.
    """
    path = directory / ledger_file.FILE_NAME
    kept = ledger_file.read(path)
    if kept.whole_bytes < kept.num_bytes and not may_grow:
        raise Unproved(
            f"{path} makes no sense from byte {kept.whole_bytes} of {kept.num_bytes} on:"
            " it was altered, or a crash cut it short."
        )
    ranges = ranges_of(kept.records)
    if len(ranges) < 2:
        return kept.records, None
    begins = beginning_in(directory, kept.records)
    if begins is None:
        raise Unproved(
            f"Records {ranges[0][1]} to {ranges[1][0] - 1} are not here, and neither is the"
            " image of a SNAPSHOT after them."
        )
    return [one for one in kept.records if one.index > begins.snapshot.index], begins


def check_checkpoint(
    folder: Path, peers: Path, run: Run, view: GroupView, config: RunConfig
) -> None:
    """Check that a checkpoint's files hold a state of this run: the one that it says, and the one
    that the ledger attests of that round, if it attests any.

    Args:
        peers: state directory that it lies in.
        run: record 0 of the ledger there.
        view: the fold of that ledger, of the checkpoint's group.

    Raises:
        Unproved: they do not.
    """
    _GroupProof(peers, run, view)._check_checkpoint(folder, config)


class _GroupProof:
    """The proof of one group of a directory, step by step."""

    def __init__(self, peers: Path, run: Run, view: GroupView) -> None:
        self._peers, self._directory = peers, group_folder(peers, view.group)
        self._run, self._view = run, view
        self._roots: dict[int, bytes] = {}
        self._me = b""

    def find(self, proof: Proof, *, many: bool) -> Proof:
        """The proof, filled in. One group of `many` may have no state here that the peer is not in,
        or that has none."""
        found = wrong_sums(self._directory, self._view)
        proof = msgspec.structs.replace(proof, wrong_sums=found)
        return concluded(proof, lambda known: self._find_state(known, many=many))

    def _find_state(self, proof: Proof, *, many: bool) -> Proof:
        self._check_identity()
        if many and self._is_elsewhere():
            return msgspec.structs.replace(proof, proves=_PROVES_DECISIONS, ok=True)
        config = self._config()
        folders = checkpoint.folders(self._directory / "checkpoints")
        if not folders:
            raise Unproved("There is no checkpoint, so there is nothing to start from.")
        for folder in folders:
            self._check_checkpoint(folder, config)
        if not self._roots:
            raise Unproved("Every checkpoint here is of a state that the run went back behind.")
        if self._view.goes_by_pairs:
            return prove_pairs(self._directory, self._view, self._me, self._roots, proof)
        start, end = self._way()
        self._check_nothing_follows(end)
        proof = msgspec.structs.replace(proof, from_op=start, to_op=end, ops=end - start)
        return concluded(proof, lambda known: self._replay(known, config))

    def _is_elsewhere(self) -> bool:
        """Return True if the group has no state here, and none is to be expected."""
        is_ours = self._me in self._view.members and self._view.genesis is not None
        folders = checkpoint.folders(self._directory / "checkpoints")
        return not is_ours and not folders and not result_paths(self._directory)

    # ---- files

    def _check_identity(self) -> None:
        """Check the peer's key: it proves little here, but without it the directory is not this
        peer's."""
        path = self._peers / identity_file.FILE_NAME
        try:
            self._me = identity_file.load(path).peer_id
        except (identity_file.IdentityDamaged, FileNotFoundError) as error:
            raise Unproved(f"{path} is damaged or missing: {error}") from error

    def _config(self) -> RunConfig:
        path = self._peers / RUN_FILE
        try:
            data = regular_file.read(path, config_file.FILE_BYTES_MAX)
            if hashlib.sha256(data).digest() != self._view.config_hash:
                raise Unproved(f"{path} is not the run file that the ledger names.")
            return config_file.from_canonical(data)
        except FileNotFoundError as error:
            raise Unproved(f"{path} is missing: how a round ends is not known.") from error
        except (RemoteFault, UserError) as error:
            why = error.what if isinstance(error, UserError) else error
            raise Unproved(f"{path} cannot be read by this version: {why}") from error

    def _load(self, folder: Path) -> LoadedCheckpoint:
        try:
            return checkpoint.load(folder)
        except CheckpointDamaged as error:
            raise Unproved(str(error)) from error

    def _check_checkpoint(self, folder: Path, config: RunConfig) -> None:
        """A checkpoint is this run's and holds the state that it says."""
        loaded = self._load(folder)
        facts, genesis = loaded.checkpoint.facts, self._view.genesis
        if self._is_cancelled(facts.op, facts.state_root):
            return
        named = checkpoint.op_of(folder)
        of_this_run = (self._run.run_id, self._view.config_hash, self._view.group, named)
        if (facts.run, facts.config_hash, facts.group, facts.op) != of_this_run:
            raise Unproved(f"{folder} is of another run or another round than its name says.")
        if genesis is None or facts.op > self._view.last_op:
            raise Unproved(f"{folder} is of round {facts.op}, which the ledger does not know.")
        place = self._view.text_at(facts.op)
        if place is not None and facts.text not in (None, msgspec.structs.astuple(place)):
            raise Unproved(f"{folder} says another place in the text than the ledger.")
        if loaded.checkpoint.layout_digest != genesis.layout:
            raise Unproved(f"{folder} is of another model than the run's.")
        root = self._driver(loaded, config).root
        if root != facts.state_root:
            raise Unproved(f"{folder} holds the state {root.hex()}, and says that it is another.")
        if not self._view.goes_by_pairs or facts.op == 0:
            self._compare(facts.op, root, str(folder))
        self._roots[facts.op] = root

    def _driver(self, loaded: LoadedCheckpoint, config: RunConfig) -> Driver:
        """A peer that has restored this checkpoint."""
        layout = Layout.from_parameters(loaded.parameters, config.exchange.block)
        try:
            arrays = dict(loaded.arrays(layout))
            still = _Still(layout.padded)
            driver = Driver(
                b"", strategy_of(config, layout), still,
                layout=layout.digest, num_values=layout.num_values, snapshot_rounds=1 << 62,
                read_gradient=still.read_weights, confine=confining(config, layout),
            )  # fmt: skip
            driver.restored(loaded.checkpoint.facts.op, arrays)
        except (LayoutMismatch, ValueError) as error:
            path = loaded.checkpoint.path
            raise Unproved(f"{path} does not hold the run's state: {error}.") from error
        return driver

    # ---- the way

    def _way(self) -> tuple[int, int]:
        """The oldest checkpoint from which results lead to the newest state that can be had."""
        ends = {op: self._reach(op) for op in sorted(self._roots)}
        end = max(ends.values())
        return min(op for op in ends if ends[op] == end), end

    def _reach(self, op: int) -> int:
        """Return how far results lead from the state after `op`."""
        while op < self._view.last_op and self._has_outcome(op + 1):
            op += 1
        return op

    def _has_outcome(self, op: int) -> bool:
        return op in self._view.skips or self._is_kept(op)

    def _is_kept(self, op: int) -> bool:
        """Return True if the op's result is here, and no REWIND has cancelled it."""
        if not result_path(self._directory, op).exists():
            return False
        if op > self._view.cancelled_op:
            return True
        try:
            self._result(op)
        except Unproved:
            return False
        return True

    def _is_cancelled(self, op: int, root: bytes) -> bool:
        """Return True if a REWIND has cancelled the state that a checkpoint says it holds."""
        is_old = op <= self._view.cancelled_op
        return is_old and (op > self._view.last_op or not self._view.is_trusted(op, root, self._me))

    def _check_nothing_follows(self, end: int) -> None:
        """The last round may lack its result, if the peer was stopped before it had it. A later
        one that is here says that one in between was taken away."""
        later = [int(path.stem) for path in result_paths(self._directory)]
        if any(end < op <= self._view.last_op and self._is_kept(op) for op in later):
            raise Unproved(f"The result of round {end + 1} is missing, and later ones are here.")

    def _replay(self, proof: Proof, config: RunConfig) -> Proof:
        folder = self._directory / "checkpoints" / checkpoint.folder_name(proof.from_op)
        driver = self._driver(self._load(folder), config)
        newest_attested = proof.from_op if self._attested(proof.from_op) else -1
        for op in range(proof.from_op + 1, proof.to_op + 1):
            if op in self._view.skips:
                driver.skip(op)
            else:
                driver.end_op(self._result(op))
            self._compare(op, driver.root, f"The replay of round {op}")
            newest_attested = op if self._attested(op) else newest_attested
        if newest_attested < 0:
            raise Unproved(
                f"The ledger attests no state from round {proof.from_op} to {proof.to_op}, so"
                " nothing vouches for the checkpoint."
            )
        return msgspec.structs.replace(proof, state_root=driver.root.hex(), ok=True)

    def _attested(self, op: int) -> bool:
        return self._view.root_after(op) is not None

    def _compare(self, op: int, root: bytes, where: str) -> None:
        """The root that came out is the one that is said elsewhere, if it is."""
        if self._view.root_after(op) not in (None, root):
            raise Unproved(f"{where} gives a state that is not the one that the ledger attests.")
        if self._roots.get(op, root) != root:
            raise Unproved(f"{where} gives a state that is not the checkpoint's of that round.")

    def _result(self, op: int) -> OpResult:
        """The committed result of an op, its chunks checked against the ledger."""
        path = result_path(self._directory, op)
        view = self._view.commits.get(op)
        if view is None or not isinstance(view.outcome, Commit):
            raise Unproved(f"The ledger's view of round {op} is forgotten: it is too long ago.")
        # A gather op's slices without a contributor have no chunks, and none are kept of them.
        named = [index for index, one in enumerate(view.outcome.slices) if one.contributors]
        slices = read_result(path, sum(num_chunks(view.plan, index) for index in named))
        if slices is None or len(slices) != len(named):
            raise Unproved(f"{path} is not a result of round {op}.")
        pieces: list[list[bytes]] = [[] for _ in view.outcome.slices]
        for index, chunks in zip(named, slices, strict=True):
            root = slice_root(tuple(content_hash(chunk) for chunk in chunks))
            is_whole = len(chunks) == num_chunks(view.plan, index)
            if root != view.outcome.slices[index].root or not is_whole:
                raise Unproved(f"{path}: slice {index} is not the one that the ledger names.")
            pieces[index] = chunks
        before = self._view.samples.after(op - 1)
        return result_of(view, pieces, replayed=True, samples_before=before)


@contextmanager
def unused(directory: Path) -> Iterator[None]:
    """While this lasts no peer can start on the directory, and none runs on it now."""
    path = directory / "lock"
    if not path.exists():
        yield
        return
    with regular_file.opened(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                "SWT-E404",
                f"A peer runs on {directory}.",
                "The directory must not change meanwhile.",
                "Stop it first, or take a copy of the directory.",
            ) from error
        yield
