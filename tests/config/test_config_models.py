"""[model] of a run file: sizes by name, configs of other libraries, and what is refused."""

import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn

from swarmtrain.config.built_in import vocabulary_of
from swarmtrain.config.file import canonical, from_canonical, load
from swarmtrain.config.settings import ModelSection, RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.build import build_model
from swarmtrain_transport.errors import RemoteFault

GPT2 = {"model_type": "gpt2", "vocab_size": 300, "_name_or_path": "/home/me", "auto_map": {}}


def written(folder: Path, model: str, more: str = "") -> Path:
    path = folder / "run.toml"
    path.write_text(f'[run]\nname = "test"\n{more}\n[model]\n{model}')
    return path


def test_a_size_stands_for_numbers_and_the_file_may_say_others(tmp_path: Path) -> None:
    config = load(written(tmp_path, 'kind = "transformer"\nsize = "124M"\ncontext = 512'))
    model = config.model
    assert (model.layers, model.width, model.heads, model.context) == (12, 768, 12, 512)
    numbers = 'kind = "transformer"\nlayers = 12\nwidth = 768\nheads = 12\ncontext = 512'
    assert canonical(load(written(tmp_path, numbers))) == canonical(config)
    assert from_canonical(canonical(config)) == config


def test_a_config_travels_as_what_it_says_and_no_path_does(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT2, indent=2))
    kind = 'kind = "huggingface"\nconfig = '
    config = load(written(tmp_path, kind + '"model/config.json"'))
    assert json.loads(config.model.config) == {"model_type": "gpt2", "vocab_size": 300}
    assert load(written(tmp_path, kind + '"model"')) == config
    assert from_canonical(canonical(config)) == config
    assert vocabulary_of(config) == 300
    assert b"home" not in canonical(config) and bytes(tmp_path) not in canonical(config)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"vocab_size": 3}', '{"model_type": "a"' + " " * 40_000]
)
def test_what_is_no_models_config_is_refused_by_its_path(text: str, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(text)
    with pytest.raises(UserError, match=r"some\.json is no model's config") as told:
        load(written(tmp_path, 'kind = "huggingface"\nconfig = "some.json"'))
    assert told.value.code == "SWT-E620"
    with pytest.raises(UserError, match="cannot be read"):
        load(written(tmp_path, 'kind = "huggingface"\nconfig = "other.json"'))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"vocab_size": 0}, "vocab_size of 1"), ({"vocab_size": "many"}, "vocab_size of 1"),
        ({"text_config": [1]}, "vocab_size of 1"), ({"n_layer": 10**9}, "at most 2000 layers"),
        ({"text_config": {"vocab_size": 8, "num_hidden_layers": 10**9}}, "at most 2000 layers"),
    ],
)  # fmt: skip
def test_a_config_of_no_model_at_all_is_refused_wherever_it_comes_from(
    keys: dict[str, object], words: str
) -> None:
    said = {"model_type": "gpt2", **keys}
    if "n_layer" in keys:
        said["vocab_size"] = 8
    model = ModelSection(kind="huggingface", config=json.dumps(said))
    with pytest.raises(RemoteFault, match=words):
        from_canonical(canonical(RunConfig(run=RunSection(name="test"), model=model)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ('kind = "tranformer"', "did you mean transformer"),
        ('kind = "module:nodots"', "module:mypackage.build"),
        ('kind = "transformer"\nsize = "7B"', "tiny, 10M"),
        ('size = "124M"', "with byte-transformer"),
        ("tied = false", "must be left out with model.kind byte-transformer"),
        ('kind = "transformer"\nkv_heads = 3', "must divide"),
        ('kind = "byte-transformer"\nvocabulary = 300', "must be 256"),
        ('kind = "huggingface"', "config.json"),
        ('kind = "transformer"\nconfig = "x"', "must be left out"),
    ],
)
def test_what_cannot_work_is_refused(model: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as told:
        load(written(tmp_path, model))
    assert told.value.code == "SWT-E605"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ('kind = "transformer"', "model.tied` must be false"),
        ('kind = "module:a.b"', "must be left out with model.kind module:a.b"),
    ],
)
def test_a_model_that_has_no_stages_is_refused_them(model: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        load(written(tmp_path, model, "[pipeline]\nstages = 2"))
    load(written(tmp_path, 'kind = "transformer"\ntied = false', "[pipeline]\nstages = 2"))


def rows(section: ModelSection, vocabulary: int) -> nn.Module:
    """A factory of this package."""
    return nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, section.layers))


def of_module(name: str, **settings: int) -> RunConfig:
    model = ModelSection(kind=f"module:{name}", **settings)
    return RunConfig(run=RunSection(name="test"), model=model)


def test_a_package_makes_a_model_only_where_its_name_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run file comes from a stranger, who may name any function that is installed."""
    name = f"{__name__}.rows"
    config = of_module(name, layers=256)
    assert from_canonical(canonical(config)) == config
    with pytest.raises(UserError, match=f"--module {name}") as told:
        build_model(config, 0)
    assert told.value.code == "SWT-E623"
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with pytest.raises(UserError):
        build_model(of_module("this.s"), 0)
    assert "this" not in sys.modules
    model = build_model(config, 0, modules=frozenset({name}))
    assert [tuple(one.shape) for one in model.parameters()] == [(256, 8), (256, 8), (256,)]
    monkeypatch.setenv("SWARMTRAIN_MODULE", name)
    build_model(config, 0)


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("nowhere.at_all", "not here", "SWT-E623"),
        (f"{__name__}.of_module", "made a StructMeta", "SWT-E623"),
        (f"{__name__}.rows", r"\(1, 2, 256\) is needed", "SWT-E621"),
    ],
)
def test_a_package_that_makes_no_model_of_the_run_is_told_so(
    name: str, words: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.of_module", lambda section, vocabulary: RunConfig)
    config = RunConfig(run=RunSection(name="test"), model=ModelSection(kind=f"module:{name}"))
    with pytest.raises(UserError, match=words) as told:
        build_model(config, 0, modules=frozenset({name}))
    assert told.value.code == code


def test_settings_that_came_later_do_not_change_what_old_files_hash_to() -> None:
    plain = msgspec.to_builtins(ModelSection())
    packed = canonical(RunConfig(run=RunSection(name="test")))
    later = {"size", "vocabulary", "kv_heads", "mlp_width", "norm", "rotary_base", "tied", "config"}
    assert later < plain.keys()
    assert not [key for key in later if key.encode() in packed]


def test_a_source_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.source. must name the text") as told:
        load(written(tmp_path, "", '[data]\nsource = ""'))
    assert told.value.code == "SWT-E605"


class Ahead(nn.Module):
    """Sees the next token."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(vocabulary, vocabulary)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        found: Tensor = self.rows(tokens_BT.roll(-1, dims=1))
        return found


def faulty(section: ModelSection, vocabulary: int) -> nn.Module:
    """A factory that does what its section's number of layers says."""
    if section.layers == 1:
        raise RuntimeError("no \x1b[31mmodel")
    if section.layers == 2:
        raise SystemExit(3)
    if section.layers == 3:
        return nn.Linear(3, 3)  # which takes no token ids
    if section.layers == 4:
        return nn.Identity()
    if section.layers == 5:
        with torch.device("meta"):
            return nn.Embedding(vocabulary, vocabulary)
    return Ahead(vocabulary)


@pytest.mark.parametrize(
    ("layers", "words", "code"),
    [
        (1, r"faulty made no model: RuntimeError: no  ?\[31mmodel\.", "SWT-E623"),
        (2, "faulty made no model: SystemExit: 3", "SWT-E623"),
        (3, "cannot read tokens: RuntimeError", "SWT-E621"),
        (4, "no parameter that can be trained", "SWT-E621"),
        (5, "no parameter that can be trained", "SWT-E621"),
        (6, "sees tokens that come after", "SWT-E621"),
    ],
)
def test_a_packages_fault_is_not_a_fault_here(layers: int, words: str, code: str) -> None:
    name = f"{__name__}.faulty"
    with pytest.raises(UserError, match=words) as told:
        build_model(of_module(name, layers=layers), 0, modules=frozenset({name}))
    assert told.value.code == code


@pytest.mark.parametrize("text", ["1 / 0", "def (", "raise SystemExit(1)"])
def test_a_package_that_cannot_be_imported_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_package.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "faulty_package.make"
    with pytest.raises(UserError, match=r"faulty_package\.make, which is not here") as told:
        build_model(of_module(name), 0, modules=frozenset({name}))
    assert told.value.code == "SWT-E623"
