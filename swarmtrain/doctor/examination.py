"""The examination: looks at the machine, then at the way to a run, and tells as it goes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from swarmtrain.config.options import Endpoint
from swarmtrain.doctor.asking import ask, dial, identity_in
from swarmtrain.doctor.connection import of_answer, of_peers, of_probe
from swarmtrain.doctor.findings import Finding, of_machine
from swarmtrain.doctor.machine import look
from swarmtrain.foundation.errors import UserError
from swarmtrain.peer.network.probe import probe
from swarmtrain.peer.network.proxy import Proxy, proxy_for
from swarmtrain_transport.credentials.invite import Invite

FindProxy = Callable[[str, int], Proxy | None]


def examine(
    invite: Invite | None,
    directory: Path,
    listen: Endpoint | None,
    tell: Callable[[Finding], None],
    find_proxy: FindProxy = proxy_for,
) -> list[Finding]:
    """Look at all of it.

    Args:
        invite: invite of a run, None for this machine alone.
        directory: folder of the peer's state; it need not exist.
        listen: address at which to be reached, None without an invite.
        tell: hears each finding at once.
        find_proxy: finds the proxy by which a host and port are reached.

    Returns:
        All findings.
    """
    known: list[Finding] = []

    def note(finding: Finding) -> None:
        known.append(finding)
        tell(finding)

    for finding in of_machine(look(directory)):
        note(finding)
    if invite is not None and listen is not None:
        asyncio.run(examine_way(invite, directory, listen, note, find_proxy))
    return known


async def examine_way(
    invite: Invite,
    directory: Path,
    listen: Endpoint,
    note: Callable[[Finding], None],
    find_proxy: FindProxy,
) -> None:
    """Look at the way to a run, until something is in it."""
    try:
        proxy, identity = find_proxy(invite.host, invite.port), identity_in(directory)
    except UserError as error:
        note(Finding.of("proxy" if error.code == "SWT-E207" else "key", error))
        return
    seen = await probe(invite, proxy)
    for finding in of_probe(invite, proxy, seen):
        note(finding)
    if not seen.is_ready:
        return
    answer = await ask(invite, identity, proxy, listen)
    for finding in of_answer(answer, proxy):
        note(finding)
    others = answer.checked.peers if answer.checked is not None else ()
    for finding in of_peers(await dial(others)):
        note(finding)
