"""The card of an exported model: what it is, how it came about, how to check and use it. Pure."""

import math
from collections.abc import Iterator, Mapping

from swarmtrain.config.settings import BYTES, RunConfig
from swarmtrain.foundation.errors import cleaned
from swarmtrain.trained.collect import Collected
from swarmtrain.trained.history import History

_LOSSES_SHOWN = 12


def text_of(found: Collected, history: History, num_values: int, model_sha256: str) -> str:
    """The card as Markdown, with the head that model hubs read.

    Args:
        found: the model.
        history: history of the run.
        num_values: parameters.
        model_sha256: SHA-256 of model.safetensors.
    """
    lines = [
        *_head(found.config),
        *_facts(found, history, num_values),
        *_losses(history, found.config),
        *_use(found.config),
        *_proof(found, model_sha256),
        *_unknown(found.config, history),
    ]
    return "\n".join(lines) + "\n"


def _head(config: RunConfig) -> Iterator[str]:
    yield from ("---", "tags:", "- swarmtrain")
    if config.model.kind != "custom":
        yield "- text-generation"
    yield "---"
    yield from ("", f"# {config.run.name}", "")
    yield (
        "Trained with swarmtrain: peers train each on their own computer, and exchange differences "
        "of their weights."
    )
    yield ""


def _facts(found: Collected, history: History, num_values: int) -> Iterator[str]:
    config = found.config
    model, outer, data = config.model, config.outer, config.data
    yield from ("| | |", "|---|---|")
    context = f", context {model.context}" if model.kind != "custom" else ""
    yield f"| model | {model.kind}, {_spaced(num_values)} parameters{context} |"
    since = "" if history.is_whole else " since the oldest record that is here"
    skipped = f", {history.skipped} without a result" if history.skipped else ""
    end = max(config.num_ops, found.ledger.view.rounds)
    added = f", {end - config.num_ops} of them added later" if end > config.num_ops else ""
    state = ", the run goes on" if history.rounds < end else ""
    yield f"| rounds | {history.rounds} of {end} committed{added}{skipped}{state}{since} |"
    if model.initial:
        yield f"| began with | given weights: pieces whose list has SHA-256 `{model.initial}` |"
    yield f"| peers | {history.contributors} contributed, {history.peers} were let in{since} |"
    yield f"| tokens | {_tokens(history)} |"
    yield f"| text | {_source(data.source)}{_place(history)} |"
    yield f"| tokens are | {_kind_of_tokens(data.tokenizer)} |"
    steps = f"{config.steps_per_round} inner steps between exchanges"
    yield f"| strategy | {outer.strategy}, {steps}, outer learning rate {outer.lr:g} |"
    yield f"| codec | {config.exchange.codec} |"
    for part in found.parts:
        what = "stage" if found.config.pipeline.num_stages > 1 else "expert"
        of = f" of {what} {part.stage}" if len(found.parts) > 1 else ""
        yield f"| state root{of} | `{part.state_root}` after round {part.op} |"
    yield ""


def _tokens(history: History) -> str:
    if not history.rounds:
        return "none: these are the first weights"
    if not history.tokens:
        return "not known: the ledger does not count them"
    if history.are_counted:
        return f"{_spaced(history.tokens)}, by the contributors' own counts"
    return f"about {_spaced(history.tokens)}: what the run file asks of each contribution"


def _source(source: str) -> str:
    return {
        "python-stdlib": "sources of Python's standard library",
        "own": "each peer's own; the run does not know it",
        "text": "the organiser's, given out in pieces; the run does not say which",
    }.get(source, cleaned(source))


def _place(history: History) -> str:
    return "" if history.text is None else f"; {history.text.in_words}"


def _kind_of_tokens(tokenizer: str) -> str:
    return {
        "bytes": "bytes of UTF-8; a zero byte ends a document",
        "ids": "numbers; nobody has said by which tokenizer",
    }.get(tokenizer, f"those of tokenizer.json, SHA-256 `{cleaned(tokenizer)}`")


def _losses(history: History, config: RunConfig) -> Iterator[str]:
    if not history.losses:
        return
    is_bytes = config.model.kind != "custom" and config.data.tokenizer == BYTES
    bits = ("| bits per byte ", "|---") if is_bytes else ("", "")
    yield from ("## Validation loss", "", f"| round | nats per token {bits[0]}|")
    yield f"|---|---{bits[1]}|"
    for op in _some(history.losses):
        loss = history.losses[op]
        yield f"| {op} | {loss:.4f} |" + (f" {loss / math.log(2):.4f} |" if is_bytes else "")
    yield ""


def _some(losses: Mapping[int, float]) -> list[int]:
    """The first round, the last one and some between them."""
    rounds = sorted(losses)
    last, most = len(rounds) - 1, min(len(rounds), _LOSSES_SHOWN)
    return [rounds[place * last // max(1, most - 1)] for place in range(most)]


def _use(config: RunConfig) -> Iterator[str]:
    if config.model.kind == "custom":
        yield from ("## Use", "", "`model.safetensors` holds the parameters by their names in the")
        yield from ("program that the peers brought; the run does not know it.", "")
        return
    yield from ("## Use", "", "```")
    yield 'swarmtrain generate . "Once upon a time"'
    yield "swarmtrain evaluate . --data my-text.txt"
    yield from ("```", "")


def _proof(found: Collected, model_sha256: str) -> Iterator[str]:
    run = found.ledger.run
    yield from ("## How to check it", "")
    yield f"- `sha256sum model.safetensors` gives `{model_sha256}`."
    yield f"- The run's key is `{run.run_key.hex()}`, its settings have SHA-256"
    yield f"  `{run.config_hash.hex()}`."
    yield "- Every decision of the run is signed with that key. `swarmtrain verify DIR`, with the"
    yield "  state directory of a peer, makes the way to its newest state again from signed records"
    yield "  and results; the state root that it prints is the one above if it ends at that round."
    yield ""


def _unknown(config: RunConfig, history: History) -> Iterator[str]:
    yield from ("## What is not known", "")
    yield "- Who the peers are: the ledger knows keys and names that they chose."
    if config.data.source == "own":
        yield "- The text: it stayed with the peers."
    if config.data.source == "text":
        yield "- The text: it is the organiser's, and neither run file nor ledger names it."
    if not history.losses:
        yield "- Validation losses: the coordinator keeps them, and it was not at hand."
    yield "- What the model is good or bad at: nobody has judged more than its loss."
    yield "- A license: the run file names none."


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
