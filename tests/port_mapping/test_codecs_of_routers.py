"""PCP and NAT-PMP: the bytes of the RFCs, and whatever else a router may say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain.port_mapping.answers import Granted, Refused, flaw, has_restarted, is_private
from swarmtrain.port_mapping.nat_pmp import NatPmp
from swarmtrain.port_mapping.pcp import Pcp
from tests.port_mapping.fake_router import FakeRouter

NONCE = bytes(range(12))
OWN, OWN_6 = "192.168.1.5", "2001:db8::5"


def pcp(own: str = OWN) -> Pcp:
    return Pcp(own, 9000, NONCE)


def test_a_pcp_request_is_that_of_the_rfc():
    (data,) = pcp().requests(None)
    assert data == (
        bytes.fromhex("0201000000000078") + bytes(10) + b"\xff\xff" + bytes((192, 168, 1, 5))
        + NONCE + bytes.fromhex("0600000023282328") + bytes(10) + b"\xff\xff" + bytes(4)
    )  # fmt: skip
    (again,) = pcp().requests(Granted("203.0.113.7", 9001, 120))
    assert again[:42] == data[:42] and again[42:44] == bytes.fromhex("2329")
    assert again[-4:] == bytes((203, 0, 113, 7))
    (removal,) = pcp().removals()
    assert removal[4:8] == bytes(4) and removal[24:36] == NONCE and removal[42:44] == bytes(2)


@pytest.mark.parametrize(("own", "host"), [(OWN, "203.0.113.7"), (OWN_6, "2001:db8::5")])
def test_a_pcp_answer_of_either_family_is_read(own, host):
    router = FakeRouter(host=host, port=9001)
    (answer,) = router.answers(*pcp(own).requests(None), 77.0)
    assert len(answer) == 60
    assert pcp(own).read(answer) == Granted(host, 9001, 120, 77)


def changed(place: int, value: int):
    return lambda answer: answer[:place] + bytes((value,)) + answer[place + 1 :]


@pytest.mark.parametrize(
    "spoils",
    [
        changed(1, 0x01),  # a request
        changed(1, 0x82),  # another operation
        changed(24, 99),  # another nonce
        changed(36, 17),  # UDP
        changed(41, 1),  # another port
        lambda answer: answer[:-4],
        lambda answer: answer + b"x",
        lambda answer: answer + bytes(1044),  # longer than any
        lambda answer: b"",
        lambda answer: answer[:4] + bytes(4) + answer[8:],  # of a removal
    ],
)
def test_what_answers_nothing_that_was_asked_is_passed_over(spoils):
    router = FakeRouter(spoils=spoils)
    (answer,) = router.answers(*pcp().requests(None), 1.0)
    assert pcp().read(answer) is None


@pytest.mark.parametrize(("code", "word"), [(2, "allow"), (8, "room"), (12, "VPN"), (200, "200")])
def test_a_refusal_of_pcp_is_told_in_words(code, word):
    (answer,) = FakeRouter(result=code).answers(*pcp().requests(None), 1.0)
    for data in (answer, answer[:24]):
        refused = pcp().read(data)
        assert isinstance(refused, Refused) and word in refused.why


def test_a_router_that_knows_nat_pmp_alone_says_so_to_pcp():
    (answer,) = FakeRouter(speaks=("nat-pmp",)).answers(*pcp().requests(None), 1.0)
    assert isinstance(pcp().read(answer), Refused)


def test_nat_pmp_takes_address_and_port_in_either_order():
    for turn in (1, -1):
        codec = NatPmp(9000)
        requests = codec.requests(None)
        assert requests == (b"\0\0", bytes.fromhex("000200002328232800000078"))
        router = FakeRouter(port=9001)
        first, second = [one for data in requests[::turn] for one in router.answers(data, 7.0)]
        assert codec.read(first) is None
        assert codec.read(first) is None
        assert codec.read(second) == Granted("203.0.113.7", 9001, 120, 7)
    assert NatPmp(9000).removals() == (bytes.fromhex("000200002328000000000000"),)


def test_nat_pmp_passes_over_what_it_did_not_ask_and_tells_refusals():
    codec = NatPmp(9000)
    codec.requests(None)
    for data in (b"", b"\0\x80", bytes(12), b"\0\x82" + bytes(10), b"\2\x80" + bytes(10)):
        assert codec.read(data) is None
    refused = codec.read(bytes.fromhex("0080000300000001"))
    assert refused == Refused("the router has no connection itself")


@given(st.binary(max_size=70) | st.binary(min_size=22, max_size=70).map(lambda b: b"\2\x81" + b))
def test_no_bytes_of_a_router_harm_the_codecs(data):
    for codec in (pcp(), pcp(OWN_6), NatPmp(9000)):
        assert isinstance(codec.read(data), Granted | Refused | None)


@pytest.mark.parametrize(
    ("host", "word"),
    [
        ("192.168.0.2", "behind another"), ("10.1.2.3", "behind another"),
        ("100.64.3.4", "behind another"), ("192.0.0.2", "behind another"),
        ("fd00::1", "behind another"), ("0.0.0.0", "nobody"), ("127.0.0.1", "nobody"),
        ("224.0.0.1", "nobody"), ("255.255.255.255", "nobody"), ("::", "nobody"),
        ("router.example", "no address"), ("203.0.113.7", ""), ("2001:db8::1", ""),
    ],
)  # fmt: skip
def test_an_address_that_nobody_can_dial_is_of_no_use(host, word):
    assert word in flaw(host, 9000) and bool(word) == bool(flaw(host, 9000))
    assert is_private(host) == (word == "behind another")
    assert flaw("203.0.113.7", 0)


@pytest.mark.parametrize(
    ("age_s", "is_anew"),
    [(160, False), (155, False), (100, True), (3, True), (4_000_000_000, True)],
)
def test_a_restart_shows_in_the_age_of_the_routers_table(age_s, is_anew):
    before, after = Granted("h", 1, 120, 100), Granted("h", 1, 120, age_s)
    assert has_restarted(before, 1000.0, after, 1060.0) is is_anew
    assert not has_restarted(Granted("h", 1, 120), 0.0, after, 60.0)
