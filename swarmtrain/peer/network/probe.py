"""One look at what answers at the address of an invite, step by step: name, TCP, TLS, coordinator.

A client that cannot connect gets errors of libraries, which say what failed and not why. This look
tells a login page from another run, and a name without an address from a closed port. It sends
nothing of the invite, and nothing at all to whoever shows another certificate.
"""

import asyncio
import hashlib
import os
import re
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from cryptography import x509

from swarmtrain.foundation.errors import UserError, cleaned, wrong_key
from swarmtrain.peer.network.proxy import Proxy, ProxyFailed, connect, connect_through
from swarmtrain_transport.credentials.invite import Invite

STEP_S = 10.0
"""For each step: a few round trips on the worst link, and a packet lost in each."""

ANSWER_BYTES_MAX = 8 << 10

OWN_SUBJECT = "CN=swarmtrain coordinator"
"""Subject of every coordinator's certificate."""

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_DATE = re.compile(rb"^date:[ \t]*([^\r\n]+)", re.IGNORECASE | re.MULTILINE)


@dataclass(slots=True)
class Probe:
    """All that was found before something failed, if anything did.

    Attributes:
        addresses: IP addresses of the coordinator; none where a proxy looks its name up.
        connect_s: duration of the TCP handshake, one round trip; None if there was none.
        is_pinned: True if the certificate is the one of the invite.
        is_ready: True if peers may come; None if that was not said.
        ahead_s: seconds by which this machine's clock is ahead; None if its time was not said.
        fault: the first failure.
    """

    addresses: tuple[str, ...] = ()
    connect_s: float | None = None
    is_pinned: bool = False
    is_ready: bool | None = None
    ahead_s: float | None = None
    fault: UserError | None = None


async def probe(invite: Invite, proxy: Proxy | None) -> Probe:
    """Look at the coordinator of an invite; nothing is raised.

    Args:
        invite: invite with the address and the hash of the certificate.
        proxy: the way to it.
    """
    found = Probe()
    try:
        if proxy is None:
            found.addresses = await _look_up(invite)
        began_s = time.perf_counter()
        connection = await _connect(invite, proxy)
        found.connect_s = time.perf_counter() - began_s
        await _ask(invite, proxy, connection, found)
    except UserError as fault:
        found.fault = fault
    return found


async def _look_up(invite: Invite) -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(STEP_S):
            entries = await loop.getaddrinfo(invite.host, invite.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        reason = f"no name server answered in {STEP_S:.0f} s"
    except (OSError, UnicodeError) as exc:
        reason = cleaned(getattr(exc, "strerror", None) or str(exc))
    else:
        return tuple(dict.fromkeys(str(place[0]) for *_, place in entries))
    raise UserError(
        "SWT-E209",
        f"The coordinator's name {invite.host} has no address: {reason}.",
        "This machine has no network now, or the name in the invite is wrong or gone.",
        "Open any page in a browser. If that works, ask the organiser for another invite.",
    )


async def _connect(invite: Invite, proxy: Proxy | None) -> socket.socket:
    try:
        async with asyncio.timeout(STEP_S):
            if proxy is not None:
                return await connect_through(proxy, invite.host, invite.port)
            return await connect(invite.host, invite.port)
    except ProxyFailed as failed:
        raise failed.explained() from None
    except TimeoutError:
        reason = f"nothing came back in {STEP_S:.0f} s"
        meaning = "A firewall on the way, or the router there, drops what is sent to that port."
    except ConnectionRefusedError:
        reason = "the connection was refused"
        meaning = "That machine is there, and nothing listens at the port: the run may be down."
    except OSError as exc:
        reason = cleaned(os.strerror(exc.errno) if exc.errno else str(exc))
        meaning = "No way leads there from this machine: it may have no network now."
    raise _silent(invite, reason, meaning)


async def _ask(
    invite: Invite, proxy: Proxy | None, connection: socket.socket, found: Probe
) -> None:
    """TLS, the certificate, and whether it is ready."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    writer = None
    try:
        async with asyncio.timeout(STEP_S):
            reader, writer = await asyncio.open_connection(
                sock=connection, ssl=context, server_hostname=invite.host, limit=ANSWER_BYTES_MAX
            )
            der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
            if hashlib.sha256(der).digest() != invite.cert_sha256:
                raise _other(invite, der)
            found.is_pinned = True
            writer.write(f"GET /readyz HTTP/1.1\r\nHost: {invite.host}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as exc:
        if not found.is_pinned and await _is_web_page(invite, proxy):
            raise _page(invite, "with a web page, without encryption") from exc
        what = "HTTP" if found.is_pinned else "TLS"
        raise _silent(
            invite,
            f"what answers there does not speak {what} ({cleaned(type(exc).__name__)})",
            "Another program has that port, or something on the way breaks connections off.",
        ) from exc
    finally:
        connection.close() if writer is None else writer.transport.abort()
    status, date = _STATUS.match(head), _DATE.search(head)
    found.is_ready = status is not None and status[1] == b"200"
    if date is not None:
        found.ahead_s = _ahead_s(date[1].decode("ascii", "replace"), time.time())


def _ahead_s(date: str, now_s: float) -> float | None:
    """Seconds by which our clock is ahead of a date that has whole seconds."""
    try:
        return now_s - parsedate_to_datetime(date).timestamp() - 0.5
    except (ValueError, TypeError, OverflowError):
        return None


async def _is_web_page(invite: Invite, proxy: Proxy | None) -> bool:
    """Return True if HTTP without TLS is answered."""
    connection = await _connect(invite, proxy)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(STEP_S):
            await loop.sock_sendall(
                connection, f"GET / HTTP/1.1\r\nHost: {invite.host}\r\n\r\n".encode()
            )
            return (await loop.sock_recv(connection, 64)).startswith(b"HTTP/")
    except (OSError, TimeoutError):
        return False
    finally:
        connection.close()


def _other(invite: Invite, der: bytes) -> UserError:
    """Somebody else's certificate: another run's, or no coordinator's."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        subject = certificate.subject.rfc4514_string()
        issuer = cleaned(certificate.issuer.rfc4514_string())
    except ValueError:
        subject = issuer = ""
    if subject == OWN_SUBJECT:
        return wrong_key(invite.host, invite.port)
    by = f" made by {issuer}" if issuer else ""
    return _page(invite, f"with a certificate{by}, and not as a coordinator")


def _page(invite: Invite, how: str) -> UserError:
    return UserError(
        "SWT-E208",
        f"{invite.host}:{invite.port} answered {how}.",
        "A login page of this network, a virus scanner or a filter stands in between, or the port "
        "is a web server's. Nothing was sent.",
        "Open any page in a browser and log in; else have the filter leave that address alone.",
    )


def _silent(invite: Invite, reason: str, meaning: str) -> UserError:
    return UserError(
        "SWT-E203",
        f"The coordinator {invite.host}:{invite.port} does not answer: {reason}.",
        meaning,
        "Try again later, or ask the organiser whether the run is up and reached from outside.",
    )
