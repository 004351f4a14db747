"""The string that lets a peer in: the coordinator's address, its certificate's hash, and a secret.

``swarm://host:port/run#secret``. The fragment carries the SHA-256 of the coordinator's certificate,
so the first connection is already pinned and no authority is asked; the invite's secret; and a
checksum, over the run's name too, so that a cut or mistyped invite is told from a wrong one before
anything is sent. Host and port are outside the checksum: people may replace them when a router
gives the same coordinator another address. A run with several coordinators, which all show the same
certificate, has several: ``swarm://host:port,host:port/run#secret``. Everybody who holds the string
can join.
"""

import base64
import binascii
import hashlib
import ipaddress
import re
from dataclasses import dataclass, field, replace

from swarmtrain_transport.errors import InviteError, LocalFault

SCHEME = "swarm://"
PORT_DEFAULT = 8400

_CERT_BYTES = 32
_SECRET_BYTES = 16
_CHECK_BYTES = 2
_LABEL = b"swarmtrain invite 2"
_INVITE_CHARS_MAX = 1600
_SHOWN_CHARS_MAX = 40

ADDRESSES_MAX = 4
"""Addresses of coordinators in an invite."""

_FRAGMENT_CHARS = -(-(_CERT_BYTES + _SECRET_BYTES + _CHECK_BYTES) * 4 // 3)

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PARTS = re.compile(r"(\[[^\]/#]*\]|[^\[\]:/#]*)(?::([^/#]*))?(?:/([^#]*))?(?:#(.*))?")


@dataclass(frozen=True, slots=True)
class Invite:
    """One invite. `str()` is the whole text with its secret; `repr` shows none.

    Attributes:
        host: IP address or name of the coordinator, IPv6 without brackets.
        port: TCP port of its control lane.
        run: the run's name.
        cert_sha256: SHA-256 of the coordinator's certificate (DER), 32 bytes.
        secret: 16 random bytes that the coordinator knows by their hash.
        others: hosts and ports of coordinators that take over when the first is gone.

    Raises:
        LocalFault: a field that no invite can carry.
    """

    host: str
    port: int
    run: str
    cert_sha256: bytes
    secret: bytes = field(repr=False)
    others: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if len(self.cert_sha256) != _CERT_BYTES or len(self.secret) != _SECRET_BYTES:
            raise LocalFault("an invite has a certificate hash of 32 and a secret of 16 bytes")
        if len(self.addresses) > ADDRESSES_MAX:
            raise LocalFault(f"an invite has at most {ADDRESSES_MAX} addresses")
        for host, port in self.addresses:
            if not _is_host(host):
                raise LocalFault(f"{host!r} is neither an IP address nor a host name")
            if not 1 <= port <= 65535:
                raise LocalFault(f"port {port} is not between 1 and 65535")
        if not _RUN.fullmatch(self.run):
            raise LocalFault(f"{self.run!r} cannot be a run's name in an invite")

    def __str__(self) -> str:
        packed = self.cert_sha256 + self.secret
        checked = packed + _checksum(packed, self.run)
        fragment = base64.urlsafe_b64encode(checked).rstrip(b"=").decode()
        return f"{SCHEME}{','.join(self.places)}/{self.run}#{fragment}"

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports of all coordinators, the first to be tried first."""
        return ((self.host, self.port), *self.others)

    @property
    def places(self) -> tuple[str, ...]:
        """The addresses as ``host:port``."""
        return tuple(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses
        )

    def at(self, *addresses: tuple[str, int]) -> "Invite":
        """Return the same invite for coordinators at these addresses, each once, ADDRESSES_MAX at
        most."""
        (host, port), *others = tuple(dict.fromkeys(addresses))[:ADDRESSES_MAX]
        return replace(self, host=host, port=port, others=tuple(others))

    @property
    def is_loopback(self) -> bool:
        """True if it works on the coordinator's own machine only."""
        return names_its_reader(self.host)

    @classmethod
    def parse(cls, text: str) -> "Invite":
        """The invite in `text`; space and line breaks from copying are ignored.

        Raises:
            InviteError: with a sentence that says what is wrong and never repeats the secret.
        """
        compact = "".join(text.split()).strip("\"'<>`")
        if not compact:
            raise InviteError("The invite is empty. An invite begins with swarm://")
        if len(compact) > _INVITE_CHARS_MAX:
            raise InviteError(f"The invite has {len(compact)} characters, far more than any has.")
        if not compact.lower().startswith(SCHEME):
            raise _not_an_invite(compact)
        first, *more = _split(compact[len(SCHEME) :])
        others = tuple((one.host, one.port) for one in map(cls.parse, more))
        match = _PARTS.fullmatch(first)
        if match is None:
            raise InviteError(
                "The part between swarm:// and the next slash is not host:port. An IPv6 address"
                " stands in brackets, as in swarm://[::1]:8400/run#..."
            )
        host, port_text, run, fragment = match.groups()
        bare = host.removeprefix("[").removesuffix("]")
        if not _is_host(bare) or (":" in bare) != host.startswith("["):
            raise InviteError(f"{_show(host)} is neither an IP address nor a host name.")
        port = _read_port(port_text)
        if not run or not _RUN.fullmatch(run):
            raise InviteError(
                f"The invite names no run ({_show(run or '')}). Its form is"
                " swarm://host:port/run#secret"
            )
        cert_sha256, secret = _read_fragment(fragment, run)
        return cls(bare, port, run, cert_sha256, secret, others)


def _split(rest: str) -> tuple[str, ...]:
    """Return what follows the scheme with the first address alone, and an invite for each other
    address."""
    authority, slash, path = rest.partition("/")
    first, *more = authority.split(",")
    if len(more) >= ADDRESSES_MAX:
        raise InviteError(f"The invite names {len(more) + 1} addresses, more than any has.")
    return f"{first}{slash}{path}", *(f"{SCHEME}{one}{slash}{path}" for one in more)


def names_its_reader(host: str) -> bool:
    """Return True if every machine that reads this host takes it for itself."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_port(text: str | None) -> int:
    if text is None:
        return PORT_DEFAULT
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise InviteError(f"The port {_show(text)} is not a number between 1 and 65535.")
    return int(text)


def _read_fragment(text: str | None, run: str) -> tuple[bytes, bytes]:
    """Certificate hash and secret. Errors count characters and never show them."""
    if not text:
        raise InviteError(
            "The invite has no secret: the part after # is missing. Shells cut an unquoted # off,"
            " so put the invite into quotes."
        )
    if len(text) < _FRAGMENT_CHARS:
        raise InviteError(
            f"The invite is cut off: {len(text)} of {_FRAGMENT_CHARS} characters after the #."
            " Copy all of it."
        )
    if len(text) > _FRAGMENT_CHARS:
        raise InviteError(
            f"The invite has {len(text)} characters after the #, not {_FRAGMENT_CHARS}."
            " Something else was copied along."
        )
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InviteError(
            "The part after # holds characters that no invite has. Copy the invite again."
        ) from exc
    packed, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    # The last character has spare bits; only the text that we would write ourselves is accepted.
    if (
        _checksum(packed, run) != check
        or base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text
    ):
        raise InviteError(
            "The invite's checksum is wrong: at least one character of the run's name or after"
            " the # was changed, or an older version made it. Copy the invite again, or ask for"
            " the one that `swarmtrain up` prints now."
        )
    return packed[:_CERT_BYTES], packed[_CERT_BYTES:]


def _checksum(packed: bytes, run: str) -> bytes:
    return hashlib.sha256(_LABEL + packed + run.encode()).digest()[:_CHECK_BYTES]


def _is_host(text: str) -> bool:
    """IP addresses and plain names. Zone ids are out: they mean something on one machine only."""
    if ":" in text:
        try:
            return "%" not in text and ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    return _HOST.fullmatch(text) is not None


def _not_an_invite(text: str) -> InviteError:
    scheme = text.split("://", 1)[0] if "://" in text else ""
    if scheme:
        return InviteError(
            f"This is a {_show(scheme)} address, not an invite. An invite begins with swarm://"
        )
    return InviteError(
        "This is not an invite. An invite begins with swarm:// and comes from whoever started"
        " the run."
    )


def _show(text: str) -> str:
    """Foreign text in a message: quoted, short, printable."""
    shown = ascii(text[:_SHOWN_CHARS_MAX])
    return shown if len(shown) <= _SHOWN_CHARS_MAX else f"{shown[:_SHOWN_CHARS_MAX]}..."
