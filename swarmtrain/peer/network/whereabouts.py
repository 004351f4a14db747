"""The address at which other peers dial this one: an IP address, looked up by this peer itself.

A name would have to be resolved by everybody who is told it, and libzmq does that on the thread
that moves all bytes: one name server that does not answer would stop every peer of the run. So a
name never leaves this machine. It is looked up beside the loop, and again before every connection
to the coordinator: a line at home gets another address by night, and its name follows.
"""

import asyncio
import dataclasses
import logging
import socket

from swarmtrain.config.options import Endpoint
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain_transport.links.link import is_dialable
from swarmtrain_transport.peer.participant import Participant
from swarmtrain_transport.wire.messages import Place, Unreached

logger = logging.getLogger(__name__)

LOOKUP_TIMEOUT_S = 20.0
"""A resolver asks its servers two or three times, 5 s each, before it gives up by itself."""


class Unreachable:
    """News of who cannot reach this peer, as the coordinator tells it.

    Attributes:
        words: peers that cannot open a connection to it, and the address; "" if all can.
    """

    def __init__(self) -> None:
        self.words = ""

    def told(self, news: Unreached) -> None:
        """Say what has changed."""
        before, self.words = self.words, _unreached_words(news)
        if not self.words:
            logger.warning("The other peers reach this one now.")
            return
        if self.words == before:
            return
        if not news.peers:
            logger.warning("The other peers may not reach this one: %s.", self.words)
            return
        logger.warning(
            "No way to this peer was found: %s, and nothing else has worked. It gets nothing while "
            "that is so. What helps: let the router forward a port (--map asks it to), or the "
            "organiser add a relay; `swarmtrain explain SWT-E206` says more.",
            self.words,
        )


def _unreached_words(news: Unreached) -> str:
    if not (news.peers or news.by_coordinator):
        return ""
    peers = "1 other peer" if news.peers == 1 else f"{news.peers} other peers"
    who = [peers] * (news.peers > 0) + ["the coordinator"] * news.by_coordinator
    return f"{' and '.join(who)} cannot open a connection to {news.host} port {news.port}"


_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})


class Whereabouts:
    """The address that this peer's HELLO carries.

    Args:
        advertised: address that the other peers shall dial, None for the listening address.
        listening: address of the data lane, with its real port.
    """

    def __init__(self, advertised: Endpoint | None, listening: Endpoint) -> None:
        chosen = advertised or listening
        self.port = chosen.port
        self._name = "" if chosen.host in _EVERYWHERE else chosen.host
        self._known = self._name if is_dialable(self._name) else ""

    def places(self) -> tuple[Place, ...]:
        """The address that the owner names, if it names one."""
        return (Place("told", self._known, self.port),) if self._known else ()

    async def tell(self, participant: Participant) -> None:
        """Put the address as of now into the participant's card. The coordinator fills in an empty
        one: it sees where the connection comes from.

        Raises:
            UserError: SWT-E205, the name has no address, and had none before.
        """
        if not is_dialable(self._name) and self._name:
            self._known = await self._look_up()
        participant.card = dataclasses.replace(participant.card, host=self._known)

    async def _look_up(self) -> str:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                entries = await loop.getaddrinfo(self._name, None, type=socket.SOCK_STREAM)
        except TimeoutError:
            reason = f"no name server answered in {LOOKUP_TIMEOUT_S:.0f} s"
        except (OSError, UnicodeError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc)
        else:
            # IPv4 first where a name has both: more peers have it.
            entries.sort(key=lambda entry: entry[0] != socket.AF_INET)
            found = [host for entry in entries if is_dialable(host := str(entry[4][0]))]
            if self._known in found:
                return self._known
            if found:
                return found[0]
            reason = "it leads to nothing that could be dialled"
        if not self._known:
            raise self._unknown(reason)
        logger.warning(
            "the name %s has no address now (%s): the other peers are told %s as before",
            self._name, reason, self._known,
        )  # fmt: skip
        return self._known

    def _unknown(self, reason: str) -> UserError:
        return UserError(
            "SWT-E205",
            f"The name {cleaned(self._name)} has no address: {cleaned(reason)}.",
            "The other peers dial this one at an IP address, which this machine looks up.",
            "Correct the name given to --advertise or --listen, or give the IP address itself.",
        )
