"""Books of a round of a pipeline: what members tell, held against each other."""

from swarmtrain_transport import limits
from swarmtrain_transport.pipeline.coordinator.books import books_of, record_of
from swarmtrain_transport.pipeline.wire import orders
from swarmtrain_transport.pipeline.wire.messages import Reason
from swarmtrain_transport.pipeline.wire.orders import Made, Marks
from swarmtrain_transport.pipeline.wire.paths import Paths
from swarmtrain_transport.pipeline.wire.route import Process, Span

BOOT = b"12345678"
FIRST, SECOND, LAST = (Process(name * 32, BOOT) for name in (b"a", b"b", b"c"))
GONE, LIAR = (Process(name * 32, BOOT) for name in (b"g", b"l"))
SPANS = {FIRST: Span(0, 0), SECOND: Span(0, 0), LAST: Span(1, 1)}
ASKED = dict.fromkeys((FIRST, SECOND, GONE), 4)
EMPTY = Marks(0, b"")
NOTHING = Made(EMPTY, {})


def settled(counted, whole=()):
    """A report of numbers by source and stage."""
    told = tuple(orders.Counted(*key, orders.marks(some)) for key, some in counted.items())
    return orders.Settled(0, told, Made(orders.marks(set(whole)), {}))


def test_books_name_what_two_members_have_counted_and_what_nobody_has_made():
    told = {
        FIRST: settled({(FIRST, 0): {1, 2}}, whole={1, 2}),
        SECOND: settled({(FIRST, 0): {2, 3}}),
        LAST: settled({(FIRST, 1): {1, 2}, (GONE, 1): {7}}),
    }
    books = books_of(0, 2, ASKED, told)
    assert books.disputed == {(FIRST, 0): (2, 3)}
    assert books.counted == (2, 3) and books.partial == {(GONE, 7): (1,)}


def test_a_set_of_numbers_is_read_as_it_was_written():
    for some in (set(), {5}, {3, 4, 400}, set(range(100))):
        assert orders.numbers(orders.marks(some)) == some


def test_one_member_s_word_counts_once_however_often_it_is_said():
    claim = orders.Counted(FIRST, 1, orders.marks({1, 2}))
    told = {FIRST: settled({}, whole={1, 2}), LAST: orders.Settled(0, (claim, claim), NOTHING)}
    books = books_of(0, 2, ASKED, told)
    assert books.told == {(LAST, 1): 2} and books.doubted == {LAST: 2}


def test_one_member_s_two_words_on_a_micro_batch_are_disputed_like_two_members_words():
    again = settled({(FIRST, 0): {1, 2}}, whole={1, 2})
    told = {FIRST: orders.Settled(0, (*again.counted, again.counted[0]), again.made)}
    assert books_of(0, 2, ASKED, told).disputed == {(FIRST, 0): (1, 2)}


def test_books_tell_who_has_counted_last_where_a_gradient_has_stayed():
    three = [Span(0, 0), Span(1, 1), Span(2, 2)]
    late = Made(orders.marks({1, 3}), {Reason.LATE: orders.marks({2, 4})})
    told = {
        FIRST: orders.Settled(
            0, (orders.Counted(FIRST, 0, orders.marks({1, 3})),), late, {Reason.SILENT: 5}
        ),
        SECOND: settled({(FIRST, 1): {1, 4}}),
        LAST: settled({(FIRST, 2): {1, 2, 4}}),
    }
    spans = dict(zip((FIRST, SECOND, LAST), three, strict=True)) | {GONE: Span(2, 2)}
    books = books_of(0, 3, ASKED, told, spans, voided=7)
    assert books.whole == 1 and books.redone == {Reason.SILENT: 5}
    assert books.breaks == {
        (LAST, 2, "late"): 1, (SECOND, 1, "late"): 1, (None, 3, ""): 1
    }  # fmt: skip
    record = record_of(books)
    assert (record.made, record.whole, record.counted) == (4, 1, (2, 2, 3))
    assert (record.lost, record.redone, record.voided) == ({"late": 2}, {"silent": 5}, 7)
    assert [(one.peer, one.counted, one.made, one.has_told) for one in record.members] == [
        (FIRST.peer, (2,), 4, True), (SECOND.peer, (2,), 0, True),
        (LAST.peer, (3,), 0, True), (GONE.peer, (0,), 0, False),
    ]  # fmt: skip
    assert {(one.above, one.stage) for one in record.breaks} == {
        (LAST.peer, 2), (SECOND.peer, 1), (b"", 3)
    }  # fmt: skip


def three_stages(**said):
    """Two of FIRST's micro-batches were served by SECOND in the middle; LIAR claims both."""
    two = orders.marks({1, 2})

    def report(who, stage, *seen, whole=EMPTY):
        seen = tuple(orders.Seen(one, FIRST, at, two) for one, at in said.get(who, seen))
        return orders.Settled(0, (orders.Counted(FIRST, stage, two),), Made(whole, {}), {}, seen)

    told = {
        FIRST: report("first", 0, (SECOND, 1), whole=two),
        SECOND: report("second", 1, (FIRST, 0), (LAST, 2)),
        LIAR: report("liar", 1, (FIRST, 0), (LAST, 2)),
        LAST: report("last", 2, (SECOND, 1)),
    }
    at = (Span(0, 0), Span(1, 1), Span(1, 1), Span(2, 2))
    spans = dict(zip((FIRST, SECOND, LIAR, LAST), at, strict=True))
    return told, spans


def test_who_claims_what_others_have_counted_gets_nothing_for_it():
    books = books_of(0, 3, ASKED, *three_stages())
    assert books.told == {(FIRST, 0): 2, (SECOND, 1): 2, (LIAR, 1): 0, (LAST, 2): 2}
    assert books.doubted == {LIAR: 2} and not books.disputed and books.whole == 2


def test_one_neighbour_s_word_costs_nobody_anything():
    for lie in ({"first": [(LIAR, 1)]}, {"last": [(LIAR, 1)]}, {"first": []}):
        books = books_of(0, 3, ASKED, *three_stages(**lie))
        assert books.told[SECOND, 1] == 2
    both = books_of(0, 3, ASKED, *three_stages(first=[(LIAR, 1)]))
    assert both.disputed == {(FIRST, 1): (1, 2)} and both.told[LIAR, 1] == 2


def test_who_claims_what_one_that_is_gone_has_counted_gets_nothing_if_both_neighbours_say_so():
    told, spans = three_stages()
    del told[SECOND]
    books = books_of(0, 3, ASKED, told, spans)
    assert books.told[LIAR, 1] == 0 and books.counted == (2, 0, 2)
    told, spans = three_stages(last=[])
    del told[SECOND]
    assert books_of(0, 3, ASKED, told, spans).told[LIAR, 1] == 2


def test_nobody_but_its_source_counts_a_micro_batch_in_the_source_s_own_stages():
    told = {
        FIRST: settled({(FIRST, 0): {1, 2}}, whole={1, 2}),
        SECOND: settled({(FIRST, 0): {1, 2}}),
    }
    books = books_of(0, 2, ASKED, told, SPANS)
    assert books.told == {(FIRST, 0): 2, (SECOND, 0): 0} and books.doubted == {SECOND: 2}


def test_a_record_of_books_is_bounded_and_has_those_with_most():
    many = {Process(number.to_bytes(32, "big"), BOOT): Span(0, 9) for number in range(300)}
    told = {FIRST: settled({(FIRST, 0): {1}}, whole={1})}
    spans = many | {FIRST: Span(0, 255)}
    record = record_of(books_of(0, 256, ASKED, told, spans))
    assert record.num_members == 301 and len(record.members) <= limits.BOOKS_MEMBERS_MAX
    assert sum(len(one.counted) for one in record.members) <= limits.BOOKS_COUNTS_MAX
    assert FIRST.peer in {one.peer for one in record.members}


def test_nothing_is_believed_of_a_source_that_was_not_asked_for_as_much():
    told = {
        FIRST: settled({(FIRST, 0): {1, 2}, (LAST, 0): {1}}, whole={1, 2}),
        LAST: settled({(FIRST, 1): {1, 2}, (GONE, 1): set(range(99)), (LAST, 1): {1}}),
    }
    books = books_of(0, 2, ASKED, told)
    assert books.doubted == {FIRST: 1, LAST: 100}
    assert books.counted == (2, 2) and not books.partial and not books.disputed
    assert books.told == {(FIRST, 0): 2, (LAST, 1): 2}


def test_words_on_many_sources_that_there_are_not_cost_nothing():
    strangers = [Process(number.to_bytes(32, "big"), BOOT) for number in range(2000)]
    books = books_of(0, 256, ASKED, {LAST: settled({(one, 1): {7} for one in strangers})})
    assert books.doubted == {LAST: 2000} and not books.partial and not any(books.counted)


def test_where_routes_leave_stages_out_a_micro_batch_is_whole_in_those_that_it_visits():
    paths, members = Paths(4, 3), [Process(name * 32, BOOT) for name in (b"a", b"d", b"e", b"c")]
    numbers = set(range(1, 5))
    visiting = {
        stage: {one for one in numbers if stage in paths.of(FIRST, one)} for stage in range(4)
    }
    told = {
        member: settled({(FIRST, stage): visiting[stage]}, whole=numbers if stage == 0 else ())
        for stage, member in enumerate(members)
    }
    spans = {member: Span(stage, stage) for stage, member in enumerate(members)}
    books = books_of(0, 4, ASKED, told, spans, paths=paths)
    assert (books.whole, books.partial, books.breaks, books.doubted) == (4, {}, {}, {})
    assert books.counted == (4, len(visiting[1]), len(visiting[2]), 4)
    # Who claims all, claims those that do not visit its stage as well: they count nowhere.
    boast = told | {members[1]: settled({(FIRST, 1): numbers})}
    books = books_of(0, 4, ASKED, boast, spans, paths=paths)
    assert books.told[members[1], 1] == len(visiting[1]) and books.whole == 4
    assert books.doubted == {members[1]: 4 - len(visiting[1])}
    # A stage that lacks one which visits it.
    lacking = told | {members[2]: settled({(FIRST, 2): set(list(visiting[2])[1:])})}
    books = books_of(0, 4, ASKED, lacking, spans, paths=paths)
    assert books.whole == 3 and books.breaks == {(members[3], 3, ""): 1}
