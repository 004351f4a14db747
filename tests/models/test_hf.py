"""Against the real library: tiny random models, nothing downloaded."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from swarmtrain.config.built_in import built_in_parameters, counted, num_values_of
from swarmtrain.config.settings import ModelSection, RunConfig, RunSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.build import build_model
from swarmtrain.models.hf import hf_export, hf_import

SMALL = ModelSection(
    kind="transformer", layers=2, width=32, heads=4, kv_heads=2, context=16, vocabulary=48,
    rotary_base=5_000.0,
)  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 48, "n_positions": 16, "n_embd": 16, "n_layer": 1,
        "n_head": 2}  # fmt: skip


def run(model: ModelSection) -> RunConfig:
    return RunConfig(run=RunSection(name="test"), model=model)


def described(**keys: object) -> RunConfig:
    section = ModelSection(kind="huggingface", context=16, config=json.dumps(keys))
    return run(section)


TOKENS = torch.randint(0, 48, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_computes_the_same_in_the_library(tied: bool, tmp_path: Path) -> None:
    config = run(msgspec.structs.replace(SMALL, tied=tied))
    model = build_model(config, seed=3)
    weights = {name: 3 * values.detach() for name, values in model.named_parameters()}
    model.load_state_dict(weights, strict=False)
    said, named = hf_export(config, weights)
    (tmp_path / "config.json").write_text(json.dumps(said))
    save_file(named, tmp_path / "model.safetensors", metadata={"format": "pt"})
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert isinstance(theirs, LlamaForCausalLM)
    with torch.no_grad():
        assert torch.allclose(model(TOKENS), theirs(TOKENS).logits, atol=1e-4)
    back = hf_import(config, {**named, "lm_head.weight": named["model.embed_tokens.weight"]})
    assert back.keys() == weights.keys()


def test_a_model_that_the_library_has_not_is_not_exported_to_it() -> None:
    for section in (ModelSection(), msgspec.structs.replace(SMALL, norm="layer")):
        with pytest.raises(ValueError, match="no model that computes"):
            hf_export(run(section), {})


def test_a_config_makes_the_librarys_model_under_its_own_names() -> None:
    before = torch.random.get_rng_state()
    model, same = build_model(described(**GPT2), seed=1), build_model(described(**GPT2), seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    names = [name for name, _ in model.named_parameters()]
    assert names[0] == "transformer.wte.weight" and "lm_head.weight" not in names
    model.eval(), same.eval()
    with torch.no_grad():
        assert model(TOKENS).shape == (2, 16, 48)
        assert torch.equal(model(TOKENS), same(TOKENS))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({**GPT2, "model_type": "gpt9"}, "gpt9"),
        ({"model_type": "vit", "vocab_size": 48}, "vit"),
        ({**GPT2, "n_positions": 8}, "at most 8 tokens"),
        ({**GPT2, "n_head": 3}, "gpt2"),
        ({**GPT2, "n_layer": "many"}, "gpt2"),
        ({**GPT2, "n_embd": -16}, "gpt2"),
    ],
)
def test_another_models_config_is_refused_in_one_sentence(
    keys: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words) as told:
        build_model(described(**keys), seed=0)
    assert told.value.code == "SWT-E621"


def test_a_model_that_sees_what_it_should_foretell_is_refused() -> None:
    """Its loss fell to nothing, and it could not write: BERT, unless it is a decoder."""
    bert = {"model_type": "bert", "vocab_size": 48, "hidden_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 16}  # fmt: skip
    with pytest.raises(UserError, match="come after the place that it judges") as told:
        build_model(described(**bert), 0)
    assert told.value.code == "SWT-E621"
    build_model(described(**bert, is_decoder=True), 0)


def test_code_that_a_config_names_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    keys = {**GPT2, "auto_map": {"AutoModelForCausalLM": f"{tmp_path}--mine.Model"}}
    assert build_model(described(**keys), seed=0)(TOKENS).shape == (2, 16, 48)


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'swarmtrain\[hf\]'") as told:
        build_model(described(**GPT2), seed=0)
    assert told.value.code == "SWT-E102"


@pytest.mark.parametrize(
    ("keys", "share"),
    [
        ({**GPT2, "n_embd": 128}, 0.1),
        (
            {"model_type": "llama", "vocab_size": 48, "hidden_size": 32, "intermediate_size": 40,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "max_position_embeddings": 16},
            0.0,
        ),
    ],
)  # fmt: skip
def test_its_size_is_known_about_without_the_library(keys: dict[str, Any], share: float) -> None:
    """So a plan, and the door, can say what it takes."""
    config = described(**keys)
    known = counted(config)
    assert known is not None
    found = sum(one.numel() for one in build_model(config, seed=0).parameters())
    assert num_values_of(built_in_parameters(known.model)) == pytest.approx(found, rel=share)


def test_a_model_larger_than_the_memory_is_refused_before_it_is_made() -> None:
    huge = {**GPT2, "n_embd": 900_000, "n_layer": 2_000, "n_head": 10}
    for config in (described(**huge), run(ModelSection(layers=512, width=16_384, heads=1))):
        with pytest.raises(UserError, match="of memory") as told:
            build_model(config, seed=0)
        assert told.value.code == "SWT-E622"
