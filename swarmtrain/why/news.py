"""News of a run in sentences, from the ledger's newest records and validation losses. Pure.

`why` tells one round afterwards and at length; this is for who watches a run go by.
"""

from collections.abc import Iterable, Iterator, Mapping

from swarmtrain.console.lines import counted
from swarmtrain.why import story as why
from swarmtrain.why import words
from swarmtrain_transport.kinds import PAIR
from swarmtrain_transport.ledger.fold import OfGroup
from swarmtrain_transport.wire.messages import FIRST_GROUP
from swarmtrain_transport.wire.records import (
    AnyBody,
    BodyReader,
    Books,
    Commit,
    Extend,
    Freeze,
    Gone,
    Join,
    Plan,
    Record,
    Rewind,
    Skip,
    Unban,
)


class News:
    """Turns what is new since the last time into sentences.

    Args:
        rounds: committed rounds after which the run is over.
        term: this life of the coordinator; of earlier ones nothing is told again. None tells all.
        losses: validation losses by round that earlier ones knew.
    """

    def __init__(self, rounds: int, term: int | None, losses: Iterable[str] = ()) -> None:
        self._rounds = rounds
        self._term = term
        self._next = 0
        self._names: dict[bytes, str] = {}
        self._here: set[bytes] = set()
        self._pairs = False
        self._books: Books | None = None
        self._left_out: dict[int, Mapping[bytes, str]] = {}  # by op, several are under way
        self._losses = set(losses)
        self._reader = BodyReader()

    @property
    def next_record(self) -> int:
        """Index of the first record that is not heard of yet."""
        return self._next

    def of_records(self, records: Iterable[Record]) -> list[str]:
        """Return sentences for the ledger's next records, from `next_record` on."""
        told: list[str] = []
        for record in records:
            self._next = record.index + 1
            said = list(self._sentences(self._reader.read(record)))
            if self._term in (None, record.term):
                told += said
        return told

    def of_body(self, body: AnyBody) -> list[str]:
        """Return sentences for a record that somebody else has read."""
        return list(self._sentences(body))

    def knows(self, names: Mapping[bytes, str], here: Iterable[bytes]) -> None:
        """Take over who is known, where the ledger's beginning is not there."""
        self._names.update(names)
        self._here.update(here)

    def of_losses(self, losses: Mapping[str, float]) -> list[str]:
        """Return sentences for the validation losses, by round, that are new since last time."""
        new = [number for number in losses if number not in self._losses]
        self._losses = set(losses)
        return [
            f"{f'round {number}' if number != '0' else 'before training'}: "
            f"validation loss {losses[number]:.3f}"
            for number in sorted(new, key=int)
        ]

    def _sentences(self, body: AnyBody) -> Iterator[str]:
        """Tell people of a record; of groups that they need not know of nothing."""
        if isinstance(body, OfGroup) and body.group != FIRST_GROUP:
            return
        match body:
            case Join():
                yield self._came(body)
            case Gone():
                yield self._went(body)
            case Unban():
                yield f"{self._name(body.peer)} may come again: the organiser has lifted its ban"
            case Extend(rounds):
                self._rounds = rounds
                yield f"the organiser has added rounds: the run now ends after round {rounds}"
            case Plan():
                self._pairs = body.kind == PAIR
            case Books():
                self._books = body
            case Freeze():
                self._left_out[body.op] = body.excluded
            case Commit():
                yield f"{self._round(body.op)}: {self._result(body)}"
                for peer, reason in self._left_out.pop(body.op, {}).items():
                    if reason != "alone":
                        because = why.left_out_because(reason)
                        yield f"{self._round(body.op)}: without {self._name(peer)}, {because}"
            case Skip():
                self._left_out.pop(body.op, None)
                yield (
                    f"{self._round(body.op)} was skipped: {body.reason}; all train on from where "
                    "they are"
                )
                for peer, reason in body.excluded.items():
                    because = why.left_out_because(reason)
                    yield f"{self._round(body.op)}: for want of {self._name(peer)}, {because}"
            case Rewind():
                to = (
                    f"back to the state after round {body.op}"
                    if body.op >= 0
                    else "to its beginning"
                )
                yield f"the run goes {to}: {body.reason}"
                for peer in body.passed_over:
                    yield f"{self._name(peer)} had it; another peer gives the first state"

    def _came(self, body: Join) -> str:
        is_new = body.peer not in self._names
        self._names[body.peer] = why.name_of(body.peer, body.name, self._names)
        self._here.add(body.peer)
        came = "is in" if is_new else "is back"
        return f"{self._name(body.peer)} {came}, {_peers(len(self._here))} now"

    def _went(self, body: Gone) -> str:
        self._here.discard(body.peer)
        how = "is gone" if body.evicted else "has left"
        if body.conviction is not None:
            how = "is out for good"
        clause = f" ({because})" if (because := words.gone_because(body)) else ""
        return f"{self._name(body.peer)} {how}{clause}, {_peers(len(self._here))} now"

    def _result(self, body: Commit) -> str:
        if self._books is not None:
            return _made(self._books)
        count = len(body.contributors)
        if self._pairs:
            return f"{count} peers have exchanged in pairs"
        return "the work of one peer alone" if count == 1 else f"averaged over {count} peers"

    def _round(self, op: int) -> str:
        return f"round {op} of {self._rounds}"

    def _name(self, peer: bytes) -> str:
        return self._names.get(peer, peer.hex()[:8])


def _made(books: Books) -> str:
    """Say what the stages of a model have exchanged the work of."""
    lost = f", {sum(books.lost.values())} lost" if books.lost else ""
    return (
        f"{len(books.counted)} stages have learnt from {books.whole} of {books.made} "
        f"micro-batches{lost}"
    )


def _peers(count: int) -> str:
    return counted(count, "peer") if count else "nobody"
