"""The demo of a pipeline, from its run file to its report; no process is needed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmtrain.cli.demo import STRATEGIES
from swarmtrain.config.options import DEMO_PIPELINE_PEERS, DemoOptions, parse_span
from swarmtrain.demo.report import PeerRoot, make_report
from swarmtrain.demo.setting import KILL_ROUND, PARTS, STAGES, Cast, write_run_file
from swarmtrain.demo.stages.report import StagesReport, in_words, shortcoming, stages_report
from swarmtrain.demo.stages.story import StagesStory
from swarmtrain.demo.stages.view import picture_of
from swarmtrain.demo.story import Facts, Invite, Wish
from swarmtrain.demo.view import Row, Scene
from swarmtrain.foundation.errors import UserError
from swarmtrain.foundation.events import (
    Evaluated,
    Frozen,
    In,
    Left,
    RoundEnded,
    Serving,
    StateInPlace,
)
from swarmtrain.local_run.place import Place
from swarmtrain.local_run.processes import Kill, Say, Start
from swarmtrain.pipeline.costs import most_slots_of, under_way_of
from swarmtrain_optimizers.strategies.registry import BUILT_IN
from swarmtrain_transport.coordinator.status import (
    CoordinatorStatus,
    PipelineStatus,
    StageStatus,
)
from swarmtrain_transport.wire.records import AnyBody, Books, Join, Move, Record, make_record


def options(**changes: Any) -> DemoOptions:
    asked: dict[str, Any] = {"peers": DEMO_PIPELINE_PEERS, "rounds": 8, "seed": 5, "churn": True}
    return DemoOptions(**{**asked, "json": False, "state_dir": None, "pipeline": True, **changes})


CAST = Cast.of(options())


def spans() -> dict[str, range]:
    return {name: parse_span(part.span or "1") for name, part in CAST.parts.items()}


def test_the_run_file_has_stages_and_no_source_is_more_than_a_step_ahead(tmp_path):
    config = write_run_file(Place.make(tmp_path / "demo"), options())
    assert config.pipeline.num_stages == STAGES
    assert config.exchange.start_peers == DEMO_PIPELINE_PEERS
    assert config.exchange.min_contributors == 1
    under_way = under_way_of(config, most_slots_of(config))
    assert under_way * config.pipeline.micro_batch <= config.inner.batch


@pytest.mark.parametrize(
    "strategy", [s for s in STRATEGIES if s != "noloco" and BUILT_IN[s].fits_stages]
)
def test_every_strategy_that_the_demo_shows_has_a_run_file_in_stages(tmp_path, strategy: str):
    config = write_run_file(Place.make(tmp_path / "demo"), options(strategy=strategy))
    assert config.outer.fragments == 1
    assert config.steps_per_round == 20


def test_each_stage_has_a_fast_and_a_slow_peer_and_one_peer_has_all_stages():
    assert len(PARTS) == DEMO_PIPELINE_PEERS + 1
    for stage in range(STAGES):
        small = [part for part in PARTS if part.span == str(stage)]
        assert [part.speed for part in small] == ["fast", "slow"]
        assert small[1].pass_s == 2 * small[0].pass_s
    assert len(spans()["raven"]) == STAGES
    assert CAST.parts["newt"].span == ""
    assert spans()[CAST.victim or ""] == range(1, 2)


@pytest.mark.parametrize("wrong", [{"peers": 4}, {"strategy": "noloco"}, {"strategy": "fedavg_m"}])
def test_what_the_demo_of_a_pipeline_cannot_show_is_refused(wrong):
    with pytest.raises(UserError, match="demo of a pipeline has 7 peers"):
        options(**wrong)


class Told:
    """A story and what it said."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.story = StagesStory(CAST, 5, self.now_s)
        self.wishes: list[Wish] = []

    def hear(self, name: str, *events: object) -> list[Wish]:
        new: list[Wish] = []
        for event in events:
            self.now_s += 1.0
            new += self.story.hear(name, event, self.now_s)
        self.wishes += new
        return new

    def begin(self) -> None:
        for key, name in enumerate(CAST.founders):
            span = spans()[name]
            self.hear(name, In(bytes([key]).hex(), name), Serving(span[0], span[-1], "as it asked"))
            self.hear(name, *(StateInPlace(0, stage) for stage in span))

    def round(self, number: int, *gone: str) -> None:
        for name in CAST.founders:
            if name not in gone:
                for stage in spans()[name]:
                    self.hear(name, RoundEnded(number, "merged", 3, stage=stage))

    @property
    def said(self) -> list[str]:
        return [wish.text for wish in self.wishes if isinstance(wish, Say)]


def test_a_round_is_over_when_every_stage_has_its_result():
    told = Told()
    told.begin()
    assert told.said[-1].startswith("all stages have their first weights")
    assert "raven, whole, serves stages 0 to 2: as it asked" in told.said
    told.hear("badger", RoundEnded(1, "merged", 3))
    told.hear("lynx", RoundEnded(1, "merged", 2, stage=1))
    assert not told.story.facts.committed
    told.hear("heron", RoundEnded(1, "merged", 3, stage=2))
    assert told.story.facts.committed == {1: 3}
    told.hear("raven", Evaluated(1, 3.25))
    assert told.said[-1] == (
        "round 1 of 5 committed: 3, 2 and 3 peers in stages 0 to 2, 3.0 s, validation loss 3.250"
    )


def test_one_dies_among_micro_batches_and_the_newcomer_comes_when_that_round_is_over():
    told = Told()
    told.begin()
    for number in range(1, KILL_ROUND):
        told.round(number)
    assert Start("newt") in told.wishes
    wishes = told.hear("otter", Frozen(KILL_ROUND, "passes", 0, 0, 4))
    assert wishes[0] == Kill("otter")
    assert "with 4 micro-batches on their way" in told.said[-1]
    told.hear("lynx", RoundEnded(KILL_ROUND, "merged", 2, stage=1))
    assert Invite("newt") not in told.wishes
    told.round(KILL_ROUND, "otter")
    assert told.wishes.count(Invite("newt")) == 1
    told.hear("newt", In("aa", "newt"), Serving(1, 1, "there the run gains most"))
    told.hear("newt", StateInPlace(2, 1), RoundEnded(3, "replayed", 2, stage=1))
    told.hear("newt", RoundEnded(4, "merged", 3, stage=1))
    assert "newt has downloaded stage 1 as it is after round 2" in told.said
    assert told.said[-1] == "newt has caught up, and its own work is in round 4"


def records(*bodies: AnyBody) -> list[Record]:
    return [
        make_record(index, bytes(32), 1, body, lambda data: bytes(64))
        for index, body in enumerate(bodies)
    ]


def books(number: int, made: int, counted: tuple[int, ...], **more: Any) -> Books:
    return Books(number, made, min(counted), counted, (), 7, bytes(32), **more)


def found(*, odd_root: str = "b1", last_loss: float = 2.5) -> StagesReport:
    facts = Facts(
        names={"0a": "newt"}, losses={0: 5.5, 5: last_loss},
        committed=dict.fromkeys(range(1, 6), 3),
        spans=spans(),
        left={
            "badger": Left(5, "b0", 1000, 10, roots={"0": "b0"}),
            "newt": Left(5, odd_root, 1000, 10, roots={"1": odd_root}),
            "raven": Left(5, "b0", 3000, 10, roots={"0": "b0", "1": "b1", "2": "b2"}),
        },
    )  # fmt: skip
    report = make_report(
        facts, CAST, inner_steps=20, order0_loss=3.25, seconds=61.04,
        model_path=Path("/d/model.safetensors"), state_dir=Path("/d"),
    )  # fmt: skip
    peer, other = bytes(32), bytes([1]) * 32
    ledger = records(
        Join(peer, bytes(8), "badger", bytes(40)),
        Move(peer, (0,)),
        Move(other, (1,)),
        books(0, 120, (120, 120, 120)),
        Move(peer, (0,), keeps=(1,)),
        books(1, 120, (110, 112, 118), redone={"silent": 4, "gone": 1}, lost={"late": 10}),
        Move(other, (2,)),
    )
    return stages_report(report, facts, ledger)


def test_the_object_has_the_books_of_all_rounds_and_a_root_per_stage_and_peer():
    report = found()
    shown = msgspec.json.decode(msgspec.json.encode(report))
    assert shown["stages"] == STAGES
    assert shown["spans"]["raven"] == [0, 2]
    assert (shown["micro_batches"], shown["counted"]) == (240, [230, 232, 238])
    assert (shown["redone"], shown["lost_micro_batches"], shown["moves"]) == (5, 10, 1)
    assert report.stage_roots[1] == (PeerRoot("newt", "b1"), PeerRoot("raven", "b1"))
    assert report.state_roots == (PeerRoot("raven", "b0"),)
    assert {"peers", "rounds", "val_loss_last", "killed", "model_path"} <= shown.keys()
    assert shortcoming(report) == ""


def test_the_words_name_what_each_stage_has_counted_and_who_holds_it():
    text = "\n".join(in_words(found(), "def x"))
    assert "240 made; sent to another peer 5 times, lost 10" in text
    assert "counted 232; newt, raven hold the same bits" in text
    assert "DIFFERENT" in "\n".join(in_words(found(odd_root="xx"), ""))


def test_stages_at_odds_and_a_loss_that_does_not_fall_are_no_success():
    assert "stage 1 do NOT hold the same weights" in shortcoming(found(odd_root="xx"))
    assert "has not fallen" in shortcoming(found(last_loss=5.5))


def test_the_picture_has_every_stage_with_its_peers_and_what_flows_through():
    rows = tuple(
        Row(name, "training", 2, 2.5, 1000.0 if CAST.parts[name].speed == "fast" else 500.0)
        for name in CAST.founders
    )
    scene = Scene(rows, 3, 8, (5.5, 2.5), 3.25, 0, 0)
    facts = Facts(spans=spans())
    lines = picture_of(scene, facts, CAST).lines
    stages = [line for line in lines if line.startswith("stage ")]
    assert stages == ["stage 0", "stage 1", "stage 2"]
    assert sum("raven" in line for line in lines) == STAGES
    badger = next(line for line in lines if "badger" in line)
    crane = next(line for line in lines if "crane" in line)
    assert badger.count("#") == 2 * crane.count("#") and "1000 tokens/s" in badger
    assert lines[-1].startswith("round 3 of 8 committed")


def test_the_picture_tells_what_has_become_of_micro_batches():
    stages = tuple(StageStatus((), count) for count in (120, 119, 1))
    status = CoordinatorStatus(
        run="demo", term=1, round=4, committed=4, rounds=8, phase="training", wanted_root="",
        num_values=1000, peers=(), losses={}, exclusions=(), events=(), checkpoint_op=-1,
        pipeline=PipelineStatus(stages, made=480, whole=470, lost=6, redone=3),
    )  # fmt: skip
    scene = Scene((), 3, 8, (), 3.25, 0, 0)
    lines = picture_of(scene, Facts(spans=spans(), status=status), CAST).lines
    assert "stage 1: 119 micro-batches in the newest round" in lines
    assert "stage 2: 1 micro-batch in the newest round" in lines
    assert "480 micro-batches made | 470 counted in all stages | 3 sent again | 6 lost" in lines
