"""A round is told in plain sentences, by whoever holds the ledger."""

import json

import msgspec
import pytest

from swarmtrain.cli.main import main
from swarmtrain.foundation import dirs
from swarmtrain.peer.disk import ledger_file
from swarmtrain.why.story import _evidence, story_of
from swarmtrain.why.words import listed
from swarmtrain_transport.wire.records import (
    Attest,
    Conviction,
    Freeze,
    Gone,
    Group,
    Member,
    Move,
    Reassign,
    Rewind,
    SignedRoot,
    Skip,
    SliceFreeze,
    Times,
)
from tests.transport.coordinator.ops.gather_table import gather_plan
from tests.transport.ledger.test_groups import commit_group_1, grouped_chain, plan_of_group_1
from tests.transport.rig import (
    A,
    B,
    C,
    Chain,
    commit_of,
    genesis_body,
    join_body,
    plan_body,
    run_body,
)

TIMES = Times(complete=1, owners=3, last_s=4.0, heard_s=6.5, frozen_s=10.0, deadline_s=10.0)


def named(peer, name):
    body = join_body(peer)
    return type(body)(peer, body.boot, name, body.curve_key)


def run_of(*names: str) -> Chain:
    joins = [named(peer, name) for peer, name in zip((A, B, C), names, strict=True)]
    return Chain(run_body(), *joins, genesis_body(24))


def told(chain: Chain, number: int = 1) -> str:
    return "\n".join(story_of(chain.records, number).lines)


def test_a_round_with_a_late_peer_and_a_dead_owner_is_told_with_its_evidence() -> None:
    chain = run_of("otter", "lynx", "crane")
    chain.add(chain.plan())
    chain.add(Reassign(1, 2, 1, A, "owner lost"))
    chain.add(Freeze(1, (A, B), {C: "late"}, {C: TIMES}))
    chain.add(SliceFreeze(1, 2, 1, (A, B)))
    assert told(chain).endswith("It is still in progress.")
    chain.commit()
    chain.add(Attest(1, b"r" * 32))
    story = told(chain)
    for words in (
        "Round 1 was planned with crane, lynx and otter.",
        "Slice 2 was given to otter (attempt 1): nothing was heard of its owner any more.",
        "Contributors: lynx and otter.",
        "crane was left out (late): its contribution came too late.",
        "whole at 1 of 3 owners, last at 4.0 s; last heard of at 6.5 s; left out at 10.0 s",
        "Slice 2 (attempt 1) sums lynx and otter.",
        "Committed: result",
        "State root 7272727272727272",
    ):
        assert words in story
    assert "still in progress" not in story


def test_one_peers_word_against_anothers_is_told_as_that() -> None:
    chain = run_of("otter", "lynx", "crane")
    chain.add(chain.plan())
    chain.add(Reassign(1, 1, 1, C, "at odds", {A: "absent"}))
    chain.add(Reassign(1, 1, 2, A, "at odds", {A: "refused:scale", C: "roots"}))
    chain.add(Freeze(1, (B,), {A: "late", C: "roots"}, accusers={A: (B, C), C: (B,)}))
    story = told(chain)
    for words in (
        "lynx says that the part of otter never came. Nobody is left out for that: slice 1 went "
        "to crane (attempt 1).",
        "crane says that the part of otter was illegal (scale); the part of crane was not what",
        "otter was left out (late): its contribution came too late; crane and lynx say so.",
        "lynx alone says so, and there was nobody left to take its slice.",
    ):
        assert words in story


def test_who_sits_a_round_out_and_for_whom_nobody_waited_is_told() -> None:
    chain = run_of("otter", "lynx", "crane")
    for _ in range(3):
        chain.add(chain.plan())
        op = chain.view.first.in_progress
        assert op is not None
        chain.add(Freeze(op.plan.op, (A, B), {C: "late"}))
        chain.add(msgspec.structs.replace(commit_of(op), behind=(B,)))
    assert "It waited for lynx until it was time" in told(chain, 3)
    members = tuple(Member(peer, b"boot", int(peer == A)) for peer in (A, B, C))
    chain.add(chain.plan((A,), num_values=24, members=members))
    story = told(chain, 4)
    assert "crane was at fault too often lately: nobody waits for it up to round 4." in story
    assert "lynx was at fault too often lately" in story
    chain.add(Skip(4, "deadline", {A: "owner silent"}))
    assert "otter did not publish its sum." in told(chain, 4)
    chain.add(chain.plan((B, C), num_values=24))
    assert "otter owned nothing: its slices had to be moved; so up to round 5." not in told(
        chain, 5
    )


def test_whom_too_many_have_lacked_is_told() -> None:
    chain = run_of("otter", "lynx", "crane")
    for index, owner in ((0, A), (1, B)):
        chain.add(chain.plan())
        op = chain.view.first.in_progress
        assert op is not None
        to = next(peer for peer in (A, B) if peer != owner)
        chain.add(Reassign(op.plan.op, index, 1, to, "at odds", {C: "absent"}))
        chain.add(Freeze(op.plan.op, (A, B, C), {}))
        chain.add(SliceFreeze(op.plan.op, index, 1, (A, B, C)))
        chain.commit()
    members = tuple(Member(peer, b"boot", int(peer != C)) for peer in (A, B, C))
    chain.add(chain.plan((A, B), num_values=24, members=members))
    assert "crane gave nothing: too many owners had lacked its part lately." in told(chain, 3)


def test_who_published_nothing_in_a_gather_op_is_not_told_of_owners() -> None:
    chain = run_of("otter", "lynx", "crane")
    chain.add(gather_plan((A, B, C), previous_outcome=chain.view.first.last_outcome))
    signed = {peer: SignedRoot(b"r" * 32, b"s" * 64) for peer in (A, B)}
    nothing = Times(0, 2, -1.0, heard_s=6.5, frozen_s=10.0, deadline_s=10.0)
    chain.add(Freeze(1, (A, B), {C: "late"}, {C: nothing}, signed))
    story = told(chain)
    assert "It had published nothing; last heard of at 6.5 s; left out at 10.0 s" in story
    assert "owner" not in story
    refused = msgspec.structs.replace(nothing, last_s=2.0)
    assert "It had published it at 2.0 s; last heard" in _evidence(refused, is_whole=True)


def test_a_skipped_round_says_why_and_that_nothing_is_lost() -> None:
    chain = run_of("otter", "lynx", "crane")
    chain.add(chain.plan())
    chain.add(Skip(1, "deadline"))
    assert "Skipped: deadline. Nobody lost anything" in told(chain)


def test_a_round_that_was_cancelled_is_told_twice() -> None:
    chain = run_of("otter", "lynx", "crane")
    chain.add(chain.plan())
    chain.commit(A, B)
    chain.add(Rewind(0, "nobody who is here holds the result of op 1"))
    chain.add(chain.plan())
    story = told(chain)
    assert story.count("Round 1 was planned") == 2
    assert "A REWIND went back to round 0" in story


def test_whose_first_state_was_given_up_is_told_with_the_first_round() -> None:
    chain = run_of("otter", "lynx", "crane")
    chain.add(Rewind(-1, "most peers did not get it", passed_over=(A, B)))
    chain.add(genesis_body(24))
    named = "The first state of lynx and otter was given up: most peers did not get it"
    for number in (0, 1):
        assert named in told(chain, number)
    assert "cancelled" not in told(chain, 0)
    assert not told(chain, 2)


def test_a_wrong_sum_is_told_with_its_round_however_late_it_was_proved() -> None:
    chain = run_of("otter", "lynx", "crane")
    chain.add(chain.plan())
    chain.commit(A, B, C)
    chain.add(Gone(B, True, "wrong sum", Conviction(1, 2, 0, b"h" * 32)))
    assert "lynx had summed slice 2, chunk 0, wrongly; most peers checked the proof" in told(chain)
    assert told(chain, 2) == ""


def test_peers_of_one_name_are_told_apart() -> None:
    chain = run_of("otter", "otter", "otter")
    chain.add(chain.plan())
    assert "otter, otter (02020202) and otter (03030303)" in told(chain)


def test_every_reason_has_words() -> None:
    for reason in ("late", "lost", "refused:scale", "withdrew:nonfinite", "refused:odd", "else"):
        chain = run_of("otter", "lynx", "crane")
        chain.add(chain.plan())
        chain.add(Freeze(1, (A, B), {C: reason}))
        assert f"crane was left out ({reason}): " in told(chain)


def test_the_command_reads_a_peers_own_ledger(tmp_path, capsys) -> None:
    pytest.importorskip("torch")
    chain = run_of("otter", "lynx", "crane")
    chain.add(chain.plan())
    chain.add(Skip(1, "deadline"))
    with (tmp_path / ledger_file.FILE_NAME).open("wb") as file:
        file.write(ledger_file.segment_of(chain.records))
    assert main(["why", "1", "--state-dir", str(tmp_path)]) == 0
    assert "Skipped: deadline" in capsys.readouterr().out
    assert main(["why", "1", "--state-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["round"] == 1
    assert main(["why", "7", "--state-dir", str(tmp_path)]) == 66
    assert "SWT-E808" in capsys.readouterr().err
    assert main(["why", "7", "--state-dir", str(tmp_path / "none")]) == 66
    assert "SWT-E806" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["why"], ["why", "-1"], ["why", "x"]])
def test_a_round_is_a_number(words, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dirs, "runs_dir", lambda: tmp_path)
    assert main(words) == 2


def test_a_round_of_another_group_is_told_apart() -> None:
    chain = run_of("otter", "lynx", "crane")
    chain.add(Group(1, bytes(32)))
    chain.add(Move(B, (0, 1)))
    chain.add(Attest(0, bytes(32), 24, b"L" * 32, group=1))
    chain.add(chain.plan())
    view = chain.view.groups[1]
    chain.add(plan_body((B,), 24, previous_outcome=view.last_outcome, group=1))
    chain.add(Skip(1, "deadline", group=1))
    assert told(chain).endswith("It is still in progress.") and "Skipped" not in told(chain)
    story = "\n".join(story_of(chain.records, 1, group=1).lines)
    assert "Round 1 was planned with lynx." in story and "Skipped: deadline." in story


def test_a_round_of_another_group_is_told_by_itself() -> None:
    chain = grouped_chain()
    plan_of_group_1(chain)
    commit_group_1(chain)
    assert not story_of(chain.records, 1).lines
    told = story_of(chain.records, 1, 1).lines
    assert any(line.startswith("Committed: ") for line in told)


def test_a_rewind_of_the_guard_is_told_in_the_round_before_and_in_the_one_that_was_not_planned():
    chain = run_of("otter", "lynx", "crane")
    chain.add(chain.plan())
    chain.commit(A, B, C)
    losses = {A: 9.5, B: 1e9, C: -1.0}
    chain.add(Rewind(0, "after round 1 most lost 9.5", losses=losses, bound=4.0, times=1))
    for number, words in (
        (1, "A REWIND went back to round 0: after round 1 most lost 9.5. Whatever this round"),
        (2, "It was not planned at first: after round 1 most lost 9.5. A REWIND went back to "),
    ):
        story = told(chain, number)
        assert words in story
        assert "by their own word: crane nothing, lynx no number and otter 9.5." in story
    assert not told(chain, 3)


def test_a_sentence_names_some_of_hundreds_and_all_of_a_few():
    names = [f"p{number:03}" for number in range(300)]
    assert listed(names[:3]) == "p000, p001 and p002"
    assert listed(names[:21]).endswith("p019 and p020")
    assert listed(names) == f"{', '.join(names[:20])} and 280 more"
    assert listed([]) == "nobody"
