"""A coordinator of a model in stages: a group for each, and who serves which."""

from pathlib import Path

import msgspec
import pytest

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import PipelineSection, RunConfig, RunSection
from swarmtrain.config.stages import stage_layouts
from swarmtrain.coordinator import service
from swarmtrain.coordinator.disk.store import Store
from swarmtrain_transport.wire.identity import Identity
from swarmtrain_transport.wire.messages import Offer
from swarmtrain_transport.wire.records import Group, Run, body_of
from tests.coordinator.rig import connected, run
from tests.coordinator.test_service import fails, living

CONFIG = RunConfig(run=RunSection(name="tests", rounds=3), pipeline=PipelineSection(stages=3))
ALICE = Identity.create()


def bodies(directory: Path) -> list[object]:
    store = Store.open(directory)
    found = [body_of(record) for record in store.replay()]
    store.close()
    return found


def test_each_stage_is_a_group_of_the_same_run_file(tmp_path: Path) -> None:
    async def scene() -> None:
        for _ in range(2):  # the second life finds them
            async with living(tmp_path, CONFIG):
                pass

    run(scene())
    first, *groups = bodies(tmp_path)
    assert isinstance(first, Run)
    digest = config_file.config_hash(CONFIG)
    assert first.config_hash == digest
    assert groups == [Group(1, digest), Group(2, digest)]


def test_terms_of_stages_differ_in_group_and_layout_alone() -> None:
    terms = service.group_terms(CONFIG)
    assert [one.group for one in terms] == [0, 1, 2]
    assert tuple(one.layout for one in terms) == stage_layouts(CONFIG)
    plain = RunConfig(run=CONFIG.run)
    assert service.group_terms(plain) == (service.run_terms(plain),)


@pytest.mark.parametrize("stages", [2, ("embedding", "blocks.0", "blocks.1"), 1])
def test_another_cut_is_another_run(tmp_path: Path, stages: int | tuple[str, ...]) -> None:
    async def scene() -> None:
        async with living(tmp_path, CONFIG):
            pass
        changed = msgspec.structs.replace(CONFIG, pipeline=PipelineSection(stages=stages))
        assert (await fails(tmp_path, changed)).code == "SWT-E606"

    run(scene())


def test_a_version_that_cuts_otherwise_does_not_go_on_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with living(tmp_path, CONFIG) as life, connected(life.invite, ALICE) as (client, _):
            layout = stage_layouts(CONFIG)[0]
            client.send(Offer(b"r" * 32, 1000, layout))
        monkeypatch.setattr(service, "stage_layouts", lambda config: (b"o" * 32,) * 3)
        error = await fails(tmp_path, CONFIG)
        assert error.code == "SWT-E703" and "stage 0" in error.what
        monkeypatch.undo()
        async with living(tmp_path, CONFIG):
            pass

    run(scene())
