"""The history of a model as a ledger tells it: rounds, peers, tokens, and losses where known."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarmtrain.config.settings import RunConfig
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.foundation import dirs
from swarmtrain.foundation.errors import UserError
from swarmtrain.status import ask_coordinator
from swarmtrain.trained.collect import Collected, Source
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.ledger.sample_weights import in_result
from swarmtrain_transport.wire.records import (
    AnyBody,
    BodyReader,
    Commit,
    Join,
    Plan,
    Rewind,
    Skip,
)
from swarmtrain_transport.wire.text_place import TextPlace


@dataclass(frozen=True, slots=True)
class History:
    """A run up to its newest model.

    Attributes:
        rounds: committed, of the first stage.
        skipped: rounds without a result.
        peers: keys that were let in.
        contributors: keys whose work is in a committed round.
        tokens: trained on, 0 if the ledger does not tell.
        are_counted: True if each contributor's own count is in the ledger; False if `tokens` is
            what the run file asks of each contribution.
        losses: validation loss in nats per token by round, as far as it is known here.
        is_whole: False if records from before a SNAPSHOT are not here: all counts are then of what
            came after it.
        text: place of the run in its text when the newest of these rounds was planned.
    """

    rounds: int
    skipped: int
    peers: int
    contributors: int
    tokens: int
    are_counted: bool
    losses: Mapping[int, float]
    is_whole: bool
    text: TextPlace | None = None


Place = tuple[int, int]
"""A group's number, and an op of it."""


def history_of(found: Collected) -> History:
    """The history of a collected model."""
    source, config = found.ledger, found.config
    end = max(part.op for part in found.parts)
    # Of experts all groups are told of, of stages the first, which has every round that the others
    # have; rounds are those of the first that is here.
    has_experts = source.config.experts.count > 1
    groups = {part.stage for part in found.parts} if has_experts else {0}
    first = min(groups)
    peers: set[bytes] = set()
    plans: dict[Place, Plan] = {}
    done: dict[Place, Commit | Skip] = {}
    for body in _bodies(source):
        match body:
            case Join(peer):
                peers.add(peer)
            case Plan(group=group) if group in groups:
                plans[group, body.op] = body
            case Commit(group=group) | Skip(group=group) if group in groups:
                done[group, body.op] = body
            case Rewind(op, group=group) if group in groups:
                done = {at: one for at, one in done.items() if at[0] != group or at[1] <= op}
    commits = {at: one for at, one in done.items() if isinstance(one, Commit) and at[1] <= end}
    rounds = [op for group, op in commits if group == first]
    newest = plans.get((first, max(rounds, default=0)))
    tokens, are_counted = _tokens(source, config, plans, commits)
    return History(
        rounds=len(rounds),
        skipped=sum(group == first and op <= end for group, op in done) - len(rounds),
        peers=len(peers),
        contributors=len({peer for one in commits.values() for peer in one.contributors}),
        tokens=tokens,
        are_counted=are_counted,
        losses={op: loss for op, loss in _losses(source).items() if op <= end},
        is_whole=source.is_whole,
        text=newest.text if newest is not None else None,
    )


def _bodies(source: Source) -> Iterator[AnyBody]:
    """Bodies of the records that are here; those are left out whose PLAN is not."""
    reader = BodyReader()
    for record in source.records:
        try:
            yield reader.read(record)
        except RemoteFault:
            if source.is_whole:
                raise


def _tokens(
    source: Source, config: RunConfig, plans: Mapping[Place, Plan], commits: Mapping[Place, Commit]
) -> tuple[int, bool]:
    """Tokens in these rounds, and whether they were counted."""
    if config.pipeline.num_stages > 1:
        batches = source.view.booked.get("whole", 0)
        return batches * config.pipeline.micro_batch * config.model.context, True
    if config.model.kind == "custom":
        return 0, False
    told = {at: plan for at, plan in plans.items() if at in commits and plan.samples}
    if told:
        samples = sum(in_result(plan, commits[at]) for at, plan in told.items())
        return samples * config.model.context, True
    gifts = sum(len(one.contributors) for one in commits.values())
    steps = gifts * config.steps_per_round
    return steps * config.inner.batch * config.model.context, False


def _losses(source: Source) -> dict[int, float]:
    """Validation losses, which the coordinator alone keeps, if it is or was on this machine."""
    beside = source.directory.parent.parent / "coordinator"
    for place in (beside, dirs.coordinator_dir(source.config.run.name)):
        with contextlib.suppress(UserError, OSError, msgspec.ValidationError, StopIteration):
            return _losses_in(place, source)
    return {}


def _losses_in(place: Path, source: Source) -> dict[int, float]:
    with contextlib.suppress(UserError):
        status = ask_coordinator(place)
        attested = source.view.groups[0].attests.get(status.round)
        is_same = attested is not None and attested.hex() == status.wanted_root
        return {int(op): loss for op, loss in status.losses.items()} if is_same else {}
    with contextlib.closing(Store.open_to_read(place)) as store:
        is_same = BodyReader().read(next(store.replay())) == source.run
        return store.losses() if is_same else {}
