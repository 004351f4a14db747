"""Payloads of the micro-batches at one peer, under the names of its stage machine's jobs.

A place has room for two: the stage's input, in whose place the input's gradient comes; and the
output, in whose place comes what answers it: the output's gradient, or the labels at the end of a
route. At its source a micro-batch has its text for an input. Not here: when which is needed.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from swarmtrain_transport.arithmetic import Buffer
from swarmtrain_transport.errors import LocalFault
from swarmtrain_transport.pipeline.peer.requests import Job
from swarmtrain_transport.pipeline.wire import messages


class Parcel(NamedTuple):
    """Bytes and their form."""

    form: messages.Payload
    data: Buffer


class Read(NamedTuple):
    """Text of a micro-batch, as its source has read it.

    Attributes:
        given: input of the first stage.
        labels: labels of the loss.
    """

    given: Tensor
    labels: Parcel


@dataclass(slots=True)
class Place:
    """Payloads of one job.

    Attributes:
        first: the input, or its gradient.
        second: the output, or what has come as the answer to it.
    """

    first: Parcel | Read | None = None
    second: Parcel | None = None


class Places:
    """Payloads of all jobs at a peer."""

    def __init__(self) -> None:
        self._places: dict[Job, Place] = {}

    def __len__(self) -> int:
        """Count the jobs that something is kept for."""
        return len(self._places)

    def arrived(self, job: Job, parcel: Parcel) -> None:
        """Keep what came for a job: its input if it is new and not our own, an answer else."""
        place = self._places.setdefault(job, Place())
        if job.slot is not None and place.first is None:
            place.first = parcel
        else:
            place.second = parcel

    def made(
        self, job: Job, *, first: Parcel | Read | None = None, second: Parcel | None = None
    ) -> None:
        """Keep what was made for a job; nothing is kept for one that was freed meanwhile."""
        place = self._places.get(job)
        if place is not None:
            place.first = first if first is not None else place.first
            place.second = second if second is not None else place.second

    def opened(self, job: Job) -> Place | None:
        """The place of a job whose pass begins: a new one for a source's own, which has nothing
        yet; None if it was freed."""
        if job.slot is None:
            return self._places.setdefault(job, Place())
        return self._places.get(job)

    def free(self, job: Job) -> None:
        """Free the job's places: nothing of it is needed any more."""
        self._places.pop(job, None)

    def beside(self, message: messages.AnyHopMessage, job: Job | None) -> Buffer:
        """Bytes that go beside a message.

        Raises:
            LocalFault: they are not here.
        """
        if not isinstance(message, messages.CARRIES):
            return b""
        place = Place() if job is None else self._places.get(job, Place())
        parcel = place.second if isinstance(message, messages.Forward) else place.first
        if isinstance(message, messages.Go) and isinstance(parcel, Read):
            parcel = parcel.labels
        if not isinstance(parcel, Parcel) or parcel.form != message.payload:
            raise LocalFault(f"{type(message).__name__} of {job} without its payload")
        return parcel.data
