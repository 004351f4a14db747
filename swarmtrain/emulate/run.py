"""`swarmtrain emulate`: starts a coordinator and copies of a program, and shows how they fare.

Like the demo it is a bystander: it uses the command `up`, sets programs up by their environment,
hears what they say and asks `status`.
"""

import queue
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from swarmtrain.config.options import EmulateOptions
from swarmtrain.config.settings import RunConfig
from swarmtrain.console.lines import timed
from swarmtrain.console.view import Picture, Row, View, open_view
from swarmtrain.emulate import course
from swarmtrain.emulate.links import OPEN, Links, ModelledLinks, parse_net
from swarmtrain.emulate.namespaces import Namespaces, NoNamespaces
from swarmtrain.emulate.report import Report, in_words, make_report
from swarmtrain.emulate.routers import parse_routers
from swarmtrain.emulate.setting import names_of, run_file_of, variables_of
from swarmtrain.foundation.errors import Interrupted, UserError
from swarmtrain.foundation.events import In, Ready
from swarmtrain.local_run.place import COORDINATOR, Place
from swarmtrain.local_run.processes import Kill, Processes, Say, Start, tail
from swarmtrain.local_run.signals import noted
from swarmtrain_optimizers.strategies.facts import OpKind

_GLANCE_S = 0.2
"""The longest wait for news: a picture is drawn, a signal is seen, this often."""

_PATIENCE_S = 20.0
"""After Ctrl+C: time for programs to leave and end."""

_NOT_OURS = "No module named 'swarmtrain'"


def run_emulation(options: EmulateOptions) -> Report:
    """Run an emulation to its end.

    Returns:
        Report of the emulation; people were told.

    Raises:
        UserError: what its table says; nothing runs any more.
        Interrupted: a signal ended it; nothing runs any more.
    """
    if options.command and shutil.which(options.command[0]) is None:
        raise UserError(
            "SWT-E653",
            f"There is no program {options.command[0]}.",
            "It is looked for as a shell would do it, from here.",
            "Name it after --, as in: swarmtrain emulate --peers 4 -- python train.py",
        )
    place = Place.make(options.state_dir, what="emulation")
    view = open_view(sys.stderr if options.json else sys.stdout)
    try:
        return _Emulation(options, place, view).run()
    finally:
        view.close()


class _Emulation:
    """One emulation, from its first process to its last word."""

    def __init__(self, options: EmulateOptions, place: Place, view: View) -> None:
        self._options = options
        self._place = place
        self._view = view
        self._names = names_of(options.peers)
        self._run_file, self._config = run_file_of(place, options)
        self._began_s = time.monotonic()
        self._course = course.Course(
            self._names, seed=options.seed, kill_every_s=options.kill_every_s, now_s=self._began_s
        )
        self._invite = ""
        self._signals: list[int] = []
        self._shown: Picture | None = None

    def run(self) -> Report:
        """Run the emulation from its first process to its report."""
        with noted() as self._signals:
            links = self._links()
            try:
                for line in _introduction(self._options, self._config, links, self._place):
                    self._view.say(line)
                failure = self._run_processes(links)
            finally:
                links.close()
        self._view.close()
        report = make_report(
            self._course, is_paired=self._config.facts.kind is OpKind.PAIR, links=links.words,
            seconds=time.monotonic() - self._began_s, state_dir=self._place.root,
        )  # fmt: skip
        if failure is not None:
            raise self._told(failure)
        for line in in_words(report):
            self._view.say(line)
        if self._signals:
            raise Interrupted(128 + self._signals[0])
        return report

    def _run_processes(self, links: Links) -> course.Fail | None:
        failure: course.Fail | None = None
        processes = Processes(
            self._place, mark=f"emulation-{secrets.token_hex(8)}", where=links.where
        )
        try:
            with processes.asking():
                processes.start_coordinator(links.host(COORDINATOR), run_file=self._run_file)
                while failure is None and not self._course.is_over and not self._signals:
                    failure = self._go_on(processes, links)
                if self._signals:
                    self._say("stopping: the programs are asked to end; Ctrl+C again ends them")
                patience_s = 0.0 if failure else _PATIENCE_S
                processes.stop(patience_s=patience_s, hurry=lambda: len(self._signals) > 1)
            self._hear_the_rest(processes)
        finally:
            processes.close()
        return failure

    # ---- while it runs

    def _links(self) -> Links:
        kind, kinds = self._options.links, parse_routers(self._options.routers)
        if not (self._options.net or kinds):
            return Links()
        net = parse_net(self._options.net) if self._options.net else OPEN
        if kind != "modelled":
            try:
                return Namespaces(net, self._names, kinds)
            except NoNamespaces as error:
                if kind == "namespaces" or kinds:
                    raise error.told() from error
                self._view.say(f"No network namespaces here ({error}).")
        return ModelledLinks(net, self._names)

    def _go_on(self, processes: Processes, links: Links) -> course.Fail | None:
        """Wait a moment for news and do what follows from it."""
        wishes: list[course.Wish] = []
        with suppress(queue.Empty):
            name, event = processes.news.get(timeout=_GLANCE_S)
            if isinstance(event, Ready):
                self._invite = event.invite
            if isinstance(event, In):
                links.listens(name, event.port)
            wishes += self._course.hear(name, event, time.monotonic())
        wishes += self._course.tick(time.monotonic())
        for wish in wishes:
            match wish:
                case Say():
                    self._say(wish.text)
                case Start():
                    self._start(wish.name, processes, links)
                case Kill():
                    processes.kill(wish.name)
                case course.Fail():
                    return wish
        self._draw()
        return None

    def _start(self, name: str, processes: Processes, links: Links) -> None:
        variables, events = variables_of(self._place, name, self._invite, links)
        if self._options.command:
            processes.start_program(name, self._options.command, variables, events)
            return
        up, down = links.caps()
        caps = (*(("--up", up) if up else ()), *(("--down", down) if down else ()))
        processes.start_peer(
            name, *caps, advertise=links.advertised(name), host=links.host(name)
        )  # fmt: skip
        processes.hand_invite(name, links.invite(name, self._invite))

    def _hear_the_rest(self, processes: Processes) -> None:
        """Hear the last words of those that were asked to end."""
        if not self._signals:
            return
        for name in self._names:
            processes.bury(name)
        with suppress(queue.Empty):
            while True:
                self._course.hear(*processes.news.get_nowait(), time.monotonic())

    def _say(self, text: str) -> None:
        self._view.say(timed(text, time.monotonic() - self._began_s))

    def _draw(self) -> None:
        rows = tuple(
            Row(
                peer.name, peer.state, peer.round, peer.loss_last or 0.0, peer.tokens_per_s,
                peer.bytes_up, peer.bytes_down,
            )
            for peer in self._course.peers.values()
        )  # fmt: skip
        done = f"round {self._course.rounds} of {self._config.num_ops} committed"
        status = self._course.status
        picture = Picture(rows, (done,), "tokens" if status is None else status.unit)
        if picture != self._shown:
            self._shown = picture
            self._view.show(picture)

    # ---- the end

    def _told(self, failure: course.Fail) -> UserError:
        path = self._place.log(failure.name)
        lines = tail(path)
        meaning = ["All processes were ended. The last lines of its log:"]
        meaning += [f"| {line}" for line in lines]
        remedy = f"All of them: {path}"
        if failure.code == "SWT-E651":
            remedy += "\nA program joins with swarmtrain.join(model, optimizer); the invite is in"
            remedy += " SWARMTRAIN_INVITE."
        elif any(_NOT_OURS in line for line in lines):
            remedy += f"\nIts Python has no swarmtrain; this one has: {sys.executable}"
        return UserError(failure.code, failure.text, "\n".join(meaning), remedy)


def _introduction(
    options: EmulateOptions, config: RunConfig, links: Links, place: Place
) -> Iterator[str]:
    what = " ".join(options.command) or "the built-in model and text"
    steps = config.steps_per_round
    yield (
        f"{options.peers} peers on this machine: {what}. A round is {steps} inner steps of each "
        f"and an exchange; {config.num_ops} rounds. Links: {links.words}."
    )
    if options.kill_every_s:
        yield (
            f"Every {options.kill_every_s:g} s a peer is killed, drawn by seed {options.seed}, and "
            "started again."
        )
    yield f"All files: {place.root}"
    yield ""
