"""Invites as people handle them: printed, wrapped, cut, mistyped, pasted into the wrong place."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmtrain_transport.credentials.invite import PORT_DEFAULT, Invite
from swarmtrain_transport.errors import InviteError, LocalFault

CERT = bytes(range(32))
SECRET = bytes(range(100, 116))
PLAIN = Invite("10.0.0.7", 8400, "tiny-python", CERT, SECRET)
TEXT = (
    "swarm://10.0.0.7:8400/tiny-python#"
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9kZWZnaGlqa2xtbm9wcXJzNXI"
)
BODY, FRAGMENT = TEXT.split("#")

HOSTS = st.one_of(
    st.text("ab09-.", max_size=20).map(lambda middle: f"a{middle}z"),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)


def test_the_text_form_is_fixed() -> None:
    assert str(PLAIN) == TEXT
    assert Invite.parse(TEXT) == PLAIN


@given(
    host=HOSTS,
    port=st.integers(1, 65535),
    run=st.text("aZ0._-", max_size=63).map(lambda rest: f"r{rest}"),
    cert=st.binary(min_size=32, max_size=32),
    secret=st.binary(min_size=16, max_size=16),
)
def test_every_invite_reads_back_as_itself(
    host: str, port: int, run: str, cert: bytes, secret: bytes
) -> None:
    invite = Invite(host, port, run, cert, secret)
    assert Invite.parse(str(invite)) == invite
    assert str(Invite.parse(str(invite))) == str(invite)


def test_an_ipv6_host_stands_in_brackets() -> None:
    invite = Invite("fe80::1", 8400, "tiny", CERT, SECRET)
    assert str(invite).startswith("swarm://[fe80::1]:8400/tiny#")
    assert Invite.parse(str(invite)).host == "fe80::1"


@pytest.mark.parametrize(
    "text",
    [
        f"  {TEXT}\n",
        f'"{TEXT}"',
        f"<{TEXT}>",
        f"`{TEXT}`",
        TEXT[:40] + "\n" + TEXT[40:],
        TEXT[:40] + "\r\n   " + TEXT[40:],
        TEXT.replace("swarm://", "SWARM://"),
        TEXT.replace(":8400", ""),
    ],
)
def test_what_mail_and_terminals_do_to_an_invite_does_not_matter(text: str) -> None:
    assert Invite.parse(text) == PLAIN
    assert PORT_DEFAULT == 8400


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   \n ", "empty"),
        ("hello", "not an invite"),
        (FRAGMENT, "not an invite"),
        ("https://example.org/run#x", "'https' address"),
        ("swarm:/10.0.0.7:8400/run#x", "not an invite"),
        (BODY, "secret"),
        (BODY + "#", "secret"),
        (TEXT[:-1], "cut off"),
        (TEXT[:-30], "cut off: 37 of 67"),
        (TEXT + "AA", "copied along"),
        (BODY + "#" + "!" * 67, "characters that no invite has"),
        (BODY + "#" + "\u00e9" * 67, "characters that no invite has"),
        (BODY + "#" + "=" * 67, "characters that no invite has"),
        (TEXT.replace("AAEC", "AAED"), "checksum"),
        (TEXT.replace("/tiny-python", "/other"), "checksum is wrong: .* the run's name"),
        (TEXT.replace(":8400", ":0"), "port"),
        (TEXT.replace(":8400", ":99999"), "port"),
        (TEXT.replace(":8400", ":"), "port"),
        (TEXT.replace(":8400", ":84OO"), "port"),
        (TEXT.replace(":8400", ":8400:1"), "port"),
        (TEXT.replace(":8400", ":\u0668\u0664"), "port"),
        (TEXT.replace("10.0.0.7", ""), "host name"),
        (TEXT.replace("10.0.0.7", "a/b"), "run"),
        (TEXT.replace("10.0.0.7", "user@host"), "host name"),
        (TEXT.replace("10.0.0.7", "-x"), "host name"),
        (TEXT.replace("10.0.0.7", "[::1"), "host:port"),
        (TEXT.replace("10.0.0.7", "[zz]"), "host name"),
        (TEXT.replace("10.0.0.7", "[fe80::1%eth0]"), "host name"),
        (TEXT.replace("/tiny-python", ""), "names no run"),
        (TEXT.replace("/tiny-python", "/"), "names no run"),
        (TEXT.replace("/tiny-python", "/../etc"), "names no run"),
        ("swarm://" + "a" * 2000, "far more"),
    ],
)
def test_what_is_wrong_is_said_in_words(text: str, words: str) -> None:
    with pytest.raises(InviteError, match=words):
        Invite.parse(text)


@given(text=st.text(max_size=120))
def test_any_text_is_an_invite_or_an_invite_error(text: str) -> None:
    for candidate in (text, "swarm://" + text, f"{BODY}#{text}", f"swarm://h/{text}#{FRAGMENT}"):
        try:
            Invite.parse(candidate)
        except InviteError as error:
            assert str(error).isprintable() and len(str(error)) < 300


def test_one_wrong_character_in_the_secret_part_is_never_taken_for_an_invite() -> None:
    # Two bytes of checksum let one change in 65536 pass; none of these does.
    for index, right in enumerate(FRAGMENT):
        for wrong in set("ABCabc019-_") - {right}:
            with pytest.raises(InviteError):
                Invite.parse(f"{BODY}#{FRAGMENT[:index]}{wrong}{FRAGMENT[index + 1 :]}")


@given(cut=st.integers(0, len(TEXT) - 1))
def test_no_error_shows_any_part_of_the_secret(cut: int) -> None:
    for text in (TEXT[:cut], TEXT[cut:], TEXT[:cut] + "!" + TEXT[cut:]):
        try:
            Invite.parse(text)
        except InviteError as error:
            shown = str(error)
            pieces = [FRAGMENT[start : start + 6] for start in range(len(FRAGMENT) - 5)]
            assert not any(piece in shown for piece in pieces)


def test_secrets_are_not_shown_in_logs() -> None:
    assert repr(SECRET) not in repr(PLAIN) and SECRET.hex() not in repr(PLAIN)
    assert FRAGMENT not in repr(PLAIN)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("me.localhost", True),
        ("10.0.0.7", False),
        ("::2", False),
        ("localhost.example.org", False),
        ("127.example.org", False),
    ],
)
def test_an_invite_for_this_machine_only_knows_it(host: str, is_loopback: bool) -> None:
    assert Invite(host, 8400, "tiny", CERT, SECRET).is_loopback is is_loopback


@pytest.mark.parametrize(
    "make",
    [
        lambda: Invite("h", 8400, "tiny", CERT[:-1], SECRET),
        lambda: Invite("h", 8400, "tiny", CERT, SECRET + b"x"),
        lambda: Invite("", 8400, "tiny", CERT, SECRET),
        lambda: Invite("[::1]", 8400, "tiny", CERT, SECRET),
        lambda: Invite("a b", 8400, "tiny", CERT, SECRET),
        lambda: Invite("h", 0, "tiny", CERT, SECRET),
        lambda: Invite("h", 65536, "tiny", CERT, SECRET),
        lambda: Invite("h", 8400, "", CERT, SECRET),
        lambda: Invite("h", 8400, "a#b", CERT, SECRET),
    ],
)
def test_a_field_that_no_invite_can_carry_is_a_bug_of_ours(make: object) -> None:
    assert callable(make)
    with pytest.raises(LocalFault):
        make()


def test_an_invite_names_all_coordinators_of_a_run() -> None:
    invite = PLAIN.at(("one.example", 8400), ("::1", 9000), ("one.example", 8400))
    assert invite.addresses == (("one.example", 8400), ("::1", 9000))
    assert str(invite).startswith("swarm://one.example:8400,[::1]:9000/")
    assert Invite.parse(str(invite)) == invite
    assert Invite.parse(str(invite).replace(":8400,", ",")) == invite
    many = PLAIN.at(*((f"h{number}", 1) for number in range(9)))
    assert len(many.addresses) == 4 and Invite.parse(str(many)) == many


@pytest.mark.parametrize(
    ("authority", "words"),
    [
        ("one:1,two:99999", "port '99999'"),
        ("one:1,", "neither an IP address nor a host name"),
        (",one:1", "neither an IP address nor a host name"),
        ("a,b,c,d,e", "names 5 addresses"),
        ("one:1,[::1", "stands in brackets"),
    ],
)
def test_each_address_of_an_invite_is_checked(authority: str, words: str) -> None:
    text = str(PLAIN)
    start, end = len("swarm://"), text.index("/", len("swarm://"))
    with pytest.raises(InviteError, match=re.escape(words)):
        Invite.parse(text[:start] + authority + text[end:])
