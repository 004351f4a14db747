"""Findings about the way to a run: its name, port, key and clock, the invite, and the way back.

Pure: what was seen and said goes in, findings come out.
"""

import ipaddress
from collections.abc import Iterator, Sequence

from swarmtrain.doctor.asking import Answer, Tried
from swarmtrain.doctor.findings import BAD, CLOCK_OFF_S, NOTE, OK, Finding, clock_off
from swarmtrain.foundation.control_lane import Checked
from swarmtrain.foundation.errors import cleaned, refused
from swarmtrain.peer.network.probe import Probe
from swarmtrain.peer.network.proxy import Proxy
from swarmtrain_transport.credentials.invite import Invite

CARRIER = ipaddress.ip_network("100.64.0.0/10")
"""Addresses that providers give to customers who share a public one (RFC 6598)."""

PASSING = frozenset({"SWT-E701", "SWT-E704", "SWT-E706", "SWT-E707", "SWT-E708"})
"""Refusals that end by themselves; the invite is good, or was not judged."""


def of_probe(invite: Invite, proxy: Proxy | None, seen: Probe) -> Iterator[Finding]:
    """Yield findings of a look at the coordinator's address, up to the first that is bad."""
    if proxy is not None:
        yield Finding("proxy", NOTE, f"the coordinator is reached by {proxy}",
                      "Other peers are not: they see the proxy's address.")  # fmt: skip
    if seen.addresses and seen.addresses != (invite.host,):
        yield Finding("name", OK, f"{invite.host} is {', '.join(seen.addresses[:4])}")
    if seen.connect_s is not None:
        where = f"{invite.host} port {invite.port}"
        yield Finding("connection", OK, f"to {where}, round trip {_ms(seen.connect_s)}")
    if seen.is_pinned:
        yield Finding("certificate", OK, "is the one of the invite")
    if invite.is_loopback:
        yield Finding("invite", NOTE, "names the machine that reads it", "It works nowhere else.")
    elif seen.connect_s is None and any(map(_is_private, seen.addresses)):
        yield Finding(
            "invite", NOTE, f"names {seen.addresses[0]}, an address inside somebody's network",
            "It works in that network alone.",
            "Elsewhere ask the organiser for an invite with a public address (up --public-host).",
        )  # fmt: skip
    if seen.fault is not None:
        name = {"SWT-E209": "name", "SWT-E207": "proxy"}.get(seen.fault.code, "connection")
        is_tls = seen.connect_s is not None and not seen.is_pinned
        yield Finding.of("certificate" if is_tls else name, seen.fault)
        return
    if seen.is_ready:
        yield Finding("coordinator", OK, f"is ready for the run {invite.run}")
    else:
        yield Finding(
            "coordinator", BAD, "is there, and lets nobody in yet",
            "After a restart it first hears its peers.", "Try again in a minute.", "SWT-E708",
        )  # fmt: skip
    if seen.ahead_s is None:
        return
    if abs(seen.ahead_s) < CLOCK_OFF_S:
        yield Finding("time", OK, "as the coordinator has it")
    else:
        side = "ahead of" if seen.ahead_s > 0 else "behind"
        yield clock_off("time", f"{abs(seen.ahead_s):.0f} s {side} the coordinator's clock")


def of_answer(answer: Answer, proxy: Proxy | None) -> Iterator[Finding]:
    """Yield findings of what the coordinator said."""
    said = answer.checked
    if said is None:
        if answer.fault is not None:
            level = NOTE if answer.fault.code == "SWT-E703" else BAD
            yield Finding.of("invite", answer.fault, level)
        return
    if said.code:
        error = refused(said.code, said.text)
        yield Finding.of("invite", error, NOTE if error.code in PASSING else BAD)
        return
    is_in = "this machine is in the run already" if said.is_member else "would let this machine in"
    yield Finding("invite", OK, is_in)
    yield from _of_router(answer, said, proxy)
    yield from _of_way_back(answer, said)
    if answer.down_bytes_per_s and answer.up_bytes_per_s:
        down, up = _mbit_s(answer.down_bytes_per_s), _mbit_s(answer.up_bytes_per_s)
        yield Finding("rates", OK, f"at least {down} down, {up} up")
    if answer.fault is not None:
        name = "way back" if answer.fault.code in ("SWT-E201", "SWT-E202") else "rates"
        yield Finding.of(name, answer.fault, NOTE)


def _of_router(answer: Answer, said: Checked, proxy: Proxy | None) -> Iterator[Finding]:
    """Yield what stands between, as far as one connection shows it."""
    own, port = answer.own
    seen = cleaned(said.host)
    if not own or proxy is not None:
        return
    if own == said.host:
        yield Finding("address", OK, f"{own}, which the coordinator sees too: no router translates")
    elif _is_carriers(own):
        yield Finding(
            "address", NOTE, f"{own}, seen as {seen}: the provider shares it among customers",
            "No port of this line can be forwarded over IPv4.",
            "Ask the provider for an address of your own, or for IPv6.",
        )  # fmt: skip
    else:
        ports = "keeps" if port == said.port else "changes"
        yield Finding("address", OK, f"{own}, seen as {seen}: a router translates, and {ports} "
                      "port numbers")  # fmt: skip


def _of_way_back(answer: Answer, said: Checked) -> Iterator[Finding]:
    where = f"{cleaned(said.host)} port {answer.port}"
    if not answer.port:
        return  # nothing to be reached at; the fault says why
    if said.is_reached and answer.came is not False:
        yield Finding("way back", OK, f"the coordinator reaches {where}")
    elif said.is_reached:
        yield Finding(
            "way back", NOTE, f"something else answers at {where}",
            "A router, or another machine behind it, has that port.",
            "Choose another port with --listen, and let the router forward it.", "SWT-E206",
        )  # fmt: skip
    elif said.is_reached is False:
        yield Finding(
            "way back", NOTE, f"the coordinator cannot open a connection to {where}",
            "A router or firewall keeps out who dials this machine. It can take part all the same: "
            "connections are made from its side, or by a relay, which is slower.",
            "To be dialled join with --map, or let the router forward a port and join with "
            "--listen 0.0.0.0:PORT.",
            "SWT-E206",
        )  # fmt: skip
    else:
        yield Finding("way back", NOTE, "not tried: somebody asked from here moments ago",
                      "", "Try again in half a minute.")  # fmt: skip


def of_peers(tried: Sequence[Tried]) -> Iterator[Finding]:
    """Yield how long the way to some peers is, or that there is none."""
    if not tried:
        return
    told = [
        f"{cleaned(one.name)} {'not reached' if one.seconds is None else _ms(one.seconds)}"
        for one in tried
    ]
    if all(one.seconds is None for one in tried):
        yield Finding(
            "peers", NOTE, ", ".join(told), "They are behind routers, or have left meanwhile.",
            "A peer finds other ways to them, and says which when it has joined.",
        )  # fmt: skip
    else:
        yield Finding("peers", OK, f"round trips: {', '.join(told)}")


def _is_carriers(address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in CARRIER
    except ValueError:
        return False


def _is_private(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_private and not parsed.is_loopback


def _mbit_s(rate: float) -> str:
    """A rate to two digits: one short measure is no better."""
    return f"{float(f'{8e-6 * rate:.2g}'):g} Mbit/s"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
