"""A login page in the place of a coordinator, with a certificate of its own or without TLS."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from swarmtrain.foundation.control_lane import LET_GO_TURNS
from swarmtrain_transport.credentials.invite import Invite

PAGE = b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n"


@asynccontextmanager
async def portal(directory: Path, *, has_tls: bool) -> AsyncIterator[tuple[Invite, list[bytes]]]:
    """Serve it; yields an invite that leads there, and what it is told."""
    heard: list[bytes] = []
    serving: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            heard.append(await reader.read(1 << 16))
            writer.write(PAGE)
            await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    context = None
    if has_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(directory))
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Invite("127.0.0.1", port, "demo", bytes(32), bytes(range(16))), heard
    finally:
        server.close()
        for _ in range(LET_GO_TURNS):  # a handshake that was broken off is noticed
            await asyncio.sleep(0)
        await asyncio.gather(*serving, return_exceptions=True)


def certificate(directory: Path) -> Path:
    """Write key and certificate into one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Guest Wi-Fi")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name)
        .public_key(key.public_key()).serial_number(1)
        .not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    path = directory / "portal.pem"
    path.write_bytes(
        key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ) + made.public_bytes(pem)
    )  # fmt: skip
    return path
