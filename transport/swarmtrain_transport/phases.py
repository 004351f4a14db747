"""Phases of a machine: one table says which may follow which, and every step is held to it."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TypeVar

from swarmtrain_transport.errors import LocalFault

P = TypeVar("P", bound=Enum)
Table = Mapping[P, AbstractSet[P]]
"""The phases that may follow each; a phase that is no key is the last one."""


def entered(to: P, now: P, table: Table[P]) -> P:
    """The phase that is entered.

    Raises:
        LocalFault: it cannot follow the present one: a bug of the machine.
    """
    if to not in table.get(now, ()):
        raise LocalFault(f"{type(to).__name__}: {now.name} cannot become {to.name}")
    return to
