"""Evidence in the directories of a stopped run, and the judgement over all of it. Loads torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from swarmtrain.chaos.invariants import (
    Chain,
    Life,
    Violation,
    check_copy,
    check_life,
    check_roots,
    read_chain,
)
from swarmtrain.foundation.errors import UserError
from swarmtrain.local_run.place import Place
from swarmtrain.peer.disk import ledger_file
from swarmtrain.verify.coordinator_state import prove_coordinator, read_records
from swarmtrain.verify.peer_state import prove_peer
from swarmtrain.verify.proof import Proof
from swarmtrain_transport.wire.records import AnyBody, bodies_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings of a judgement.

    Attributes:
        bodies: bodies of all records of the coordinator's ledger.
        chain: decisions in them.
    """

    bodies: tuple[AnyBody, ...]
    chain: Chain
    violations: tuple[Violation, ...]


def judge(place: Place, lives: Sequence[Life]) -> Verdict:
    """Read and prove everything that a stopped run has left.

    Args:
        lives: all processes of peers that there were, oldest first.

    Raises:
        UserError: the coordinator's ledger cannot be read at all.
    """
    whole = read_records(place.coordinator)
    bodies = tuple(bodies_of(whole))
    chain, found = read_chain(bodies)
    found += _unproved("the coordinator", partial(prove_coordinator, place.coordinator))
    for name in dict.fromkeys(life.name for life in lives if life.told):
        directory = place.peer(name)
        copy = ledger_file.read(directory / ledger_file.FILE_NAME).records
        found += check_copy(name, copy, whole)
        found += _unproved(name, partial(prove_peer, directory))
    for life in lives:
        found += check_life(life, chain)
    found += check_roots(lives, chain)
    return Verdict(bodies, chain, tuple(found))


def _unproved(whose: str, prove: Callable[[], Proof]) -> list[Violation]:
    try:
        proof = prove()
    except (UserError, OSError) as error:
        problem = error.what if isinstance(error, UserError) else str(error)
        return [Violation("verify", f"{whose}: {problem}")]
    return [] if proof.ok else [Violation("verify", f"{whose}: {proof.problem}")]
