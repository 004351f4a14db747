"""`swarmtrain verify`: what a state directory proves by itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmtrain.cli.arguments import AsJson, Verbose
from swarmtrain.console.lines import fact, show, show_json

if TYPE_CHECKING:
    from swarmtrain.verify.proof import GroupProof, Proof, WrongSum


def verify(
    state_dir: Annotated[Path, typer.Argument(help="Directory of a stopped peer or coordinator.")],
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Prove the newest state of a directory, from the directory alone.

    A peer's: replays its rounds from a checkpoint and compares every state that the ledger
    attests; where rounds go by pairs, checks its exchanges, and proves no more. A coordinator's:
    checks the chain of decisions; it proves no more.
    """

    from swarmtrain.foundation.errors import UserError
    from swarmtrain.verify.coordinator_state import is_coordinators, prove_coordinator

    if is_coordinators(state_dir):
        proof = prove_coordinator(state_dir)
    else:
        _check_is_peers(state_dir)
        from swarmtrain.verify.peer_state import prove_peer

        proof = prove_peer(state_dir)
    if as_json:
        show_json(proof)
    elif proof.ok:
        _tell(proof)
    if not proof.ok:
        raise UserError(
            "SWT-E807",
            f"Not proved: {proof.problem}",
            f"{state_dir} does not show by itself which state it ended with.",
            "Keep a copy as evidence. A peer that starts on it takes what it lacks from others.",
        )


def _check_is_peers(state_dir: Path) -> None:
    from swarmtrain.foundation.errors import UserError

    if not (state_dir / "ledger.bin").is_file():
        raise UserError(
            "SWT-E806",
            f"There is no state directory {state_dir}, or nothing has run with it yet.",
            "A peer keeps its ledger there in ledger.bin, a coordinator in ledger.sqlite.",
            "Name the directory that was given as --state-dir.",
        )


def _tell(proof: "Proof") -> None:
    show(fact("run", proof.run))
    show(fact("run key", proof.run_key))
    import msgspec

    from swarmtrain_transport.coordinator.status import TextStatus
    from swarmtrain_transport.wire.text_place import TextPlace

    first = f", from {proof.from_record} on" if proof.from_record else ""
    show(fact("records", f"{proof.records}{first}"))
    if isinstance(proof.text, TextStatus):
        show(fact("text", TextPlace(*msgspec.structs.astuple(proof.text)).in_words))
    if isinstance(proof.groups, tuple):
        for group in proof.groups:
            show(fact(proof.part, f"{group.group}, from record {group.from_record} on"))
            _tell_state(group)
        for proves in dict.fromkeys(group.proves for group in proof.groups):
            of = [str(group.group) for group in proof.groups if group.proves == proves]
            show(f"\nProved of {proof.part} {', '.join(of)}. {proves}")
        for group in proof.groups:
            _tell_wrong_sums(group.wrong_sums, f"{proof.part} {group.group}, ")
    else:
        _tell_state(proof)
        show(f"\nProved. {proof.proves}")
        _tell_wrong_sums(proof.wrong_sums)


def _tell_state(proof: "Proof | GroupProof") -> None:
    if not proof.state_root:
        show(fact("rounds", f"to {proof.ledger_op}, of which only the decisions are here"))
        return
    show(fact("rounds", f"{proof.from_op} to {proof.to_op}"))
    show(fact("state root", proof.state_root))
    if proof.chain:
        show(fact("chain", proof.chain))
    for one in proof.chains:
        show(fact("chain", f"{one.chain} of {one.peer[:16]}"))


def _tell_wrong_sums(wrong_sums: "tuple[WrongSum, ...]", where: str = "") -> None:
    for found in wrong_sums:
        said = f"convicts {found.owner}" if found.owner else f"convicts nobody: {found.problem}"
        show(f"A proof of a wrong sum in {where}round {found.op} ({found.file}) {said}.")
