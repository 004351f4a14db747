"""Links of an emulation: their names, the relays that model them, and the system's own."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmtrain.compare.plan import NETS, Net
from swarmtrain.config.options import EmulateOptions
from swarmtrain.emulate.links import OPEN, ModelledLinks, in_words, parse_net
from swarmtrain.emulate.namespaces import Namespaces, NoNamespaces, _shaping
from swarmtrain.emulate.routers import parse_routers
from swarmtrain.foundation.errors import UserError
from swarmtrain.local_run.place import COORDINATOR
from swarmtrain_transport.credentials.invite import Invite


def test_links_have_names_or_figures():
    assert parse_net("dsl") == NETS["dsl"]
    assert parse_net("10/50:30") == Net(1.25e6, 6.25e6, 0.03)
    assert parse_net("2.5/20") == Net(312_500, 2.5e6, 0.0)
    assert in_words(NETS["dsl"]) == "10 Mbit/s up, 50 down, 50 ms there and back"


@pytest.mark.parametrize("text", ["isdn", "10", "10/", "0/50", "10/50:x", "10/50/3", "0.01/50"])
def test_what_is_no_link_is_refused(text):
    with pytest.raises(UserError, match="SWT-E610") as refused:
        parse_net(text)
    assert "dsl, mobile" in str(refused.value)


def test_peers_come_by_their_own_relays():
    links = ModelledLinks(NETS["dsl"], ("ann", "bob"))
    try:
        invite = Invite("127.0.0.1", 8400, "run", bytes(32), bytes(16))
        ports = {Invite.parse(links.invite(name, str(invite))).port for name in ("ann", "bob")}
        assert len(ports) == 2 and 8400 not in ports
        assert links.advertised("ann") != links.advertised("bob")
        assert links.caps() == ("1250.000kB", "")
    finally:
        links.close()
    links.close()


def test_a_delay_needs_netem_and_a_rate_alone_does_not():
    assert _shaping(0.0, 0.0) == ()
    assert _shaping(1.25e6, 0.0)[:3] == ("tbf", "rate", "10000000bit")
    words = _shaping(1.25e6, 0.0125)
    assert words[0] == "netem" and words[3:] == ("delay", "12.5ms", "rate", "10000000bit")
    assert _shaping(0.0, 0.0125)[3:] == ("delay", "12.5ms")


def test_routers_are_of_known_kinds_and_need_namespaces():
    assert parse_routers("") == ()
    assert parse_routers("restricted, symmetric") == ("restricted", "symmetric")
    with pytest.raises(UserError, match="SWT-E610") as refused:
        parse_routers("restricted,fritz")
    assert "none, cone" in str(refused.value)
    with pytest.raises(UserError, match="SWT-E610"):
        EmulateOptions(peers=2, links="modelled", routers="cone")


KNOCK = """
import socket, sys
one = socket.socket()
one.settimeout(1.0)
try:
    one.connect((sys.argv[1], int(sys.argv[2])))
    print(one.recv(40).decode())
except OSError as error:
    print(type(error).__name__)
"""

ANSWER = """
import socket
port = socket.create_server(("0.0.0.0", 9000))
print(flush=True)
while True:
    one, there = port.accept()
    one.sendall(there[0].encode())
    one.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_who_is_behind_a_router_gets_out_by_its_address_and_strangers_get_in_by_a_cone_alone():
    names = ("ann", "bob", "cat", "dan")
    kinds = ("cone", "restricted", "symmetric", "none")
    try:
        links = Namespaces(OPEN, names, kinds)
    except NoNamespaces as error:
        pytest.skip(str(error))
    with contextlib.ExitStack() as stack:
        stack.callback(links.close)
        python = (sys.executable, "-c")
        for name in (COORDINATOR, *names):
            words = (*links.where(name), *python, ANSWER)
            answers = stack.enter_context(
                subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(answers.kill)
            assert answers.stdout is not None and answers.stdout.readline()

        def said(name: str, host: str) -> str:
            words = (*links.where(name), *python, KNOCK, host, "9000")
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

        assert links.host("bob") == "0.0.0.0" and links.host("dan") == "44.128.77.5"
        assert [said(name, "44.128.77.1") for name in names] == [
            f"44.128.77.{number}" for number in (2, 3, 4, 5)
        ]
        into = [said("dan", f"44.128.77.{number}") for number in (2, 3, 4)]
        assert into == ["44.128.77.5", "TimeoutError", "TimeoutError"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_namespaces_are_made_and_removed():
    def ours() -> list[str]:
        spaces = Path("/run/netns")
        return [one.name for one in spaces.glob(f"swte{os.getpid()}-*")] if spaces.exists() else []

    try:
        links = Namespaces(Net(2.5e6, 2.5e6, 0.0), ("ann", "bob"))
    except NoNamespaces as error:
        assert ours() == []
        pytest.skip(str(error))
    assert len(ours()) == 4
    assert links.where("ann")[:3] == ("ip", "netns", "exec")
    assert len({links.host(name) for name in (COORDINATOR, "ann", "bob")}) == 3
    links.close()
    assert ours() == []
