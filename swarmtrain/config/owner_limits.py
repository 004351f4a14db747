"""Limits that a volunteer sets for the own machine, and their file in a peer's state directory.

They may change while the peer runs: it reads the file again when it has changed. Memory and disk
are told at the door, so they hold from its next start on. Hours are of the machine's own clock, so
they are right when clocks change; a span as 22-7 goes over midnight and belongs to the day on which
it begins.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from swarmtrain.config.caps import NO_CAPS, RATE_MIN, Caps
from swarmtrain.console.units import human_bytes
from swarmtrain.foundation import atomic_file, regular_file
from swarmtrain.foundation.errors import UserError, cleaned, misuse

FILE_NAME = "limits.json"
_BYTES_MAX = 4096
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME = r"(\d{1,2})(?::(\d\d))?"
_SPAN = re.compile(rf"(?:([a-z]{{3}})(?:-([a-z]{{3}}))?\s+)?{_TIME}-{_TIME}")
_DAY_MINUTES = 24 * 60
DUTY_MIN = 0.05
"""Least share of the time: with less a round of minutes takes hours, and nobody waits so long."""

NICE_MAX = 19
THREADS_MAX = 1024
UNSET = -1
BYTES_MAX = 1 << 60
AT_NEXT_JOIN = ("memory", "disk")
"""Limits that a peer tells at the door."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Shares of its machine that a peer may take.

    Attributes:
        hours: hours in which it may train, as they were written; "" for always.
        duty: share of the time in which it computes, DUTY_MIN to 1.
        battery: True if it trains on battery, too.
        busy: share of the processor that others may take before it rests, above 0 to 1; 1 for any.
        nice: niceness of the process, 0 to 19.
        threads: threads for training; 0 for as many as `join` was given.
        up, down: bytes per second that are sent and taken in, 0 for any; UNSET for what a program
            gave `swarmtrain.join`.
        daily: bytes per calendar day, both directions together, likewise.
        memory: bytes that a peer of a model in stages may take, 0 for enough for one stage; UNSET
            as well.
        disk: bytes of states that it keeps for others; UNSET for half of what is free.
    """

    hours: str = ""
    duty: float = 1.0
    battery: bool = True
    busy: float = 1.0
    nice: int = 0
    threads: int = 0
    up: int = UNSET
    down: int = UNSET
    daily: int = UNSET
    memory: int = UNSET
    disk: int = UNSET

    def caps(self, given: Caps = NO_CAPS) -> Caps:
        """The limits on the link, with those that were given where none is set here."""
        own = {"up": self.up, "down": self.down, "daily": self.daily}
        return replace(given, **{key: value for key, value in own.items() if value != UNSET})

    def in_words(self, given: Caps = NO_CAPS) -> str:
        """The limits that are set, and those on the link that were given; "" for none."""
        link = self.caps(given).in_words()
        said = [link] if link else []
        said += [f"hours {self.hours}"] if self.hours else []
        said += [f"{100 * self.duty:.0f} % of the time"] if self.duty < 1 else []
        said += [] if self.battery else ["not on battery"]
        said += [f"rests when others take {100 * self.busy:.0f} %"] if self.busy < 1 else []
        said += [f"niceness {self.nice}"] if self.nice else []
        said += [f"{self.threads} threads"] if self.threads else []
        said += [f"{human_bytes(self.memory)} of memory"] if self.memory > 0 else []
        said += [f"{human_bytes(self.disk)} of disk for others"] if self.disk != UNSET else []
        return ", ".join(said)


NO_LIMITS = Limits()


def parse_hours(text: str) -> str:
    """Hours of the week as ``22-7``, or ``mon-fri 18:30-23, sat-sun 0-24``, checked.

    Raises:
        UserError: SWT-E610.
    """
    spans = [*_spans(text)]
    if text.strip() and not spans:
        raise misuse(
            f"{cleaned(text)!r} are hours that never come.", "Write 22-7, or sat-sun 0-24."
        )
    return text.strip()


def parse_share(text: str) -> float:
    """``50%`` or ``0.5`` as a share.

    Raises:
        UserError: SWT-E610.
    """
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not DUTY_MIN <= share <= 1.0:
        raise misuse(f"{cleaned(text)!r} is no share of the time.", "Write 5% to 100%.")
    return share


def opens_at(hours: str, now: datetime) -> datetime:
    """The next moment, now or later, at which the hours let the peer train.

    Args:
        now: local time.
    """
    spans = [*_spans(hours)]
    if not spans:
        return now
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    found = []
    for ago in range(-1, 8):
        day = midnight + timedelta(days=ago)
        for weekday, first, last in spans:
            if day.weekday() == weekday:
                begins, ends = day + timedelta(minutes=first), day + timedelta(minutes=last)
                if begins <= now < ends:
                    return now
                if begins > now:
                    found.append(begins)
    return min(found)


def read(directory: Path) -> Limits:
    """The limits of a state directory; none where none were set.

    Raises:
        UserError: SWT-E610, the file makes no sense.
    """
    path = directory / FILE_NAME
    try:
        told = json.loads(regular_file.read(path, _BYTES_MAX))
    except FileNotFoundError:
        return NO_LIMITS
    except (OSError, ValueError) as error:
        raise _no_sense(path, str(error)) from error
    try:
        return checked(replace(NO_LIMITS, **told))
    except (TypeError, AttributeError) as error:
        raise _no_sense(path, str(error)) from error


def write(directory: Path, limits: Limits) -> None:
    """Keep limits; a peer that runs there takes them within seconds.

    Raises:
        OSError: the directory cannot be written.
    """
    atomic_file.write(directory / FILE_NAME, json.dumps(asdict(limits)).encode(), mode=0o600)


def checked(limits: Limits) -> Limits:
    """Limits whose values are in range.

    Raises:
        UserError: SWT-E610.
    """
    for field in fields(limits):
        value, kind = getattr(limits, field.name), type(getattr(NO_LIMITS, field.name))
        is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not (is_number or type(value) is kind):
            raise misuse(f"{field.name} is no {kind.__name__}.", "Set it with `swarmtrain limits`.")
    parse_hours(limits.hours)
    in_range = {
        "duty": DUTY_MIN <= limits.duty <= 1, "busy": DUTY_MIN <= limits.busy <= 1,
        "nice": 0 <= limits.nice <= NICE_MAX, "threads": 0 <= limits.threads <= THREADS_MAX,
        **{key: getattr(limits, key) in (UNSET, 0) or getattr(limits, key) >= RATE_MIN
           for key in ("up", "down")},
        **{key: UNSET <= getattr(limits, key) <= BYTES_MAX for key in ("daily", *AT_NEXT_JOIN)},
    }  # fmt: skip
    for name, fits in in_range.items():
        if not fits:
            raise misuse(
                f"The limit {name} is out of range.", "See `swarmtrain limits set --help`."
            )
    return limits


def _spans(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the weekday, first and last minute of each span; the last may be of the next day."""
    for part in filter(None, (one.strip() for one in text.lower().split(","))):
        match = _SPAN.fullmatch(part)
        if match is None:
            raise misuse(
                f"{cleaned(part)!r} are no hours.",
                'Write 22-7, or days and hours with commas between: "mon-fri 18-23, sat-sun 0-24".',
            )
        first = int(match[3]) * 60 + int(match[4] or 0)
        last = int(match[5]) * 60 + int(match[6] or 0)
        days = [day for day in match.groups()[:2] if day]
        if any(day not in _DAYS for day in days):
            raise misuse(
                f"{cleaned(part)!r} names no day.", "Days are mon, tue, wed, thu, fri, sat, sun."
            )
        if max(first, last) > _DAY_MINUTES or int(match[4] or 0) > 59 or int(match[6] or 0) > 59:
            raise misuse(
                f"{cleaned(part)!r} is no time of day.", "Hours are 0 to 24, minutes 00 to 59."
            )
        if first == last:
            continue
        begins = _DAYS.index(days[0]) if days else 0
        ends = _DAYS.index(days[-1]) if days else 6
        for number in range((ends - begins) % 7 + 1):
            yield (begins + number) % 7, first, last if last > first else last + _DAY_MINUTES


def _no_sense(path: Path, why: str) -> UserError:
    return misuse(f"{path} makes no sense: {cleaned(why)}", "Remove it, or set limits anew.")


def changed(limits: Limits, **more: Any) -> Limits:
    """Limits with those changes that are not None, checked.

    Raises:
        UserError: SWT-E610.
    """
    return checked(
        replace(limits, **{key: value for key, value in more.items() if value is not None})
    )
