"""The command `swarmtrain`: finds the command, and turns every ending into words and a status.

Only typer is imported here. A command imports its machinery inside its function, so that --help
takes a tenth of a second although torch takes three.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from swarmtrain import __version__
from swarmtrain.cli.chaos import chaos
from swarmtrain.cli.ckpt import ckpt_app
from swarmtrain.cli.compare import compare
from swarmtrain.cli.demo import demo
from swarmtrain.cli.doctor import doctor
from swarmtrain.cli.emulate import emulate
from swarmtrain.cli.evaluate import evaluate
from swarmtrain.cli.explain import explain
from swarmtrain.cli.export import export
from swarmtrain.cli.generate import generate
from swarmtrain.cli.invite import invite_app
from swarmtrain.cli.join import join
from swarmtrain.cli.limits import limits_app
from swarmtrain.cli.log import redact, say
from swarmtrain.cli.logs import logs_app
from swarmtrain.cli.me import me
from swarmtrain.cli.page import page
from swarmtrain.cli.pausing import finish, leave, pause, resume
from swarmtrain.cli.peer import peer_app
from swarmtrain.cli.peers import peers_app
from swarmtrain.cli.plan import plan
from swarmtrain.cli.receipts import receipts_app
from swarmtrain.cli.relay import relay
from swarmtrain.cli.run import run_app
from swarmtrain.cli.service import service_app
from swarmtrain.cli.simulate import simulate
from swarmtrain.cli.situation import Situation
from swarmtrain.cli.status import status
from swarmtrain.cli.up import up
from swarmtrain.cli.verify import verify
from swarmtrain.cli.why import why
from swarmtrain.console.lines import show
from swarmtrain.foundation.error_table import EXIT_BUG, EXIT_DONE, EXIT_INTERRUPTED
from swarmtrain.foundation.errors import Interrupted, UserError, cleaned, render, translate
from swarmtrain.foundation.signals import let_go_of_dead_streams

app = typer.Typer(
    name="swarmtrain",
    help="Train one model together: ordinary computers, ordinary internet links.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.command()(join)
app.command()(relay)
for order in (pause, resume, finish, leave):
    app.command()(order)
app.add_typer(limits_app)
app.add_typer(service_app)
app.add_typer(peer_app)
app.command()(me)
app.add_typer(receipts_app)
app.command()(doctor)
app.command()(status)
app.command()(page)
app.add_typer(invite_app)
app.add_typer(peers_app)
app.add_typer(run_app)
app.command()(verify)
app.add_typer(ckpt_app)
app.add_typer(logs_app)
app.command()(export)
app.command()(generate)
app.command()(evaluate)
app.command()(plan)
app.command()(demo)
app.command()(emulate)
app.command()(simulate)
app.command()(chaos)
app.command()(compare)
app.command()(explain)
app.command()(why)


def _print_version(value: bool) -> None:
    if value:
        from swarmtrain_transport.limits import PROTOCOL_VERSION

        show(f"swarmtrain {__version__} (protocol {PROTOCOL_VERSION})")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show tracebacks of faults.")
    ] = False,
) -> None:
    context.ensure_object(Situation).verbose = verbose


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        arguments: words after the program's name; None for those of this process.

    Returns:
        The exit status, as `swarmtrain.foundation.error_table` documents it.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    situation = Situation()
    try:
        typer.main.get_command(app).main(args=words, prog_name="swarmtrain", obj=situation)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else EXIT_DONE
    except Interrupted as ending:
        return ending.exit_status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as fault:
        return _explain_ending(fault, situation, words)
    finally:
        let_go_of_dead_streams()
    return EXIT_DONE


def _explain_ending(fault: Exception, situation: Situation, words: list[str]) -> int:
    error = translate(fault, at_coordinator=situation.at_coordinator)
    if situation.verbose:
        say(_traceback(fault))
    if error is None or error.exit_status == EXIT_BUG:
        error = _bug(fault, situation, words)
    say(render(error))
    return error.exit_status


def _bug(fault: Exception, situation: Situation, words: list[str]) -> UserError:
    """The words for a fault that nobody foresaw; the details go into a report."""
    what = f"Unexpected fault (a bug): {type(fault).__name__}: {cleaned(redact(str(fault)))}"
    try:
        report = _write_report(fault, situation, words)
    except (OSError, UserError):
        if not situation.verbose:
            say(_traceback(fault))
        return UserError("SWT-E901", what, "The details are above; no report could be written.")
    return UserError(
        "SWT-E901",
        what,
        f"A report with the details is in {report}.",
        "Read it before you send it to anybody: it may hold paths and names.",
    )


def _write_report(fault: Exception, situation: Situation, words: list[str]) -> Path:
    import os
    import platform
    from datetime import UTC, datetime

    from swarmtrain.foundation import dirs

    base = situation.state_dir
    directory = dirs.make_private(base / "reports" if base else dirs.reports_dir())
    now = datetime.now(UTC)
    path = directory / f"fault-{now:%Y%m%dT%H%M%S}-{os.getpid()}.txt"
    lines = (
        f"swarmtrain {__version__}",
        f"python {platform.python_version()} on {platform.platform()}",
        f"at {now.isoformat(timespec='seconds')}",
        f"command: {' '.join(words)}",
        "",
        _traceback(fault),
    )
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(redact("\n".join(lines)))
    return path


def _traceback(fault: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(fault)).rstrip()


if __name__ == "__main__":
    sys.exit(main())
