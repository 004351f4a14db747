"""A coordinator of a model in stages: a group for each, and who serves which."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import (
    ExchangeSection,
    InnerSection,
    OuterSection,
    PipelineSection,
    RunConfig,
    RunSection,
)
from swarmtrain.config.stages import stage_layouts
from swarmtrain.coordinator import service
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.door.compatibility import no_place
from swarmtrain.peer.network.control import DoorRefused
from swarmtrain.pipeline.costs import stage_needs
from swarmtrain.status import ask
from swarmtrain_transport.coordinator.stages.stage_rounds import PipelineTerms
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.wire.messages import Brings, Hello, Offer, Welcome
from swarmtrain_transport.wire.records import Gone, Group, Join, Move, Run, body_of
from tests.coordinator.rig import Listener, client_of, connected, hello_of, run
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
    assert {one.start_peers for one in terms} == {1}
    assert {one.holders for one in terms} == {3}
    plain = RunConfig(run=CONFIG.run)
    assert service.group_terms(plain) == (service.run_terms(plain),)


def test_a_round_of_the_pipeline_is_as_long_as_one_of_the_run() -> None:
    inner = InnerSection(batch=16, grad_clip=0.5)
    outer = OuterSection(inner_steps=20)
    exchange = ExchangeSection(start_peers=6)
    pipeline = PipelineSection(stages=3, micro_batch=2)
    config = RunConfig(CONFIG.run, inner=inner, outer=outer, exchange=exchange, pipeline=pipeline)
    tokens = 2 * config.model.context
    told = {"width": config.model.width, "most_units": 51}
    free = PipelineTerms(8 * 20, start_peers=6, tokens=tokens, round_steps=20, **told)
    assert service.pipeline_terms(config) == free
    flush = msgspec.structs.replace(
        config, pipeline=msgspec.structs.replace(pipeline, schedule="flush")
    )
    assert service.pipeline_terms(flush) == PipelineTerms(8, 20, True, 6, tokens, 20, **told)
    by_tokens = msgspec.structs.replace(
        config, inner=msgspec.structs.replace(inner, schedule="tokens")
    )  # two sources: so many peers there are for each stage
    assert service.pipeline_terms(by_tokens).step_micro_batches == 2 * 8
    assert service.pipeline_terms(RunConfig(CONFIG.run)) is None


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


def hello(who: Identity, boot: bytes = b"boot-one", **brings: object) -> Hello:
    return msgspec.structs.replace(hello_of(who), boot=boot, brings=Brings(**brings))


def test_joiners_get_stages_in_the_ledger_before_they_are_welcomed(tmp_path: Path) -> None:
    """Who says nothing gets what is lacking; who was in before keeps its stages, or gets others
    that it asks for."""
    whys = []
    people = [Identity.create() for _ in range(4)]

    async def scene() -> None:
        async with living(tmp_path, CONFIG) as life:

            async def enter(who: Identity, **said: object) -> None:
                listener = Listener()
                client = client_of(life.invite, who, listener, hello=hello(who, **said))
                running = asyncio.create_task(client.run())
                whys.append((await listener.hears(Welcome)).why)
                await client.close()
                await running

            for who in people[:3]:
                await enter(who)
            await enter(people[3], memory_bytes=1 << 30)
            await enter(people[1])
            await enter(people[1], boot=b"boot-two")
            await enter(people[0], boot=b"boot-two", span=(1, 2))
            await enter(people[0], boot=b"boot-two")

    run(scene())
    assert whys == [
        "nobody serves it yet", "nobody serves it yet", "nobody serves it yet",
        "there the run gains most", "", "as before", "as it asked", "",
    ]  # fmt: skip
    names = {who.peer_id: index for index, who in enumerate(people)}
    told = [
        (type(body), names[body.peer], getattr(body, "groups", ()))
        for body in bodies(tmp_path)
        if isinstance(body, Join | Move | Gone)
    ]
    assert told == [
        (Join, 0, ()), (Join, 1, ()), (Move, 1, (1,)), (Join, 2, ()), (Move, 2, (2,)),
        (Join, 3, ()), (Move, 3, (1,)), (Join, 1, ()), (Join, 0, ()), (Move, 0, (1, 2)),
    ]  # fmt: skip


def test_the_run_says_which_stage_lacks_a_peer(tmp_path: Path) -> None:
    exchange = ExchangeSection(start_peers=4)
    config = msgspec.structs.replace(CONFIG, exchange=exchange)
    people = [Identity.create() for _ in range(3)]

    async def scene() -> None:
        async with living(tmp_path, config) as life, AsyncExitStack() as stack:
            for words in (
                "each of the stages 0, 1 and 2", "each of the stages 1 and 2", "stage 2",
            ):  # fmt: skip
                status = await asyncio.to_thread(ask, tmp_path)
                assert status["waiting_for"] == f"1 more peer in {words}"
                who = people.pop()
                await stack.enter_async_context(connected(life.invite, who, hello=hello(who)))
            status = await asyncio.to_thread(ask, tmp_path)
            assert status["waiting_for"] == "1 more peer"  # start_peers

    run(scene())


@pytest.mark.parametrize(
    ("brings", "stages", "words"),
    [
        (Brings(span=(1, 3)), 3, "has stages 0 to 2, and this peer asks for the span 1-3"),
        (Brings(span=(0, 1)), 1, "has its model in one piece, and this peer asks for the span 0-1"),
        (Brings(span=(1, 2), memory_bytes=420_000_000), 3, "stages 1 to 2 takes about 4"),
        (Brings(memory_bytes=1_000_000), 3, "stage 0, the smallest, takes about 41"),
        (Brings(memory_bytes=1_000_000), 1, "its model takes about 5"),
        (Brings(span=(0, 0), memory_bytes=1 << 30), 1, ""),
        (Brings(span=(1, 2), memory_bytes=1 << 30), 3, ""),
        (Brings(), 3, ""),
    ],
)
def test_a_span_that_there_is_not_or_does_not_fit_is_refused(
    brings: Brings, stages: int, words: str
) -> None:
    config = RunConfig(run=CONFIG.run, pipeline=PipelineSection(stages=stages))
    refusal = no_place(brings, config, stage_needs(config))
    if not words:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal[0] == "SWT-E614" and words in refusal[1]


def test_who_has_no_stage_gets_no_place_in_the_ledger(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path, CONFIG) as life:
            with pytest.raises(DoorRefused, match="span 2-4") as caught:
                async with connected(life.invite, ALICE, hello=hello(ALICE, span=(2, 4))):
                    pass
            assert caught.value.code == "SWT-E614" and caught.value.exit_status == 78
            for span in ((2, 1), (-1, 0), (0, 1, 2), (300, 301)):
                with pytest.raises(DoorRefused):
                    async with connected(life.invite, ALICE, hello=hello(ALICE, span=span)):
                        pass

    run(scene())
    assert not [body for body in bodies(tmp_path) if isinstance(body, Join)]
