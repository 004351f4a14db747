"""[pipeline] of a run file: what it says, what it hashes to, and what cannot work."""

import re
from pathlib import Path

import msgpack
import pytest

from swarmtrain.config import file as config_file
from swarmtrain.config import limits as config_limits
from swarmtrain.config.built_in import num_values_of
from swarmtrain.config.pipeline import refuse_stages
from swarmtrain.config.settings import PipelineSection
from swarmtrain.config.stages import stage_parameters
from swarmtrain.foundation.errors import UserError
from swarmtrain.pipeline.costs import stage_needs
from swarmtrain_optimizers.strategies.registry import BUILT_IN, facts_named
from swarmtrain_transport.errors import RemoteFault
from swarmtrain_transport.pipeline.coordinator.assignment import StageNeed, flops_of
from tests.config.run_files import loaded


def refusal(directory: Path, text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        loaded(directory, text)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("text", ["", "[pipeline]\n", "[pipeline]\nstages = 1\n"])
def test_a_run_without_stages_has_the_hash_that_it_had_before_there_were_any(tmp_path, text):
    config = loaded(tmp_path, text)
    assert config.pipeline == PipelineSection()
    assert "pipeline" not in msgpack.unpackb(config_file.canonical(config))


def test_stages_are_a_number_or_names_and_travel_as_they_are(tmp_path):
    for stages, value in (("3", 3), ('["embedding", "blocks.2", "head"]', None)):
        config = loaded(tmp_path, f'[pipeline]\nstages = {stages}\nactivations = "none"\n')
        assert config.pipeline.stages == (value or ("embedding", "blocks.2", "head"))
        assert config.pipeline.num_stages == 3
        assert config_file.from_canonical(config_file.canonical(config)) == config
        assert config_limits.warnings(config) == ()
        hash(config.pipeline)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (
            "stages = 5\nvisit = 6", "pipeline.visit",
            "must be from 3 to 4, or left out with 5 stages, it is 6",
        ),
        (
            "stages = 5\nvisit = 5", "pipeline.visit",
            "must be from 3 to 4, or left out with 5 stages, it is 5",
        ),
        (
            "stages = 5\nvisit = 2", "pipeline.visit",
            "must be from 3 to 4, or left out with 5 stages, it is 2",
        ),
        ("stages = 3\nvisit = 3", "pipeline.visit", "must be left out with 3 stages, it is 3"),
        ("stages = 7", "pipeline.stages", "must be from 1 to 6, the blocks of this model; it is 7"),
        (
            'stages = 2\nschedule = "flush"\n[outer]\nstrategy = "eager"', "pipeline.schedule",
            "must be free with outer.strategy eager, it is flush",
        ),
        (
            'stages = 2\nschedule = "flush"\n[outer]\nstrategy = "streaming"', "pipeline.schedule",
            "must be free with outer.strategy streaming and outer.delay_steps 1, it is flush",
        ),
        (
            'stages = 2\n[outer]\nstrategy = "streaming"\ndelay_steps = 11', "outer.delay_steps",
            "must not be above outer.inner_steps / outer.fragments (10) where the model is in stag",
        ),
        ("stages = 0", "pipeline.stages", "must be from 2 to 64, it is 0"),
        ("stages = 65", "pipeline.stages", "must be from 2 to 64, it is 65"),
        ("stages = []", "pipeline.stages", "must be from 2 to 64, it is 0"),
        ('stages = ["embedding"]', "pipeline.stages", "must be from 2 to 64, it is 1"),
        (
            'stages = ["blocks.0", "head"]', "pipeline.stages",
            "must begin with embedding, the first block; it begins with blocks.0",
        ),
        (
            'stages = ["embedding", "layers.2"]', "pipeline.stages",
            "must name blocks of this model, not layers.2: embedding, blocks.0, blocks.1, ..., ",
        ),
        (
            'stages = ["embedding", "head", "blocks.1"]', "pipeline.stages",
            "must name blocks once each, in their order",
        ),
        ("schedule = 'flush'", "pipeline.stages", "must be from 2 to 64, it is 1"),
        ("stages = 2\nmicro_batch = 5", "inner.batch", "must be a multiple of pipeline.micro_"),
        ("stages = 2\nmicro_batch = -1", "pipeline.micro_batch", "must be from 0 to 65 536"),
        ("stages = 2\nmicro_batch = 64", "inner.batch", "must be a multiple of pipeline.micro_"),
        (
            'stages = 2\nschedule = "flush"\nmax_stale_steps = 2', "pipeline.max_stale_steps",
            "must be left out with pipeline.schedule flush",
        ),
        (
            'stages = 2\n[outer]\nstrategy = "ddp"', "outer.strategy",
            "must be one with inner steps where the model is in stages, it is ddp",
        ),
        (
            "stages = 2\nmicro_batch = 4\n[model]\nwidth = 4096\ncontext = 512",
            "pipeline.micro_batch",
            "must be at most 3 with this model and pipeline.activations int8, it is 4",
        ),
        (
            'stages = 2\nactivations = "none"\n[model]\nwidth = 4096\ncontext = 512',
            "model.context", "must be at most 511 with this width and pipeline.activations none",
        ),
        (
            'stages = 2\nactivations = "int4"', "pipeline.activations",
            "must be int8, float16, none or subspace-K, it is int4",
        ),
        (
            'stages = 2\nactivations = "subspace-128"', "pipeline.activations",
            "must have fewer values than model.width (128), it is subspace-128",
        ),
        (
            'stages = 2\nactivations = "subspace-8"\n[model]\nkind = "custom"\n'
            f'digest = "{64 * "a"}"\n[data]\nsource = "own"', "pipeline.activations",
            "must be int8, float16 or none with model.kind custom, it is subspace-8",
        ),
        (
            f'stages = 2\nactivations = "subspace-8"\n[model]\ninitial = "{64 * "a"}"',
            "model.initial", "must be left out with pipeline.activations subspace-8",
        ),
        ('activations = "subspace-8"', "pipeline.stages", "must be from 2 to 64, it is 1"),
        (
            "stages = 2\nturn_rounds = 5", "pipeline.turn_rounds",
            "must be left out with pipeline.activations int8",
        ),
        (
            'stages = 2\nactivations = "subspace-8"\nturn_rounds = 5\n[outer]\nstrategy = "eager"',
            "pipeline.turn_rounds", "must be left out with outer.strategy eager",
        ),
        (
            'stages = 2\nactivations = "subspace-8"\nturn_angle = 0.2', "pipeline.turn_angle",
            "must be left out without pipeline.turn_rounds",
        ),
        (
            'stages = 3\n[outer]\nstrategy = "streaming"\ndelay_steps = 0\nfragments = 4',
            "outer.fragments",
            "must be fewer for stage 0 of this model, it is 4",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_names_the_key(tmp_path: Path, text: str, key: str, words: str):
    error = refusal(tmp_path, f"[pipeline]\n{text}\n")
    assert (error.code, error.exit_status) == ("SWT-E605", 78)
    assert f"`{key}` {words}" in error.what


@pytest.mark.parametrize(
    ("stages", "batch", "size"), [(2, 8, 2), (3, 8, 1), (3, 36, 6), (3, 20, 2), (3, 1, 1)]
)
def test_two_micro_batches_a_stage_fit_into_a_step_where_the_file_says_nothing(
    tmp_path: Path, stages: int, batch: int, size: int
):
    config = loaded(tmp_path, f"[pipeline]\nstages = {stages}\n[inner]\nbatch = {batch}\n")
    assert config.pipeline.micro_batch == size
    assert config_file.from_canonical(config_file.canonical(config)) == config
    said = f"[pipeline]\nstages = {stages}\nmicro_batch = {size}\n[inner]\nbatch = {batch}\n"
    assert config_file.canonical(loaded(tmp_path, said)) == config_file.canonical(config)


@pytest.mark.parametrize("value", ["true", "2.5", '"3"', "[1, 2]", "{}"])
def test_stages_of_another_type_are_told_what_is_expected(tmp_path: Path, value: str):
    error = refusal(tmp_path, f"[pipeline]\nstages = {value}\n")
    assert error.code == "SWT-E604"
    assert "`pipeline.stages` must be a whole number or a list of texts in quotes" in error.what


@pytest.mark.parametrize(
    "strategy",
    [
        'diloco"\n[pipeline]\nschedule = "flush',
        'streaming"\ndelay_steps = 0\n[pipeline]\nschedule = "flush',
        *(facts.name for facts in BUILT_IN.values() if facts.fits_stages),
    ],
)
def test_strategies_with_inner_steps_fit(tmp_path: Path, strategy: str):
    text = f'[outer]\nstrategy = "{strategy}"\n'
    loaded(tmp_path, f"{text}stages = 2\n" if "[pip" in text else f"{text}[pipeline]\nstages = 2\n")


OWN = '[model]\nkind = "custom"\ndigest = "{}"\n[data]\nsource = "{}"\n[pipeline]\nstages = {}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OWN.format("", "own", 2), "`model.digest` must be 64 hex digits .* it is empty"),
        (OWN.format("B" * 64, "own", 2), "`model.digest` must be 64 hex digits"),
        (OWN.format("b" * 64, "python-stdlib", 2), "`data.source` must be own"),
        (OWN.format("b" * 64, "own", 1), "`model.digest` must be left out .* in one piece"),
        ('[data]\nsource = "own"\n[pipeline]\nstages = 2\n', "`data.source` must be python-stdlib"),
        (
            f'[model]\ndigest = "{"b" * 64}"\n[pipeline]\nstages = 2\n',
            "`model.digest` must be left",
        ),
    ],
)
def test_a_model_that_peers_bring_in_stages_is_named_by_its_digest(tmp_path: Path, text, words):
    assert re.search(words, refusal(tmp_path, text).what)


def test_the_names_of_a_custom_model_s_blocks_are_its_peers_affair(tmp_path: Path):
    for stages in (7, '["first", "second"]'):
        config = loaded(tmp_path, OWN.format("b" * 64, "own", stages))
        assert config_file.from_canonical(config_file.canonical(config)) == config
        assert stage_needs(config) == (StageNeed(1.0, 0, 0, 0, 0),) * config.pipeline.num_stages


def test_settings_that_a_coordinator_sends_are_judged_alike(tmp_path: Path):
    config = loaded(tmp_path, "[pipeline]\nstages = 3\n")
    tables = msgpack.unpackb(config_file.canonical(config))
    tables["pipeline"]["stages"] = 7
    with pytest.raises(RemoteFault, match=r"pipeline.stages must be from 1 to 6"):
        config_file.from_canonical(msgpack.packb(tables))
    tables["pipeline"] = msgpack.unpackb(
        msgpack.packb({**tables["pipeline"], "stages": 1, "micro_batch": 0})
    )
    with pytest.raises(RemoteFault, match="canonical"):
        config_file.from_canonical(msgpack.packb(tables))


def test_a_run_in_stages_is_not_trained_in_one_piece(tmp_path: Path):
    refuse_stages(loaded(tmp_path, ""))
    with pytest.raises(UserError, match="has its model in 3 stages") as caught:
        refuse_stages(loaded(tmp_path, "[pipeline]\nstages = 3\n"))
    assert caught.value.code == "SWT-E605"


def test_a_strategy_that_holds_more_vectors_needs_more_memory(tmp_path: Path):
    text = "[pipeline]\nstages = 2\n[outer]\nstrategy = "
    first, second = (stage_needs(loaded(tmp_path, f'{text}"{n}"')) for n in ("diloco", "eager"))
    size = num_values_of(stage_parameters(loaded(tmp_path, f'{text}"diloco"'))[0])
    more = 4 * (facts_named("eager").peak_vectors - facts_named("diloco").peak_vectors)
    assert second[0].kept_bytes - first[0].kept_bytes == pytest.approx(more * size, abs=1)


def test_a_strategy_that_takes_gradients_needs_memory_for_its_whole_step(tmp_path: Path) -> None:
    """Both hold 9.6 and 9.4 vectors beside weight and gradient at the end of an op, as their
    drivers were measured with 16 million values; moments of an inner optimizer there are none."""
    for name, vectors in (("ddp", 9.6), ("decoupled_momentum", 9.4)):
        config = loaded(tmp_path, f'[outer]\nstrategy = "{name}"\n')
        (need,), (parameters,) = stage_needs(config), stage_parameters(config)
        assert need.kept_bytes > 4 * (2 + vectors + 3) * num_values_of(parameters), name


def test_a_stage_that_half_of_all_micro_batches_visit_needs_half_as_much(tmp_path):
    text = "[model]\nlayers = 6\n[pipeline]\nstages = 6\nmicro_batch = 1\n"
    all_of_them, some = (stage_needs(loaded(tmp_path, text + f"visit = {n}")) for n in (0, 4))
    assert [need.share for need in some] == [1.0, 0.5, 0.5, 0.5, 0.5, 1.0]
    for stage, (whole, part) in enumerate(zip(all_of_them, some, strict=True)):
        here = range(stage, stage + 1)
        assert flops_of(some, here) == part.share * flops_of(all_of_them, here)
        assert whole.kept_bytes == part.kept_bytes
