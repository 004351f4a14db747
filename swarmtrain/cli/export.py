"""`swarmtrain export RUN --to DIR`: a run's newest model as a folder that others can use."""

from pathlib import Path
from typing import Annotated

import typer

from swarmtrain.cli.arguments import AsJson, OfRun, one_of
from swarmtrain.cli.log import say
from swarmtrain.console.lines import show, show_json

FORMS = ("safetensors", "hf")


def export(
    given: OfRun,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="New folder for the model.")],
    form: Annotated[
        str,
        typer.Option(
            "--format", parser=one_of(FORMS), metavar=f"[{'|'.join(FORMS)}]",
            help="safetensors: the run's own names; hf: for AutoModelForCausalLM.",
        ),
    ] = FORMS[0],
    moments: Annotated[
        bool,
        typer.Option("--moments", help="With the outer optimizer's, for `up --from` elsewhere."),
    ] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Make a folder of a run's newest model: weights, settings, tokenizer, and a card that tells
    how it came about. Where the model is in stages, the peers of these directories have all of
    them together. They may go on meanwhile."""

    from swarmtrain.console.units import human_bytes
    from swarmtrain.trained.export import export as make

    made = make(to, given, form=form, moments=moments, tell=say)
    if as_json:
        show_json(made)
        return
    for part in made.stages:
        what = "expert" if made.router_sha256 else "stage"
        of = f"{what} {part.stage}" if len(made.stages) > 1 else "the model"
        show(f"{of}: round {part.op}, state {part.state_root[:16]}")
    size = human_bytes(made.model_bytes)
    show(f"{to}/model.safetensors: {made.num_values} values, {size}; README.md tells of it")
    if made.writes:
        show(f'Let it write: swarmtrain generate {to} "Once upon a time"')
