"""Routers of an emulation's peers: rules of nftables for one kind each.

The kinds are those that volunteers have at home, by their usual names; docs/emulation.md says what
each does. A router drops what strangers send. Nothing here runs a command.
"""

from swarmtrain.foundation.errors import cleaned, misuse

NONE = "none"
KINDS = (NONE, "cone", "restricted", "symmetric")

WITHIN = "192.168.1"
"""Network behind every router, the same in all homes."""

PEER, ROUTER = f"{WITHIN}.10", f"{WITHIN}.1"

OUTSIDE = "44.128.77"
"""Addresses outside: programs take them for public, and they are a test network's."""


def parse_routers(text: str) -> tuple[str, ...]:
    """Return the kinds that ``restricted,symmetric`` names: peers have them in turn.

    Raises:
        UserError: SWT-E610.
    """
    kinds = tuple(word.strip() for word in text.split(",")) if text else ()
    for kind in kinds:
        if kind not in KINDS:
            raise misuse(
                f"{cleaned(kind)!r} is no kind of router that is known here.",
                f"Known are {', '.join(KINDS)}; several, as in restricted,symmetric, are dealt out "
                "to the peers in turn.",
            )
    return kinds


def rules(kind: str) -> str:
    """Return the rules of a router whose devices are eth0, outside, and lan."""
    is_open = kind == "cone"
    other_ports = " random,fully-random" if kind == "symmetric" else ""
    strangers = "accept" if is_open else "drop"
    to_peer = f'iifname "eth0" dnat to {PEER}' if is_open else ""
    return f"""
table ip home {{
  chain input {{
    type filter hook input priority filter;
    iifname "eth0" ct state != {{ established, related }} drop
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    ct state invalid drop
    ct state established,related accept
    iifname "lan" accept
    iifname "eth0" {strangers}
  }}
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    {to_peer}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    oifname "eth0" masquerade{other_ports}
  }}
}}
"""
