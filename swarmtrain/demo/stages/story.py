"""The course of a demo whose model is in stages: rounds end when all stages have their result."""

from swarmtrain.demo.setting import STAGES, Cast
from swarmtrain.demo.story import Story, Wish
from swarmtrain.foundation.events import Frozen, RoundEnded, Serving, StateInPlace
from swarmtrain.local_run.processes import Say
from swarmtrain.pipeline.costs import span_words

_OVER = frozenset({"merged", "left-out", "followed"})
"""Outcomes for a peer of a round that has a result."""


class StagesStory(Story):
    """See Story.

    Attributes:
        contributors: peers in a round's result, by round and stage.
    """

    def __init__(self, cast: Cast, rounds: int, now_s: float) -> None:
        super().__init__(cast, rounds, now_s)
        self.contributors: dict[int, dict[int, int]] = {}
        self._states: dict[str, set[int]] = {}

    def _on_in(self, name: str) -> list[Wish]:
        if name != self._cast.newcomer:
            return []  # what it serves says more, and comes at once
        return [Say(f"{name} is in, with a key of its own; it asks for no stage")]

    def _on_serving(self, name: str, event: Serving) -> list[Wish]:
        part = self._cast.parts[name]
        return [
            Say(f"{name}, {part.speed}, serves {span_words(self.facts.spans[name])}: {event.why}")
        ]

    def _on_state(self, name: str, event: StateInPlace, now_s: float) -> list[Wish]:
        if name == self._cast.newcomer:
            text = f"{name} has downloaded stage {event.stage} as it is after round {event.round}"
            return [Say(text)]
        here = self._states.setdefault(name, set())
        here.add(event.stage)
        if len(here) < len(self.facts.spans.get(name, range(STAGES))):
            return []
        self._in_place.add(name)
        if self._in_place < set(self._cast.founders):
            return []
        self._mark_s = now_s
        return [Say("all stages have their first weights; micro-batches of text set out")]

    def _on_round(self, name: str, event: RoundEnded, now_s: float) -> list[Wish]:
        wishes: list[Wish] = []
        if name == self._cast.newcomer:
            wishes += self._newcomers_round(name, event)
        if event.outcome == "skipped" and event.round not in self._skipped:
            self._skipped.add(event.round)
            text = f"round {event.round} was skipped in stage {event.stage}; everybody trains on"
            wishes.append(Say(text))
        stages = self.contributors.setdefault(event.round, {})
        if event.outcome in _OVER and event.stage not in stages:
            stages[event.stage] = event.contributors
            if len(stages) == STAGES:
                wishes += self._round_line()
                self.facts.committed[event.round] = max(stages.values())
                self._round_s, self._mark_s = now_s - self._mark_s, now_s
                wishes += self._after_round(event.round)
        return wishes

    def _last_words(self, name: str, event: Frozen) -> str:
        return (
            f"{name} stops in round {event.round} with {event.micro_batches} micro-batches on "
            "their way, and is killed: who sent them sends them to others of its stage"
        )

    def _who(self, number: int) -> str:
        counts = [str(count) for _, count in sorted(self.contributors[number].items())]
        if len(set(counts)) == 1:
            return f"{counts[0]} peers in each stage"
        return f"{', '.join(counts[:-1])} and {counts[-1]} peers in stages 0 to {STAGES - 1}"
