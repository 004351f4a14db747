"""Worlds of a run in stages, each from one seed: what goes wrong, and what must hold.

S1 all stages' rounds end soon after the faults; S2 who has the same op of a stage in place has the
same state; S3 each op has one outcome, and what peers hold of the ledger is the coordinator's; S4
an op has contributions of those alone who have counted in its stage, by the books; S5 nobody's
program ends but by its own wish, or to begin anew.
"""

import hashlib
import random
import shutil
import tempfile
import traceback
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from swarmtrain.config.settings import (
    CheckpointSection,
    DataSection,
    ExchangeSection,
    InnerSection,
    ModelSection,
    OuterSection,
    PipelineSection,
    RunConfig,
    RunSection,
)
from swarmtrain.coordinator.service import group_terms, pipeline_terms
from swarmtrain.foundation.events import Event, RoundEnded
from swarmtrain.pipeline.costs import stage_needs
from swarmtrain.pipeline.staged_model import MicroBatch, OwnWork, StagedModel
from swarmtrain.simulate.checks.lease_checks import LeaseChecks
from swarmtrain.simulate.checks.way_checks import WayChecks
from swarmtrain.simulate.ground.conditions import Conditions
from swarmtrain.simulate.ground.control import ControlLanes
from swarmtrain.simulate.ground.network import SimNetwork
from swarmtrain.simulate.ground.quick_keys import RUN_KEY, quick_sign, quick_verify
from swarmtrain.simulate.ground.scene import Scene, Trace
from swarmtrain.simulate.pipelines.seeds import SeedResult
from swarmtrain.simulate.processes.coordinator import SimCoordinator
from swarmtrain.simulate.stages.process import StagedProcess, is_given_up
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import BodyReader, Books, Commit, Plan, Record, Rewind, Skip

ROUNDS = 4
_WIDTH, _BATCH = 4, 2
_CALM_S, _END_S = 60.0, 900.0
_FAULTS = ("kill", "kill", "stop", "crash", "stall", "leave", "blink", "stop coordinator")


def _squares(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, labels, reduction="sum")


def _example(rng: random.Random) -> MicroBatch:
    given = torch.tensor([[rng.uniform(-1, 1) for _ in range(_WIDTH)] for _ in range(_BATCH)])
    return given, torch.sin(given)


def _model(num_stages: int) -> StagedModel:
    with torch.device("meta"):
        layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(num_stages)]
    return StagedModel(layers, _squares, example=_example(random.Random(0)))


class World:
    """A run in stages and its faults.

    Args:
        seed: all is drawn from it.
        trace: takes a line per event.

    Attributes:
        counts: number of events, by kind.
        log: records of the ledger.
    """

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        rng = self._rng = random.Random(f"stages {seed}")
        self._num_stages, num_peers = rng.choice((2, 2, 3)), rng.randint(4, 6)
        self._model = _model(self._num_stages)
        self._config = self._drawn_config(rng, num_peers)
        self.scene = Scene(
            Conditions(
                num_peers, ROUNDS, rng.getrandbits(63), latency_s=rng.choice((0.003, 0.05)),
                sync_s=rng.choice((0.0, 0.005)), skew_s=1e6,
            ),
            trace,
        )  # fmt: skip
        self.counts: Counter[str] = Counter()
        self.leases = LeaseChecks(1, self._violated)
        self.ways = WayChecks(self._violated)
        self.network = SimNetwork(self.scene, self.scene.conditions.latency_s)
        self.control = ControlLanes(self.scene)
        first, *later = group_terms(self._config)
        self.coordinator = SimCoordinator(
            self.scene, self.control, first, partial(quick_sign, RUN_KEY), quick_verify,
            tuple(later), stage_needs(self._config), pipeline_terms(self._config),
        )  # fmt: skip
        self.coordinator.watch = self
        self.control.coordinator = self.coordinator
        self._folder = Path(tempfile.mkdtemp(prefix="swarmtrain-simulated-"))
        self._lives = 0
        self.peers: dict[PeerId, StagedProcess] = {}
        self._states: dict[tuple[int, int, int], str] = {}
        self.log: list[Record] = []
        self._reader = BodyReader()
        self._outcomes: dict[tuple[int, int], bytes] = {}
        self._givers: dict[int, set[PeerId]] = {}
        self._part_s = rng.choice((0.1, 0.6))

    def _drawn_config(self, rng: random.Random, num_peers: int) -> RunConfig:
        flushes = rng.random() < 0.3
        are_two = num_peers >= 2 * self._num_stages
        return RunConfig(
            run=RunSection("simulation", rounds=ROUNDS),
            model=ModelSection(kind="custom", context=_WIDTH, digest=self._model.digest),
            data=DataSection(source="own"),
            inner=InnerSection(batch=2 * _BATCH, lr=5e-3, warmup_steps=1),
            outer=OuterSection(inner_steps=2, momentum=0.5),
            exchange=ExchangeSection(
                start_peers=num_peers, wait_ready_s=2.0, chunk_values=64, block=32,
                min_contributors=rng.choice((1, 2)) if are_two else 1, deadline_floor_s=10.0,
                deadline_cap_s=10.0,
            ),
            checkpoint=CheckpointSection(every_rounds=1),
            pipeline=PipelineSection(
                stages=self._num_stages, micro_batch=_BATCH, activations="none",
                schedule="flush" if flushes else "free",
            ),
        )  # fmt: skip

    # ---- life

    def run(self) -> None:
        """Run to the end of the run, a violation, or the end of time."""
        scene, rng = self.scene, self._rng
        try:
            self.coordinator.start()
            for number in range(scene.conditions.num_peers):
                self._begin(number, hashlib.sha256(b"peer %d" % number).digest())
            moment = 0.0
            for _ in range(rng.randint(0, 6)):
                moment += rng.uniform(0.5, 12.0)
                scene.clock.at(moment, partial(self._strike, rng.choice(_FAULTS)))
            scene.end_s = moment + _END_S
            while not scene.violations and not self._is_over and scene.clock.step(scene.end_s):
                pass
            if not (scene.violations or self._is_over):
                self._violated("S1", f"rounds do not end: {self._committed}")
        finally:
            for process in self.peers.values():
                process.kill()
            shutil.rmtree(self._folder)

    @property
    def _committed(self) -> list[int]:
        machine = self.coordinator.machine
        groups = machine.view.groups if machine is not None else {}
        return [group.committed for group in groups.values()]

    @property
    def _is_over(self) -> bool:
        done = self._committed
        return len(done) == self._num_stages and min(done) >= ROUNDS

    def _begin(self, number: int, peer_id: PeerId) -> None:
        if number in {p.number for p in self.peers.values() if p.is_alive} or self._is_over:
            return
        self._lives += 1
        boot = self._lives.to_bytes(8, "big")
        rng = random.Random(f"data {number}")
        own = OwnWork(self._model, [_example(rng) for _ in range(4)])
        directory = self._folder / str(number)
        directory.mkdir(exist_ok=True)
        self.scene.numbers[peer_id] = number
        process = StagedProcess(
            self, number, peer_id, boot, self._config, own, directory, self._part_s
        )
        self.peers[peer_id] = process
        process.start()

    def ended(self, process: StagedProcess, error: BaseException | None) -> None:
        """A peer's program has ended, or its process was killed."""
        self.scene.say(f"peer {process.number}", f"ends: {error}")
        back = partial(self._begin, process.number, process.peer_id)
        if is_given_up(error):
            self.counts["began anew"] += 1
            self.scene.clock.after(1.0, back)
        elif error is not None and not self._is_over:
            story = "".join(traceback.format_exception(error)[-3:]).strip()
            self._violated("S5", f"peer {process.number}: {story}")
        elif not self._is_over:
            self.scene.clock.after(self._rng.uniform(0.5, 20.0), back)

    def told(self, process: StagedProcess, event: Event) -> None:
        """S2: one state per op of a stage."""
        if isinstance(event, RoundEnded):
            self.counts[event.outcome] += 1
            rewinds = process.machine.view.groups[event.stage].rewinds
            known = self._states.setdefault((event.stage, rewinds, event.round), event.root)
            if known != event.root:
                story = f"peer {process.number} differs in stage {event.stage}, op {event.round}"
                self._violated("S2", story)

    # ---- what goes wrong

    def _strike(self, kind: str) -> None:
        living = [one for one in self.peers.values() if one.is_alive and not one.is_leaving]
        if not living:
            return
        peer, seconds = self._rng.choice(living), 0.1 * 200 ** self._rng.random()
        self.counts[kind] += 1
        self.scene.say("FAULT", f"{kind} {peer.number} {seconds:.2f}")
        match kind:
            case "kill":
                peer.kill()
            case "stop":
                peer.stop(seconds)
            case "leave":
                peer.request_stop()
            case "stall":
                self.control.stall(peer, up=self._rng.random() < 0.5, seconds=seconds)
            case "blink":
                self.control.hung_up(peer)
                peer.on_control_down()
            case "stop coordinator":
                self.coordinator.stop(seconds)
            case "crash" if self.coordinator.is_alive:
                self.coordinator.crash(keeps_torn=self._rng.random() < 0.5)
                self.control.cut_all([one for one in self.peers.values() if one.is_alive])
                self.scene.clock.after(seconds, self.coordinator.start)

    # ---- the coordinator

    def logged(self, record: Record) -> None:
        """S3 and S4, as records are appended."""
        if record.index < len(self.log):
            self._violated("S3", f"record {record.index} is decided a second time")
        self.log.append(record)
        body = self._reader.read(record)
        group = getattr(body, "group", 0)
        self.scene.say("LEDGER", f"{type(body).__name__} {group} {getattr(body, 'op', '')}")
        match body:
            case Books():
                self.counts["books"] += 1
                self._givers = {
                    stage: {
                        one.peer
                        for one in body.members
                        if 0 <= stage - one.first < len(one.counted)
                        and one.counted[stage - one.first]
                    }
                    for stage in range(self._num_stages)
                }
            case Plan():
                given = {member.peer for member in body.members if member.weight}
                if strange := given - self._givers.get(group, set()):
                    names = ", ".join(map(self.scene.name_of, sorted(strange)))
                    self._violated("S4", f"op {body.op} of stage {group}: {names} is in no books")
            case Commit() | Skip():
                self.counts[type(body).__name__] += 1
                if self._outcomes.setdefault((group, body.op), record.hash) != record.hash:
                    self._violated("S3", f"second outcome of op {body.op} of stage {group}")
            case Rewind():
                self.counts["Rewind"] += 1
                for key in [one for one in self._outcomes if one[0] == group and one[1] > body.op]:
                    del self._outcomes[key]

    def coordinator_fell(self, seconds: float = 0.0) -> None:
        """No op's time is measured here."""

    def refused(self, peer: PeerId, fault: RemoteFault) -> None:
        """S5: nobody is hostile."""
        self._violated("S5", f"the coordinator refuses {self.scene.name_of(peer)}: {fault}")

    def released(self, peer: PeerId) -> None:
        """A leaving peer may go."""
        self.counts["released"] += 1

    def _violated(self, invariant: str, story: str) -> None:
        self.scene.violation(invariant, story)


def run_seed(seed: int, trace: Trace | None = None) -> SeedResult:
    """Run one world to its end."""
    world = World(seed, trace)
    world.run()
    found = world.scene.violations
    invariant, story = (found[0].invariant, found[0].story) if found else ("", "")
    digest = hashlib.sha256(b"".join(record.hash for record in world.log)).digest()
    return SeedResult(seed, invariant, story, dict(world.counts), digest, world.scene.clock.now_s)
