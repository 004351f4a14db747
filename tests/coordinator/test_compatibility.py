"""A peer with another model, other data or another run's name is told so before it is in."""

from pathlib import Path

import msgspec
import pytest

from swarmtrain.config.built_in import built_in_parameters, layout_digest
from swarmtrain.config.settings import (
    DataSection,
    ModelSection,
    PipelineSection,
    RunConfig,
    RunSection,
)
from swarmtrain.config.stages import stage_layouts
from swarmtrain.coordinator.disk.store import Store
from swarmtrain.coordinator.door.compatibility import misfit
from swarmtrain.peer.network.control import DoorRefused
from swarmtrain_transport.credentials.identity import Identity
from swarmtrain_transport.wire.messages import BUILT_IN, LEASED, OWN, UNSAID, Brings
from swarmtrain_transport.wire.records import Attest
from tests.coordinator.rig import connected, hello_of, run
from tests.coordinator.test_service import living

COMMAND = Brings("tests", BUILT_IN, data=LEASED)
VOLUNTEER = Brings("tests", BUILT_IN, data=OWN)
MLP = Brings("tests", OWN, b"m" * 32, 1234, OWN)
CUSTOM = ModelSection(kind="custom")
OWN_DATA = DataSection(source="own")
RUN = RunSection(name="tests", rounds=3)
BUILT_IN_RUN = RunConfig(run=RUN)
CUSTOM_RUN = RunConfig(run=RUN, model=CUSTOM, data=OWN_DATA)
STAGED_RUN = RunConfig(
    run=RUN, model=ModelSection(kind="custom", digest=(b"m" * 32).hex()), data=OWN_DATA,
    pipeline=PipelineSection(stages=2),
)  # fmt: skip
GENESIS = Attest(0, bytes(32), 1234, b"m" * 32)


def code_of(brings: Brings, config: RunConfig, genesis: Attest | None = None) -> str:
    why = misfit(brings, config, genesis)
    return "" if why is None else why[0]


@pytest.mark.parametrize(
    ("brings", "config", "genesis", "code"),
    [
        (COMMAND, BUILT_IN_RUN, None, ""),
        (MLP, BUILT_IN_RUN, None, "SWT-E609"),
        (COMMAND, CUSTOM_RUN, None, "SWT-E607"),
        (COMMAND, RunConfig(run=RUN, data=OWN_DATA), None, "SWT-E607"),
        (VOLUNTEER, RunConfig(run=RUN, data=OWN_DATA), None, ""),
        (VOLUNTEER, BUILT_IN_RUN, None, "SWT-E827"),
        (VOLUNTEER, CUSTOM_RUN, None, "SWT-E607"),
        (MLP, CUSTOM_RUN, None, ""),
        (MLP, CUSTOM_RUN, GENESIS, ""),
        (msgspec.structs.replace(MLP, layout=b"x" * 32), CUSTOM_RUN, GENESIS, "SWT-E804"),
        # The file says nothing of the data of those who bring the model.
        (MLP, RunConfig(run=RUN, model=CUSTOM), None, ""),
        (MLP, RunConfig(run=RUN, data=OWN_DATA), None, "SWT-E804"),
        (msgspec.structs.replace(COMMAND, run="other"), BUILT_IN_RUN, None, "SWT-E316"),
        (msgspec.structs.replace(MLP, run="other"), CUSTOM_RUN, None, "SWT-E316"),
        (MLP, STAGED_RUN, None, ""),
        (msgspec.structs.replace(MLP, layout=b"x" * 32), STAGED_RUN, None, "SWT-E804"),
        (msgspec.structs.replace(MLP, layout=b""), STAGED_RUN, GENESIS, "SWT-E804"),
        (UNSAID, BUILT_IN_RUN, None, ""),
        (UNSAID, CUSTOM_RUN, GENESIS, ""),
    ],
)
def test_what_the_run_file_fixes_is_asked_for_and_nothing_else(
    brings: Brings, config: RunConfig, genesis: Attest | None, code: str
) -> None:
    assert code_of(brings, config, genesis) == code


def test_the_built_in_model_may_be_brought_with_data_of_its_own() -> None:
    config = RunConfig(run=RUN, data=OWN_DATA)
    same = msgspec.structs.replace(MLP, layout=layout_digest(built_in_parameters(config.model)))
    assert code_of(same, config) == ""
    assert stage_layouts(config) == (same.layout,) and stage_layouts(CUSTOM_RUN) == (b"",)


def test_both_sides_are_named() -> None:
    other = msgspec.structs.replace(MLP, layout=b"x" * 32, num_values=99)
    for brings, words in (
        (MLP, ("byte-transformer", "1234", "tests")),
        (msgspec.structs.replace(MLP, run="other\x1b"), ("other", "tests")),
    ):
        why = misfit(brings, BUILT_IN_RUN, None)
        assert why is not None and all(word in why[1] for word in words)
        assert "\x1b" not in why[1]
    why = misfit(other, CUSTOM_RUN, GENESIS)
    assert why is not None and "1234" in why[1] and "99" in why[1]


def test_a_misfit_gets_no_place_in_the_ledger(tmp_path: Path) -> None:
    async def scene() -> None:
        async with living(tmp_path, BUILT_IN_RUN) as life:
            for brings, code in ((MLP, "SWT-E609"), (Brings(run="other"), "SWT-E316")):
                who = Identity.create()
                hello = msgspec.structs.replace(hello_of(who), brings=brings)
                with pytest.raises(DoorRefused) as caught:
                    async with connected(life.invite, who, hello=hello):
                        pass
                assert caught.value.code == code
            who = Identity.create()
            hello = msgspec.structs.replace(hello_of(who), brings=COMMAND)
            async with connected(life.invite, who, hello=hello):
                pass
        store = Store.open(tmp_path)
        assert len(store.records()) == 2
        store.close()

    run(scene())
