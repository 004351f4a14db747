"""Values of parameters on their way between a device and a vector in host memory.

A card copies at full speed only from and to pages that the system may not move, and only then
beside what it computes. So values go through two small pinned buffers in turn: while the card fills
or empties one, the processor works on the other. A whole pinned vector would be memory that a peer
has no use for between two exchanges. Reading returns when the values are here; writing returns
while the last ones are still on their way, and what the card is asked for next waits for them.

On the processor, and on devices without such memory, values are copied as they are. Not here: which
parameter lies where in the vector (`tensors`), and where a model is put (`device_of`).
"""

from collections.abc import Iterable, Iterator
from itertools import cycle

import torch
from torch import Tensor

PIECE_VALUES = 8 << 20
"""Values of one buffer, 32 MiB: a copy of it takes a millisecond or two, a call a hundredth."""

Pairs = Iterable[tuple[Tensor, Tensor]]
"""(host, there): float32 on the CPU, and a parameter of the same shape on any device."""


def to_host(pairs: Pairs) -> None:
    """Read parameters into host memory."""
    lanes: dict[torch.device, _Lane] = {}
    for host, there in pairs:
        if there.device.type == "cuda" and there.is_contiguous() and host.is_contiguous():
            _lane_of(lanes, there.device).read(host.view(-1), there.detach().view(-1))
        else:
            host.copy_(there)
    for lane in lanes.values():
        lane.settle()


def to_device(pairs: Pairs) -> None:
    """Write host memory, which may change when this has returned, into parameters."""
    lanes: dict[torch.device, _Lane] = {}
    for host, there in pairs:
        if there.device.type == "cuda" and there.is_contiguous() and host.is_contiguous():
            _lane_of(lanes, there.device).write(host.view(-1), there.detach().view(-1))
        else:
            there.copy_(host)
    for lane in lanes.values():
        lane.hold_back()


def _lane_of(lanes: "dict[torch.device, _Lane]", device: torch.device) -> "_Lane":
    if device not in lanes:
        lanes[device] = _Lane(device)
    return lanes[device]


class _Lane:
    """Copies of one card, on a stream of their own.

    Args:
        device: the card.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        # Work that the card was given before, such as a step, comes first.
        self._stream.wait_stream(torch.cuda.current_stream(device))
        pinned = [torch.empty(PIECE_VALUES, pin_memory=True) for _ in range(2)]
        self._turns: Iterator[_Buffer] = cycle([_Buffer(one) for one in pinned])

    def read(self, host: Tensor, there: Tensor) -> None:
        """Ask for these values; they are in place after `settle`."""
        for start in range(0, host.numel(), PIECE_VALUES):
            wanted = host[start : start + PIECE_VALUES]
            buffer = next(self._turns)
            buffer.settle()
            with torch.cuda.stream(self._stream):
                values = there[start : start + PIECE_VALUES].float()
                buffer.pinned[: len(wanted)].copy_(values, non_blocking=True)
                buffer.under_way(wanted, self._stream)

    def write(self, host: Tensor, there: Tensor) -> None:
        """Send these values off."""
        for start in range(0, host.numel(), PIECE_VALUES):
            values = host[start : start + PIECE_VALUES]
            buffer = next(self._turns)
            buffer.settle()
            here = buffer.pinned[: len(values)].copy_(values)
            with torch.cuda.stream(self._stream):
                # Two steps: a copy that changes the type as well would not go through the buffer.
                arrived = here.to(self._device, non_blocking=True)
                there[start : start + PIECE_VALUES].copy_(arrived)
                buffer.under_way(None, self._stream)

    def settle(self) -> None:
        """Wait until all that was asked for is in place."""
        next(self._turns).settle()
        next(self._turns).settle()

    def hold_back(self) -> None:
        """Let whatever the card is asked for next wait for what was sent off. The buffers go back
        to torch, which gives them to nobody before they are empty."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class _Buffer:
    """Pinned memory, and the fate of what is in it."""

    def __init__(self, pinned: Tensor) -> None:
        self.pinned = pinned
        self._wanted: Tensor | None = None
        self._event: torch.cuda.Event | None = None

    def under_way(self, wanted: Tensor | None, stream: torch.cuda.Stream) -> None:
        """A copy has begun; `wanted` takes what it brings."""
        self._wanted, self._event = wanted, torch.cuda.Event()
        self._event.record(stream)

    def settle(self) -> None:
        """Wait for the copy under way, and take what it has brought."""
        if self._event is not None:
            self._event.synchronize()
        if self._wanted is not None:
            self._wanted.copy_(self.pinned[: len(self._wanted)])
        self._wanted = self._event = None
