"""The run file: from TOML to checked settings, and to the canonical bytes that are hashed.

Every key is looked up by hand before msgspec converts its value, because a person who mistyped
`inner_stpes` needs the line and the right word, not a parser's path. Peers receive the canonical
form, which is hostile input: it passes the same checks. Nothing here is ever executed.
"""

import difflib
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgpack
import msgspec

from swarmtrain.config import limits as config_limits
from swarmtrain.config.asked import not_here
from swarmtrain.config.data import unsettled
from swarmtrain.config.declared import expected, is_of, plain, type_words
from swarmtrain.config.models import CONFIG_BYTES_MAX, described, sized
from swarmtrain.config.problem import INTEGER_MAX, Problem, too_long
from swarmtrain.config.settings import (
    TURN_ANGLE,
    ExpertsSection,
    GuardSection,
    PipelineSection,
    RunConfig,
    Setting,
)
from swarmtrain.foundation import regular_file
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.foundation.regular_file import UnfitFile
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.wire.unpacking import unpack_limited

SCHEMA = 1
"""The only schema so far. A file of another one is refused before its keys are looked at."""

FILE_BYTES_MAX = 65_536
"""A run file is sent to every peer inside one control message, and nobody writes a longer one."""

_LATER_KEYS: tuple[tuple[str, str, object], ...] = (
    ("admission", "page", "link"),
    ("exchange", "slices", "measured"),
    ("exchange", "rounding", "nearest"),
    ("outer", "fragments", 1),
    ("outer", "delay_steps", 0),
    ("outer", "mixing", 0.0),
    ("outer", "robust", "none"),
    ("outer", "lr_rule", "fixed"),
    ("outer", "last_merge", False),
    ("outer", "budget", 0),
    ("outer", "when", "late"),
    ("inner", "schedule", "steps"),
    ("inner", "schedule_tokens", 0),
    ("inner", "accumulate", 1),
    ("inner", "moments_every", 4),
    ("inner", "arguments", {}),
    ("inner", "precision", "float32"),
    ("inner", "activation_checkpointing", False),
    ("model", "digest", ""),
    ("model", "initial", ""),
    ("model", "vocabulary", 0),
    ("data", "validation", ""),
    ("model", "size", ""),
    ("model", "kv_heads", 0),
    ("model", "mlp_width", 0),
    ("model", "norm", "rms"),
    ("model", "rotary_base", 10_000.0),
    ("model", "tied", True),
    ("model", "config", ""),
    ("data", "tokenizer", "bytes"),
    ("data", "field", "text"),
    ("data", "documents", 0),
    ("pipeline", "turn_rounds", 0),
    ("pipeline", "turn_angle", TURN_ANGLE),
)

_STRATEGY = "strategy"
"""The section of sections: [strategy.NAME]."""


def load(path: Path) -> RunConfig:
    """Read and check a run file.

    Raises:
        UserError: SWT-E602 missing, E603 not TOML, E601 unknown key, E604 wrong type or required
            key missing, E605 out of range, E608 another schema. The text names file, line, key.
    """
    text = _read(path)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problem = _in_words(error)
        raise UserError(
            "SWT-E603",
            f"{path}: {problem}.",
            "The file is not valid TOML, so no setting could be read.",
            "Correct that place. Texts stand in quotes, sections in [brackets].",
        ) from error
    return _Reader(str(path), text).config(tables)


def _in_words(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, tomllib.TOMLDecodeError):
        return str(error)
    return "a number with thousands of digits"  # which Python does not read at all


def canonical(config: RunConfig) -> bytes:
    """The settings as msgpack with all defaults written out, in the order of their definition.

    Equal settings give equal bytes, however the file was written. Keys that came after the first
    release are left out while they have their default: old ledgers name their settings by hash.
    """
    tables = msgspec.to_builtins(config)
    tables["inner"]["arguments"] = dict(sorted(config.inner.arguments.items()))
    for section, key, default in _LATER_KEYS:
        if tables[section][key] == default:
            del tables[section][key]
    if config.pipeline == PipelineSection():
        del tables["pipeline"]
    if config.experts == ExpertsSection():
        del tables["experts"]
    if config.guard == GuardSection():
        del tables["guard"]
    tables["strategy"] = {
        name: dict(sorted(own.items())) for name, own in sorted(config.strategy.items()) if own
    }
    if not tables["strategy"]:
        del tables["strategy"]
    packed: bytes = msgpack.packb(tables, use_bin_type=True)
    return packed


def config_hash(config: RunConfig) -> bytes:
    """SHA-256 of the canonical bytes: what the ledger's first record holds."""
    return hashlib.sha256(canonical(config)).digest()


def from_canonical(data: bytes) -> RunConfig:
    """The settings that a coordinator sent. Checked as strictly as a file.

    Raises:
        UserError: SWT-E608, the run is of another schema than this version knows.
        RemoteFault: reason ``run-file``; not canonical, an unknown key, a bad type or value.
    """
    if len(data) > FILE_BYTES_MAX:
        raise RemoteFault("run-file", f"run settings of {len(data)} bytes")
    tables = unpack_limited(data)
    if not isinstance(tables, dict) or not all(isinstance(key, str) for key in tables):
        raise RemoteFault("run-file", "run settings are not a map of sections")
    _check_schema(tables.get("schema", SCHEMA), "the coordinator's run file")
    try:
        config = msgspec.convert(tables, RunConfig)
    except msgspec.ValidationError as error:
        raise RemoteFault("run-file", cleaned(str(error))) from error
    problem = config_limits.first_problem(config) or unsettled(config)
    if problem is not None:
        raise RemoteFault("run-file", f"{problem.key} {problem.text}")
    if canonical(config) != data:
        raise RemoteFault("run-file", "run settings are not in canonical form")
    return config


def _read(path: Path) -> str:
    try:
        data = regular_file.read(path, FILE_BYTES_MAX)
    except UnfitFile as error:
        raise UserError("SWT-E603", f"{path}: {error.strerror}.", "It is no run file.") from error
    except OSError as error:
        raise UserError(
            "SWT-E602",
            f"The run file {path} cannot be read: {error.strerror or error}.",
            f"Looked from {Path.cwd()}.",
            'Check the path. The shortest run file is a section [run] with name = "my-run".',
        ) from error
    try:
        return data.decode("utf-8-sig")  # Windows' editors begin files with a mark
    except UnicodeDecodeError as error:
        raise UserError(
            "SWT-E603",
            f"{path}: byte {error.start} is not UTF-8.",
            "TOML is always UTF-8.",
            "Save the file again as UTF-8.",
        ) from error


def _check_schema(found: object, place: str) -> None:
    if type(found) is int and found != SCHEMA:
        raise UserError(
            "SWT-E608",
            f"{place} is of schema {found}; this version knows schema {SCHEMA}.",
            "Its keys may mean something else here, so none was read.",
            "Update swarmtrain, or write the file for schema 1.",
        )


def refuse(path: Path, problem: Problem | None) -> None:
    """Refuse what could not be known when the file was read.

    Raises:
        UserError: SWT-E605, there is a problem.
    """
    if problem is not None:
        raise _refusal(str(path), problem)


def _refusal(path: str, problem: Problem, line: str = "") -> UserError:
    what = f"{path}: `{problem.key}` {problem.text}.{line}"
    return UserError("SWT-E605", what, problem.reason, "Change it and start again.")


class _Reader:
    """One file on its way to settings. Remembers name and text for messages."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._sections = {
            field.name: field.type
            for field in msgspec.structs.fields(RunConfig)
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        }

    def config(self, tables: dict[str, Any]) -> RunConfig:
        self._check_whole_numbers(tables)
        _check_schema(tables.get("schema", SCHEMA), self._path)
        parts: dict[str, Any] = {}
        for name, value in tables.items():
            if name == "schema":
                parts[name] = self._value(name, "", name, int, value)
            elif name == _STRATEGY and isinstance(value, dict):
                parts[name] = {key: self._own(key, own) for key, own in value.items()}
            elif name not in (*self._sections, _STRATEGY):
                raise self._unknown(name, "", [*self._sections, _STRATEGY, "schema"])
            elif not isinstance(value, dict):
                raise self._wrong_type(name, "", name, "a section", value)
            else:
                parts[name] = self._section(name, value)
        if "run" not in parts:
            raise self._missing("run.name")
        config = self._with_model(_with_defaults(RunConfig(**parts), tables), tables)
        problem = config_limits.first_problem(config) or not_here(config)
        if problem is not None:
            raise self._refused(problem)
        return config

    def _check_whole_numbers(self, tables: dict[str, Any]) -> None:
        """TOML's have any length; nothing after this place meets one that no machine holds."""
        waiting: list[tuple[str, Any]] = list(tables.items())
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, dict):
                waiting += [(f"{path}.{key}", inner) for key, inner in value.items()]
            elif isinstance(value, int) and abs(value) > INTEGER_MAX:
                raise self._refused(too_long(path))

    def _with_model(self, config: RunConfig, tables: dict[str, Any]) -> RunConfig:
        """Fill in the numbers of a size, and what a model's config.json says: no path travels."""
        model = sized(config.model, tables.get("model", {}))
        if model.kind == "huggingface" and model.config:
            text = _read_config(Path(self._path).parent / model.config)
            model = msgspec.structs.replace(model, config=text)
        return config if model == config.model else msgspec.structs.replace(config, model=model)

    def _refused(self, problem: Problem) -> UserError:
        section, _, key = problem.key.rpartition(".")
        return _refusal(self._path, problem, self._line(section, key))

    def _section(self, name: str, table: dict[str, Any]) -> msgspec.Struct:
        kind = self._sections[name]
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in fields:
                raise self._unknown(key, name, list(fields))
            values[key] = self._value(f"{name}.{key}", name, key, fields[key].type, value)
        for key, field in fields.items():
            if field.required and key not in values:
                raise self._missing(f"{name}.{key}")
        section: msgspec.Struct = kind(**values)
        return section

    def _own(self, name: str, table: object) -> dict[str, Setting]:
        """The settings of one strategy; what they mean, only the strategy knows."""
        path = f"{_STRATEGY}.{name}"
        if not isinstance(table, dict):
            raise self._wrong_type(path, _STRATEGY, name, "a section", table)
        return {
            key: self._value(f"{path}.{key}", path, key, Setting, value)
            for key, value in table.items()
        }

    def _value(self, path: str, section: str, key: str, kind: Any, value: object) -> Any:
        if not is_of(value, kind):
            raise self._wrong_type(path, section, key, expected(kind), value)
        return msgspec.convert(value, plain(kind))

    def _wrong_type(
        self, path: str, section: str, key: str, expected: str, value: object
    ) -> UserError:
        return UserError(
            "SWT-E604",
            f"{self._path}: `{path}` must be {expected}, "
            f"it is {_shown(value)}.{self._line(section, key)}",
            "No setting is guessed, so nothing was started.",
            "Change it and start again.",
        )

    def _missing(self, path: str) -> UserError:
        section, _, key = path.partition(".")
        return UserError(
            "SWT-E604",
            f"{self._path}: `{path}` is missing.",
            "It is the only setting without a default: the run's name is part of every invite.",
            f'Add a section [{section}] with {key} = "my-run".',
        )

    def _unknown(self, key: str, section: str, known: list[str]) -> UserError:
        path = f"{section}.{key}" if section else key
        what = "key" if section else "section or key"
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        if near:
            hint = f" Did you mean `{near[0]}`?"
        else:
            places = [
                f"{name}.{field.name}"
                for name, kind in self._sections.items()
                for field in msgspec.structs.fields(kind)
                if field.name == key
            ]
            hint = f" Did you mean `{places[0]}`?" if places else ""
        return UserError(
            "SWT-E601",
            f"{self._path}: unknown {what} `{path}`.{hint}{self._line(section, key)}",
            "A misspelt setting would silently be its default.",
            f"Known here: {', '.join(known)}." if not hint else "Correct it and start again.",
        )

    def _line(self, section: str, key: str) -> str:
        number = _find_line(self._text, section, key)
        return f"   (line {number})" if number else ""


def _read_config(path: Path) -> str:
    """A model's config.json, without what says where it came from or names code.

    Raises:
        UserError: SWT-E620.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        said = described(regular_file.read(file, CONFIG_BYTES_MAX).decode(errors="replace"))
    except UnfitFile:
        said = None
    except OSError as error:
        raise UserError(
            "SWT-E620",
            f"The model's config {file} cannot be read: {error.strerror or error}.",
            "`model.config` is a path from the run file's folder.",
            "Check the path.",
        ) from error
    if said is None:
        raise UserError(
            "SWT-E620",
            f"{file} is no model's config.",
            f"That is a JSON object of at most {CONFIG_BYTES_MAX} bytes with a model_type, as "
            "save_pretrained of the transformers library writes it.",
            "Name a model's config.json, or the folder with it.",
        )
    kept = {key: value for key, value in said.items() if not key.startswith("_")}
    kept.pop("auto_map", None)
    return json.dumps(kept, separators=(",", ":"), sort_keys=True)


def _with_defaults(config: RunConfig, tables: dict[str, Any]) -> RunConfig:
    """Fill in the strategy's own defaults where the file says nothing."""
    for path, default in config.facts.defaults.items():
        section, _, key = path.partition(".")
        if path == "outer.fragments" and not config.model.is_counted:
            continue  # nothing is known of the layers of somebody else's model
        if key not in tables.get(section, {}):
            changed = msgspec.structs.replace(getattr(config, section), **{key: default})
            config = msgspec.structs.replace(config, **{section: changed})
    return config


def _shown(value: object) -> str:
    words = type_words(value)
    if isinstance(value, dict | list):
        return words
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{words}: {cleaned(shown)}" if isinstance(value, str) else cleaned(shown)


def _find_line(text: str, section: str, key: str) -> int:
    """Number of the line that sets `section.key`, or 0. Only for messages, so not a parser."""
    path = f"{section}.{key}" if section else key
    here = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
    dotted = re.compile(rf"\s*{re.escape(path)}\s*=")
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([^\]]+?)\s*\]", line)
        if header is not None:
            current = header[1]
        pattern = here if current == section else dotted
        if current == path or (header is None and pattern.match(line)):
            return number
    return 0
