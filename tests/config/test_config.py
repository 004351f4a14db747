"""The run file: what is accepted, how mistakes are told, what is hashed."""

from pathlib import Path

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import fields

from swarmtrain.config import file as config_file
from swarmtrain.config import limits as config_limits
from swarmtrain.config.declared import bounds, declared, plain
from swarmtrain.config.settings import ExchangeSection, RunConfig, RunSection
from swarmtrain.foundation.errors import UserError, render
from swarmtrain_transport.errors import RemoteFault
from tests.config.run_files import loaded


def write(directory: Path, text: str) -> Path:
    path = directory / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(directory: Path, text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        config_file.load(write(directory, text))
    return caught.value


def test_a_name_is_enough_and_the_rest_has_defaults(tmp_path):
    config = config_file.load(write(tmp_path, '[run]\nname = "tiny"\n'))
    assert config == RunConfig(run=RunSection(name="tiny"))


def test_settings_are_taken_from_their_sections(tmp_path):
    text = 'schema = 1\n[run]\nname = "tiny"\nrounds = 8\n[outer]\nlr = 1\n[exchange]\ncodec="none"'
    config = config_file.load(write(tmp_path, text))
    assert (config.run.rounds, config.outer.lr, config.exchange.codec) == (8, 1.0, "none")
    assert isinstance(config.outer.lr, float)


def test_muon_is_an_inner_optimizer_that_changes_the_hash(tmp_path):
    plain = config_file.load(write(tmp_path, '[run]\nname = "t"\n'))
    muon = config_file.load(write(tmp_path, '[run]\nname = "t"\n[inner]\noptimizer = "muon"\n'))
    assert muon.inner.optimizer == "muon"
    assert config_file.config_hash(muon) != config_file.config_hash(plain)
    assert config_file.from_canonical(config_file.canonical(muon)) == muon


def test_an_unknown_key_names_the_line_and_the_key_that_was_meant(tmp_path):
    error = refusal(tmp_path, '[run]\nname = "t"\n\n[outer]\nmomentun = 0.8\n')
    assert (error.code, error.exit_status) == ("SWT-E601", 78)
    assert "`outer.momentun`" in error.what
    assert "Did you mean `momentum`?" in error.what
    assert "(line 5)" in error.what
    assert str(tmp_path / "run.toml") in error.what


def test_a_key_of_another_section_is_found_there(tmp_path):
    error = refusal(tmp_path, '[run]\nname = "t"\ninner_steps = 20\n')
    assert "Did you mean `outer.inner_steps`?   (line 3)" in error.what


def test_a_key_like_no_other_lists_the_known_ones(tmp_path):
    error = refusal(tmp_path, '[run]\nname = "t"\nzzz = 20\n')
    assert error.remedy == "Known here: name, seed, rounds."


@pytest.mark.parametrize(
    ("text", "line"), [("[exchnge]\nblock = 16\n[run]", 1), ("exchnge.block = 16\n[run]", 1)]
)
def test_an_unknown_section_is_told_like_an_unknown_key(tmp_path, text, line):
    error = refusal(tmp_path, text + '\nname = "t"\n')
    assert error.code == "SWT-E601"
    assert f"Did you mean `exchange`?   (line {line})" in error.what


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('lr = "0.1"', "`inner.lr` must be a number, it is text in quotes: '0.1'."),
        ("batch = 1.5", "`inner.batch` must be a whole number, it is 1.5."),
        ("batch = true", "`inner.batch` must be a whole number, it is true."),
        ('precision = "int"', '`inner.precision` must be one of "float32", "bfloat16", "auto", it'),
        ("lr = [1]", "`inner.lr` must be a number, it is a list."),
    ],
)
def test_a_wrong_type_names_the_key_and_what_is_expected(tmp_path, line, words):
    error = refusal(tmp_path, f'[run]\nname = "t"\n[inner]\n{line}\n')
    assert (error.code, error.exit_status) == ("SWT-E604", 78)
    assert words in error.what
    assert "(line 4)" in error.what


def test_a_choice_lists_its_values(tmp_path):
    error = refusal(tmp_path, '[run]\nname = "t"\n[exchange]\ncodec = "int9"\n')
    assert "must be one of int8, int4, e3m0, two_bit, sign, none, topk, topk-K" in error.what


def test_a_section_that_is_a_value_is_a_wrong_type(tmp_path):
    error = refusal(tmp_path, 'outer = 3\n[run]\nname = "t"\n')
    assert "`outer` must be a section, it is 3.   (line 1)" in error.what


@pytest.mark.parametrize("text", ["", "[run]\nrounds = 3\n"])
def test_a_run_without_a_name_is_told_what_to_add(tmp_path, text):
    error = refusal(tmp_path, text)
    assert error.code == "SWT-E604"
    assert "`run.name` is missing" in error.what


@pytest.mark.parametrize(
    ("section", "line", "key"),
    [
        ("run", "rounds = 0", "run.rounds"),
        ("run", "seed = -1", "run.seed"),
        ("inner", "lr = 0", "inner.lr"),
        ("inner", "lr = nan", "inner.lr"),
        ("inner", "weight_decay = inf", "inner.weight_decay"),
        ("inner", "beta2 = 1.0", "inner.beta2"),
        ("outer", "inner_steps = 0", "outer.inner_steps"),
        ("outer", "momentum = 1", "outer.momentum"),
        ("exchange", "block = 8", "exchange.block"),
        ("exchange", "block = 1000", "exchange.chunk_values"),
        ("exchange", "chunk_values = 2_097_152", "exchange.chunk_values"),
        ("exchange", "e_max = -70", "exchange.e_max"),
        ("exchange", "min_contributors = 2", "exchange.min_contributors"),
        ("exchange", "start_peers = 5000", "exchange.start_peers"),
        ("exchange", "deadline_cap_s = 1.0", "exchange.deadline_cap_s"),
        ("admission", "peers_max = 5000", "admission.peers_max"),
        (
            "admission",
            'peers_max = 65\n[outer]\nrobust = "median"\n[exchange]\nmin_contributors = 3\n'
            "start_peers = 3",
            "admission.peers_max",
        ),
        ("admission", 'peers_max = 65\n[exchange]\ncodec = "none"', "admission.peers_max"),
        ("admission", 'peers_max = 65\n[outer]\nstrategy = "sparseloco"', "admission.peers_max"),
        ("checkpoint", "snapshot_rounds = 17", "checkpoint.snapshot_rounds"),
        ("guard", "spike = 1.0", "guard.spike"),
        ("guard", "spike = nan", "guard.spike"),
        ("guard", "window = 2", "guard.window"),
        ("guard", "spike = 2.0\nback = 5", "checkpoint.snapshot_rounds"),
        ("guard", "spike = 2.0\n[checkpoint]\nsnapshot_rounds = 9", "checkpoint.snapshot_rounds"),
        ("guard", "spike = 2.0\n[checkpoint]\nkeep = 1", "checkpoint.keep"),
        ("guard", 'spike = 2.0\n[outer]\nstrategy = "asynchronous"', "guard.spike"),
        ("guard", "spike = 2.0\n[pipeline]\nstages = 2", "guard.spike"),
        (
            "guard",
            'spike = 2.0\n[outer]\nstrategy = "noloco"\n[exchange]\nstart_peers = 2\n'
            "min_contributors = 2",
            "guard.spike",
        ),
        ("model", "heads = 3", "model.width"),
        ("model", "context = 65_536", "data.piece_bytes"),
    ],
)
def test_a_value_that_cannot_work_names_the_key(tmp_path, section, line, key):
    name = 'name = "t"\n'
    header = "" if section == "run" else f"[{section}]\n"
    error = refusal(tmp_path, f"[run]\n{name}{header}{line}\n")
    assert (error.code, error.exit_status) == ("SWT-E605", 78)
    assert f"`{key}` must" in error.what


_HUGE = [str(10**400), f"-1{'0' * 400}", "0x" + "f" * 8000, str(2**63)]


@pytest.mark.parametrize("value", _HUGE, ids=["decimal", "negative", "hexadecimal", "64 bits"])
def test_a_whole_number_of_any_length_is_refused_in_every_place(tmp_path, value):
    tables = msgspec.to_builtins(RunConfig(run=RunSection(name="t")))
    sections = {name: own for name, own in tables.items() if isinstance(own, dict)}
    places = [f"{name}.{key}" for name, own in sections.items() for key in own]
    for place in [
        *places,
        "schema",
        "exchange",
        "strategy",
        "strategy.theirs",
        "strategy.theirs.x",
    ]:
        error = refusal(tmp_path, f"{place} = {value}\n")
        assert error.code == "SWT-E605" and "(line 1)" in error.what
        assert f"`{place}` must be a number of at most 63 bits" in error.what


def test_a_number_that_python_does_not_read_is_not_toml(tmp_path):
    assert refusal(tmp_path, f"[run]\nseed = {'9' * 5000}\n").code == "SWT-E603"


@pytest.mark.parametrize("name", ["", "a b", "../up", "x" * 65, "-x", "ü"])
def test_a_run_name_is_safe_in_invites_and_paths(tmp_path, name):
    assert refusal(tmp_path, f'[run]\nname = "{name}"\n').code == "SWT-E605"


def test_text_that_is_not_toml_names_the_line(tmp_path):
    error = refusal(tmp_path, '[run]\nname = "t\n')
    assert (error.code, error.exit_status) == ("SWT-E603", 78)
    assert "line 2" in error.what


def test_a_file_that_is_nested_without_end_is_no_bug(tmp_path):
    error = refusal(tmp_path, "a = " + "[" * 20_000)
    assert error.code == "SWT-E603" and "nested too deeply" in error.what


def test_bytes_that_are_not_utf8_are_told(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"[run]\nname = \xff\n")
    with pytest.raises(UserError) as caught:
        config_file.load(path)
    assert caught.value.code == "SWT-E603"


def test_a_file_with_the_mark_that_editors_put_before_utf8_is_read(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbf[run]\r\nname = "t"\r\n')
    assert config_file.load(path).run.name == "t"


def test_a_missing_file_is_told_with_the_place_that_was_searched(tmp_path):
    with pytest.raises(UserError) as caught:
        config_file.load(tmp_path / "run.toml")
    assert (caught.value.code, caught.value.exit_status) == ("SWT-E602", 66)
    assert "[exit 66]" in render(caught.value)


def test_another_schema_is_refused_before_its_keys(tmp_path):
    error = refusal(tmp_path, "schema = 2\n[something]\nnew = 1\n")
    assert (error.code, error.exit_status) == ("SWT-E608", 78)


def test_equal_settings_have_equal_hashes_however_they_were_written(tmp_path):
    short = config_file.load(write(tmp_path, '[run]\nname = "t"\n'))
    text = 'outer.lr = 0.9\nexchange.wait_ready_s = 60\n[run]\nseed = 0\nname = "t"\n'
    long = config_file.load(write(tmp_path, text))
    assert config_file.config_hash(short) == config_file.config_hash(long)
    other = msgspec.structs.replace(short, run=RunSection(name="t", seed=1))
    assert config_file.config_hash(other) != config_file.config_hash(short)


def test_the_hash_of_the_default_settings_stays_as_released():
    # Old ledgers name their settings by this hash: a new default is a new schema, and a new key
    # is written out only where it is not at its default.
    digest = config_file.config_hash(RunConfig(run=RunSection(name="t"))).hex()
    assert digest == "5f3d077bb40212c91a90a056fdbb39b7d72bb6cda58de68154d0e4e8a05d5e7f"


def test_a_key_of_a_later_release_counts_once_it_is_used():
    plain = RunConfig(run=RunSection(name="t"))
    equal = msgspec.structs.replace(plain, exchange=ExchangeSection(slices="equal"))
    assert config_file.config_hash(equal) != config_file.config_hash(plain)
    assert config_file.from_canonical(config_file.canonical(equal)) == equal
    assert config_file.from_canonical(config_file.canonical(plain)) == plain


def test_canonical_bytes_come_back_as_the_same_settings():
    config = RunConfig(run=RunSection(name="t", seed=2**63 - 1, rounds=3))
    assert config_file.from_canonical(config_file.canonical(config)) == config


@given(st.binary(max_size=200))
@example(b"\x81\x90\x00")  # a map whose key is a list
def test_any_bytes_as_settings_are_refused_as_the_other_sides_fault(data):
    with pytest.raises(RemoteFault):
        config_file.from_canonical(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda tables: tables["model"].update(layers=10**6),
        lambda tables: tables["model"].update(code="print(1)"),
        lambda tables: tables.update(extra={}),
        lambda tables: tables["outer"].update(lr="0.9"),
        lambda tables: tables["outer"].update(lr=float("nan")),
        lambda tables: tables["run"].update(name="../../etc"),
        lambda tables: tables.pop("model"),
        lambda tables: tables.update(model=3),
    ],
)
def test_settings_from_a_hostile_coordinator_pass_the_same_checks(change):
    tables = msgspec.to_builtins(RunConfig(run=RunSection(name="t")))
    change(tables)
    with pytest.raises(RemoteFault) as caught:
        config_file.from_canonical(msgpack.packb(tables))
    assert caught.value.reason == "run-file"


def test_a_coordinator_of_another_schema_asks_for_an_update():
    with pytest.raises(UserError) as caught:
        config_file.from_canonical(msgpack.packb({"schema": 2, "run": {}}))
    assert caught.value.code == "SWT-E608"


def test_every_number_has_bounds_and_every_setting_says_what_it_is():
    for section in fields(RunConfig):
        if section.name in ("schema", "strategy"):
            continue
        for setting in fields(section.type):
            place = f"{section.name}.{setting.name}"
            assert declared(setting.type).description, place
            assert (plain(setting.type) in (int, float)) == bool(bounds(setting.type)), place


def test_every_default_is_in_its_range():
    assert config_limits.first_problem(RunConfig(run=RunSection(name="t"))) is None


def test_a_strategys_facts_are_searched_once_and_are_no_part_of_the_settings():
    config = RunConfig(run=RunSection(name="t"))
    plain = RunConfig(run=RunSection(name="t"))
    assert config.facts is config.facts
    assert config == plain and config_file.canonical(config) == config_file.canonical(plain)


def test_a_guard_that_does_nothing_is_warned_of(tmp_path: Path) -> None:
    (warning,) = config_limits.warnings(loaded(tmp_path, "[guard]\nwindow = 5\n"))
    assert "does nothing without guard.spike" in warning
