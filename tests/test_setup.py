"""`make setup` heals what an earlier one left. Its Python is a shell script here: no downloads."""

import os
import shutil
import signal
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 30

PYTHON = """\
#!/bin/sh
# Stands in for a Python; {notes} says what it was asked.
echo "$*" >> {notes}
case "$*/$PIP_REQUIRE_VIRTUALENV" in *" install "*/1) ;; *" install "*) exit 9 ;; esac
case "$*" in
  "-m venv --clear "*)
    for place; do :; done
    rm -rf "$place"; mkdir -p "$place/bin" && cp "$0" "$place/bin/python"
    touch "$place/pyvenv.cfg"
    printf '#!%s/bin/python' "$PWD/$place" > "$place/bin/pip" ;;
  "-m pip --version") test ! -e .venv/no-pip ;;
  *"install"*"torch=="*)
    if test -e {gate}; then echo > {gate}; sleep 60; fi
    test ! -e {fails} ;;
  *"install"*) touch .venv/whole ;;
  "-I -c "*) test -e .venv/whole ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """A folder with the Makefile, and a Python that only takes notes."""
    place = tmp_path / "clone"
    place.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, place / name)
    python = tmp_path / "python"
    at = {name: tmp_path / name for name in ("notes", "gate", "fails")}
    python.write_text(PYTHON.format(**at))
    python.chmod(0o755)
    return place


ALONE = {
    name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
}
"""The environment without what a `make` that runs these tests leaves in it: its level and flags."""


def command(clone: Path, *more: str) -> list[str]:
    return ["make", "setup", f"PYTHON={clone.parent / 'python'}", *more]


def setup(clone: Path, *more: str) -> tuple[int, list[str], str]:
    """Exit status, what Python was asked to do besides looking, and the output."""
    notes = clone.parent / "notes"
    notes.write_text("")
    ended = subprocess.run(
        command(clone, *more), cwd=clone, capture_output=True, text=True, timeout=SECONDS,
        env=ALONE, check=False,
    )  # fmt: skip
    asked = [line for line in notes.read_text().splitlines()
             if line.startswith("-m venv") or " install" in line]  # fmt: skip
    return ended.returncode, asked, ended.stdout + ended.stderr


def test_a_new_set_up_takes_torch_first_and_alone_and_a_second_one_does_nothing(clone):
    status, asked, out = setup(clone)
    assert (status, len(asked)) == (0, 3)
    assert asked[0] == "-m venv --clear .venv"
    assert asked[1].split()[-2:] == ["-qq", "torch==2.13.0"]
    assert "torch" not in asked[2]
    assert 2 <= len(out.splitlines()) <= 4  # a log stays short, and is not silent
    assert setup(clone) == (0, [], "")


def test_a_set_up_that_was_killed_in_pip_begins_anew(clone):
    gate = clone.parent / "gate"
    os.mkfifo(gate)
    process = subprocess.Popen(
        command(clone), cwd=clone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env=ALONE,
    )  # fmt: skip
    try:
        gate.read_text()  # pip is at it
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
    gate.unlink()
    status, asked, out = setup(clone)
    assert (status, asked[0], len(asked)) == (0, "-m venv --clear .venv", 3)
    assert "anew" in out


def test_a_set_up_whose_pip_failed_goes_on_where_it_was(clone):
    (clone.parent / "fails").touch()
    assert setup(clone)[0] != 0
    (clone.parent / "fails").unlink()
    status, asked, _ = setup(clone)
    assert (status, len(asked)) == (0, 2)
    assert not any("venv" in line for line in asked)


def half_made(clone: Path) -> None:
    (clone / ".venv" / "bin" / "pip").unlink()


def half_removed(clone: Path) -> None:
    """Have its Python be the one that it was made with, and its pip that one's."""
    (clone / ".venv" / "pyvenv.cfg").unlink()


def without_pip(clone: Path) -> None:
    (clone / ".venv" / "no-pip").touch()


def without_python(clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.10")


def moved(clone: Path) -> None:
    (clone / ".venv" / "bin" / "pip").write_text("#!/elsewhere/.venv/bin/python\n")


@pytest.mark.parametrize("harm", [half_made, half_removed, without_pip, without_python, moved])
@pytest.mark.parametrize("is_stamped", [True, False])
def test_an_environment_that_is_of_no_use_is_made_anew_whatever_the_stamp_says(
    clone, harm, is_stamped
):
    setup(clone)
    harm(clone)
    (clone / ".venv" / "whole").unlink()
    if not is_stamped:
        (clone / ".venv" / ".swarmtrain-installed").unlink()
    status, asked, out = setup(clone)
    assert (status, asked[0], len(asked)) == (0, "-m venv --clear .venv", 3)
    assert "anew" in out


def test_a_stamp_that_is_older_than_the_requirements_installs_into_what_is_there(clone):
    setup(clone)
    os.utime(clone / ".venv" / ".swarmtrain-installed", (1, 1))
    status, asked, _ = setup(clone)
    assert (status, len(asked)) == (0, 2)
    assert setup(clone)[1] == []


def test_torch_comes_from_the_index_that_is_named(clone):
    index = "https://download.pytorch.org/whl/cpu"
    _, asked, _ = setup(clone, f"TORCH_INDEX={index}")
    assert asked[1].endswith(f"--index-url {index} torch==2.13.0")
    assert "index" not in asked[2]


def test_a_python_that_is_too_old_is_told_before_anything_is_made(clone):
    status, asked, out = setup(clone, "PYTHON=false")
    assert (status, asked) == (2, [])
    assert "Python 3.11 or newer" in out
    assert "PYTHON=python3.12 setup" in out
    assert not (clone / ".venv").exists()


def test_a_whole_environment_is_one_that_imports_this_clone_and_has_torch(clone):
    """The look itself, with a real environment in which nothing but names is installed."""
    venv.create(clone / ".venv", with_pip=False)
    (packages,) = (clone / ".venv").glob("lib/python*/site-packages")
    for name in ("swarmtrain", "elsewhere/swarmtrain"):
        (clone / name).mkdir(parents=True)
        (clone / name / "__init__.py").touch()
    metadata = packages / "torch-2.13.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    link = packages / "clone.pth"
    link.write_text(f"{clone}\n")
    (clone / ".venv" / ".swarmtrain-installed").touch()

    def is_whole() -> bool:
        return setup(clone, "PYTHON=false")[0] == 0

    assert is_whole()
    link.write_text(f"{clone / 'elsewhere'}\n")
    assert not is_whole()
    link.write_text(f"{clone}\n")
    (clone / ".venv" / ".swarmtrain-installed").touch()
    metadata.unlink()
    assert not is_whole()
