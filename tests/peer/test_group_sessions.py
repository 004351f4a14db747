"""Sessions in two groups of one run over real disks: who comes back has the state of each."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swarmtrain import checkpoint
from swarmtrain.coordinator.service import run_terms
from swarmtrain_transport import actions as do
from swarmtrain_transport.coordinator.rendezvous import Rendezvous
from swarmtrain_transport.links.link import PeerId
from swarmtrain_transport.wire.records import Checkpoint, Rewind, bodies_of
from swarmtrain_transport.wire.text_place import TextPlace
from tests.peer.crowd import SHAPES, Crowd, Process, Training
from tests.peer.test_strategy_sessions import config_of

torch.set_num_threads(1)
ROUNDS = 9
LAYOUTS = (SHAPES, ((8, 8), (6, 5)))


def config_in(group: int) -> Any:
    config = config_of("diloco", rounds=ROUNDS)
    exchange = msgspec.structs.replace(config.exchange, start_peers=2)
    outer = msgspec.structs.replace(config.outer, lr=0.5 + 0.25 * group)
    return msgspec.structs.replace(config, exchange=exchange, outer=outer)


class InGroups(Process):
    """A peer's process with a session in each of its groups."""

    crowd: "TwoGroups"

    def __init__(self, crowd: Crowd, peer: PeerId, boot: bytes, directory: Path) -> None:
        super().__init__(crowd, peer, boot, directory)
        self.trainings: dict[int, Training] = {}
        self.left = 0

    def train_in(self, groups: Iterable[int]) -> None:
        for group in groups:
            config = config_in(group)
            self.storage.of(group).keep_run(self.crowd.runs[group])
            self.trainings[group] = Training(self, group, config, 0.01, LAYOUTS[group])
            self.is_over = False

    def go(self) -> None:
        for one in list(self.trainings.values()):
            if not one.is_over:
                one.is_gone = self.is_gone
                one.go()
        if self.is_gone:
            self.storage.close()
        self.is_over = bool(self.trainings) and all(o.is_over for o in self.trainings.values())
        self.steps_made = sum(one.steps_made for one in self.trainings.values())

    def leave(self, reason: str) -> None:
        """The last session's goodbye is the peer's."""
        self.left += 1
        if self.left == len(self.trainings):
            super().leave(reason)

    def ended(self) -> None:
        if self.left == len(self.trainings):
            self.storage.close()

    def act(self, actions: Any) -> None:
        for action in actions:
            match action:
                case do.Moved():
                    self.train_in(set(action.groups) - self.trainings.keys())
                case do.Rewound():
                    self.storage.of(action.group).forget_results_after(action.op)
                case do.DownloadBegun():
                    self.storage.of(action.group).begin_download(action.manifest)
                case do.KeepChunk():
                    self.storage.of(action.group).keep_chunk(action.digest, action.data)
        super().act(actions)

    def heard(self, news: Any) -> None:
        if isinstance(news, do.RecordAccepted):
            self.storage.append_records([news.record])
            return
        group = news.result.group if isinstance(news, do.ApplyResult) else news.group
        self.trainings[group].items.append(news)


class TwoGroups(Crowd):
    def start_coordinator(self) -> None:
        later = config_in(1)
        self.runs = [run_terms(config_in(group)).config for group in (0, 1)]
        self._term += 1
        keys = self.keys
        self.hall = Rendezvous(
            self._terms, keys.run_key, tuple(self.records), keys.sign, keys.verify, self._term,
            self.now_s, more_groups=(replace(run_terms(later), layout=b"", group=1),),
        )  # fmt: skip
        self._heed(self.hall.start(self.now_s))

    def begin(self, number: int, *groups: int) -> InGroups:
        """A peer's process begins; new in the run it is put into these groups."""
        self._boots += 1
        peer, directory = bytes([number]) * 32, self.place / str(number)
        is_new = not directory.exists()
        directory.mkdir(exist_ok=True)
        process = InGroups(self, peer, b"boot %d" % self._boots, directory)
        if not is_new or 0 in groups:
            process.train_in(process.participant.groups)
        self.connect(process)
        if is_new and groups != (0,):
            self._heed(self.hall.place(peer, groups, self.now_s))
        return process


@pytest.fixture
def crowd(tmp_path: Path) -> Any:
    crowd = TwoGroups(config_in(0), tmp_path)
    yield crowd
    crowd.close()
    crowd.lane.close()


PLACES = {1: (0,), 2: (0, 1), 3: (1,), 4: (0, 1)}


def begun(crowd: TwoGroups) -> list[InGroups]:
    return [crowd.begin(number, *groups) for number, groups in PLACES.items()]


def newest(process: InGroups) -> dict[int, int]:
    return {group: one.driver.op for group, one in process.trainings.items()}


def reached(processes: Iterable[InGroups], op: int) -> bool:
    return all(newest(one) and min(newest(one).values()) >= op for one in processes)


def assert_agreed(processes: Iterable[InGroups]) -> None:
    for group in (0, 1):
        own = [one.trainings[group] for one in processes if group in one.trainings]
        assert {one.driver.op for one in own} == {ROUNDS}
        assert len({one.driver.root for one in own}) == 1


def test_two_groups_have_checkpoints_and_results_of_their_own(crowd: TwoGroups):
    processes = begun(crowd)
    crowd.hall.reads(TextPlace(2, 3, 9))
    crowd.run()
    assert_agreed(processes)
    manifests: dict[int, set[bytes]] = {0: set(), 1: set()}
    for number, groups in PLACES.items():
        place = crowd.place / str(number)
        assert sorted(one.name for one in place.glob("groups/*")) == [str(g) for g in groups if g]
        for group in groups:
            folder = place if group == 0 else place / "groups" / "1"
            kept = checkpoint.latest(folder / "checkpoints")
            assert kept is not None and kept.checkpoint.facts.group == group
            assert kept.checkpoint.facts.text == (2, 3, 9)
            manifests[group].add(kept.checkpoint.manifest_hash)
            assert list((folder / "results").glob("*.bin"))
            assert (b'"group"' in (kept.checkpoint.path / "manifest.json").read_bytes()) == group
        if 0 not in groups:
            assert not checkpoint.folders(place / "checkpoints")
    assert [len(alike) for alike in manifests.values()] == [1, 1]
    written = {body.group for body in bodies_of(crowd.records) if isinstance(body, Checkpoint)}
    assert written == {0, 1}


def test_a_peer_in_two_groups_that_was_killed_has_the_states_of_both_from_its_disk(
    crowd: TwoGroups,
):
    processes = begun(crowd)
    crowd.run(until=lambda: reached(processes, 5))
    old = processes[1]
    crowd.kill(old)
    again = crowd.begin(2)
    told = {one.group: (one.op, one.state_root) for one in again.participant.hello().states}
    for group, one in old.trainings.items():
        saved = checkpoint.latest(again.storage.of(group).checkpoints)
        assert saved is not None and saved.checkpoint.facts.state_root == told[group][1]
        assert told[group][1] == one.roots[told[group][0]]
    crowd.run()
    assert_agreed([processes[0], again, *processes[2:]])
    for group, one in again.trainings.items():
        assert one.began_with[0] == told[group][0], "it has replayed from its own checkpoint"


def test_a_peer_in_the_second_group_alone_comes_back_from_its_disk(crowd: TwoGroups):
    processes = begun(crowd)
    crowd.run(until=lambda: reached(processes, 5))
    crowd.kill(processes[2])
    again = crowd.begin(3)
    (told,) = again.participant.hello().states
    assert told.group == 1 and list(again.trainings) == [1]
    crowd.run()
    assert_agreed([*processes[:2], again, processes[3]])
    assert again.trainings[1].began_with[0] == told.op


def test_after_a_power_cut_of_everybody_both_groups_go_on_from_their_disks(crowd: TwoGroups):
    processes = begun(crowd)
    crowd.run(until=lambda: reached(processes, 5))
    for one in processes:
        crowd.kill(one)
    crowd.start_coordinator()
    again = [crowd.begin(number) for number in PLACES]
    told = [{one.group: one.op for one in each.participant.hello().states} for each in again]
    assert [tuple(states) for states in told] == list(PLACES.values())
    crowd.run()
    assert_agreed(again)
    for each, states in zip(again, told, strict=True):
        assert {g: one.began_with[0] for g, one in each.trainings.items()} == states
    assert not any(isinstance(body, Rewind) for body in bodies_of(crowd.records))
