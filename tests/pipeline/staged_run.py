"""A run in stages over real sockets in one process: a coordinator and its peers, each on threads of
its own, as they are in life."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from swarmtrain.config.options import Endpoint, JoinOptions
from swarmtrain.config.settings import (
    CheckpointSection,
    ExchangeSection,
    InnerSection,
    ModelSection,
    OuterSection,
    PipelineSection,
    RunConfig,
    RunSection,
)
from swarmtrain.coordinator import service
from swarmtrain.foundation.events import Event, RoundEnded
from swarmtrain.peer.membership import Membership
from swarmtrain.peer.staged import StagedPeer
from swarmtrain.peer.telling import Telling
from swarmtrain.pipeline.staged_model import OwnWork
from swarmtrain_transport import limits
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.credentials.invite import Invite
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.pipeline.coordinator.books import Books
from swarmtrain_transport.wire.messages import BUILT_IN, LEASED, Brings

DISK_BYTES = 1 << 30
STAGES, STEPS, BATCH, MICRO_BATCH, CONTEXT = 3, 4, 8, 4, 32


def config_of(
    rounds: int,
    peers: int,
    outer: OuterSection | None = None,
    exchange: Mapping[str, Any] = MappingProxyType({}),
    **pipeline: Any,
) -> RunConfig:
    return RunConfig(
        run=RunSection("stages", rounds=rounds),
        model=ModelSection(layers=3, width=32, heads=2, context=CONTEXT),
        inner=InnerSection(batch=BATCH, lr=5e-3, warmup_steps=4),
        outer=outer or OuterSection(inner_steps=STEPS, momentum=0.5),
        exchange=ExchangeSection(
            start_peers=peers, wait_ready_s=1.0, chunk_values=4096, **exchange
        ),
        checkpoint=CheckpointSection(every_rounds=1),
        pipeline=PipelineSection(stages=STAGES, micro_batch=MICRO_BATCH, **pipeline),
    )


class Coordinator:
    """A coordinator on a thread of its own.

    Attributes:
        books: of the rounds that are over.
    """

    def __init__(self, config: RunConfig, place: Path) -> None:
        self._config, self._place = config, place
        self.books: list[Books] = []
        self.machine: Rendezvous | None = None
        self._up = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.thread.start()
        assert self._up.wait(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()

        def ready(invite: Invite) -> None:
            self.invite = invite
            self._up.set()

        await service.serve(
            self._config, self._place, "127.0.0.1", 0, "", on_ready=ready, stop=self._stop,
            tell=lambda text: None, watched=self._watched,
        )  # fmt: skip

    def _watched(self, machine: Rendezvous) -> contextlib.AbstractAsyncContextManager[None]:
        self.machine = machine
        opened = machine.stage_rounds._open

        def booked(books: Books, waited: Mapping[PeerId, int]) -> None:
            self.books.append(books)
            opened(books, waited)

        machine.stage_rounds._open = booked
        return contextlib.nullcontext()

    def gives_up(self, peer: PeerId) -> None:
        """Let the time pass, for this peer alone, after which a silent one leaves the roster. Then
        nothing depends on how fast the others are."""
        machine = self.machine

        def pass_time() -> None:
            if peer in machine.lines:
                machine.lines[peer].life.heard_s -= limits.EVICT_S
                machine.live_roster._silent_s = -math.inf

        for _ in range(6000):
            if peer not in machine.view.roster:
                return
            self._loop.call_soon_threadsafe(pass_time)
            threading.Event().wait(0.01)
        raise AssertionError("it stays in the roster")

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self.thread.join(60)


class Peer:
    """A peer on threads of its own, as `swarmtrain join` has it but for signals."""

    def __init__(self, invite: Invite, place: Path, *span: int, own: OwnWork | None = None) -> None:
        self.events: list[Event] = []
        self.losses: list[float] = []
        self.error: BaseException | None = None
        self._invite, self._place, self._span, self._own = invite, place, span, own
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        try:
            brings = self._own.brings if self._own else Brings(model=BUILT_IN, data=LEASED)
            brings = replace(brings, span=self._span, disk_bytes=DISK_BYTES)
            options = JoinOptions(self._invite, "", Endpoint("127.0.0.1", 0), (self._place,))
            membership = Membership.enter(options, brings=brings)
            try:
                telling = Telling(lambda line: None, self._tell)
                self.peer = StagedPeer(membership, 1, telling, own=self._own)
                self.peer.start()
                while not self.peer.should_stop:
                    self.peer.step()
                self.peer.leave("done", save=True, waits=lambda: None)
            finally:
                membership.close()
        except BaseException as error:
            self.error = error

    def _tell(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, RoundEnded) and self.peer.loss:
            self.losses.append(self.peer.loss)

    def die(self) -> None:
        """End without a word, as by a power cut."""
        network = self.peer.membership.thread
        network._loop.call_soon_threadsafe(network._loop.stop)
        self.thread.join(60)

    @property
    def peer_id(self) -> PeerId:
        return self.peer.membership.identity.peer_id

    def lose_coordinator(self, until: Callable[[], bool]) -> None:
        """The connection to the coordinator breaks, and there is no other one before that is so."""

        async def comes_back() -> None:
            while not until():
                await asyncio.sleep(0.01)

        def lose(shell: Any) -> None:
            shell._control._prepare = comes_back
            shell._control._cut()

        self.peer.membership.thread.call(lose)

    def roots(self) -> dict[int, str]:
        """State root of each stage at the end."""
        return {stage: one.driver.root.hex() for stage, one in self.peer.sessions.items()}
