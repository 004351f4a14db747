"""`swarmtrain peers ...`: who is in a run, what each has done, and who has to go."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from swarmtrain.cli.arguments import AsJson, StateDir, Verbose, group
from swarmtrain.cli.ordering import Peer, Reason, obeyed
from swarmtrain.console.lines import fact, show, show_json
from swarmtrain.console.units import human_bytes

peers_app = group("peers", "Show the peers of a run, and send some away.")

_ID_CHARS = 12

PAGE = 100
"""Rows of a page: two or three screens, among which eyes still find a name."""


@peers_app.command("ls")
def list_peers(
    everybody: Annotated[bool, typer.Option("--all", help="Also those who have left.")] = False,
    page: Annotated[int, typer.Option(min=0, help=f"Page of {PAGE} peers, 0 for all of them.")] = 1,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List who is in, and who is banned, by pages; --json has all."""
    answer = obeyed(state_dir, "peers-ls", everybody=everybody)
    if as_json:
        show_json(answer)
        return
    from swarmtrain.console.table import plain_lines, table_of

    titles = (
        "name", "id", "state", "round", "since round", "contributed", "excluded", "last reason",
    )  # fmt: skip
    peers, pages = answer["peers"], max(1, -(-len(answer["peers"]) // PAGE))
    page = min(page, pages)
    chosen = peers[PAGE * (page - 1) : PAGE * page] if page else peers
    show("\n".join(plain_lines(table_of(titles, [_row(peer) for peer in chosen]))))
    if page and pages > 1:
        further = f"--page {page + 1} goes on" if page < pages else "it is the last one"
        show(f"page {page} of {pages}, {len(peers)} peers: {further}")


def _row(peer: dict[str, Any]) -> list[str]:
    return [
        peer["name"], peer["peer"][:_ID_CHARS], peer["state"], str(peer["round"]),
        _round(peer, "since"), str(peer["contributed"]), str(peer["excluded"]), _last(peer),
    ]  # fmt: skip


def _last(peer: dict[str, Any]) -> str:
    reason = peer["last_reason"]
    return f"{reason} (round {_round(peer, 'last')})" if reason else ""


def _round(peer: dict[str, Any], which: str) -> str:
    """Name a round; most people need not know of groups."""
    number, group = peer[f"{which}_round"], peer[f"{which}_group"]
    return f"{number} of group {group}" if group else str(number)


@peers_app.command("show")
def show_peer(
    peer: Peer,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show all that is known of one peer."""
    answer = obeyed(state_dir, "peers-show", peer=peer)
    show_json(answer) if as_json else show("\n".join(sheet(answer)))


def sheet(answer: dict[str, Any]) -> Iterator[str]:
    """All that is known of one peer as lines; what is empty is left out."""
    now = answer["now"] or {}
    facts = {
        "name": answer["name"],
        "id": answer["peer"],
        "state": answer["state"],
        "banned for": answer["ban_reason"],
        "invite": answer["invite"],
        "round": str(answer["round"]),
        "since round": _round(answer, "since"),
        "contributed": f"{answer['contributed']} rounds",
        "excluded": f"{answer['excluded']} rounds",
        "last reason": _last(answer),
        "norm": f"{now['norm']:.2f} of the median's" if now.get("norm") is not None else "",
        "cosine": f"{now['cosine']:.2f} with what the others gave"
        if now.get("cosine") is not None
        else "",
        "sits out": now.get("rests", ""),
        "sent": human_bytes(now["bytes_up"]) if now else "",
        "received": human_bytes(now["bytes_down"]) if now else "",
        "silent": f"{now['silent_s']:.1f} s" if now else "",
    }
    for name, value in facts.items():
        if value:
            yield fact(name, value)
    for reason, count in sorted(answer["reasons"].items(), key=lambda item: -item[1]):
        yield fact("", f"{count} x {reason}")
    for owner, count in sorted(answer["accused_by"].items(), key=lambda item: -item[1]):
        yield fact("", f"{count} x on the word of {owner}")


def _tell(done: dict[str, Any], changed: str, unchanged: str, *, as_json: bool) -> None:
    if as_json:
        show_json(done)
        return
    name = f"{done['name']} " if done["name"] else ""
    show(f"{name}({done['peer'][:_ID_CHARS]}) {changed if done['changed'] else unchanged}")


def _sending_away(name: str, about: str, changed: str, unchanged: str) -> None:
    @peers_app.command(name, help=about)
    def order(
        peer: Peer,
        reason: Reason = "",
        state_dir: StateDir = None,
        as_json: AsJson = False,
        verbose: Verbose = False,
    ) -> None:
        done = obeyed(state_dir, f"peers-{name}", peer=peer, reason=reason)
        _tell(done, changed, unchanged, as_json=as_json)


_sending_away(
    "remove",
    "Send a peer away. It may join again; `ban` keeps it out.",
    "was removed; it may join again.",
    "is not in the run.",
)
_sending_away(
    "ban",
    "Keep a peer's key out for good, whether or not it is in; a whole id of 64 digits may be one"
    " that never came. Every peer of the run refuses it from then on.",
    "is banned, on every peer of the run. With an open invite its owner can come in under another"
    " key: `swarmtrain invite ls`.",
    "was banned before; the reason is the new one.",
)


@peers_app.command()
def unban(
    peer: Peer,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Lift a ban: the peer may join again."""
    done = obeyed(state_dir, "peers-unban", peer=peer)
    _tell(done, "may join again.", "was not banned.", as_json=as_json)
