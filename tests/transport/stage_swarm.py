"""A whole small swarm of a run in stages: the production coordinator and peers, passes aside.

Each peer's process is a participant, which exchanges its stages, beside a stage machine, which
serves them. Passes are done at once; a state is whole numbers, as in `group_swarm`.
"""

from collections.abc import Iterable
from typing import Any

from swarmtrain_transport import actions as do
from swarmtrain_transport.coordinator.ops.planning import RunTerms
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.coordinator.stages.stage_rounds import PipelineTerms
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.assignment import StageNeed
from swarmtrain_transport.pipeline.peer import requests
from swarmtrain_transport.pipeline.peer.requests import Request, Text
from swarmtrain_transport.pipeline.peer.stage import Rules, StageMachine
from swarmtrain_transport.pipeline.wire import encoding, orders
from swarmtrain_transport.pipeline.wire.control import ReportLane
from swarmtrain_transport.pipeline.wire.messages import CARRIES, Payload
from swarmtrain_transport.pipeline.wire.route import Process, Span
from swarmtrain_transport.wire import messages as m
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.records import Record
from tests.transport.group_swarm import GroupMember, GroupSwarm
from tests.transport.plain_arithmetic import PlainArithmetic, PlainContribution
from tests.transport.rig import RUN_KEY, sign, terms_of, verify
from tests.transport.swarm import Member

_TENSOR = Payload("none", (1,), 4)
_TEXT = Text(3, Payload("labels", (3,), 12))


class StageMember(GroupMember):
    """One peer's process.

    Attributes:
        machine_of_stages: once it is in the rounds.
        lane: to the coordinator, in this life of it.
        due: groups that it has counted in and has not yet given to.
        settled: rounds.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lane = ReportLane()
        self.term = 0
        self.stage: StageMachine | None = None
        self.has_counted: set[int] = set()
        self.due: set[int] = set()
        self.settled: list[int] = []
        self.is_expelled = False


class StageSwarm(GroupSwarm):
    """Two stages.

    Args:
        seed: of the order in which messages arrive.
        pipeline: terms of its rounds.
        needs: of each stage; without them nobody is given one.
    """

    def __init__(
        self, seed: int, pipeline: PipelineTerms, needs: tuple[StageNeed, ...] = (), **terms: Any
    ) -> None:
        self.pipeline, self.needs = pipeline, needs
        self.flushes = pipeline.steps > 0
        super().__init__(seed, **terms)

    def _new_hall(self) -> Rendezvous:
        settings = {name: getattr(self.terms, name) for name in RunTerms.__slots__}
        return Rendezvous(
            self.terms, RUN_KEY, tuple(self.records), sign, verify, self.term, self.now_s,
            more_groups=(terms_of(**settings | {"group": 1}),), pipeline=self.pipeline,
            needs=self.needs,
        )  # fmt: skip

    def member_of(
        self, peer: PeerId, boot: bytes, records: Iterable[Record],
        arithmetic: PlainArithmetic | None,
    ) -> StageMember:  # fmt: skip
        return StageMember(peer, boot, self.now_s, arithmetic, records)

    def begin_anew(self, peer: PeerId) -> None:
        """The process ends, and another one comes with what is on the peer's disk."""
        old = _of(self.members[peer])
        self.kill(peer)
        self.come_back(old)
        for group, stage in self.members[peer].stages.items():
            stage.saved = (old.stages[group].saved if group in old.stages else {}) | stage.saved

    # ---- what may happen

    def step(self) -> None:
        for member in list(self.members.values()):
            if _of(member).is_expelled:
                self.begin_anew(member.peer)
        super().step()

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        for member in list(self.members.values()):
            stage = _of(member).stage
            if stage is not None and stage.next_wakeup_s <= self.now_s:
                self._obey(_of(member), stage.tick(self.now_s))

    # ---- shell

    def _framed(self, member: Member, source: PeerId, frame: Frame) -> None:
        if frame.kind not in encoding.HOP_FRAMES:
            super()._framed(member, source, frame)
        elif (stage := _of(member).stage) is not None:
            heard = encoding.unpack(frame)
            self._obey(_of(member), stage.received(source, heard.boot, heard.message, self.now_s))

    def _told(self, member: Member, message: m.CoordinatorMessage) -> None:
        if isinstance(message, m.PipelineOrder):
            self._ordered(_of(member), message)
            return
        super()._told(member, message)
        if isinstance(message, m.Welcome):
            one = _of(member)
            if message.term != one.term:
                one.term, one.lane = message.term, ReportLane()
            for report in one.lane.again():
                self.up[one.peer].append(m.encode(report))

    def _ordered(self, member: StageMember, message: m.PipelineOrder) -> None:
        order = member.lane.hear(message)
        if isinstance(order, orders.Welcome) and member.stage is None:
            me = Process(member.peer, member.machine.card.boot)
            rules = Rules(2, 3, self.flushes, step_micro_batches=2, tokens=3, judged=2)
            span = order.members[member.peer].span
            member.stage = StageMachine(me, span, rules, b"seed")
        if order is not None:
            assert member.stage is not None
            self._obey(member, member.stage.told(order, self.now_s))

    def _obey(self, member: StageMember, asked: Iterable[Request]) -> None:
        stage = member.stage
        assert stage is not None
        for request in asked:
            match request:
                case requests.Send():
                    size = len(_payload(request.message))
                    frame = encoding.pack(7, stage.me.boot, request.message, bytes(size))
                    self._carry(member, [do.SendFrame(request.peer, frame)])
                case requests.RunForward():
                    text = _TEXT if request.job.slot is None else None
                    self._obey(member, stage.forward_made(request.job, _TENSOR, self.now_s, text))
                case requests.RunJudged():
                    self._judge(member, request)
                case requests.Evaluated() if request.loss is not None and member.peer in self.up:
                    self.up[member.peer].append(m.encode(m.Evaluated(request.op, request.loss)))
                case requests.RunBackward():
                    if request.job.slot is not None:
                        self._obey(member, stage.gradient_made(request.job, _TENSOR, self.now_s))
                    text = _TEXT if request.job.slot is None else None
                    self._obey(member, stage.backward_made(request.job, self.now_s, text))
                case requests.Count():
                    member.has_counted |= set(request.stages)
                case requests.Settle():
                    member.settled.append(request.round)
                    member.due |= member.has_counted
                    member.has_counted.clear()
                    self._obey(member, stage.settled(request.round, self.now_s))
                    for group in sorted(member.due):
                        self._give(member, group, -1)
                case requests.Weigh():
                    span: Span = stage.span
                    squares = (1.0,) * (span.last - span.first + 1)
                    self._obey(member, stage.weighed(request.fence, squares, self.now_s))
                case requests.SendReport():
                    message = member.lane.say(request.report)
                    if member.peer in self.up:
                        self.up[member.peer].append(m.encode(message))
                case requests.Expelled():
                    member.is_expelled = True

    def _judge(self, member: StageMember, request: requests.RunJudged) -> None:
        """A pass with the state after these ops, if that is the one that is here."""
        stage = member.stage
        assert stage is not None
        parts = member.machine.groups
        if any(part.place.applied_op < request.ops[group] for group, part in parts.items()):
            asked = stage.postponed(request.job, self.now_s)
        elif any(part.place.applied_op != request.ops[group] for group, part in parts.items()):
            asked = stage.failed(request.job, self.now_s)
        elif request.is_end:
            asked = stage.loss_made(request.job, 1.5, self.now_s)
        else:
            text = _TEXT if request.job.slot is None else None
            asked = stage.forward_made(request.job, _TENSOR, self.now_s, text)
        self._obey(member, asked)

    def _give(self, member: GroupMember, group: int, op: int) -> None:
        """READY of the next op, once the state before it is in place and a round has settled."""
        assert isinstance(member, StageMember)
        part, stage = member.machine.groups.get(group), member.stages.get(group)
        if group not in member.due or part is None or stage is None:
            return
        if part.place.applied_op < max(0, part.view.last_op):
            return
        member.due.discard(group)
        later = part.view.last_op + 1
        values = [member.peer[0] * 100 + later * 10 + place for place in stage.moved_by(later)]
        contribution = PlainContribution(values)
        self._carry(member, member.machine.ready(later, contribution, 6, self.now_s, 0.0, group))


def _of(member: Member) -> StageMember:
    assert isinstance(member, StageMember)
    return member


def _payload(message: Any) -> bytes:
    return bytes(message.payload.num_bytes) if isinstance(message, CARRIES) else b""
