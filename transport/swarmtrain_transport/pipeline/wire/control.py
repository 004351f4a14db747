"""Orders and reports about pipelines as messages of the control lane.

A control message holds one of `orders` as msgpack in its body: those who have no pipeline need not
know them. A report comes from somebody whom nobody trusts, so all bounds are checked here.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.pipeline.wire.orders import Order, OrderOrReport, Report
from swarmtrain_transport.wire.messages import (
    PipelineOrder,
    PipelineReport,
    kinds_of,
)
from swarmtrain_transport.wire.unpacking import unpack_limited

_ORDERS: Mapping[int, type[Order]] = kinds_of(Order)
_REPORTS: Mapping[int, type[Report]] = kinds_of(Report)
_DETAIL_CHARS_MAX = 200

T = TypeVar("T")


def pack_order(order: Order) -> bytes:
    """The body of a PIPELINE_ORDER. Raises LocalFault: a bound is not kept."""
    return _pack(order, _ORDERS, limits.CONTROL_BYTES_MAX)


def pack_report(report: Report) -> bytes:
    """The body of a PIPELINE_REPORT. Raises LocalFault: a bound is not kept."""
    return _pack(report, _REPORTS, limits.REPORT_BYTES_MAX)


def order_of(body: bytes) -> Order:
    """The order in a body.

    Raises:
        RemoteFault: reason ``length``, ``msgpack`` or ``type``.
    """
    return _convert(unpack_limited(body), _ORDERS)


def report_of(body: bytes) -> Report:
    """The report in a body, with every number within its bounds. Raises as `order_of`."""
    if len(body) > limits.REPORT_BYTES_MAX:
        raise RemoteFault("length", f"report of {len(body)} bytes")
    return _convert(unpack_limited(body), _REPORTS)


class _Lane:
    """Words with numbers, each of which names the newest that was heard from the other side.

    So nothing is lost with a connection, and nothing is heard twice: after a new one either side
    says again whatever the other has not said that it has heard.
    """

    def __init__(self) -> None:
        self._bodies: dict[int, bytes] = {}
        self._said = self._heard = 0

    @property
    def num_unheard(self) -> int:
        """Words that the other side has not said that it has heard."""
        return len(self._bodies)

    def _add(self, body: bytes) -> int:
        self._said += 1
        self._bodies[self._said] = body
        return self._said

    def _is_next(self, number: int, heard: int) -> bool:
        """Take note of a word's numbers; False if it was heard before.

        Raises:
            RemoteFault: reason ``number``: words between are missing, or were never said.
        """
        if number > self._heard + 1 or not 0 <= heard <= self._said:
            raise RemoteFault("number", f"word {number} after {self._heard}, heard {heard}")
        for one in [one for one in self._bodies if one <= heard]:
            del self._bodies[one]
        is_next = number == self._heard + 1
        self._heard += is_next
        return is_next


class OrderLane(_Lane):
    """The coordinator's end, for one process that is in the rounds. It begins with the first report
    that it hears: what a process has said before it was in them was void."""

    def say(self, order: Order) -> PipelineOrder:
        """The message of an order."""
        body = pack_order(order)
        return PipelineOrder(self._add(body), self._heard, body)

    def hear(self, message: PipelineReport) -> Report | None:
        """The report in a message, None if it was heard before. Raises as `report_of`, or reason
        ``number``."""
        report = report_of(message.body)
        self._heard = self._heard or max(0, message.number - 1)
        return report if self._is_next(message.number, message.heard) else None

    def again(self) -> list[PipelineOrder]:
        """The messages to say again on a new connection."""
        bodies = self._bodies.items()
        return [PipelineOrder(number, self._heard, body) for number, body in bodies]


class ReportLane(_Lane):
    """A process's end, in one life of the coordinator."""

    def say(self, report: Report) -> PipelineReport:
        """The message of a report."""
        body = pack_report(report)
        return PipelineReport(self._add(body), self._heard, body)

    def hear(self, message: PipelineOrder) -> Order | None:
        """The order in a message, None if it was heard before. Raises as `order_of`, or reason
        ``number``."""
        order = order_of(message.body)
        return order if self._is_next(message.number, message.heard) else None

    def again(self) -> list[PipelineReport]:
        """The messages to say again on a new connection."""
        bodies = self._bodies.items()
        return [PipelineReport(number, self._heard, body) for number, body in bodies]


def _pack(value: OrderOrReport, kinds: Mapping[int, type[OrderOrReport]], longest: int) -> bytes:
    raw = msgspec.to_builtins(value, builtin_types=(bytes,))
    try:
        _convert(raw, kinds)
    except RemoteFault as fault:
        raise LocalFault(f"{type(value).__name__} cannot be sent: {fault.detail}") from fault
    data: bytes = msgpack.packb(raw)
    if len(data) > longest:
        raise LocalFault(f"{type(value).__name__} of {len(data)} bytes is over the limit")
    return data


def _convert(raw: Any, kinds: Mapping[int, type[T]]) -> T:
    try:
        tag = raw[0] if isinstance(raw, list) and raw else None
        kind = kinds.get(tag) if type(tag) is int else None
        if kind is None:
            raise RemoteFault("type", "nothing that is said about pipelines in this direction")
        return msgspec.convert(raw, type=kind, builtin_types=(bytes,), str_keys=False)
    except (msgspec.ValidationError, TypeError) as exc:
        # The text may quote the other side: cut it, and let nothing steer a terminal.
        raise RemoteFault("type", ascii(str(exc)[:_DETAIL_CHARS_MAX])[1:-1]) from exc
