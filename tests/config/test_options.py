"""Options that the command line accepts, before anything heavy is loaded."""

import pytest

from swarmtrain.config import caps, options
from swarmtrain.foundation.errors import UserError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8400", "127.0.0.1", 8400),
        ("[::1]:0", "::1", 0),
        ("train.example.org:65535", "train.example.org", 65535),
    ],
)
def test_an_address_is_host_and_port_and_prints_as_it_was_given(text, host, port):
    endpoint = options.parse_endpoint(text)
    assert (endpoint.host, endpoint.port, str(endpoint)) == (host, port, text)


@pytest.mark.parametrize(
    "text",
    ["", "8400", ":8400", "host", "host:", "host:x", "host:65536", "::1:80", "a b:1", "a/b:1"],
)
def test_what_is_no_address_is_told_with_an_example(text):
    with pytest.raises(UserError) as caught:
        options.parse_endpoint(text)
    assert (caught.value.code, caught.value.exit_status) == ("SWT-E611", 2)


@pytest.mark.parametrize("name", ["../x", "a b", "-a", "x" * 65, "\x1b[31m"])
def test_a_peer_name_is_safe_as_a_directory(name):
    with pytest.raises(UserError) as caught:
        options.check_name(name)
    assert "\x1b" not in caught.value.what
    assert options.check_name("quiet-otter_2") == "quiet-otter_2"
    assert options.check_name("") == ""


def test_a_public_host_is_one_that_invites_can_carry():
    assert options.check_host("train.example.org") == "train.example.org"
    assert options.check_host("") == ""
    with pytest.raises(UserError) as caught:
        options.check_host("train.example.org:8400")
    assert caught.value.code == "SWT-E611"


def demo(peers: int, rounds: int, churn: bool) -> options.DemoOptions:
    return options.DemoOptions(
        peers=peers, rounds=rounds, seed=0, churn=churn, json=False, state_dir=None
    )


def test_churn_needs_three_peers_and_five_rounds():
    assert demo(3, 5, churn=True).churn
    assert not demo(1, 1, churn=False).churn
    for peers, rounds in ((2, 8), (4, 4)):
        with pytest.raises(UserError) as caught:
            demo(peers, rounds, churn=True)
        assert (caught.value.code, caught.value.exit_status) == ("SWT-E610", 2)
        assert "--no-churn" in caught.value.remedy


def test_an_advertised_address_is_one_that_others_can_dial():
    assert str(options.parse_advertised("home.example.org:9000")) == "home.example.org:9000"
    for text in ("home.example.org:0", "0.0.0.0:9000", "[::]:9000", "nothing"):
        with pytest.raises(UserError) as caught:
            options.parse_advertised(text)
        assert caught.value.code == "SWT-E611"


def test_a_span_is_two_stages_or_one():
    assert [options.parse_span(text) for text in ("1-2", " 0", "7-7")] == [
        range(1, 3),
        range(1),
        range(7, 8),
    ]
    for text in ("", "2-1", "-1", "a-b", "1-", "0-256", "1-2-3", "0.5"):
        with pytest.raises(UserError) as caught:
            options.parse_span(text)
        assert caught.value.code == "SWT-E610" and "--span 1-2" in caught.value.remedy


def test_a_length_of_time_is_seconds_minutes_or_hours():
    found = [options.parse_duration(text) for text in ("90", "1.5s", "10m", "2h", "7d")]
    assert found == [90.0, 1.5, 600.0, 7200.0, 604_800.0]
    for text in ("", "0s", "ten", "-5s", "5w", "1e9"):
        with pytest.raises(UserError) as caught:
            options.parse_duration(text)
        assert caught.value.code == "SWT-E610"


@pytest.mark.parametrize(
    ("text", "rate"),
    [("", 0), ("10mbit", 1_250_000), ("5 Mbit/s", 625_000), ("2MB/s", 2_000_000),
     ("0.5 Gbit/s", 62_500_000), ("64kB/s", 64_000), ("64KB", 64_000),
     ("10Mbit", 1_250_000), ("2MBps", 2_000_000)],
)  # fmt: skip
def test_a_rate_is_a_number_with_its_unit(text, rate):
    assert caps.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["10", "0mbit", "mbit", "-5mbit", "5 miles", "1kbit", "1e9mb"])
def test_a_rate_without_unit_or_too_small_is_refused(text):
    with pytest.raises(UserError) as caught:
        caps.parse_rate(text)
    assert caught.value.code == "SWT-E610"


@pytest.mark.parametrize("text", ["10 mb", "10mb", "10Mb/s", "10Mbps", "10mbps"])
def test_a_rate_that_may_be_bits_or_bytes_is_refused_with_both_ways_to_write_it(text):
    with pytest.raises(UserError) as caught:
        caps.parse_caps(text, "", "")
    assert "bits or bytes" in caught.value.what
    assert "10mbit" in caught.value.remedy and "10MB" in caught.value.remedy
    with pytest.raises(UserError):
        caps.parse_caps("", text, "")


def test_a_size_is_a_number_with_its_unit():
    assert (caps.parse_size("20GB"), caps.parse_size("1.5 MB"), caps.parse_size("")) == (
        20_000_000_000, 1_500_000, 0,
    )  # fmt: skip
    for text in ("20", "20 gigs", "0MB", "5mbit"):
        with pytest.raises(UserError):
            caps.parse_size(text)


def test_room_on_the_disk_may_be_none_at_all() -> None:
    assert [options.parse_room(text) for text in ("0", " 2GB")] == [0, 2 * 10**9]
    with pytest.raises(UserError, match="not an amount of data"):
        options.parse_room("-1GB")
