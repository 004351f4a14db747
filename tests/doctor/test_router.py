"""The router's answer to a question that asks it for nothing."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from swarmtrain.doctor import router as routers
from swarmtrain.doctor.router import Router, ask, understood
from swarmtrain.port_mapping.gateway import Gateway

ADDRESS = bytes.fromhex("0080000000000001cb007107")
HOST = "127.0.0.1"


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[Gateway, list[bytes]]]:
    """A router that has one answer for each time that it is asked, b"" for none."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind((HOST, 0))

        def serve() -> None:
            for answer in answers:
                data, sender = line.recvfrom(2048)
                asked.append(data)
                if answer:
                    line.sendto(answer, sender)

        serving = threading.Thread(target=serve)
        serving.start()
        yield Gateway(HOST, HOST, port=line.getsockname()[1]), asked
        serving.join(5.0)


def test_nat_pmp_tells_the_address_outside_and_is_asked_again_if_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routers, "ASKED_S", (0.02, 5.0))
    with answering(b"", ADDRESS) as (gateway, asked):
        assert ask(gateway) == Router(HOST, "NAT-PMP", "203.0.113.7")
    assert asked == [bytes(2), bytes(2)]


def test_nobody_who_answers_is_a_router_that_speaks_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routers, "ASKED_S", (0.02, 0.02))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind((HOST, 0))
        port = nobody.getsockname()[1]
        assert ask(Gateway(HOST, HOST, port=port)) == Router(HOST)
    assert ask(Gateway(HOST, HOST, port=port)) == Router(HOST)


@pytest.mark.parametrize(
    ("data", "speaks", "external"),
    [
        (ADDRESS, "NAT-PMP", "203.0.113.7"),
        (bytes.fromhex("0080000300000001cb007107"), "NAT-PMP", ""),
        (bytes.fromhex("0080000100000001"), "NAT-PMP", ""),
        (bytes.fromhex("0281000100000000") + bytes(16), "PCP", ""),
        (b"", "", ""),
        (b"HTTP/1.1 400 Bad Request", "", ""),
        (bytes(12), "", ""),
        (bytes(1100), "", ""),
    ],
)
def test_each_answer_is_understood_as_far_as_it_goes(
    data: bytes, speaks: str, external: str
) -> None:
    assert understood(HOST, data) == Router(HOST, speaks, external)
