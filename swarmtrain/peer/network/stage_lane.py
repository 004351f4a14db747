"""The pipeline's part of the network thread: a stage peer between two lanes and the trainer.

Frames and orders go in, parts of training go to the trainer one at a time, and their ends come
back. Not here: any decision, which is the machine's, and any tensor.
"""

from collections.abc import Callable

from swarmtrain.pipeline.stage_peer import End, Outside, Part, StagePeer
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.peer.requests import Evaluated
from swarmtrain_transport.pipeline.wire import control, orders
from swarmtrain_transport.pipeline.wire.route import Process, Span
from swarmtrain_transport.wire.frames import Frame
from swarmtrain_transport.wire.messages import PeerMessage, PipelineOrder

MakePeer = Callable[[Process, Span, int, Outside], StagePeer]
"""(this process, its stages, the run's tag, the others) -> a peer of the pipeline."""


class StageLane:
    """A stage peer on the network thread.

    Args:
        make: makes the peer.
        me: this process.
        span: stages of the peer.
        run_tag: fence of the run.
        send: sends a frame on the data lane.
        tell: sends a message on the control lane.
        to_trainer: takes a part of training, or the end of an evaluation; must not block.
        begin_anew: ends this life of the peer.
        clock: seconds.
    """

    def __init__(
        self,
        make: MakePeer,
        me: Process,
        span: Span,
        run_tag: int,
        *,
        send: Callable[[PeerId, Frame], object],
        tell: Callable[[PeerMessage], object],
        to_trainer: Callable[[Part | Evaluated], None],
        begin_anew: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._send, self._tell, self._clock = send, tell, clock
        self._to_trainer, self._begin_anew = to_trainer, begin_anew
        self._words, self._term = control.ReportLane(), 0
        self.peer = make(me, span, run_tag, self)

    # ---- events

    def heard(self, peer: PeerId, frame: Frame) -> None:
        """A frame of another peer.

        Raises:
            RemoteFault: it holds no message of a pipeline; nothing has changed.
        """
        self.peer.received(peer, frame, self._clock())
        self._next()

    def told(self, message: PipelineOrder) -> None:
        """Heed an order of the coordinator.

        Raises:
            RemoteFault: it is no order, or one before it is missing.
        """
        order = self._words.hear(message)
        if order is not None:
            self.peer.told(order, self._clock())
            self._next()

    def welcomed(self, term: int) -> None:
        """A connection was made: what was lost with the last one is said again. Another life of the
        coordinator begins with its own first word.

        Args:
            term: term of the coordinator.
        """
        if term != self._term:
            self._words, self._term = control.ReportLane(), term
        for message in self._words.again():
            self._tell(message)

    def tick(self) -> None:
        """The machine looks after what may be lost, if it is time."""
        if self.next_wakeup_s <= self._clock():
            self.peer.tick(self._clock())
            self._next()

    def made(self, end: End) -> None:
        """The trainer has made the part that it was given."""
        end(self._clock())
        self._next()

    @property
    def next_wakeup_s(self) -> float:
        """When to call `tick`."""
        return self.peer.machine.next_wakeup_s

    def _next(self) -> None:
        part = self.peer.next_part()
        if part is not None:
            self._to_trainer(part)

    # ---- what the peer asks for

    def send(self, peer: PeerId, frame: Frame) -> None:
        """Send to another peer."""
        self._send(peer, frame)

    def report(self, report: orders.Report) -> None:
        """Tell the coordinator."""
        self._tell(self._words.say(report))

    def evaluated(self, evaluated: Evaluated) -> None:
        """An evaluation is over."""
        self._to_trainer(evaluated)

    def expelled(self) -> None:
        """This process was given up."""
        self._begin_anew()
