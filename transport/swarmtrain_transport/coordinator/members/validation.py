"""Claims of peers about themselves, checked for sense before they are believed, kept or shown.

The ledger goes to everybody and stays for ever, and a record that is too long could never be sent:
so nothing that a peer chooses enters it at a length of its choice. A claim that breaks a rule here
is refused with its sender; one that is only ugly is made harmless.
"""

import math

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.link import is_dialable
from swarmtrain_transport.links.ways import TOKEN_BYTES, Way
from swarmtrain_transport.wire.messages import (
    Accuse,
    Applied,
    Brings,
    Carried,
    Carrying,
    CheckpointWritten,
    Hello,
    Met,
    Offer,
    PeerMessage,
    Place,
    Places,
    Progress,
    Ready,
)
from swarmtrain_transport.wire.records import Attest

_NAME_CHARS_MAX = 10_000
_STATES_MAX = 64
_PORT_MAX = 65_535
_HINTS = {"host": ": it must be an IP address that others can dial, not a name"}
_VALUES_MAX = 1 << 40
_PLACES = frozenset({"lan", "mapped", "told"})
_WITH_STATE = (Ready, Applied)
_WITH_HASHES = (*_WITH_STATE, Offer, Accuse, CheckpointWritten)


def check_hello(hello: Hello) -> None:
    """Check that the card can be one.

    Raises:
        RemoteFault: reason ``hello`` with the field.
    """
    groups = [state.group for state in hello.states]
    rules = {
        "boot": 1 <= len(hello.boot) <= limits.BOOT_BYTES_MAX,
        "curve_key": len(hello.curve_key) == limits.HASH_BYTES,
        "host": is_dialable(hello.host),
        "port": 1 <= hello.port <= _PORT_MAX,
        "name": len(hello.name) <= _NAME_CHARS_MAX,
        "states": len(groups) <= _STATES_MAX
        and len(set(groups)) == len(groups)
        and all(map(_can_be_held, hello.states)),
        "brings": len(hello.brings.layout) in (0, limits.HASH_BYTES) and _is_machine(hello.brings),
    }
    for name, holds in rules.items():
        if not holds:
            raise RemoteFault("hello", f"its {name} cannot be one" + _HINTS.get(name, ""))


def _is_machine(brings: Brings) -> bool:
    span = brings.span
    is_span = not span or (len(span) == 2 and 0 <= span[0] <= span[1] < limits.STAGES_MAX)
    return is_span and min(brings.memory_bytes, brings.flops_per_s, brings.disk_bytes) >= 0


def _can_be_held(state: Applied) -> bool:
    size = limits.HASH_BYTES
    return state.op >= 0 and len(state.state_root) == size and len(state.chain) in (0, size)


def check_claim(message: PeerMessage) -> None:
    """Check that hashes are hashes and that an offered state can be one.

    Raises:
        RemoteFault: reason ``hash`` or ``offer``.
    """
    if isinstance(message, Progress) and len(message.unreached) > limits.LINK_WAYS_MAX:
        raise RemoteFault("progress", f"{len(message.unreached)} peers that it cannot reach")
    if isinstance(message, Places | Met | Carrying | Carried):
        _check_ways(message)
    if not isinstance(message, _WITH_HASHES):
        return
    if isinstance(message, Offer):
        hashes = [message.state_root, message.layout]
        if not 0 < message.num_values < _VALUES_MAX:
            raise RemoteFault("offer", f"a state of {message.num_values} values")
        if len(message.fragments) > limits.FRAGMENTS_MAX:
            raise RemoteFault("offer", f"{len(message.fragments)} fragments")
    elif isinstance(message, Applied) and message.chain:
        hashes = [message.state_root, message.chain]
    elif isinstance(message, _WITH_STATE):
        hashes = [message.state_root]
    elif isinstance(message, Accuse):
        hashes = [message.proof_hash]
    else:
        hashes = [message.manifest_hash]
    if any(len(digest) != limits.HASH_BYTES for digest in hashes):
        raise RemoteFault("hash", f"{type(message).__name__} with a hash that is none")


def _check_ways(message: Places | Met | Carrying | Carried) -> None:
    """Check what a peer says of addresses and ways. Addresses that are good in one house only are
    told to nobody else (whereabouts.py)."""
    match message:
        case Places():
            is_well = len(message.places) <= limits.PLACES_MAX and all(
                map(_is_place, message.places)
            )
        case Met():
            is_named = message.way in set(Way) and len(message.peer) == limits.KEY_BYTES
            is_of_meeting = len(message.token) == TOKEN_BYTES and (is_named or not message.way)
            is_well = is_of_meeting or (is_named and not message.token and not message.is_up)
        case Carrying():
            counts = (message.bytes_per_s, message.bytes_left + 1)
            is_well = 1 <= message.port <= _PORT_MAX and all(map(_is_count, counts))
        case Carried():
            is_well = _is_count(message.num_bytes)
    if not is_well:
        raise RemoteFault("ways", f"{type(message).__name__} that cannot be one")


def _is_place(place: Place) -> bool:
    is_known = place.kind in _PLACES
    return is_known and is_dialable(place.host) and 1 <= place.port <= _PORT_MAX


def _is_count(number: int) -> bool:
    return 0 <= number <= limits.COUNT_MAX


def genesis_of(offer: Offer, block: int, layout: bytes = b"", root: bytes = b"") -> Attest:
    """Return op 0's ATTEST from the first peer's offer to a run that has no state.

    Args:
        layout: the only one that the run file allows, b"" where peers bring the model.
        root: the only one of the weights that the run begins with, b"" where that is not known.

    Raises:
        RemoteFault: reason ``offer``: another layout or root, or fragments that are no parts of
            the padded vector on whole blocks, or of it all if there are several.
    """
    if layout and offer.layout != layout:
        raise RemoteFault("offer", "a first state of another model than the run file names")
    if root and offer.state_root != root:
        raise RemoteFault("offer", "a first state of other weights than the run begins with")
    padded = -(-offer.num_values // block) * block
    are_whole = all(size > 0 and size % block == 0 for size in offer.fragments)
    # One that is shorter than the vector: what all need not tell each other to step alike.
    is_covered = sum(offer.fragments) == padded or (
        len(offer.fragments) == 1 and offer.fragments[0] < padded
    )
    if offer.fragments and not (are_whole and is_covered):
        raise RemoteFault("offer", f"fragments {offer.fragments[:8]} of {padded} values")
    return Attest(
        0, offer.state_root, offer.num_values, offer.layout, offer.fragments, group=offer.group
    )


def shown(text: str, chars_max: int) -> str:
    """Text of a peer, made harmless for a terminal: printable, on one line, cut."""
    return "".join(c if c.isprintable() else "?" for c in text[:chars_max])


def finite(value: float) -> float:
    """A number of a peer, 0 where it is none: JSON has no NaN."""
    return value if math.isfinite(value) else 0.0
