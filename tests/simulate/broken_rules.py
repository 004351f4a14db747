"""The production machines with one rule broken each, here and nowhere else (protocol.md part 4).

`mutants.py` hunts them.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import torch
from enumeration import Case

from swarmtrain.peer.arithmetic import ChunkSum
from swarmtrain.simulate.faults.plan import COORDINATOR
from swarmtrain.simulate.processes.coordinator import SimCoordinator
from swarmtrain.simulate.world import World
from swarmtrain_optimizers.strategies import anchored
from swarmtrain_optimizers.strategies.diloco import strategy as diloco
from swarmtrain_optimizers.strategies.diloco.strategy import DiLoCo
from swarmtrain_transport.collective.taker import Taker
from swarmtrain_transport.coordinator.ops import agreement, planning
from swarmtrain_transport.coordinator.ops.op_decider import OpDecider
from swarmtrain_transport.coordinator.ops.policies import POLICIES
from swarmtrain_transport.coordinator.ops.reports import Reports
from swarmtrain_transport.kinds import MEAN
from swarmtrain_transport.ledger.fold import result_root
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.records import (
    Commit,
    Freeze,
    Join,
    Reassign,
    Skip,
    SliceFreeze,
    SliceOutcome,
    outline_of,
    tag_of,
)

Patch = Callable[[], contextlib.AbstractContextManager]


def replaced(owner, name: str, make: Callable) -> contextlib.AbstractContextManager:
    """`owner.name` becomes `make(original)`."""
    return mock.patch.object(owner, name, make(getattr(owner, name)))


def policy_replaced(kind: str, name: str, make: Callable) -> contextlib.AbstractContextManager:
    """A function of a kind's policy becomes `make(original)`."""
    policy = POLICIES[kind]
    broken = policy._replace(**{name: make(getattr(policy, name))})
    return mock.patch.dict(POLICIES, {kind: broken})


# ---- the rules, broken


@contextlib.contextmanager
def only_outcomes_are_durable() -> Iterator[None]:
    """FREEZE, SFREEZE and REASSIGN are sent, but written with the next record that matters."""

    def make_append(append):
        def lazily(self, record):
            self.__dict__.setdefault("unwritten", []).append(record)
            self.watch.logged(record)
            if outline_of(record).kind not in map(tag_of, (Freeze, SliceFreeze, Reassign)):
                self.disk += self.__dict__.pop("unwritten")

        return lazily

    def make_crash(crash):
        def forgetful(self, *, keeps_torn=False):
            self.__dict__.pop("unwritten", None)
            crash(self, keeps_torn=keeps_torn)

        return forgetful

    with (
        replaced(SimCoordinator, "_append", make_append),
        replaced(SimCoordinator, "crash", make_crash),
    ):
        yield


def a_new_owner_must_publish_the_same_bytes():
    def make(publish):
        def strict(self, owner, said, now_s):
            index, attempt = said.slice_index, said.attempt
            before = [self.published[t] for t in self.published if t[0] == index and t[1] < attempt]
            if any(published.chunk_hashes != said.chunk_hashes for published in before):
                return False
            return publish(self, owner, said, now_s)

        return strict

    return replaced(Reports, "_publish", make)


def commit_names_one_set():
    def make(commit):
        def loose(at):
            body = commit(at)
            if body is None:
                return None
            slices = tuple(
                SliceOutcome(piece.attempt, body.contributors, piece.root) for piece in body.slices
            )
            body = Commit(body.op, body.plan_hash, body.contributors, slices, b"")
            root = result_root(body)
            return Commit(body.op, body.plan_hash, body.contributors, slices, root)

        return loose

    return policy_replaced(MEAN, "commit", make)


def commit_with_holders(needed: int):
    """COMMIT as soon as all slices are published and have so many live holders."""

    def make(commit):
        def hasty(at):
            held = replaced(Reports, "is_held", lambda is_held: lambda self, index, among, _: (
                is_held(self, index, among, needed)
            ))  # fmt: skip
            with held, replaced(Reports, "is_with", lambda _: lambda self, index, peers: True):
                return commit(at)

        return hasty

    return policy_replaced(MEAN, "commit", make)


def no_rewind():
    return replaced(agreement, "rewind_due", lambda due: lambda *known, **told: None)


def no_skip():
    def make(decide):
        def stubborn(self, *known, **told):
            decision = decide(self, *known, **told)
            return None if isinstance(decision, Skip) else decision

        return stubborn

    return replaced(OpDecider, "decide", make)


def only_owners_serve():
    def make(holders):
        return lambda self, index: [
            p for p in holders(self, index) if p == self._view.owners[index]
        ]

    return replaced(Taker, "_holders", make)


def small_parts_are_flushed_beside_large_ones():
    def make(add):
        def relative(self, part, weight):
            scale = float(self._codec.decode(part, self._num_values, self._window).abs().max())
            largest = max(scale, getattr(self, "largest", 0.0))
            self.largest = largest
            add(self, part if scale > 0.999 * largest else bytes(len(part)), weight)

        return relative

    return replaced(ChunkSum, "add", make)


def weights_are_raw_counts():
    return replaced(planning, "weights_of", lambda _: lambda samples, *_: dict(samples))


def a_join_voids_the_op():
    def make(follow):
        def nervous(self, body):
            if isinstance(body, Join):
                for group in self.groups.values():
                    for exchange in group.exchanges.values():
                        exchange.close()
                    group.exchanges.clear()
            return follow(self, body)

        return nervous

    return replaced(Participant, "_follow", make)


def a_restarted_peer_is_taken_for_the_one_that_died():
    """Count what its earlier process held and summed: boot ids are not compared."""

    def make(returned):
        return lambda self, peer, boot: returned(self, peer, self.view.boots.get(peer))

    return replaced(Reports, "returned", make)


def excluded_work_is_restored_twice():
    """Keep it as error feedback, and put it back into the weights as well."""

    def make(land):
        def both(self, mean, included, *rest, **more):
            has_given = bool(self._pending) and self._feedback is not None
            weights = land(self, mean, included, *rest, **more).clone()
            for start, stop, was_included in included if has_given else ():
                if not was_included:
                    weights[start:stop] -= self._feedback.residual[start:stop]
            return weights

        return both

    return replaced(DiLoCo, "land", make)


def skip_loses_error_feedback():
    def make(skip):
        def careless(self):
            skip(self)
            if self._feedback is not None:
                self._feedback.drop()

        return careless

    return replaced(DiLoCo, "skip", make)


@contextlib.contextmanager
def one_peer_steps_with_torch_sgd() -> Iterator[None]:
    others = []

    def make_nesterov(nesterov):
        def sometimes(lr, momentum):
            transform = nesterov(lr, momentum)
            others.append(transform)
            return transform

        return sometimes

    def make_step(outer_step):
        def fused(transform, mean, params, state, params_out, state_out):
            if not any(transform is other for other in others[::3]):
                outer_step(transform, mean, params, state, params_out, state_out)
                return
            param = torch.nn.Parameter(params.clone())
            param.grad = mean.clone()
            sgd = torch.optim.SGD([param], lr=0.7, momentum=0.9, nesterov=True)
            sgd.state[param]["momentum_buffer"] = state[0].clone()
            sgd.step()
            params_out.copy_(param.detach())
            state_out[0].copy_(sgd.state[param]["momentum_buffer"])

        return fused

    with (
        replaced(diloco, "nesterov", make_nesterov),
        replaced(anchored, "outer_step", make_step),
    ):
        yield


# ---- the hunt


def with_coordinator(case: Case) -> bool:
    victims = case.faults[0].victims
    return COORDINATOR in victims and len(victims) == 2


def with_peer_death(case: Case) -> bool:
    return bool(case.faults[0].victims) and COORDINATOR not in case.faults[0].victims


def with_skip(case: Case) -> bool:
    return case.min_contributors > 1


def with_returner(case: Case) -> bool:
    return bool(case.faults[0].returners)


def with_newcomer(case: Case) -> bool:
    return bool(case.faults[0].newcomers)


def any_case(case: Case) -> bool:
    return True


@dataclass(frozen=True)
class Mutant:
    """A broken rule.

    Attributes:
        rule: what the mutant does.
        patch: breaks it, as a context.
        caught_by: invariants that count as caught, each with words of its story.
        where: the cases of the enumeration to look at first; the others follow.
        kinds: faults of the random worlds; all of them if it is empty.
        kind: of the ops.
        groups: 2 for worlds with a second one.
        peers: of the random worlds.
        world: makes the world of a seed in the place of a random one.
    """

    rule: str
    patch: Patch
    caught_by: tuple[tuple[str, str], ...]
    where: Callable[[Case], bool] = any_case
    kinds: tuple[str, ...] = ()
    kind: str = MEAN
    groups: int = 1
    peers: int = 4
    world: Callable[[int], World] | None = None


MUTANTS = {
    "M1": Mutant(
        "only PLAN and outcomes are durable: a restart freezes another S",
        only_outcomes_are_durable,
        (("I6", "with other contributors"), ("halt", "a ledger that is not this run's")),
        with_coordinator,
    ),
    "M2": Mutant(
        "a new owner must reproduce the dead owner's bytes",
        a_new_owner_must_publish_the_same_bytes, (("L3", ""), ("L1", "")), with_peer_death,
        ("death", "double death", "restart"),
    ),
    "M3": Mutant(
        "one slice is made again, COMMIT still names one S",
        commit_names_one_set, (("I3", ""), ("fault", "not what was decided")), with_peer_death,
    ),
    "M4": Mutant(
        "COMMIT on SLICE_DONE alone",
        lambda: commit_with_holders(0), (("I8", ""),), with_peer_death,
    ),
    "M5": Mutant(
        "COMMIT with one live holder",
        lambda: commit_with_holders(1), (("I8", ""),), with_peer_death,
    ),
    "M6": Mutant(
        "all holders of a result die and nothing is rewound",
        no_rewind, (("L2", ""),), with_peer_death, ("death", "double death"),
    ),
    "M7": Mutant("no SKIP", no_skip, (("L1", ""),), with_skip),
    "M8": Mutant(
        "only owners serve a result before COMMIT",
        only_owners_serve, (("L3", ""),), with_peer_death, ("one-way cut", "death"),
    ),
    "M9": Mutant(
        "a block is flushed when it is small beside what came before",
        small_parts_are_flushed_beside_large_ones, (("I3", ""),),
    ),
    "M10": Mutant(
        "raw sample counts as weights",
        weights_are_raw_counts, (("rule 2", "weights"), ("fault", "weights")),
    ),
    "M11": Mutant(
        "membership fences data: a join voids the op",
        a_join_voids_the_op, (("L3", ""), ("L1", "")), with_newcomer,
    ),
    "M12": Mutant(
        "a restarted peer keeps its identity as holder and owner: no boot id",
        a_restarted_peer_is_taken_for_the_one_that_died, (("I8", ""), ("L3", "")), with_returner,
        ("restart",),
    ),
    "M13a": Mutant(
        "excluded work is restored twice: as error feedback and in the weights",
        excluded_work_is_restored_twice, (("I9", ""),), with_skip,
    ),
    "M13b": Mutant(
        "SKIP loses the error feedback",
        skip_loses_error_feedback, (("I7", ""), ("I9", "")), with_skip,
    ),
    "M14": Mutant(
        "torch.optim.SGD as the outer step of one peer",
        one_peer_steps_with_torch_sgd, (("I2", "state root"),),
    ),
}  # fmt: skip
