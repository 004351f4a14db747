"""A round of a run in stages is told from its books, and with it the exchange of each stage."""

from msgspec.structs import replace

from swarmtrain.why.story import story_of
from swarmtrain_transport.wire.records import (
    Attest,
    Books,
    BooksOfMember,
    Break,
    Gone,
    Group,
    Move,
    Plane,
    Rewind,
    Skip,
    Turn,
)
from tests.transport.rig import LAYOUT, A, B, C, Chain, genesis_body, plan_body, run_body
from tests.why.test_why import named


def staged_chain() -> Chain:
    """Two stages: otter and lynx serve the first, crane the second."""
    chain = Chain(run_body(), Group(1, bytes(32)))
    for peer, name in ((A, "otter"), (B, "lynx"), (C, "crane")):
        chain.add(named(peer, name))
    for body in (Move(C, (1,)), genesis_body(24), Attest(0, bytes(32), 24, LAYOUT, group=1)):
        chain.add(body)
    return chain


def books_of(round: int, counted: tuple[int, int] = (12, 11), **more) -> Books:
    members = (
        BooksOfMember(A, 0, (counted[0] - 3,), 14, 0, True),
        BooksOfMember(B, 0, (3,), 0, 2, True),
        BooksOfMember(C, 1, (counted[1],), 0, 0, counted[1] > 0),
    )
    return Books(round, 14, min(counted), counted, members, 3, bytes(32), **more)


def exchange(chain: Chain, group: int, *peers: bytes, is_skipped: bool = False) -> None:
    view = chain.view.groups[group]
    op = view.next_op
    chain.add(plan_body(peers, 24, op=op, previous_outcome=view.last_outcome, group=group))
    if is_skipped:
        chain.add(Skip(op, "deadline", group=group))


def test_a_round_in_stages_is_told_with_all_that_became_of_its_micro_batches() -> None:
    chain = staged_chain()
    chain.add(Gone(B, evicted=True, reason="silent"))
    chain.add(named(B, "lynx"))
    chain.add(
        books_of(
            0, lost={"late": 2, "tries": 1}, redone={"silent": 4, "gone": 1},
            breaks=(Break(C, 1, "late", 2), Break(b"", 2, "", 1)),
        )
    )  # fmt: skip
    exchange(chain, 0, A, B, is_skipped=True)
    exchange(chain, 1, C)
    assert story_of(chain.records, 1).lines == [
        "Round 1, in 2 stages: 14 micro-batches, 11 of them counted in every stage.",
        "Made by otter 14.",
        "Stage 0 has counted 12: lynx 3 and otter 9.",
        "Stage 1 has counted 11: crane 11.",
        "5 times a micro-batch was sent to another peer: 4 (the next peer fell silent), "
        "1 (the next peer left).",
        "Lost: 2 (under way for too long), 1 (no peer took it on in several tries).",
        "2 were counted from stage 1 on and lost above crane, which counted last; given up by the "
        "source: under way for too long.",
        "1 was counted in some stages, but nobody tells of the last.",
        "lynx claims 2 that others claim as well, or that nobody has made.",
        "lynx was gone before the round was booked: nothing was heard of it any more.",
        "Exchange of stage 0:",
        "  Round 1 was planned with lynx and otter.",
        "  Slices: otter 50 %, lynx 50 %. The whole exchange had 100.0 s, and needed at least 1 "
        "contributor.",
        "  Skipped: deadline. Nobody lost anything: all train on from where they are.",
        "Exchange of stage 1:",
        "  Round 1 was planned with crane.",
        "  Slices: crane 100 %. The whole exchange had 100.0 s, and needed at least 1 contributor.",
        "  It is still in progress.",
    ]
    assert story_of(chain.records, 1, group=1).lines[0] == "Round 1 was planned with crane."


def test_a_move_is_told_with_its_reason_and_a_keeper_s_new_task_is_not() -> None:
    chain = staged_chain()
    why = "stage 1 can make 0.5 micro-batches a second, stage 0 1.3"
    for body in (Move(B, (0,), keeps=(1,)), books_of(0), Move(B, (1,), why=why), books_of(1)):
        chain.add(body)
    told = f"lynx was sent to stage 1: {why}."
    assert told in story_of(chain.records, 1).lines
    assert told not in "".join(story_of([*chain.records][:-2], 1).lines)


def test_a_round_whose_sources_tell_nothing_is_no_whole_one() -> None:
    for counts, words in (((0, 9), "whoever made its micro-batches did not"), ((0, 0), "no ")):
        chain = staged_chain()
        members = (BooksOfMember(C, 1, (counts[1],), 0, 0, True),)
        chain.add(Books(0, 0, 0, counts, members, 1, bytes(32)))
        assert story_of(chain.records, 1).lines[0].startswith(f"Round 1, in 2 stages: {words}")


def test_what_was_made_again_for_a_void_step_is_counted() -> None:
    for count, words in ((1, "1 was made again:"), (2, "2 were made again:")):
        chain = staged_chain()
        chain.add(books_of(0, voided=count))
        assert any(line.startswith(words) for line in story_of(chain.records, 1).lines)


def test_what_a_source_has_compared_is_told_as_its_own_word() -> None:
    chain = staged_chain()
    books = books_of(0)
    source = replace(books.members[0], compared=3, odd=1)
    chain.add(replace(books, members=(source, *books.members[1:])))
    line = "otter compared two routes of the same text 3 times: 1 at odds."
    assert line in story_of(chain.records, 1).lines
    chain = staged_chain()
    source = replace(source, odd=2, suspect=C)
    chain.add(replace(books, members=(source, *books.members[1:])))
    line = "otter compared two routes of the same text 3 times: 2 at odds; it suspects crane."
    assert line in story_of(chain.records, 1).lines


def test_a_stage_s_exchange_has_a_number_of_its_own() -> None:
    chain = staged_chain()
    chain.add(books_of(0, (12, 0)))
    exchange(chain, 0, A, is_skipped=True)
    chain.add(books_of(1))
    exchange(chain, 0, A, is_skipped=True)
    exchange(chain, 1, C, is_skipped=True)
    first, second = story_of(chain.records, 1).lines, story_of(chain.records, 2).lines
    assert "Stage 1 exchanged nothing." in first
    assert any("crane did not say in time" in line for line in first)
    assert not any("in time" in line for line in second)
    assert "  Round 1 was planned with crane." in second
    assert "  Round 2 was planned with otter." in second


def test_a_stage_whose_exchange_never_began_has_none_though_a_later_round_has_its_number() -> None:
    chain = staged_chain()
    chain.add(books_of(0))
    exchange(chain, 0, A, is_skipped=True)
    chain.add(books_of(1))
    exchange(chain, 1, C, is_skipped=True)
    assert "Stage 1 exchanged nothing." in story_of(chain.records, 1).lines
    assert "  Round 1 was planned with crane." in story_of(chain.records, 2).lines


def test_a_turn_of_the_subspace_is_told_with_its_round() -> None:
    chain = staged_chain()
    chain.add(books_of(0, turn=Turn(1, (Plane(0, 5, -51), Plane(3, 4, 7)))))
    story = story_of(chain.records, 1)
    assert "Then the subspace was turned in 2 planes, by up to 0.10 radians." in story.lines
    assert [one["turned"] for one in story.booked] == [2]


def test_a_round_after_a_way_back_is_told_with_both_its_bookings() -> None:
    chain = staged_chain()
    chain.add(books_of(0))
    exchange(chain, 0, A, is_skipped=True)
    chain.add(Rewind(0, "nobody holds it"))
    chain.add(books_of(1))
    story = story_of(chain.records, 1)
    assert sum(line.startswith("Round 1, in 2 stages") for line in story.lines) == 2
    assert [one["exchanges"] for one in story.booked] == [{"0": 1, "1": 1}] * 2
    assert story.booked[0]["members"][2] == {
        "peer": C.hex(), "name": "crane", "stages": [1, 1], "made": 0, "counted": [11],
        "doubted": 0, "has_told": True, "compared": 0, "odd": 0, "suspect": "",
    }  # fmt: skip


def test_a_run_without_stages_has_no_books_to_tell() -> None:
    chain = Chain(run_body(), named(A, "otter"), genesis_body(24))
    exchange(chain, 0, A)
    assert (
        story_of(chain.records, 1).booked == []
        and "stages" not in story_of(chain.records, 1).fields()
    )
