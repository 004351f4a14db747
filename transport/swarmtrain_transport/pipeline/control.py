"""Orders and reports about pipelines as messages of the control lane.

A control message holds one of `orders` as msgpack in its body: those who have no pipeline need not
know them. A report comes from somebody whom nobody trusts, so all bounds are checked here.
"""

from collections.abc import Mapping
from typing import Any

import msgpack
import msgspec

from swarmtrain_transport import limits
from swarmtrain_transport.errors import LocalFault, RemoteFault
from swarmtrain_transport.pipeline.orders import Order, OrderOrReport, Report
from swarmtrain_transport.wire.messages import (
    PipelineOrder,
    PipelineReport,
    kinds_of,
    unpack_limited,
)

_ORDERS = kinds_of(Order)
_REPORTS = kinds_of(Report)
_DETAIL_CHARS_MAX = 200


def pack_order(order: Order) -> PipelineOrder:
    """The message of an order. Raises LocalFault: a bound is not kept."""
    return PipelineOrder(_pack(order, _ORDERS, limits.CONTROL_BYTES_MAX))


def pack_report(report: Report) -> PipelineReport:
    """The message of a report. Raises LocalFault: a bound is not kept."""
    return PipelineReport(_pack(report, _REPORTS, limits.REPORT_BYTES_MAX))


def order_of(message: PipelineOrder) -> Order:
    """The order in a message.

    Raises:
        RemoteFault: reason ``length``, ``msgpack`` or ``type``.
    """
    return _unpack(message.body, _ORDERS)  # type: ignore[no-any-return]  # one of the union's kinds


def report_of(message: PipelineReport) -> Report:
    """The report in a message, with every number within its bounds. Raises as `order_of`."""
    if len(message.body) > limits.REPORT_BYTES_MAX:
        raise RemoteFault("length", f"report of {len(message.body)} bytes")
    return _unpack(message.body, _REPORTS)  # type: ignore[no-any-return]  # as above


def _pack(value: OrderOrReport, kinds: Mapping[Any, Any], longest: int) -> bytes:
    raw = msgspec.to_builtins(value, builtin_types=(bytes,))
    try:
        _convert(raw, kinds)
    except RemoteFault as fault:
        raise LocalFault(f"{type(value).__name__} cannot be sent: {fault.detail}") from fault
    data: bytes = msgpack.packb(raw)
    if len(data) > longest:
        raise LocalFault(f"{type(value).__name__} of {len(data)} bytes is over the limit")
    return data


def _unpack(data: bytes, kinds: Mapping[Any, Any]) -> Any:
    return _convert(unpack_limited(data), kinds)


def _convert(raw: Any, kinds: Mapping[Any, Any]) -> Any:
    try:
        tag = raw[0] if isinstance(raw, list) and raw else None
        kind = kinds.get(tag) if type(tag) is int else None
        if kind is None:
            raise RemoteFault("type", "nothing that is said about pipelines in this direction")
        return msgspec.convert(raw, type=kind, builtin_types=(bytes,), str_keys=False)
    except (msgspec.ValidationError, TypeError) as exc:
        # The text may quote the other side: cut it, and let nothing steer a terminal.
        raise RemoteFault("type", ascii(str(exc)[:_DETAIL_CHARS_MAX])[1:-1]) from exc
