"""Writes docs/run-file.md from the settings as they are declared, and from the strategies' facts.

    python -m swarmtrain.config.docs > docs/run-file.md

Tables come from types and `msgspec.Meta`, notes from the docstrings of sections, and what is said
of strategies from their facts. Here are only the page's order and its introduction.
"""

import inspect
import json
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from swarmtrain.config.declared import declared, extra, number, plain
from swarmtrain.config.settings import RunConfig
from swarmtrain_optimizers.strategies.facts import OpKind, OwnSettings, StrategyFacts
from swarmtrain_optimizers.strategies.registry import BUILT_IN

_HEAD = """\
# The run file

A run is what its run file says: the model and its text, how each peer trains, what the peers
exchange and when. It is TOML: data, never code. The organiser writes it and starts the run with
`swarmtrain up run.toml`; its hash is in the ledger's first record, and every peer gets it and
checks it again.

The shortest one is

```toml
[run]
name = "my-run"
```

as every other setting has a default. One that says more:

```toml
[run]
name = "stories"
rounds = 500

[model]
layers = 6
width = 256
heads = 8

[outer]
strategy = "streaming"      # a part of the model in each round, while training goes on
inner_steps = 40

[exchange]
start_peers = 4             # round 1 begins when four are ready
min_contributors = 2        # and a round that fewer than two are left in counts for nothing
```

`swarmtrain up` refuses an unknown key, a wrong type and a value that cannot work, and says the
line and what to do. A key whose default is a whole number takes only such. This page is made from
the code: `python -m swarmtrain.config.docs > docs/run-file.md`.
"""

_STRATEGIES = """\
## Strategies

`outer.strategy` names one of these, or [one that an installed package
brings](../examples/own_strategy).
"""

_TAKEN = """\
Which settings of `[outer]` a strategy takes, and what it means where the file says nothing; all
other defaults are those above. `swarmtrain compare` exchanges in the same way, with rates that are
tuned for its own short runs.
"""

_CUSTOM = """\
With `model.kind = "custom"` the default of `outer.fragments` is 1: nothing is known of the layers.
"""

_OWN = """\
## [strategy.NAME]

What only one strategy knows stands in a section of its own, such as `[strategy.noloco]`; the others
have none.
"""

_EXCHANGES = {
    OpKind.MEAN: "the mean of all",
    OpKind.GATHER: "all, each with all others",
    OpKind.PAIR: "two by two",
}


def page() -> str:
    """Return the whole text of docs/run-file.md."""
    sections = [
        (field.name, field.type)
        for field in msgspec.structs.fields(RunConfig)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
    ]
    merging = (one.merging() if "last_merge" in one.takes else one for one in BUILT_IN.values())
    facts = [one for one in merging if one.kind is not None]
    parts = [_HEAD, *(_section(name, kind) for name, kind in sections)]
    parts += [
        _STRATEGIES,
        _table(("strategy", "what it is", "who exchanges", "from"), _told(facts)),
    ]
    parts += [_TAKEN, _table(("strategy", "takes of [outer]", "means"), _taken(facts)), _CUSTOM]
    parts += [_bullets(_asked(facts)), _OWN]
    own = [(one, one.settings) for one in facts if one.settings is not OwnSettings]
    rows = ([f"`{one.name}`", *cells] for one, kind in own for cells in _rows(kind))
    parts += [_table(("strategy", "key", "default", "range", "what it is"), rows)]
    parts += [_bullets(f"{one.name}: {inspect.cleandoc(kind.__doc__ or '')}" for one, kind in own)]
    return "\n".join(part for part in parts if part)


def _section(name: str, kind: type[msgspec.Struct]) -> str:
    text, _, bullets = inspect.cleandoc(kind.__doc__ or "").partition("\n\n- ")
    table = _table(("key", "default", "range", "what it is"), _rows(kind))
    return f"## [{name}]\n\n{text}\n\n{table}" + (f"\n- {bullets}\n" if bullets else "")


def _rows(kind: type[msgspec.Struct]) -> Iterator[list[str]]:
    for field in msgspec.structs.fields(kind):
        default = extra(field.type, "default")
        yield [
            f"`{field.name}`",
            default or ("" if field.required else _value(field.default)),
            _span(field.type),
            declared(field.type).description or "",
        ]


def _span(kind: Any) -> str:
    meta = declared(kind)
    if said := extra(kind, "span"):
        return said
    if plain(kind) is bool:
        return "true, false"
    if typing.get_origin(plain(kind)) is typing.Literal:
        return ", ".join(typing.get_args(plain(kind)))
    low = f"above {number(meta.gt)}" if meta.gt is not None else number(meta.ge or 0)
    high = f"below {number(meta.lt)}" if meta.lt is not None else number(meta.le or 0)
    return f"{low} to {high}"


def _told(facts: Iterable[StrategyFacts]) -> Iterator[list[str]]:
    for one in facts:
        yield [f"`{one.name}`", one.about, _EXCHANGES[one.kind or OpKind.MEAN], one.paper]


def _taken(facts: Iterable[StrategyFacts]) -> Iterator[list[str]]:
    outer = [field.name for field in msgspec.structs.fields(dict(_kinds())["outer"])]
    for one in facts:
        takes = ", ".join(f"`{key}`" for key in outer if key in one.takes)
        means = ", ".join(f"`{path}` {_value(value)}" for path, value in one.defaults.items())
        yield [f"`{one.name}`", takes or "nothing", means or "as above"]


def _kinds() -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(RunConfig):
        yield field.name, field.type


def _asked(facts: Iterable[StrategyFacts]) -> Iterator[str]:
    for one in facts:
        for path, (value, reason) in one.wants.items():
            yield f"{one.name}: `{path}` is {_value(value)}. {reason}"
        if one.compared_in:
            yield f"{one.name}: `swarmtrain compare` takes `exchange.codec` {one.compared_in}."
    feeding = [one.name for one in facts if one.feeds_back]
    yield f"{', '.join(feeding)}: what a codec has lost is always sent later."
    alone = [one.name for one in facts if one.kind is not OpKind.MEAN]
    yield f'{", ".join(alone)}: `outer.robust` is "none". There is no mean that it could replace.'
    pairs = [one.name for one in facts if one.kind is OpKind.PAIR]
    yield f"{', '.join(pairs)}: `exchange.min_contributors` is at least 2."


def _value(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    return json.dumps(value)


def _bullets(lines: Iterable[str]) -> str:
    filled = (textwrap.fill(f"- {line}", 100, subsequent_indent="  ") for line in lines)
    return "".join(f"{line}\n" for line in filled)


def _table(head: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("|  |", "| |")


if __name__ == "__main__":
    sys.stdout.write(page())
