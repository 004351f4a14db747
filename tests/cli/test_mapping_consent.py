"""Whether a router may be asked: an option says so, or whoever sits there, once."""

import pytest

from swarmtrain.cli import mapping
from swarmtrain.cli.up import from_elsewhere
from swarmtrain.config.options import Endpoint, UpOptions
from swarmtrain.foundation import dirs
from swarmtrain.foundation.errors import UserError
from swarmtrain_transport.credentials.invite import Invite


@pytest.fixture
def answers(monkeypatch, tmp_path):
    """Answers that somebody will give; the place where one is kept is the test's own."""
    given: list[bool] = []
    monkeypatch.setattr(mapping.typer, "confirm", lambda *_, **__: given.pop(0))
    monkeypatch.setattr(dirs, "mapping_consent", lambda: tmp_path / "config" / "map-ports")
    return given


def may(wish: bool | None = None, at: str = "0.0.0.0", **more: bool) -> bool:
    return mapping.may_map(wish, at, **{"is_useful": True, "asks": True, **more})


@pytest.mark.parametrize("answer", [True, False])
def test_the_question_is_put_once(answers, answer):
    answers.append(answer)
    assert may() is answer
    assert may() is answer and may(asks=False) is answer
    assert may(not answer) is not answer
    assert may() is answer


def test_nobody_is_asked_where_nobody_sits_or_nothing_is_gained(answers):
    assert not may(asks=False) and not may(is_useful=False)
    assert may(wish=True, is_useful=False) and may(wish=True, asks=False)
    assert not may(at="127.0.0.1") and not may(wish=False, at="::1")


def test_a_port_of_loopback_cannot_be_mapped(answers):
    with pytest.raises(UserError) as caught:
        may(wish=True, at="127.0.0.1")
    assert caught.value.code == "SWT-E610" and "--listen" in caught.value.remedy


def test_a_kept_answer_that_makes_no_sense_is_none(answers):
    file = dirs.mapping_consent()
    file.parent.mkdir()
    file.write_text("perhaps\n")
    answers.append(True)
    assert may() and file.read_text() == "yes\n"
    file.unlink()
    file.mkdir()  # cannot be kept
    answers.append(False)
    assert not may()


@pytest.mark.parametrize(("maps", "is_advised"), [(False, True), (True, False)])
def test_a_private_invite_says_what_others_need(maps, is_advised, tmp_path):
    options = UpOptions(
        tmp_path, Endpoint("0.0.0.0", 8400), "", None, json_events=False, maps=maps
    )  # fmt: skip
    said = from_elsewhere(options, Invite("192.168.1.5", 8400, "tiny", bytes(32), bytes(16)))
    assert "192.168.1.5" in said and "--public-host and --public-port" in said
    assert ("--map," in said) is is_advised
