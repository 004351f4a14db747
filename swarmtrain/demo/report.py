"""The result of a demo: the numbers at its end, as one object and as lines for people. Pure."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from swarmtrain.console.lines import fact
from swarmtrain.console.units import human_bytes
from swarmtrain.demo.pairs import PairChains, compare
from swarmtrain.demo.setting import Cast
from swarmtrain.demo.story import Facts, Killed, joined, lost

_BYTES_PER_VALUE = 4
"""Data-parallel training exchanges float32 gradients."""


class PeerRoot(msgspec.Struct, frozen=True):
    """The state root, in hex, with which a peer left."""

    peer: str
    root: str


class PeerRound(msgspec.Struct, frozen=True):
    """A peer, and a round in which something happened to it."""

    peer: str
    round: int


class Report(msgspec.Struct, frozen=True):
    """The last line of `swarmtrain demo --json`.

    Attributes:
        peers: number of peers at the start.
        val_loss_first: loss of the first weights in nats per byte, None if nobody measured it.
        val_loss_last: loss of the newest weights that were measured.
        val_loss_order0: loss on the same text if bytes are guessed by their frequencies alone.
        state_roots: roots of the peers alive at the end; one per peer where rounds go by pairs.
        lost: peers that vanished.
        joined: peers that came after the start.
        killed: the peer that was killed, None without churn.
        replayed_ops: results that the newcomer replayed.
        bytes_up_per_peer: mean over the surviving founders, all protocol bytes of both lanes.
        bytes_up_data_parallel: bytes that each peer had sent in data-parallel training.
        seconds: time from the start to the end of the last peer.
        model_path: safetensors file with the final weights, "" if nobody holds them.
        state_dir: holds run.toml, coordinator/, peers/NAME/ and logs/.
        pairs: partners' words on their chains; only where rounds go by pairs.
    """

    peers: int
    rounds: int
    val_loss_first: float | None
    val_loss_last: float | None
    val_loss_order0: float
    state_roots: tuple[PeerRoot, ...]
    lost: tuple[PeerRound, ...]
    joined: tuple[PeerRound, ...]
    killed: Killed | None
    replayed_ops: int
    bytes_up_per_peer: int
    bytes_up_data_parallel: int
    seconds: float
    model_path: str
    state_dir: str
    pairs: PairChains | msgspec.UnsetType = msgspec.UNSET


def data_parallel_bytes(peers: int, num_values: int, inner_steps: int) -> int:
    """Bytes that each peer sends when gradients are averaged after every inner step.

    A ring all-reduce, the least that is known: 2 (N - 1) / N x 4 x values per step.

    Args:
        peers: N.
        num_values: parameters of the model.
        inner_steps: inner steps of the whole run.
    """
    return 2 * (peers - 1) * _BYTES_PER_VALUE * num_values * inner_steps // peers


def mean_bytes_up(facts: Facts, cast: Cast) -> int:
    """Bytes that a surviving founder has sent, in the mean: exact once they have left."""
    sent = [facts.left[name].bytes_up for name in cast.survivors if name in facts.left]
    if not sent and facts.status is not None:
        sent = [peer.bytes_up for peer in facts.status.peers if peer.name in cast.survivors]
    return sum(sent) // max(1, len(sent))


def make_report(
    facts: Facts,
    cast: Cast,
    *,
    inner_steps: int,
    order0_loss: float,
    seconds: float,
    model_path: Path | None,
    state_dir: Path,
    is_paired: bool = False,
) -> Report:
    """All findings, in the order of the report's fields.

    Args:
        inner_steps: inner steps of one round.
    """
    rounds = len(facts.committed)
    num_values = facts.status.num_values if facts.status is not None else 0
    return Report(
        peers=len(cast.founders),
        rounds=rounds,
        val_loss_first=facts.losses.get(0),
        val_loss_last=facts.losses[max(facts.losses)] if facts.losses else None,
        val_loss_order0=order0_loss,
        state_roots=tuple(
            PeerRoot(name, facts.left[name].root) for name in cast.everybody if name in facts.left
        ),
        lost=tuple(PeerRound(*found) for found in lost(facts)),
        joined=tuple(PeerRound(*found) for found in joined(facts, cast)),
        killed=facts.killed,
        replayed_ops=len(facts.replayed),
        bytes_up_per_peer=mean_bytes_up(facts, cast),
        bytes_up_data_parallel=data_parallel_bytes(
            len(cast.founders), num_values, rounds * inner_steps
        ),
        seconds=round(seconds, 1),
        model_path=str(model_path) if model_path is not None else "",
        state_dir=str(state_dir),
        pairs=compare(facts.told, facts.alone) if is_paired else msgspec.UNSET,
    )


def disagreement(report: Report) -> str:
    """Say why the demo did not show what it promises, "" if it did."""
    if report.pairs is not msgspec.UNSET:
        return _shortcoming(report, report.pairs)
    roots = {found.root for found in report.state_roots}
    if len(roots) > 1:
        return (
            "The peers do NOT hold the same weights: their state roots differ. This must never "
            "happen; please report it with the logs."
        )
    if not roots:
        return "Nobody was left to say which weights the run ended with."
    return ""


def _shortcoming(report: Report, pairs: PairChains) -> str:
    """Name what is missing where rounds go by pairs, which promise less and so must show more."""
    if pairs.different:
        first = pairs.different[0]
        return (
            f"{' and '.join(first.peers)} exchanged in round {first.round} and do NOT tell the "
            "same chain after it. This must never happen; please report it with the logs."
        )
    if not pairs.equal:
        return "No two partners were left to compare their chains."
    if not report.bytes_up_per_peer:
        return "Nobody has told how many bytes it sent."
    return no_progress(report)


def no_progress(report: Report) -> str:
    """Say that the loss has not fallen, "" if it has."""
    first, last = report.val_loss_first, report.val_loss_last
    if first is None or last is None or not last < first:
        return f"The validation loss has not fallen: {_losses(report)}."
    return ""


def in_words(report: Report, written: str) -> Iterator[str]:
    """The report as lines for people."""
    yield from heading(report)
    yield fact("bytes sent", _bytes(report))
    yield fact("rounds", f"{report.rounds} in {report.seconds:.0f} s{_coming_and_going(report)}")
    if report.pairs is not msgspec.UNSET:
        yield from _chains(report.pairs)
    else:
        yield fact("state roots", _verdict(report))
        for found in report.state_roots:
            yield f"  {found.peer:<14} {found.root[:32]}"
    yield from ending(report, written)


def heading(report: Report) -> Iterator[str]:
    """Tell the losses, as every demo does first."""
    yield ""
    yield fact("validation loss", _losses(report))
    yield fact("", f"guessing from byte frequencies alone: {report.val_loss_order0:.3f}")


def ending(report: Report, written: str) -> Iterator[str]:
    """Tell of the model and its files, as every demo does last."""
    yield "the model writes"
    for line in written.splitlines():
        yield f"  | {line}"
    yield fact("the model is in", report.model_path)
    if report.model_path:
        folder = Path(report.model_path).parent
        yield fact("let it write", f'swarmtrain generate {folder} "def "')
    yield fact("the rest is in", f"{report.state_dir} (run.toml, coordinator, peers, logs)")


def _losses(report: Report) -> str:
    first, last = report.val_loss_first, report.val_loss_last
    if first is None or last is None:
        return "nobody measured it"
    return f"{first:.3f} at the start, {last:.3f} at the end, in nats per byte"


def _bytes(report: Report) -> str:
    sent = f"{human_bytes(report.bytes_up_per_peer)} per peer"
    if not report.bytes_up_data_parallel or not report.bytes_up_per_peer:
        return sent
    parallel = report.bytes_up_data_parallel
    times = parallel / report.bytes_up_per_peer
    return f"{sent}; data-parallel training: {human_bytes(parallel)}, {times:.0f} times as much"


def _coming_and_going(report: Report) -> str:
    words = ""
    if report.killed is not None:
        words += f"; {report.killed.peer} was killed in round {report.killed.round}"
    for found in report.joined:
        words += f"; {found.peer} joined in round {found.round} and {_way_in(report)}"
    return words


def _way_in(report: Report) -> str:
    if report.pairs is not msgspec.UNSET:
        return "began with another peer's state"
    return f"replayed {report.replayed_ops} {'result' if report.replayed_ops == 1 else 'results'}"


def _chains(pairs: PairChains) -> Iterator[str]:
    verdict = "both partners told the same chain" if not pairs.different else "DIFFERENT"
    yield fact("pair chains", f"{pairs.equal} exchanges, {verdict}")
    if pairs.unheard:
        yield fact("", f"{pairs.unheard} more, one partner of which was gone before it told")
    yield fact("", f"{pairs.alone} steps were made alone; each peer's weights are its own")
    for found in pairs.last:
        yield f"  {found.peer:<14} {found.chain[:32]} after round {found.round}"


def _verdict(report: Report) -> str:
    if disagreement(report):
        return "DIFFERENT"
    if len(report.state_roots) == 1:
        return "one peer, so there is nothing to compare"
    return f"all {len(report.state_roots)} peers hold the same bits"


def order0_loss_of(train: bytes, validation: bytes) -> float:
    """Nats per byte of a text when each byte is predicted from the training text's byte frequencies
    alone (add-one): what a model beats only by context."""
    import numpy as np  # whoever reads a report needs none of it

    counts, judged = (
        np.bincount(np.frombuffer(text, np.uint8), minlength=256) for text in (train, validation)
    )
    chances = (counts + 1) / (len(train) + 256)
    return float(-(judged * np.log(chances)).sum() / len(validation))
