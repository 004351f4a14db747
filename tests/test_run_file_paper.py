"""docs/run-file.md says of every setting what the code has: its name, default and range."""

import inspect
import re
import tomllib
from pathlib import Path

import msgspec

from swarmtrain.config import limits as config_limits
from swarmtrain.config.defaults import defaults_of
from swarmtrain.config.settings import RunConfig, RunSection
from swarmtrain.strategies import settings_of
from swarmtrain_optimizers.strategies.registry import BUILT_IN

PAPER = (Path(__file__).parents[1] / "docs" / "run-file.md").read_text(encoding="utf-8")
CONFIG = RunConfig(run=RunSection(name="t"))
SECTIONS = [
    field.name
    for field in msgspec.structs.fields(RunConfig)
    if field.name not in ("schema", "strategy")
]


def rows(title: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    text = PAPER.split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table[2:]]


def value(cell: str) -> object:
    return tomllib.loads(f"x = {cell}")["x"]


def name(cell: str) -> str:
    assert re.fullmatch(r"`\w+(\.\w+)?`", cell), cell
    return cell.strip("`")


def number(text: str) -> float:
    power = re.fullmatch(r"2\^(\d+) - 1", text)
    return 2 ** int(power[1]) - 1 if power else float(text.replace(" ", ""))


def test_every_section_names_every_key_once_with_its_default():
    for section in SECTIONS:
        here = getattr(CONFIG, section)
        found = {name(key): default for key, default, *_ in rows(f"[{section}]")}
        assert list(found) == [field.name for field in msgspec.structs.fields(type(here))]
        for key, default in found.items():
            said = value(default) if (section, key) != ("run", "name") else "t"
            assert said == getattr(here, key), f"{section}.{key}"
            assert type(said) is type(getattr(here, key)), f"{section}.{key}"


def test_ranges_are_those_that_are_checked():
    checked = dict(config_limits._RANGES)
    for section in SECTIONS:
        for key, _, told, _ in rows(f"[{section}]"):
            path = f"{section}.{name(key)}"
            if path in checked:
                low, _, high = told.partition(" to ")
                assert (number(low), number(high)) == checked.pop(path), path
            elif path in config_limits._POSITIVE:
                assert number(told.removeprefix("above 0 to ")) == config_limits._POSITIVE[path]
            elif path in config_limits._UNDER_ONE:
                assert told == "0 to below 1", path
            else:
                assert not re.search(r"\d to ", told), path
    assert not checked


def test_choices_are_all_named():
    for section in SECTIONS:
        kind = type(getattr(CONFIG, section))
        text = PAPER.split(f"\n## [{section}]\n")[1].split("\n## ")[0]
        told = {name(key): span for key, _, span, _ in rows(f"[{section}]")}
        for field in msgspec.structs.fields(kind):
            choices = getattr(field.type, "__args__", ())
            if choices and told[field.name] == "see below":
                assert f"`{field.name}`: {', '.join(choices)}." in text.replace("\n", " ")
            elif choices:
                assert told[field.name] == ", ".join(choices)


def test_strategies_and_their_own_defaults_are_those_of_the_code():
    found: dict[str, dict[str, dict[str, object]]] = {}
    for strategy, path, default in rows("What other strategies mean"):
        section, _, key = name(path).partition(".")
        found.setdefault(name(strategy), {}).setdefault(section, {})[key] = value(default)
    here = {one: dict(defaults_of(one)) for one in config_limits.STRATEGIES if defaults_of(one)}
    assert found == here
    of_custom = {
        (strategy, section, key): setting
        for strategy in config_limits.STRATEGIES
        for section, keys in defaults_of(strategy, custom=True).items()
        for key, setting in keys.items()
        if here[strategy][section][key] != setting
    }
    assert of_custom == {("streaming", "outer", "fragments"): 1}
    assert 'With `model.kind = "custom"` streaming\'s `outer.fragments` is 1' in PAPER
    listed = PAPER.split("- Strategies: ")[1].split(".\n")[0]
    assert tuple(re.findall(r"`(\w+)`", listed)) == config_limits.STRATEGIES


def test_own_settings_are_all_named_with_default_and_range():
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for strategy, key, default, told, _ in rows("[strategy.NAME]"):
        low, _, high = told.partition(" to ")
        found.setdefault(name(strategy), {})[name(key)] = (number(low), number(high))
        own = inspect.signature(BUILT_IN[name(strategy)]).parameters[name(key)].default
        assert value(default) == settings_of(CONFIG).numbers.get(name(key), own)
    assert found == config_limits._OWN_RANGES
