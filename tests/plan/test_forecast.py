"""Forecasts of runs, against sums made by hand."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmtrain.cli.main import main
from swarmtrain.compare.plan import NETS, Net
from swarmtrain.config.file import load
from swarmtrain.config.settings import (
    ExpertsSection,
    InnerSection,
    ModelSection,
    OuterSection,
    PipelineSection,
    RunConfig,
    RunSection,
)
from swarmtrain.config.stages import stage_parameters
from swarmtrain.foundation.errors import UserError
from swarmtrain.pipeline.costs import stage_needs
from swarmtrain.plan.forecast import MACHINES, Forecast, Peer, forecast, parse_peers

MODEL = ModelSection(layers=12, width=576, heads=8, context=256)


def config_of(stages: int = 3, **pipeline: object) -> RunConfig:
    return RunConfig(
        run=RunSection(name="tests"), model=MODEL, inner=InnerSection(batch=8),
        outer=OuterSection(inner_steps=50),
        pipeline=PipelineSection(stages=stages, micro_batch=2, **pipeline),
    )  # fmt: skip


def of(text: str, config: RunConfig | None = None) -> Forecast:
    return forecast(config or config_of(), parse_peers(text))


def test_costs_of_sizes_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "requirements.md"
    assert main(["plan", "--costs"]) == 0
    told = capsys.readouterr().out
    assert f"```text\n{told}```" in page.read_text(), "paste what swarmtrain plan --costs prints"
    assert main(["plan", "--costs", "--json"]) == 0
    tiny, *_ = json.loads(capsys.readouterr().out)
    four = next(one for one in tiny["exchanges"] if one["peers"] == 4 and one["mbit_s"] == 20)
    # Each gives three quarters of the model to others and gets as much of the mean; a scale of two
    # bytes for 1 024 values; four round trips of 50 ms.
    by_hand = 2 * 3 / 4 * tiny["parameters"] * (1 + 2 / 1024)
    assert four["num_bytes"] == pytest.approx(by_hand, abs=1)
    assert four["seconds"] == pytest.approx(by_hand * 8 / 20e6 + 0.2)


def test_a_plan_without_peers_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "run.toml"]) == 2
    assert "SWT-E610" in capsys.readouterr().err


def test_peers_are_named_by_machine_and_link() -> None:
    assert parse_peers("2*laptop@dsl, gpu@fibre") == (
        Peer("laptop", "dsl"), Peer("laptop", "dsl"), Peer("gpu", "fibre"),
    )  # fmt: skip
    (own,) = parse_peers("laptop:7.5GB@20/5:50")
    assert str(own) == "laptop:7.5GB@20/5:50" and own.net == Net(2.5e6, 0.625e6, 0.05)
    assert own.server.memory_bytes == 7_500_000_000 and own.server.link_bytes_per_s == 0.625e6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' names no peers"), ("laptop", "names no peers"), ("2*laptop@dsl,", "'' names"),
        ("2 laptop@dsl", "names no peers"), ("toaster@dsl", "'toaster' is no machine"),
        ("laptop@pigeon", "'pigeon' is no link"), ("laptop@0/1:5", "is no link"),
        ("laptop@1/2", "is no link"), ("laptop@nan/1:5", "is no link"),
        ("laptop:8@dsl", "no peers"), ("0*laptop@dsl", "0 peers"),
        ("65*laptop@dsl", "65 peers"), ("\x1b[2J@dsl", "names no peers"),
    ],
)  # fmt: skip
def test_peers_that_nobody_knows_are_refused(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_peers(text)
    assert caught.value.code == "SWT-E610" and words in caught.value.what
    assert caught.value.remedy and "\x1b" not in caught.value.what


def test_a_batch_in_parts_and_activations_made_again_take_less_memory() -> None:
    model = ModelSection(kind="transformer", layers=12, width=512, heads=8, context=256)
    whole, parts, again = (
        stage_needs(RunConfig(run=RunSection(name="tests"), model=model, inner=inner))[0]
        for inner in (
            InnerSection(batch=8), InnerSection(batch=8, accumulate=4),
            InnerSection(batch=8, accumulate=4, activation_checkpointing=True),
        )
    )  # fmt: skip
    assert whole.pass_bytes == 4 * parts.pass_bytes > 4 * 3 * again.pass_bytes
    assert whole.flops == parts.flops


def test_a_model_of_the_transformers_library_is_planned_by_its_sizes() -> None:
    sizes = {"model_type": "llama", "vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 4,
             "num_attention_heads": 4, "intermediate_size": 384}  # fmt: skip
    model = ModelSection(kind="huggingface", config=json.dumps(sizes))
    same = ModelSection(kind="transformer", layers=4, width=128, heads=4, tied=False)
    found, expected = (
        of("2*laptop@dsl", RunConfig(run=RunSection(name="tests"), model=one))
        for one in (model, same)
    )
    assert found == expected
    with pytest.raises(UserError, match="of its size") as caught:
        of(
            "gpu@dsl",
            RunConfig(run=RunSection(name="tests"), model=ModelSection(kind="module:a.b")),
        )
    assert caught.value.code == "SWT-E633"


def test_a_stage_is_as_fast_as_its_peers_together_and_the_run_as_its_slowest_stage() -> None:
    found = of("4*small@lan")
    needs = stage_needs(config_of())
    assert [seat.span for seat in found.seats] == [(0, 0), (1, 1), (2, 2)]
    assert sum(seat.count for seat in found.seats) == 4
    speed = MACHINES["small"].flops_per_s
    alone = [speed / (factor * need.flops) for factor, need in zip((4, 4, 3), needs, strict=True)]
    counts = [seat.count for seat in found.seats]
    assert found.stage_rates == pytest.approx([a * c for a, c in zip(alone, counts, strict=True)])
    assert found.micro_batches_s == min(found.stage_rates)
    slowest = found.stage_rates.index(min(found.stage_rates))
    assert found.bottleneck.startswith(f"stage {slowest}: the processors of its ")
    (more,) = found.more
    assert more.span == (slowest, slowest) and more.tokens_s > found.tokens_s


def test_a_round_is_its_micro_batches_and_an_exchange() -> None:
    config, found = config_of(), of("6*small@dsl")
    sources = sum(seat.count for seat in found.seats if seat.span[0] == 0)
    count = sources * 50 * 4  # inner steps x micro-batches of a batch
    assert found.round_s - found.exchange_s == pytest.approx(count / found.micro_batches_s)
    assert found.tokens_s == pytest.approx(count * 2 * 256 / found.round_s)
    values = max(
        sum(_product(shape) for _, shape, _ in parameters)
        for parameters in stage_parameters(config)
    )
    # Two peers: each sends half of its part of a stage and half of the result.
    least = values * 1.0 / NETS["dsl"].up_bytes_s
    assert least < found.exchange_s < 1.1 * least + 4 * NETS["dsl"].round_trip_s


def _product(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def test_thin_links_hold_fast_peers_back_and_fewer_bytes_help() -> None:
    thin = of("big-gpu@dsl,big-gpu@dsl,big-gpu@dsl", config_of())
    assert {seat.span for seat in thin.seats} == {(0, 2)}  # they have room for all of it
    peers = [Peer("small", "dsl")] * 30
    for activations, least in (("none", 4.0), ("float16", 2.0), ("int8", 1.0)):
        needs = stage_needs(config_of(activations=activations))
        assert needs[1].input_bytes == pytest.approx(least * 2 * 256 * MODEL.width, rel=0.13)
        found = forecast(config_of(activations=activations), peers)
        (middle, *_) = (seat for seat in found.seats if seat.span == (1, 1))
        assert middle.hop_bytes == 2 * needs[1].input_bytes
        by_link = NETS["dsl"].up_bytes_s / middle.hop_bytes
        assert (middle.held_by == "link") == (by_link == pytest.approx(middle.micro_batches_s))


def test_a_long_way_with_few_on_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = of("3*small@dsl")
    monkeypatch.setattr("swarmtrain.plan.forecast.under_way_of", lambda config, slots: 1)
    found = of("3*small@dsl")
    assert found.stage_rates == plain.stage_rates
    assert found.micro_batches_s < min(found.stage_rates)
    assert "the way through the stages" in found.bottleneck
    assert "1 micro-batch " in found.bottleneck


def test_who_has_no_room_is_left_out_and_a_stage_without_a_peer_is_an_error() -> None:
    large = RunConfig(
        run=RunSection(name="t"), model=ModelSection(layers=12, width=1024, heads=8),
        pipeline=PipelineSection(stages=3, micro_batch=2),
    )  # fmt: skip
    found = of("2*small@dsl,3*laptop@dsl", large)
    assert found.left_out == {"small@dsl": 2}
    assert sum(seat.count for seat in found.seats) == 3
    assert {more.peer for more in found.more} == {"laptop@dsl"}
    with pytest.raises(UserError) as caught:
        of("2*small@dsl,2*laptop@dsl", large)
    assert caught.value.code == "SWT-E614"
    assert "Nobody is left for stage 2" in caught.value.what
    assert "2 small@dsl had no room" in caught.value.what
    assert caught.value.remedy == "Name more peers, or larger ones."


@pytest.mark.parametrize(("stages", "finer"), [(1, 6), (2, 6), (3, 6)])
def test_where_no_stage_fits_the_fewest_that_do_are_named(stages: int, finer: int) -> None:
    model = ModelSection(kind="transformer", layers=20, width=2048, heads=16, tied=stages == 1)
    large = RunConfig(
        run=RunSection(name="t"), model=model, pipeline=PipelineSection(stages=stages)
    )
    with pytest.raises(UserError) as caught:
        of("3*laptop:8GB@dsl", large)
    assert f"cut the model into {finer} stages (pipeline.stages" in caught.value.remedy
    more = PipelineSection(stages=finer)
    fits = RunConfig(run=large.run, model=msgspec.structs.replace(model, tied=False), pipeline=more)
    assert sum(seat.count for seat in of(f"{finer}*laptop:8GB@dsl", fits).seats) == finer
    with pytest.raises(UserError) as caught:
        of("3*laptop:1GB@dsl", large)
    assert "take a smaller model: of 22 stages one takes" in caught.value.remedy


SHORT = {"layers": 2, "context": 1024, "vocabulary": 50257}
LONG = {"layers": 12, "context": 2048}


@pytest.mark.parametrize(
    ("peers", "sizes", "inner", "pipeline", "finer"),
    [
        ("3*laptop:4GB@dsl", SHORT, {}, {"stages": 4, "micro_batch": 4}, 2),
        ("3*laptop:6GB@dsl", LONG, {}, {"stages": ("embedding", "blocks.0", "head")}, 2),
        ("3*laptop:5GB@dsl", LONG, {"accumulate": 8}, {}, 3),
        ("3*laptop:5GB@dsl", LONG, {"activation_checkpointing": True}, {}, 3),
    ],
    ids=["micro-batches", "list", "parts", "again"],
)
def test_a_finer_cut_fits_as_it_is_named(
    peers: str, sizes: dict[str, Any], inner: dict[str, Any], pipeline: dict[str, Any], finer: int
) -> None:
    model = ModelSection(kind="transformer", width=1024, heads=16, tied=False, **sizes)
    config = RunConfig(
        run=RunSection(name="t"), model=model, inner=InnerSection(batch=8, **inner),
        pipeline=PipelineSection(**pipeline),
    )  # fmt: skip
    with pytest.raises(UserError) as caught:
        of(peers, config)
    assert f"cut the model into {finer} stages" in caught.value.remedy
    assert ("leave out pipeline.micro_batch" in caught.value.remedy) == ("micro_batch" in pipeline)
    fits = RunConfig(
        run=config.run, model=model, inner=InnerSection(batch=8),
        pipeline=PipelineSection(stages=finer),
    )  # fmt: skip
    assert of(peers, fits).stages == finer


@pytest.mark.parametrize(
    ("peers", "strategy", "batch", "context", "finer"),
    [("laptop:3GB@dsl", "streaming", 4, 64, ""), ("laptop:8GB@dsl", "eager", 32, 1024, "5 stages")],
    ids=["fragments", "micro-batches"],
)
def test_no_cut_is_named_that_a_run_file_may_not_say(
    tmp_path: Path, peers: str, strategy: str, batch: int, context: int, finer: str
) -> None:
    """Of six stages of this model four have one layer each, which cannot be two fragments; and of
    three the micro-batch that fits a step is too large to travel."""
    path = tmp_path / "run.toml"
    path.write_text(
        f'[run]\nname = "t"\n[inner]\nbatch = {batch}\n[outer]\nstrategy = "{strategy}"\n'
        '[model]\nkind = "transformer"\nlayers = 6\nwidth = 2048\nheads = 8\n'
        f"context = {context}\n"
    )
    with pytest.raises(UserError) as caught:
        of(peers, load(path))
    said = caught.value.remedy.partition("cut the model into ")[2]
    assert said.startswith(finer) if finer else not said


def test_a_cut_with_other_micro_batches_says_so() -> None:
    """It may be that the file names those that it would get of its own."""
    model = ModelSection(
        kind="transformer", layers=24, width=256, heads=8, context=1024, tied=False
    )
    for size, words in (2, "(pipeline.stages, with a micro_batch of 1)"), (4, "leave out"):
        config = RunConfig(
            run=RunSection(name="t"), model=model, inner=InnerSection(batch=8),
            pipeline=PipelineSection(stages=2, micro_batch=size),
        )  # fmt: skip
        with pytest.raises(UserError) as caught:
            of("laptop:900MB@dsl", config)
        assert words in caught.value.remedy


def test_a_cut_names_what_the_run_file_may_not_say_beside_it(tmp_path: Path) -> None:
    """A table is the head's as well unless the file says otherwise, and no stage has both."""
    path, head = tmp_path / "run.toml", '[run]\nname = "t"\n[inner]\nbatch = 8\n'
    model = '[model]\nkind = "transformer"\nlayers = 12\nwidth = 1024\nheads = 8\ncontext = 256\n'
    whole = 'accumulate = 4\nactivation_checkpointing = true\nprecision = "bfloat16"\n'
    path.write_text(head + whole + model)
    with pytest.raises(UserError) as caught:
        of("8*small@lan", load(path))
    assert (
        "leave out inner.accumulate, leave out inner.precision,"
        " leave out inner.activation_checkpointing,"
        " set model.tied = false and cut the model into 6 stages"
    ) in caught.value.remedy
    path.write_text(f"{head}{model}tied = false\n[pipeline]\nstages = 6\n")
    assert of("8*small@lan", load(path)).stages == 6


def test_no_cut_is_named_for_a_run_that_cannot_be_in_stages() -> None:
    model = ModelSection(kind="transformer", layers=20, width=2048, heads=16)
    run = RunSection(name="t")
    experts = RunConfig(run=run, model=model, experts=ExpertsSection(count=2))
    buffered = RunConfig(run=run, model=model, outer=OuterSection(strategy="ddp"))
    for config in experts, buffered:
        with pytest.raises(UserError) as caught:
            of("4*laptop:8GB@dsl", config)
        assert "cut the model" not in caught.value.remedy


def test_a_model_in_one_piece_waits_for_its_slowest_peer() -> None:
    small = RunConfig(run=RunSection(name="t"), model=ModelSection(layers=6, width=256))
    found = of("3*laptop@fibre,small@fibre", small)
    assert found.stages == 1 and {seat.span for seat in found.seats} == {(0, 0)}
    slowest = min(seat.micro_batches_s for seat in found.seats)
    assert found.micro_batches_s == 4 * slowest
    assert found.bottleneck.startswith("the slowest peer, small@fibre")


def test_a_model_that_peers_bring_cannot_be_planned() -> None:
    with pytest.raises(UserError) as caught:
        of("laptop@dsl", RunConfig(run=RunSection(name="t"), model=ModelSection(kind="custom")))
    assert caught.value.code == "SWT-E633"


def test_the_command_prints_lines_or_one_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[run]\nname = "t"\n[pipeline]\nstages = 3\n')
    words = ["plan", str(file), "--peers", "6*laptop@dsl,gpu@fibre"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    for part in ("gpu@fibre", "Bottleneck", "One more", "Assumed      dsl: 10 Mbit/s up"):
        assert part in shown
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stages"] == 3 and found["tokens_s"] > 0 and len(found["more"]) == 2
    assert main(["plan", str(file), "--peers", "x"]) == 2
