"""`--map` and `--no-map`: whether the router may be asked for a port. It is somebody's router.

Without either the question is put once, to whoever sits at a terminal, and the answer is kept.
"""

import sys
from typing import Annotated

import typer

from swarmtrain.cli.log import say
from swarmtrain.foundation import regular_file
from swarmtrain.foundation.errors import misuse
from swarmtrain_transport.credentials.invite import names_its_reader

Map = Annotated[
    bool | None,
    typer.Option(
        "--map/--no-map", show_default="asked once, at a terminal",
        help="Let the router forward a port to this process, until it ends.",
    ),
]  # fmt: skip

_YES, _NO = "yes", "no"


def can_ask() -> bool:
    """Return True if there is a terminal at which somebody can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def may_map(wish: bool | None, listening: str, *, is_useful: bool, asks: bool) -> bool:
    """Decide whether the router may be asked.

    Args:
        wish: option of the command line, None if neither was given.
        listening: host that this process listens at.
        is_useful: False if others find this process without.
        asks: True if somebody may be asked.

    Raises:
        UserError: SWT-E610, --map was given and nobody could get in anyway.
    """
    if names_its_reader(listening):
        if wish:
            raise misuse(
                f"--map brings others to this machine, and only itself reaches it at {listening}.",
                "Add --listen 0.0.0.0:0, or a port of your choice; or leave out --map.",
            )
        return False
    if wish is not None or not is_useful:
        return bool(wish)
    kept = _kept()
    if kept or not asks:
        return kept == _YES
    answer = typer.confirm(
        "May swarmtrain ask your router to forward a port to it while it runs?", default=True,
        err=True,
    )  # fmt: skip
    _keep(_YES if answer else _NO)
    return answer


def _kept() -> str:
    from swarmtrain.foundation import dirs

    try:
        word = regular_file.read(dirs.mapping_consent(), len(_YES) + 1).decode(errors="replace")
    except OSError:
        return ""
    return word.strip() if word.strip() in (_YES, _NO) else ""


def _keep(word: str) -> None:
    from swarmtrain.foundation import dirs

    file = dirs.mapping_consent()
    try:
        dirs.make_owned(file.parent)
        file.write_text(f"{word}\n", encoding="utf-8")
    except OSError as error:
        say(f"The answer cannot be kept in {file}: {error.strerror or error}.")
        return
    say(f"Kept in {file}; --map and --no-map say otherwise for once.")
