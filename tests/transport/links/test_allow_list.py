"""Admission to the data lane, and answers to ZAP: the rules of both links, without sockets."""

import pytest

from swarmtrain_transport import limits
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.links.allow_list import ZAP_DOMAIN, AllowList
from swarmtrain_transport.links.link import Address
from swarmtrain_transport.links.reception import Reception
from tests.transport.links.link_rig import (
    Recorder,
    identity_of,
)


def allowing(*names: str) -> AllowList:
    listed = AllowList(b"self")
    for name in names:
        one = identity_of(name)
        listed.admit(Address(one.peer_id, one.curve_key, "127.0.0.1", 4000))
    return listed


def request_of(name: str, **changes: bytes) -> list[bytes]:
    fields = {
        "version": b"1.0",
        "request": b"1",
        "domain": ZAP_DOMAIN,
        "address": b"127.0.0.1",
        "routing": b"",
        "mechanism": b"CURVE",
        "key": identity_of(name).curve_key,
    }
    return list((fields | changes).values())


def test_zap_answers_an_allowed_key_with_that_key_as_user_id() -> None:
    reply, refusal = allowing("ada").zap_reply(request_of("ada"))
    key = identity_of("ada").curve_key.hex().encode()
    assert reply == [b"1.0", b"1", b"200", b"", key, b""]
    assert refusal is None


@pytest.mark.parametrize(
    "changes",
    [
        {"version": b"2.0"},
        {"domain": b""},
        {"domain": b"*"},
        {"domain": b"global"},
        {"mechanism": b"NULL"},
        {"mechanism": b"PLAIN"},
        {"key": b""},
        {"key": bytes(32)},
        {"key": identity_of("mallory").curve_key},
        {"more": b"field"},
    ],
)
def test_zap_refuses_whatever_else_it_is_asked(changes: dict[str, bytes]) -> None:
    reply, refusal = allowing("ada").zap_reply(request_of("ada", **changes))
    assert reply[2] == b"400" and reply[4] == b""
    assert refusal is not None and refusal.reason == "key"


@pytest.mark.parametrize("length", range(7))
def test_zap_refuses_a_question_that_is_cut_off(length: int) -> None:
    reply, refusal = allowing("ada").zap_reply(request_of("ada")[:length])
    assert reply[2] == b"400" and refusal is not None


def test_a_flood_of_unknown_keys_is_counted_in_full_and_reported_in_part() -> None:
    heard = Recorder()
    reception = Reception(b"self", heard)
    for _ in range(1000):
        reception.refuse_handshake(RemoteFault("key", "unknown"), now_s=5.25)
    assert reception.stats.refused == {"key": 1000}
    assert len(heard.faults) == limits.UNKNOWN_HANDSHAKES_PER_S
    reception.refuse_handshake(RemoteFault("key", "unknown"), now_s=6.0)
    assert len(heard.faults) == limits.UNKNOWN_HANDSHAKES_PER_S + 1
