"""Settings as they are declared: what type and range a field says, in words, and what breaks them.

A field's type is a plain one, or `Annotated` with one `msgspec.Meta`: its bounds, its description,
and under `extra` what the bounds do not say: ``why`` there are such, and for docs/run-file.md a
``span`` and a ``default`` in words.
"""

import types
import typing
from typing import Any

import msgspec
from msgspec import Meta

from swarmtrain.config.problem import INTEGER_MAX

_TYPE_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    list: "a list",
    dict: "a section",
}


def said(what: str, span: str = "", default: str = "") -> Meta:
    """Declare a setting in words, where its type says its range; or `span` does."""
    return Meta(description=what, extra={"span": span, "default": default})


def between(low: float, high: float, what: str, why: str = "") -> Meta:
    """Declare a range from `low` to `high`, both included."""
    return Meta(ge=low, le=high, description=what, extra={"why": why})


def above_zero(high: float, what: str) -> Meta:
    """Declare a range from above 0 to `high`."""
    return Meta(gt=0, le=high, description=what)


def fading(what: str) -> Meta:
    """Declare a range from 0 to below 1: at 1 the past would never fade."""
    return Meta(ge=0, lt=1, description=what)


def plain(kind: Any) -> Any:
    """The type without its range."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def declared(kind: Any) -> Meta:
    """The declaration of a setting beside its type."""
    if typing.get_origin(kind) is typing.Annotated:
        meta: Meta = typing.get_args(kind)[1]
        return meta
    return Meta()


def extra(kind: Any, key: str) -> str:
    """A text under `extra`, "" if there is none."""
    return str((declared(kind).extra or {}).get(key, ""))


def description(section: type[msgspec.Struct], key: str) -> str:
    """Describe a setting in a few words."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(section)}
    return declared(kinds[key]).description or ""


def is_of(value: object, kind: Any) -> bool:
    """Return True if a value is of the type; its range is not looked at."""
    try:
        msgspec.convert(value, plain(kind))
    except msgspec.ValidationError:
        return False
    return True


def out_of_range(value: Any, kind: Any) -> str:
    """The rest of a sentence about a value of the type that is not in its range; else "".

    A NaN is in no range.
    """
    meta = declared(kind)
    low = (meta.ge is None or value >= meta.ge) and (meta.gt is None or value > meta.gt)
    high = (meta.le is None or value <= meta.le) and (meta.lt is None or value < meta.lt)
    return "" if low and high else f"must be {bounds(kind)}, it is {number(value)}"


def bounds(kind: Any) -> str:
    """The range in a sentence: ``from 1 to 64``; "" where none is declared."""
    meta = declared(kind)
    if meta.ge is not None and meta.le is not None:
        return f"from {number(meta.ge)} to {number(meta.le)}"
    words = [
        f"{word} {number(bound)}"
        for word, bound in (
            ("at least", meta.ge), ("above", meta.gt), ("at most", meta.le), ("below", meta.lt),
        )
        if bound is not None
    ]  # fmt: skip
    return " and ".join(words)


def expected(kind: Any) -> str:
    """The type in words."""
    kind = plain(kind)
    if typing.get_origin(kind) is typing.Literal:
        choices = [f'"{choice}"' for choice in typing.get_args(kind)]
        return "one of " + ", ".join(choices) if len(choices) > 1 else choices[0]
    if isinstance(kind, types.UnionType):
        return " or ".join(expected(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list of texts in quotes"
    return _TYPE_WORDS.get(typing.get_origin(kind) or kind, str(kind))


def type_words(value: object) -> str:
    """The type of a value in words."""
    return _TYPE_WORDS.get(type(value), type(value).__name__)


def number(value: float) -> str:
    """A number as people read it: 8 388 608, 0.5, 2^63 - 1."""
    if value == INTEGER_MAX:
        return "2^63 - 1"
    if 1_000 <= abs(value) <= 10**12 and value == int(value):
        return f"{int(value):,}".replace(",", " ")
    return f"{value:g}"
