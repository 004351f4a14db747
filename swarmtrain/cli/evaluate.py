"""`swarmtrain evaluate RUN|DIR --data PATH`: how well a trained model foretells a text."""

from typing import Annotated

import typer

from swarmtrain.cli.arguments import AsJson, Device
from swarmtrain.cli.generate import Trained
from swarmtrain.cli.log import say
from swarmtrain.config.options import DEVICE_AUTO
from swarmtrain.console.lines import fact, show, show_json


def evaluate(
    place: Trained,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="PATH", help="A file of text or JSONL, a folder of some, or hf:NAME."
        ),
    ],
    field: Annotated[
        str, typer.Option("--field", help="Field of JSONL and datasets that has the text.")
    ] = "text",
    windows: Annotated[
        int, typer.Option("--windows", min=0, help="Stop after so many windows; 0: read all.")
    ] = 0,
    device: Device = DEVICE_AUTO,
    as_json: AsJson = False,
) -> None:
    """Judge a trained model by a text: loss in nats per token, bits per byte, perplexity."""
    from dataclasses import asdict

    from swarmtrain.models.device import device_of
    from swarmtrain.trained.judged import judged, text_at
    from swarmtrain.trained.opened import open_trained, use_threads

    texts, skipped = text_at(data, field)
    if skipped:
        say(f"{skipped} files at {data} are no text and were left out.")
    where = device_of(device)
    trained = open_trained(str(place))
    model = trained.model(where)
    use_threads(trained)
    found = judged(model, trained.tokenizer, trained.config.model.context, texts, windows)
    if as_json:
        show_json({"model": trained.name, **asdict(found), "device": str(where)})
        return
    show(fact("model", trained.name))
    show(fact("loss", f"{found.loss:.4f} nats per token"))
    show(fact("bits per byte", f"{found.bits_per_byte:.4f}"))
    show(fact("perplexity", f"{found.perplexity:.2f}"))
    many = f"{found.tokens} tokens of {found.documents} documents in {found.windows} windows"
    show(fact("read", many))
