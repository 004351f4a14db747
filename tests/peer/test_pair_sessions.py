"""Runs of pair ops through sessions over memory links: what each peer keeps, and who comes back."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swarmtrain import checkpoint
from swarmtrain.config.limits import first_problem
from swarmtrain.config.settings import RunConfig
from swarmtrain.peer.disk.group_storage import links, result_paths
from swarmtrain_transport.ledger.fold import num_chunks
from swarmtrain_transport.wire.frames import Frame, FrameKind
from swarmtrain_transport.wire.records import Rewind, bodies_of
from tests.peer.crowd import Member, crowd_of
from tests.peer.test_strategy_sessions import assert_agreed, config_of, founded, state_of

torch.set_num_threads(1)


def averaging(rounds: int) -> RunConfig:
    """At these rates two peers without momentum average their weights (T8)."""
    config = config_of("noloco", rounds=rounds)
    outer = msgspec.structs.replace(config.outer, lr=1.0, momentum=0.0)
    exchange = msgspec.structs.replace(config.exchange, start_peers=2)
    made = msgspec.structs.replace(
        config, outer=outer, exchange=exchange, strategy={"noloco": {"pull": 1.0}}
    )
    assert first_problem(made) is None
    return made


def saved(member: Member) -> list[int]:
    folders = checkpoint.folders(member.storage.of(0).checkpoints)
    return [checkpoint.op_of(folder) for folder in folders]


def test_two_peers_that_only_average_have_the_mean_of_both_after_every_round(tmp_path: Path):
    with crowd_of(averaging(5), tmp_path) as crowd:
        first, second = (crowd.add(number) for number in (1, 2))
        steps = sum(one.toy.slope.double() for one in (first, second)) / 2 * 2 / 64
        crowd.run(until=lambda: min(one.driver.op for one in (first, second)) >= 1)
        begun = state_of(first)["anchor"].double() + steps
        crowd.run()
        for one in (first, second):
            moved = state_of(one)["anchor"].double() - begun
            assert torch.allclose(moved, -5 * steps, atol=1e-5)


def test_t4_peers_that_do_the_same_have_the_same_bits_paired_or_alone(tmp_path: Path):
    with crowd_of(config_of("noloco", rounds=5), tmp_path) as crowd:
        members = founded(crowd)
        for one in members:
            one.toy.slope = members[0].toy.slope
        crowd.run()
        for op in range(6):
            assert len({one.roots[op] for one in members}) == 1
        assert {report.outcome for one in members for report in one.reports} == {"merged", "alone"}


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_anchors_travel_during_the_inner_steps_and_are_not_sent_again(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
):
    config = config_of("noloco", rounds=5, codec=codec)
    exchange = msgspec.structs.replace(config.exchange, start_peers=2)
    with crowd_of(msgspec.structs.replace(config, exchange=exchange), tmp_path) as crowd:
        members = [crowd.add(number) for number in (1, 2)]
        sent = Counter[tuple[FrameKind, int]]()
        for one in members:
            send = one.link.send

            def counted(peer: bytes, frame: Frame, send: Any = send) -> bool:
                sent[frame.kind, frame.chunk] += 1
                return bool(send(peer, frame))

            monkeypatch.setattr(one.link, "send", counted)
        crowd.run()
        assert_agreed(members, 5)
        plan = next(iter(members[0].participant.view.first.commits.values())).plan
        count, half = num_chunks(plan, 0), members[0].toy.layout.padded // plan.chunk_values
        assert count == 2 * half
        for chunk in range(count):  # nobody's partner was expected in the first round
            rounds, ahead = (10, 0) if chunk < half else (2, 8)
            assert sent[FrameKind.RESULT, chunk] == rounds
            assert sent[FrameKind.AHEAD, chunk] == ahead


@pytest.mark.parametrize("codec", ["int8", "none"])
def test_a_codec_that_the_file_names_carries_pairs(tmp_path: Path, codec: str):
    with crowd_of(config_of("noloco", rounds=4, codec=codec), tmp_path) as crowd:
        members = founded(crowd)
        crowd.run()
        assert_agreed(members, 4)
        plans = [op.plan for op in members[0].participant.view.first.commits.values()]
        told = {(plan.kind, plan.codec, plan.result_codec, plan.exact) for plan in plans}
        assert told == {("pair", codec, "", False)}


def test_stochastic_rounding_of_halves_happens_the_same_twice(tmp_path: Path):
    roots = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        config = config_of("noloco", rounds=3, codec="int8", rounding="stochastic")
        with crowd_of(config, tmp_path / place) as crowd:
            members = founded(crowd)
            crowd.run()
            assert_agreed(members, 3)
            roots.append([one.driver.root for one in members])
    assert roots[0] == roots[1]


def test_everybody_saves_a_state_that_nobody_else_could_bring_back(tmp_path: Path):
    with crowd_of(config_of("noloco", rounds=7), tmp_path) as crowd:
        members = founded(crowd)
        crowd.run()
        for one in members:
            assert saved(one) == [3, 6, 7]
            merged = {report.round: report.chain for report in one.reports if report.partner}
            assert links(one.storage.directory) == merged
            kept = [int(path.stem) for path in result_paths(one.storage.directory)]
            assert kept == [op for op in merged if op > 3]


def test_who_was_killed_in_mid_run_goes_on_from_somebodys_state(tmp_path: Path):
    with crowd_of(config_of("noloco", rounds=10), tmp_path) as crowd:
        members = founded(crowd)
        killed = members.pop(0)
        crowd.run(until=lambda: killed.driver.op >= 4)
        crowd.kill(killed)
        again = crowd.add(1)
        crowd.run()
        assert_agreed([again, *members], 10)
        began, _ = again.began_with
        assert again.roots[began] in {one.roots.get(began) for one in (killed, *members)}
        assert any(report.outcome == "merged" for report in again.reports)


def test_after_a_power_cut_who_is_attested_goes_on_from_its_own_checkpoint(tmp_path: Path):
    with crowd_of(config_of("noloco", rounds=8), tmp_path) as crowd:
        members = founded(crowd)
        crowd.run(until=lambda: min(one.driver.op for one in members) >= 5)
        told = [dict(one.roots) for one in members]
        for one in members:
            crowd.kill(one)
        crowd.start_coordinator()
        again = founded(crowd)
        crowd.run()
        assert_agreed(again, again[0].driver.op)
        assert again[0].driver.op >= 8
        attested = again[0].participant.view.first.roots[3]
        assert len(attested) >= 2
        (back,) = (body.op for body in bodies_of(crowd.records) if isinstance(body, Rewind))
        own = 0
        for one, roots in zip(again, told, strict=True):
            began, _ = one.began_with
            if one.peer in attested and (began == 3 or back == 3):
                own += 1
                assert began == 3 and one.roots[began] == roots[began] == attested[one.peer]
            else:  # its own is of a round before the one that the run goes back to, or no proof
                assert one.roots[began] in {other.roots.get(began) for other in again}
        assert own
