"""`swarmtrain generate RUN|DIR "prompt"`: lets a trained model write."""

import os
import sys
from typing import Annotated

import typer

from swarmtrain.cli.arguments import AsJson, Device
from swarmtrain.cli.log import say
from swarmtrain.config.options import DEVICE_AUTO
from swarmtrain.console.lines import show, show_json
from swarmtrain.foundation.errors import misuse

Trained = Annotated[
    str,
    typer.Argument(
        metavar="RUN|DIR", help="Folder of an export, state directory of a peer, or a run's name."
    ),
]


def generate(
    place: Trained,
    prompt: Annotated[str, typer.Argument(help="Text to go on from; - reads it from stdin.")],
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="Tokens to write, if the text ends not before.")
    ] = 200,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest each time.")
    ] = 0.8,
    top_p: Annotated[
        float,
        typer.Option("--top-p", min=0.0, max=1.0, help="Draw among the likeliest of so much."),
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Draw among so many; 0: among all.")
    ] = 0,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the draws.")
    ] = 0,
    device: Device = DEVICE_AUTO,
    as_json: AsJson = False,
) -> None:
    """Let a trained model write on from a prompt. The prompt and what follows it go to stdout as
    they are made, everything else to stderr. Control characters are shown as pictures; --json has
    the text as it is."""
    text = _prompted(prompt)
    if not text:
        raise misuse("The prompt is empty.", "Give the model at least one character to begin with.")
    from time import monotonic

    from swarmtrain.models.device import device_of
    from swarmtrain.trained.opened import open_trained, use_threads
    from swarmtrain.trained.tokens import TextStream
    from swarmtrain.trained.writing import Taste, written

    where = device_of(device)
    trained = open_trained(place)
    model = trained.model(where)
    use_threads(trained)
    ids, context = trained.tokenizer.encode(text), trained.config.model.context
    if len(ids) > context:
        say(f"The prompt has {len(ids)} tokens; the model sees the last {context}.")
    taste = Taste(temperature, top_k, top_p, seed)
    stream = TextStream(trained.tokenizer, ids)

    def write(words: str) -> None:
        if not as_json:
            show(words, end="")

    write(text)
    began_s, parts = monotonic(), []
    vocabulary = trained.tokenizer.vocabulary
    made = 0
    for token in written(model, ids, tokens, context, taste, vocabulary):
        if token in trained.tokenizer.end:
            break
        made += 1
        parts.append(stream.take(token))
        write(parts[-1])
    parts.append(stream.rest())
    write(parts[-1])
    seconds = monotonic() - began_s
    if as_json:
        found = {"model": trained.name, "prompt": text, "text": "".join(parts), "tokens": made}
        show_json({**found, "seed": seed, "device": str(where), "seconds": round(seconds, 3)})
        return
    show("")
    say(f"{trained.name}: {made} tokens in {seconds:.1f} s on {where}, seed {seed}")


def _prompted(prompt: str) -> str:
    """The prompt, in UTF-8 whatever the locale says.

    Raises:
        UserError: SWT-E610, it is something else.
    """
    try:
        if prompt == "-":
            return sys.stdin.buffer.read().decode()
        return os.fsencode(prompt).decode()
    except UnicodeError as error:
        raise misuse("The prompt is not text in UTF-8.", "Models read text in UTF-8.") from error
