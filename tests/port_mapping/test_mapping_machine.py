"""One mapping under a virtual clock: each way in its time, whatever the router does."""

import dataclasses
import random

import pytest

from swarmtrain.port_mapping.answers import Granted, Refused
from swarmtrain.port_mapping.machine import (
    AGAIN_S,
    EMPTY_AGAIN_S,
    Actions,
    MapByUpnp,
    Mapping,
    MappingProtocol,
    Send,
    UnmapByUpnp,
)
from swarmtrain.port_mapping.nat_pmp import NatPmp
from swarmtrain.port_mapping.pcp import Pcp
from tests.port_mapping.fake_router import PUBLIC, FakeRouter

BY_UPNP = Granted("203.0.113.8", 9000, 600)
DECIDED_S = 60.0


class Home:
    """A mapping, the router that it asks, and the time."""

    def __init__(self, router: FakeRouter, upnp: Granted | Refused | None = None) -> None:
        self.router, self.upnp, self.now_s = router, upnp, 1000.0
        self.unmapped: list[Granted] = []
        exchanges = {
            MappingProtocol.PCP: Pcp("192.168.1.5", 9000, bytes(12)),
            MappingProtocol.NAT_PMP: NatPmp(9000), MappingProtocol.UPNP: None,
        }  # fmt: skip
        self.mapping = Mapping(exchanges, random.Random(7))
        router.begun_s = 500.0

    def start(self) -> "Home":
        self.do(self.mapping.start(self.now_s))
        return self

    def do(self, actions: Actions) -> None:
        for action in actions:
            match action:
                case Send():
                    for data in self.router.answers(action.data, self.now_s):
                        self.do(self.mapping.heard(data, self.now_s))
                case MapByUpnp():
                    if self.upnp is not None:
                        self.do(self.mapping.answered(self.upnp, self.now_s))
                case UnmapByUpnp():
                    self.unmapped.append(action.granted)

    def passes(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.mapping.next_wakeup_s <= end_s:
            self.now_s = self.mapping.next_wakeup_s
            self.do(self.mapping.tick(self.now_s))
        self.now_s = end_s

    def told(self, is_open: bool | None) -> None:
        self.do(self.mapping.told(is_open, self.now_s))

    @property
    def place(self) -> tuple[str, int] | None:
        granted = self.mapping.granted
        return None if granted is None else (granted.host, granted.port)


def test_pcp_is_asked_first_and_renewed_while_it_lasts():
    home = Home(FakeRouter(port=9001)).start()
    assert home.place == (PUBLIC, 9001) and home.router.asked == ["pcp"]
    home.passes(600.0)
    assert home.place == (PUBLIC, 9001) and set(home.router.asked) == {"pcp"}
    assert len(home.router.asked) == 1 + 600 // 45


@pytest.mark.parametrize(
    ("lifetime_s", "pause_s"), [(60, 30.0), (1, 10.0), (7200, 45.0), (2**32 - 1, 45.0)]
)
def test_it_is_renewed_at_half_of_a_lifetime_within_reason(lifetime_s, pause_s):
    home = Home(FakeRouter(lifetime_s=lifetime_s)).start()
    assert home.mapping.next_wakeup_s == home.now_s + pause_s


def garbage(answer: bytes) -> bytes:
    return bytes(reversed(answer))


@pytest.mark.parametrize(
    "router",
    [
        FakeRouter(speaks=()),
        FakeRouter(result=2),
        FakeRouter(host="100.64.0.9"),
        FakeRouter(spoils=garbage),
        FakeRouter(spoils=lambda answer: answer * 20_000),
        FakeRouter(spoils=lambda answer: b""),
        FakeRouter(lifetime_s=0),
    ],
    ids=["silent", "refuses", "behind another", "garbage", "megabytes", "nothing", "no time"],
)
def test_whatever_a_router_does_the_next_way_is_there_within_a_minute(router):
    home = Home(dataclasses.replace(router), BY_UPNP).start()
    home.passes(DECIDED_S)
    assert home.place == (BY_UPNP.host, 9000)
    assert set(home.router.asked) == {"pcp", "nat-pmp"}


def test_a_router_that_knows_nat_pmp_alone_is_asked_so_at_once():
    home = Home(FakeRouter(speaks=("nat-pmp",))).start()
    assert home.place == (PUBLIC, 9000)


def test_other_nonces_are_passed_over_until_the_true_one_comes():
    def other(answer: bytes) -> bytes:
        return answer[:24] + b"x" * 12 + answer[36:]

    home = Home(FakeRouter(spoils=other)).start()
    home.router.spoils = lambda answer: answer
    assert home.place is None
    home.passes(4.0)
    assert home.place == (PUBLIC, 9000) and home.router.asked == ["pcp", "pcp"]


def test_all_is_decided_within_a_minute_and_tried_again_later():
    home = Home(FakeRouter(speaks=())).start()
    home.passes(DECIDED_S)
    assert not home.mapping.is_asking and home.place is None
    assert home.mapping.why == "PCP, NAT-PMP, UPnP: no answer"
    home.router.speaks = ("pcp",)
    home.passes(AGAIN_S)
    assert home.place == (PUBLIC, 9000) and home.mapping.why == ""


def test_a_port_that_nobody_gets_through_is_an_empty_promise():
    home = Home(FakeRouter(), BY_UPNP).start()
    home.told(None)
    assert home.router.asked == ["pcp"]
    home.told(False)
    assert home.router.asked == ["pcp", "pcp", "nat-pmp", "nat-pmp"]  # given back, then asked
    home.told(False)
    assert home.place == (BY_UPNP.host, 9000) and not home.router.mapped
    home.told(False)
    assert home.place is None and home.unmapped == [BY_UPNP]
    assert home.mapping.why.startswith("PCP, NAT-PMP, UPnP: the router says")
    asked = len(home.router.asked)
    home.passes(EMPTY_AGAIN_S - 1)
    assert len(home.router.asked) == asked


def test_a_port_that_was_open_was_forgotten_and_is_asked_for_again():
    home = Home(FakeRouter(), BY_UPNP).start()
    home.told(True)
    home.told(False)
    assert home.router.asked == ["pcp", "pcp"] and home.place == (PUBLIC, 9000)
    home.told(False)
    assert home.router.asked[-1] == "nat-pmp"


def test_a_restart_is_noticed_and_the_port_mapped_anew_within_a_minute():
    home = Home(FakeRouter()).start()
    home.told(True)
    home.passes(10.0)
    home.router.begun_s, home.router.port, home.router.host = home.now_s, 9005, "203.0.113.9"
    home.router.mapped.clear()
    home.passes(50.0)
    assert home.place == ("203.0.113.9", 9005) and home.mapping.restarts == 1
    assert home.router.mapped == {9000: 9005}
    home.passes(300.0)
    assert home.mapping.restarts == 1


@pytest.mark.parametrize("speaks", [("nat-pmp",), ()])
def test_another_router_in_its_place_is_asked_from_the_beginning(speaks):
    home = Home(FakeRouter(), BY_UPNP).start()
    home.passes(10.0)
    home.router.speaks = speaks
    home.passes(45.0 + 43.0)
    assert home.place == ((PUBLIC, 9000) if speaks else (BY_UPNP.host, 9000))


def test_a_lost_datagram_costs_no_port():
    home = Home(FakeRouter()).start()
    home.router.spoils = lambda answer: b""
    home.passes(46.0)
    home.router.spoils = lambda answer: answer
    home.passes(10.0)
    assert home.place == (PUBLIC, 9000) and set(home.router.asked) == {"pcp"}


def test_nobody_at_the_routers_port_is_known_at_once():
    home = Home(FakeRouter(speaks=()), BY_UPNP).start()
    home.do(home.mapping.unreachable(home.now_s))
    home.do(home.mapping.unreachable(home.now_s))
    assert home.place == (BY_UPNP.host, 9000)
    home.do(home.mapping.unreachable(home.now_s))
    assert home.place == (BY_UPNP.host, 9000)


def test_upnp_that_says_nothing_is_given_up_and_late_words_change_nothing():
    home = Home(FakeRouter(speaks=())).start()
    home.passes(DECIDED_S)
    home.do(home.mapping.answered(BY_UPNP, home.now_s))
    assert home.place is None


@pytest.mark.parametrize("router", [FakeRouter(), FakeRouter(speaks=("nat-pmp",))])
def test_whoever_leaves_gives_the_port_back(router):
    home = Home(router).start()
    assert router.mapped
    home.do(home.mapping.leave())
    assert home.place is None and not router.mapped
    home.passes(10_000.0)
    assert not router.mapped


def test_upnp_gives_its_port_back_too():
    home = Home(FakeRouter(speaks=()), BY_UPNP).start()
    home.passes(DECIDED_S)
    home.do(home.mapping.leave())
    assert home.unmapped == [BY_UPNP]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_machine_goes_on_and_decides(seed):
    rng = random.Random(seed)
    home = Home(FakeRouter(), BY_UPNP).start()
    for _ in range(200):
        home.router.speaks = rng.choice([(), ("pcp",), ("nat-pmp",), ("pcp", "nat-pmp")])
        home.router.result = rng.choice([0, 0, 0, 2, 8])
        home.router.host = rng.choice([PUBLIC, PUBLIC, "10.0.0.1"])
        home.upnp = rng.choice([BY_UPNP, Refused("no"), None])
        event = rng.randrange(4)
        if event == 0:
            home.told(rng.choice([True, False, None]))
        elif event == 1:
            home.do(home.mapping.unreachable(home.now_s))
        elif event == 2:
            home.do(home.mapping.heard(rng.randbytes(60), home.now_s))
        home.passes(rng.choice([0.0, 1.0, 60.0]))
        assert home.mapping.next_wakeup_s > home.now_s
    home.passes(DECIDED_S)
    assert home.place is not None or home.mapping.why or home.mapping.is_asking
