"""Keys that the data lane admits, and as whom: the rules that both links share.

A peer is known on the wire by the CURVE key that its connection proved, so the list maps keys to
peers and never names or routing ids. It also speaks ZAP (ZeroMQ RFC 27), which is how libzmq asks
about a key during a handshake; both are pure here, and the links do the IO.
"""

from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import Address, PeerId, is_dialable

ZAP_DOMAIN = b"swarmtrain data 1"
"""Never "*": libzmq would then refuse every connection to a socket with a named domain."""

_KEY_BYTES = 32
_ZAP_FRAMES = 7
_PORT_MAX = 65_535


class AllowList:
    """Peers that may speak and be spoken to, each with one key and one address.

    Args:
        own_id: the list's owner, who is never on it.
    """

    def __init__(self, own_id: PeerId) -> None:
        self._own_id = own_id
        self._address_of_peer: dict[PeerId, Address] = {}
        self._peer_of_key: dict[bytes, PeerId] = {}

    def address_of(self, peer: PeerId) -> Address | None:
        """Return the address at which an admitted peer listens."""
        return self._address_of_peer.get(peer)

    def peer_of(self, curve_key: bytes) -> PeerId | None:
        """The admitted peer that this key belongs to."""
        return self._peer_of_key.get(curve_key)

    def is_news(self, address: Address) -> bool:
        """Return True if `admit` would change anything."""
        is_own = address.peer_id == self._own_id
        return not is_own and self._address_of_peer.get(address.peer_id) != address

    def admit(self, address: Address) -> None:
        """Put a peer on the list, in place of its older key and address.

        Raises:
            RemoteFault: reason ``key`` or ``address``; the list is as before.
        """
        # A key is public, so a peer may claim another's. The first to be admitted keeps it:
        # frames must never be taken for those of whoever announced the key.
        if self._peer_of_key.get(address.curve_key, address.peer_id) != address.peer_id:
            raise RemoteFault("key", f"{_brief(address.curve_key)} is another peer's CURVE key")
        if len(address.curve_key) != _KEY_BYTES:
            raise RemoteFault("key", f"a CURVE key of {len(address.curve_key)} bytes")
        # The coordinator has looked too, but a socket is handed what this list lets through.
        is_known = is_dialable(address.host) and 1 <= address.port <= _PORT_MAX
        if not is_known and (address.host, address.port) != ("", 0):
            text = f"host {address.host[:64]!a} port {address.port} is not an address"
            raise RemoteFault("address", text)
        self.remove(address.peer_id)
        self._address_of_peer[address.peer_id] = address
        self._peer_of_key[address.curve_key] = address.peer_id

    def remove(self, peer: PeerId) -> None:
        """Take a peer off the list. Unknown peers are ignored."""
        address = self._address_of_peer.pop(peer, None)
        if address is not None:
            del self._peer_of_key[address.curve_key]

    def peers(self) -> tuple[PeerId, ...]:
        """All peers on the list, in the order of admission."""
        return tuple(self._address_of_peer)

    def zap_reply(self, request: list[bytes]) -> tuple[list[bytes], RemoteFault | None]:
        """libzmq's question about one handshake, answered.

        Args:
            request: version, request id, domain, IP address, routing id, mechanism, key.

        Returns:
            The reply's frames, version first, and the refusal if it is one. An admitted
            connection's User-Id is its key in hex, so each later frame can be checked again.
        """
        request_id = request[1] if len(request) > 1 else b""
        refusal: RemoteFault | None = None
        key = b""
        if len(request) != _ZAP_FRAMES:
            refusal = RemoteFault("key", f"a handshake of {len(request)} fields")
        else:
            version, _, domain, _, _, mechanism, key = request
            if (version, domain, mechanism) != (b"1.0", ZAP_DOMAIN, b"CURVE"):
                refusal = RemoteFault("key", "a handshake that is not ours")
            elif key not in self._peer_of_key:
                refusal = not_allowed(key)
        code, user_id = (b"400", b"") if refusal else (b"200", key.hex().encode())
        return [b"1.0", request_id, code, b"", user_id, b""], refusal


def not_allowed(curve_key: bytes) -> RemoteFault:
    """The refusal of a key that is not on the list: a stranger's, or of a member who has left, or
    of one who has just come, of which we have not heard yet."""
    return RemoteFault("key", f"key {_brief(curve_key)} is no member's, or not yet, or no more")


def _brief(curve_key: bytes) -> str:
    return curve_key[:4].hex()
