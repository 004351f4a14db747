"""Errors as people see them."""

import errno
import importlib
import pickle

import pytest

from swarmtrain.foundation import errors
from swarmtrain.foundation.error_table import TABLE
from swarmtrain.foundation.errors import UserError, render, translate
from swarmtrain_transport.errors import (
    InviteError,
    LinkLost,
    ListenFailed,
    LocalFault,
    PortInUse,
    RemoteFault,
)

DOCUMENTED = {1, 2, 65, 66, 69, 73, 75, 76, 77, 78}


@pytest.mark.parametrize("code", TABLE)
def test_every_id_has_a_documented_status_and_an_explanation(code):
    kind = TABLE[code]
    assert kind.exit_status in DOCUMENTED
    assert kind.title[0].isupper()
    assert not kind.title.endswith(".")
    assert kind.explanation.endswith(".")
    assert max(len(line) for line in kind.explanation.splitlines()) <= 95


def test_ids_are_unique_and_in_order():
    assert list(TABLE) == sorted(set(TABLE))


def test_every_documented_status_has_an_id():
    assert {kind.exit_status for kind in TABLE.values()} == DOCUMENTED


def test_an_id_outside_the_table_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="SWT-E999"):
        UserError("SWT-E999", "odd")


def test_an_error_reads_as_fact_meaning_remedy_and_status():
    error = UserError("SWT-E203", "It did not answer.", "The run may be down.", "Try later.")
    assert render(error) == (
        "SWT-E203  It did not answer.\n"
        "          The run may be down.\n"
        "          Try later.   [exit 69]"
    )


def test_a_traceback_or_a_log_shows_id_fact_meaning_and_remedy():
    error = UserError("SWT-E203", "Nobody answers.", "Nothing is lost.", "Try again.")
    assert str(error) == "SWT-E203: Nobody answers. Nothing is lost. Try again."
    assert str(UserError("SWT-E203", "Nobody answers.")) == "SWT-E203: Nobody answers."


def test_an_error_without_words_shows_its_title():
    assert render(UserError("SWT-E701", "")) == "SWT-E701  The run is full   [exit 75]"


def test_text_of_others_is_cut_and_made_printable():
    text = errors.cleaned("a\x1b[31m\nb\u202e" + "x" * 1000)
    assert len(text) <= errors.FOREIGN_TEXT_CHARS_MAX
    assert text.isprintable()


def test_a_refusal_with_a_known_id_keeps_its_status():
    error = errors.refused("SWT-E311", "All 5 uses of this invite are taken.")
    assert (error.code, error.exit_status) == ("SWT-E311", 77)
    assert "Ask for a new one" in render(error)


def test_a_refusal_with_an_unknown_id_is_the_other_sides_fault():
    error = errors.refused("SWT-E999\x00", "because")
    assert error.code == "SWT-E501"
    assert "because" in error.what


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (InviteError("The invite is cut off."), "SWT-E312"),
        (LinkLost("gone"), "SWT-E203"),
        (ListenFailed("192.0.2.1", 0, "not an address here"), "SWT-E202"),
        (PortInUse("127.0.0.1", 8400, "taken"), "SWT-E201"),
        (RemoteFault("scale", "exponent 300"), "SWT-E501"),
        (RemoteFault("snapshot", "SNAPSHOT 4 is of another history"), "SWT-E562"),
        (OSError(errno.ENOSPC, "No space left", "file"), "SWT-E401"),
        (OSError(errno.EADDRINUSE, "in use"), "SWT-E201"),
        (OSError(errno.EADDRNOTAVAIL, "not ours"), "SWT-E202"),
        (PermissionError(errno.EACCES, "Permission denied", "file"), "SWT-E403"),
    ],
)
def test_faults_of_other_parts_get_their_id(fault, code):
    error = translate(fault)
    assert error is not None
    assert error.code == code


@pytest.mark.parametrize("name", errors.NAMED)
def test_errors_that_are_known_by_name_exist_and_keep_their_words(name):
    pytest.importorskip("torch")
    module, _, kind = name.rpartition(".")
    fault = getattr(importlib.import_module(module), kind)("the file is cut off")
    error = translate(fault)
    assert error is not None
    assert error.code == errors.NAMED[name]
    assert error.what == "The file is cut off."


def test_a_full_disk_at_the_coordinator_has_its_own_words():
    error = translate(OSError(errno.EDQUOT, "Quota", "log"), at_coordinator=True)
    assert error is not None
    assert (error.code, error.exit_status) == ("SWT-E402", 73)


@pytest.mark.parametrize("fault", [LocalFault("misused"), KeyError("x"), OSError(5, "IO")])
def test_bugs_are_not_dressed_up(fault):
    assert translate(fault) is None


def test_a_cause_is_found_through_groups_and_chains():
    outer = RuntimeError("task failed")
    outer.__cause__ = ExceptionGroup("tasks", [KeyError("x"), OSError(errno.ENOSPC, "full", "f")])
    error = translate(outer)
    assert error is not None
    assert error.code == "SWT-E401"


def test_an_error_of_another_process_comes_whole():
    error = UserError("SWT-E610", "This is odd.", "It means nothing.", "Leave it.")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code) == (str(error), "SWT-E610")


@pytest.mark.parametrize(
    "fault",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_memory_that_ran_out_is_no_bug(fault):
    error = translate(fault)
    assert error is not None and error.code == "SWT-E407" and "--span" in render(error)
    assert translate(RuntimeError("something else")) is None
