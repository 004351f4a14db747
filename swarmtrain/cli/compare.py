"""`swarmtrain compare`: strategies side by side on this machine, exchanging as in a run."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmtrain.cli.arguments import EndsAsJson, Verbose
from swarmtrain.cli.log import say
from swarmtrain.compare.plan import Attack, Pace, Plan
from swarmtrain.console.lines import show, show_json
from swarmtrain.foundation.error_table import EXIT_DONE
from swarmtrain.foundation.errors import UserError, misuse

if TYPE_CHECKING:
    from swarmtrain.compare.frontier import Search
    from swarmtrain.compare.results import RunResult, Shelf


INNER_STEPS = 50
"""Inner steps of a round, unless somebody says otherwise."""

ATTACK = Attack.SIGN_FLIP
"""Attack of hostile peers, unless somebody says otherwise."""

Strategies = Annotated[
    str,
    typer.Option(
        help="Names with commas between; diloco:codec=none/int8 has settings of its own.",
        show_default="diloco; of a search a grid",
    ),
]
Codec = Annotated[str, typer.Option(help="Codec of exchanges.", show_default="the strategy's own")]
Peers = Annotated[int, typer.Option(min=1, max=64, help="Replicas of a run.")]
Steps = Annotated[int, typer.Option(min=1, help="Inner steps of each peer.")]
Seed = Annotated[int, typer.Option(min=0, max=2**62, help="The first seed.")]
Seeds = Annotated[int, typer.Option(min=1, max=64, help="How many seeds.")]
Model = Annotated[str, typer.Option(help="sweep (130 000 parameters) or demo (850 000).")]
InnerSteps = Annotated[int, typer.Option(min=1, help="Inner steps of a round.")]
Inner = Annotated[
    str, typer.Option(help="Inner optimizer: adamw, accum_adamw, muon, or PKG:CLASS.")
]
InnerRate = Annotated[
    float | None,
    typer.Option(help="Highest rate of the inner optimizer.", show_default="the strategy's own"),
]
OuterSetting = Annotated[
    float | None, typer.Option(help="Rate of the outer step.", show_default="the strategy's own")
]
Speeds = Annotated[str, typer.Option(help="Peers' speeds: 1,1,0.5,0.25.", show_default="all equal")]
Links = Annotated[
    str, typer.Option(help="Peers' parts of the link: 1,1,1,0.25.", show_default="all whole")
]
Stragglers = Annotated[
    str,
    typer.Option(
        help="Slow steps: 0.1,4,3 for a tenth, 4 x as long, 3 at a time.", show_default="none"
    ),
]
Dynamic = Annotated[
    bool, typer.Option("--dynamic", help="Slow peers make fewer steps; nobody waits.")
]
NonIid = Annotated[bool, typer.Option("--noniid", help="Each peer reads other files.")]
Hostile = Annotated[int, typer.Option(min=0, help="Peers that attack.")]
AttackName = Annotated[Attack, typer.Option(help="Vector that they give instead of a difference.")]
Robust = Annotated[
    str,
    typer.Option(
        help="In place of the mean: norm-clip, trimmed-mean, median, centered-clip or flag.",
        show_default="the mean",
    ),
]
Drop = Annotated[float, typer.Option(help="Probability that a contribution is lost.")]
NetName = Annotated[str, typer.Option(help="Link to model: dsl, mobile, fibre or lan.")]
Processes = Annotated[
    int | None,
    typer.Option(min=1, max=64, help="Runs side by side.", show_default="one per core"),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Keep finished runs here; a stopped sweep goes on.",
        show_default="swarmtrain/compare in the user's cache",
    ),
]
Html = Annotated[Path | None, typer.Option(help="Write a report with curves.")]
Frontier = Annotated[
    bool,
    typer.Option(
        "--frontier", help="Search: who loses least for its bytes and seconds, equally tuned."
    ),
]
Tries = Annotated[
    int | None,
    typer.Option(min=1, max=5, help="Rates for each point of a search.", show_default="3"),
]

TRIES = 3
"""Rates that every point of a search is tried with, unless somebody says otherwise."""


def compare(
    strategies: Strategies = "",
    codec: Codec = "",
    peers: Peers = 4,
    steps: Steps = 1000,
    seed: Seed = 0,
    seeds: Seeds = 1,
    model: Model = "sweep",
    inner_steps: InnerSteps = INNER_STEPS,
    inner: Inner = "adamw",
    inner_lr: InnerRate = None,
    outer_lr: OuterSetting = None,
    outer_momentum: OuterSetting = None,
    speeds: Speeds = "",
    links: Links = "",
    stragglers: Stragglers = "",
    dynamic: Dynamic = False,
    noniid: NonIid = False,
    hostile: Hostile = 0,
    attack: AttackName = ATTACK,
    robust: Robust = "",
    drop: Drop = 0.0,
    net: NetName = "dsl",
    processes: Processes = None,
    out: Out = None,
    html: Html = None,
    frontier: Frontier = False,
    tries: Tries = None,
    as_json: EndsAsJson = False,
    verbose: Verbose = False,
) -> None:
    """Train with several strategies on the same data, model and number of tokens, and compare.

    All replicas of a run live in one process, with the coordinator and peers that a run has.
    Time is modelled: steps of a fixed length, and links as --net names them.
    """
    from swarmtrain.compare import frontier as frontiers
    from swarmtrain.compare import request

    if tries is not None and not frontier:
        raise misuse("--tries changes nothing without --frontier.", "A search tries rates.")
    strategies = strategies or (frontiers.GRID if frontier else "diloco")
    given = {
        "codec": codec, "inner": inner, "inner_lr": inner_lr, "outer_lr": outer_lr,
        "outer_momentum": outer_momentum,
    }  # fmt: skip
    base = Plan(
        label="", strategy="", codec="", peers=peers, steps=steps, inner_steps=inner_steps,
        size=model, speeds=request.parse_speeds(speeds, peers),
        pace=Pace.DYNAMIC if dynamic else Pace.WAIT, noniid=noniid, hostile=hostile,
        attack=attack, robust=robust, drop=drop, net=net,
        links=request.parse_speeds(links, peers, "--links"),
        stragglers=request.parse_stragglers(stragglers),
    )  # fmt: skip
    if dynamic and not base.is_uneven:
        raise misuse(
            "--dynamic changes nothing where all peers are equally fast.",
            "Give each peer a speed, for instance --speeds 1,1,0.5,0.25.",
        )
    own = {name: value for name, value in given.items() if value not in ("", None)}
    if inner_steps != INNER_STEPS:
        own["inner_steps"] = inner_steps
    chosen = range(seed, seed + 1 if frontier else seed + seeds)
    plans = request.plans(strategies, base, chosen, own)
    if attack != ATTACK and not any(plan.hostile for plan in plans):
        raise misuse("--attack changes nothing without --hostile.", "Say how many peers attack.")
    others = {"drop": drop, "hostile": hostile, "robust": robust, "pace": dynamic}
    names = [*own, *(name for name, is_given in others.items() if is_given)]
    request.check_used({_option(name): name for name in names}, plans)
    if frontier:
        of_all = range(seed, seed + seeds)
        _search(plans, tries or TRIES, of_all, processes, out, html, as_json=as_json)
    else:
        _run(plans, processes, out, html, as_json=as_json)
    raise typer.Exit(EXIT_DONE)


def _option(setting: str) -> str:
    return "--dynamic" if setting == "pace" else f"--{setting.replace('_', '-')}"


def _run(
    plans: "list[Plan]",
    processes: int | None,
    out: Path | None,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    script = _begin_html(html) if html is not None else ""
    from swarmtrain.compare.results import rows
    from swarmtrain.compare.table import text_table

    results = _made(plans, _shelf(out), processes)
    if as_json:
        show_json({"results": [asdict(result) for result in results]})
    else:
        show(text_table(rows(results)))
    if html is not None:
        _write_html(html, results, script)


def _search(
    points: "list[Plan]",
    tries: int,
    seeds: range,
    processes: int | None,
    out: Path | None,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    """Search the frontier, and keep what was found for `swarmtrain plan`."""
    script = _begin_html(html) if html is not None else ""
    from swarmtrain.compare import frontier

    shelf = _shelf(out)
    found, results = frontier.search(
        points, tries, seeds, lambda plans: _made(plans, shelf, processes)
    )
    if shelf.directory is not None:
        try:
            frontier.keep(found, shelf.directory)
        except OSError as error:
            say(f"cannot keep what was found for `swarmtrain plan`: {error.strerror or error}")
    if as_json:
        show_json(frontier.as_json(found))
    else:
        show("\n".join(frontier.in_words(found, _command)))
    if html is not None:
        _write_html(html, results, script, found)


def _command(words: str) -> str:
    """The command that makes the runs of one point of this search."""
    kept: list[str] = []
    given = iter(sys.argv[2:])
    for word in given:
        option, has_value, _ = word.partition("=")
        if option in ("--strategies", "--tries", "--html"):
            if not has_value:
                next(given, "")
        elif option not in ("--frontier", "--json"):
            kept.append(word)
    return shlex.join(["swarmtrain", "compare", "--strategies", words, *kept])


def _made(plans: "Sequence[Plan]", shelf: "Shelf", processes: int | None) -> "list[RunResult]":
    """Make runs, or find them."""
    from swarmtrain.compare.seats import cores
    from swarmtrain.compare.sweep import run_all

    try:
        return run_all(plans, shelf, processes or cores(), _tell)
    except KeyboardInterrupt:
        if shelf.directory is not None:
            say(f"stopped; finished runs are kept in {shelf.directory}, the same command goes on")
        raise


def _shelf(out: Path | None) -> "Shelf":
    """Return the folder of finished runs. The default folder may fail without harm."""
    from swarmtrain.compare.results import Shelf
    from swarmtrain.foundation import dirs

    if out is not None:
        return Shelf(out)
    return Shelf(dirs.compared_dir(), lambda error: say(f"{error.what} {error.remedy}"))


def _tell(result: "RunResult", is_kept: bool) -> None:
    loss = f"{result.val_loss:.4f}" if result.val_loss is not None else "diverged"
    kept = ", kept" if is_kept else ""
    skipped = f", {result.skipped} skipped" if result.skipped else ""
    say(f"{result.strategy} seed {result.seed}: loss {loss}, {result.ops} ops{skipped}{kept}")


def _begin_html(path: Path) -> str:
    """Check the needs of the report before hours of work, not after them."""
    from swarmtrain.compare import html
    from swarmtrain.page import plots

    script = plots.script().decode()
    try:
        html.try_place(path)
    except OSError as error:
        raise _unwritten(path, error) from error
    return script


def _write_html(
    path: Path, results: "list[RunResult]", script: str, found: "Search | None" = None
) -> None:
    from swarmtrain.compare import html

    command = " ".join(["swarmtrain", *sys.argv[1:]])
    try:
        html.write(path, html.page(results, command, script, found))
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> UserError:
    return misuse(
        f"Cannot write {path}: {error.strerror}.",
        "Name a file of --html in a directory that is there and that you can write to.",
    )
