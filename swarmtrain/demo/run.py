"""`swarmtrain demo`: starts the processes, does what the story wishes, shows it, and ends it all.

The demo is a bystander: it uses the commands `up` and `join`, hears what they say and asks
`status`, as anybody could. The one thing that only it does is to kill a peer.

torch is loaded at the very end, to let the model write: until then the cores are the peers'.
"""

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from swarmtrain.config.options import DemoOptions
from swarmtrain.config.settings import RunConfig
from swarmtrain.console.lines import show_json, timed
from swarmtrain.console.view import Picture, View, open_view
from swarmtrain.data.corpus import build_corpus
from swarmtrain.demo import story
from swarmtrain.demo.report import Report, disagreement, in_words, make_report, order0_loss_of
from swarmtrain.demo.setting import KILL_ROUND, STAGES, Cast, write_run_file
from swarmtrain.demo.stages import report as stages_report
from swarmtrain.demo.stages import view as stages_view
from swarmtrain.demo.stages.story import StagesStory
from swarmtrain.demo.view import Scene, make_scene, picture_of, stream_for
from swarmtrain.foundation.error_table import EXIT_BUG, EXIT_DONE
from swarmtrain.foundation.errors import Interrupted, UserError
from swarmtrain.local_run.place import COORDINATOR, Place
from swarmtrain.local_run.processes import Kill, Processes, Say, Start, tail
from swarmtrain.local_run.signals import noted
from swarmtrain.verify.coordinator_state import read_records
from swarmtrain_optimizers.strategies.facts import OpKind

_GLANCE_S = 0.2
"""The longest wait for news: a picture is drawn, a signal is seen, this often."""

_PATIENCE_S = 20.0
"""After Ctrl+C: time for peers to finish their round and say goodbye."""

_LIMIT_S = (600.0, 240.0)
"""No demo lasts longer than the first, and the second for each round: an op has two minutes."""


def run_demo(options: DemoOptions) -> int:
    """Run a demo to its end.

    Returns:
        0, or 1 if something went otherwise than promised (then it was said what).

    Raises:
        UserError: the state directory cannot be used, there is no text on this machine.
        Interrupted: a signal ended it; all processes are gone.
    """
    place = Place.make(options.state_dir)
    config = write_run_file(place, options)
    view = open_view(stream_for(is_json=options.json))
    make = _StagesDemo if options.pipeline else _Demo
    try:
        return make(options, place, config, view).run()
    finally:
        view.close()


class _Demo:
    """One demo, from its first process to its last word."""

    def __init__(self, options: DemoOptions, place: Place, config: RunConfig, view: View) -> None:
        self._options = options
        self._place = place
        self._config = config
        self._view = view
        self._cast = Cast.of(options)
        self._began_s = time.monotonic()
        self._story = self._make_story()
        self._invite = ""
        self._scene: Scene | None = None
        self._shown: Picture | None = None
        self._signals: list[int] = []
        data = config.data
        text = build_corpus(data.piece_bytes, validation_pieces=data.validation_pieces)
        self._order0_loss = order0_loss_of(
            *(b"".join(map(text.piece, names)) for names in (text.train, text.validation))
        )

    def run(self) -> int:
        """Run the demo from its first process to its report."""
        self._lines(self._introduction())
        failure: story.Fail | None = None
        processes = Processes(self._place)
        try:
            with noted() as self._signals, processes.asking():
                self._start(processes)
                while failure is None and not self._story.is_over:
                    failure = self._go_on(processes)
                if failure is None:
                    processes.stop(patience_s=_PATIENCE_S, hurry=lambda: bool(self._signals))
                self._check_signals(processes)
        finally:
            processes.close()
            self._view.close()
        if failure is not None:
            self._lines(_regrets(failure, self._place))
            return EXIT_BUG
        return self._end(time.monotonic() - self._began_s)

    # ---- while it runs

    def _start(self, processes: Processes) -> None:
        processes.start_coordinator()
        for name in self._cast.founders:
            freeze = KILL_ROUND if name == self._cast.victim else 0
            self._start_peer(processes, name, freeze)

    def _start_peer(self, processes: Processes, name: str, freeze: int = 0) -> None:
        part = self._cast.parts.get(name)
        processes.start_peer(name, *(part.words if part else ()), freeze_in_round=freeze)

    def _go_on(self, processes: Processes) -> story.Fail | None:
        """Wait a moment for news and do what follows from it."""
        wishes: list[story.Wish] = []
        try:
            name, event = processes.news.get(timeout=_GLANCE_S)
        except queue.Empty:
            pass
        else:
            self._invite = getattr(event, "invite", self._invite)
            wishes += self._story.hear(name, event, time.monotonic())
        now_s = time.monotonic()
        wishes += self._story.tick(now_s)
        base_s, round_s = _LIMIT_S
        if now_s - self._began_s > base_s + round_s * self._options.rounds:
            wishes.append(story.Fail("This takes too long.", COORDINATOR))
        self._check_signals(processes)
        failure = self._grant(wishes, processes)
        self._draw()
        return failure

    def _grant(self, wishes: list[story.Wish], processes: Processes) -> story.Fail | None:
        for wish in wishes:
            match wish:
                case Say():
                    self._say(wish.text)
                case story.Invite():
                    processes.hand_invite(wish.name, self._invite)
                case Kill():
                    processes.kill(wish.name)
                case Start():
                    self._start_peer(processes, wish.name)
                case story.Fail():
                    return wish
        return None

    def _say(self, text: str) -> None:
        self._view.say(timed(text, time.monotonic() - self._began_s))

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._view.say(line)

    def _draw(self) -> None:
        scene = make_scene(
            self._story.facts, self._cast, self._options.rounds,
            self._config.steps_per_round, self._order0_loss, self._scene,
        )  # fmt: skip
        self._scene, picture = scene, self._picture(scene)
        if picture != self._shown:
            self._shown = picture
            self._view.show(picture)

    # ---- what a demo in stages does otherwise

    def _make_story(self) -> story.Story:
        return story.Story(self._cast, self._options.rounds, self._began_s)

    def _introduction(self) -> Iterator[str]:
        return _introduction(self._options, self._config, self._place)

    def _picture(self, scene: Scene) -> Picture:
        return picture_of(scene)

    def _told(self, report: Report) -> tuple[Report, Callable[[str], Iterator[str]], str]:
        """The report, its words when it is known what the model writes, and what fell short."""
        return report, partial(in_words, report), disagreement(report)

    # ---- signals

    def _check_signals(self, processes: Processes) -> None:
        if not self._signals:
            return
        text = "stopping: the peers finish their round and leave; Ctrl+C again ends them at once"
        self._say(text)
        processes.stop(patience_s=_PATIENCE_S, hurry=lambda: len(self._signals) > 1)
        raise Interrupted(128 + self._signals[0])

    # ---- the end

    def _end(self, seconds: float) -> int:
        facts = self._story.facts
        model_path = self._saved_model()
        report = make_report(
            facts, self._cast, inner_steps=self._config.steps_per_round,
            order0_loss=self._order0_loss, seconds=seconds, model_path=model_path,
            state_dir=self._place.root,
            is_paired=self._config.facts.kind is OpKind.PAIR,
        )  # fmt: skip
        written = ""
        if model_path is not None:
            from swarmtrain.demo.writing import write_lines

            written = write_lines(model_path, self._config.model, self._options.seed)
        report, words, problem = self._told(report)
        self._lines(words(written))
        if problem:
            self._lines(["", problem])
        if self._options.json:
            show_json(report)
        return EXIT_BUG if problem else EXIT_DONE

    def _saved_model(self) -> Path | None:
        """The final weights, exported from what the peers saved when they left."""
        from swarmtrain import checkpoint
        from swarmtrain.trained.export import export

        folder = self._place.root / "model"
        try:
            export(folder, [self._place.peer(name) for name in self._story.facts.left])
        except UserError as error:
            self._say(error.what)
            return None
        return folder / checkpoint.MODEL_FILE


class _StagesDemo(_Demo):
    """A demo whose model is in stages."""

    def _make_story(self) -> story.Story:
        return StagesStory(self._cast, self._options.rounds, self._began_s)

    def _introduction(self) -> Iterator[str]:
        yield (
            f"A model in {STAGES} stages, trained by {self._options.peers} peers on this machine. "
            "Six of them are too small for it: each serves one stage, three at half the speed of "
            "the others. One serves all stages. Text travels in micro-batches: each stage sends "
            "what it makes of one to a peer of the next, and its gradient comes back the same way. "
            f"After {self._config.steps_per_round} inner steps the peers of each stage exchange "
            "what they have learnt: that is a round. A coordinator keeps the order of events and "
            "never sees a weight."
        )
        if self._options.churn:
            yield (
                f"In round {KILL_ROUND} a peer is killed with micro-batches on their way; in the "
                "next a new one joins, where the run lacks it most."
            )
        yield f"All files: {self._place.root}"
        yield ""

    def _picture(self, scene: Scene) -> Picture:
        return stages_view.picture_of(scene, self._story.facts, self._cast)

    def _told(self, report: Report) -> tuple[Report, Callable[[str], Iterator[str]], str]:
        records = read_records(self._place.coordinator)
        found = stages_report.stages_report(report, self._story.facts, records)
        return found, partial(stages_report.in_words, found), stages_report.shortcoming(found)


def _introduction(options: DemoOptions, config: RunConfig, place: Place) -> Iterator[str]:
    """Announce the demo to somebody who knows nothing of it."""
    peers = "1 peer trains" if options.peers == 1 else f"{options.peers} peers train"
    steps = config.steps_per_round
    yield (
        f"{peers} one model on this machine, a byte transformer, on Python's own source code. "
        f"Each peer is a process: it makes {steps} inner steps alone, then {_exchange_of(config)} "
        "That is a round. A coordinator keeps the order of events and never sees a weight."
    )
    if options.churn:
        yield f"In round {KILL_ROUND} a peer is killed while it sends; in the next a new one joins."
    yield f"All files: {place.root}"
    yield ""


def _exchange_of(config: RunConfig) -> str:
    """Describe the exchange, from the middle of a sentence on."""
    if config.facts.kind is OpKind.PAIR:
        return (
            "meets one other peer, another one each round: over encrypted sockets both give what "
            "they have learnt, and where they began."
        )
    what = "their weights" if config.outer.fragments == 1 else "a part of their weights"
    return f"all exchange 8-bit differences of {what} over encrypted sockets."


def _regrets(failure: story.Fail, place: Place) -> Iterator[str]:
    """Say why it went wrong, with the last lines of the log that should tell more."""
    yield ""
    yield f"The demo has failed. {failure.text}"
    yield f"The last lines of {place.log(failure.name)}:"
    for line in tail(place.log(failure.name)):
        yield f"  | {line}"
    yield "All processes were ended. The other logs are beside it."
