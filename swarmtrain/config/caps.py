"""A link owner's caps for a peer: `--up`, `--down` and `--daily`, as numbers.

A unit that may be bits or bytes is an error, as are a bare number, 10mb and 10Mbps: the wrong one
costs eight times as much. An amount of data is in bytes everywhere, so there 20gb is 20GB.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from swarmtrain.console.units import human_bytes
from swarmtrain.foundation.errors import cleaned, misuse

_RATE_BYTES = {
    "kbit": 125, "mbit": 125_000, "gbit": 125_000_000,
    "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000,
}  # fmt: skip
_SIZE_BYTES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTE_PREFIX = {"k": "k", "m": "M", "g": "G"}
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*"

N = TypeVar("N", int, float)

RATE_MIN = 8_000
"""Bytes per second. Under it a chunk of 256 KiB takes longer than a peer may be silent."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits on the data lane; 0 stands for none.

    Attributes:
        up: bytes per second that are sent.
        down: bytes per second that are taken in.
        daily: bytes per calendar day, both directions together.
        relay: bytes per second that are passed on for others, 0 for not at all.
        relay_daily: bytes per calendar day that are.
    """

    up: int = 0
    down: int = 0
    daily: int = 0
    relay: int = 0
    relay_daily: int = 0

    def in_words(self) -> str:
        """Return what is limited, "" for nothing."""
        rates = {"up": self.up, "down": self.down}
        said = [f"{human_bytes(rate)}/s {way}" for way, rate in rates.items() if rate]
        said += [f"{human_bytes(self.daily)} a day"] if self.daily else []
        said += [f"{human_bytes(self.relay)}/s for others"] if self.relay else []
        said += [f"{human_bytes(self.relay_daily)} a day for others"] if self.relay_daily else []
        return ", ".join(said)


NO_CAPS = Caps()


def parse_caps(up: str, down: str, daily: str) -> Caps:
    """Two rates and a size as people write them, each ``""`` for no limit.

    Raises:
        UserError: SWT-E610.
    """
    return Caps(parse_rate(up), parse_rate(down), parse_size(daily))


def parse_rate(text: str) -> int:
    """``10mbit``, ``5 Mbit/s`` or ``2MB/s`` in bytes per second, ``""`` for no cap.

    Raises:
        UserError: SWT-E610.
    """
    if not text:
        return 0
    match = re.fullmatch(_NUMBER + r"([kKmMgG](?:[bB][iI][tT]|[bB]))(?:/s|ps)?", text.strip())
    if match and match[2].endswith("b"):
        number, prefix = match[1], match[2][0]
        raise misuse(
            f"{cleaned(text)!r} may be bits or bytes, and a byte is eight bits.",
            f"Write {number}{prefix.lower()}bit for bits per second, or "
            f"{number}{_BYTE_PREFIX[prefix.lower()]}B for bytes.",
        )
    rate = int(float(match[1]) * _RATE_BYTES[match[2].lower()]) if match else 0
    if rate < RATE_MIN:
        raise misuse(
            f"{cleaned(text)!r} is not a rate of at least {RATE_MIN // 1000} kB/s.",
            "Write bits or bytes per second with their unit: 10mbit, 2MB/s, 64kB/s.",
        )
    return rate


def or_zero(parse: Callable[[str], N]) -> Callable[[str], N]:
    """Parser that takes ``0`` for none, and all else as another one does."""
    return lambda text: 0 if text.strip() == "0" else parse(text)


parse_relay = or_zero(parse_rate)


def parse_size(text: str) -> int:
    """``20GB`` or ``500 MB`` in bytes, ``""`` for no limit.

    Raises:
        UserError: SWT-E610.
    """
    if not text:
        return 0
    match = re.fullmatch(_NUMBER + r"([kmgt]b)", text.strip().lower())
    size = int(float(match[1]) * _SIZE_BYTES[match[2]]) if match else 0
    if size <= 0:
        raise misuse(
            f"{cleaned(text)!r} is not an amount of data.",
            "Write bytes with their unit: 500MB, 20GB.",
        )
    return size
