"""docs/run-file.md is the page that is made from the settings and the strategies' facts."""

import re
from pathlib import Path

import pytest

from swarmtrain.config import file as config_file
from swarmtrain.config.docs import page
from swarmtrain_optimizers.strategies.registry import BUILT_IN
from swarmtrain_transport.limits import CELL_PEERS_MAX

PAGE = (Path(__file__).parents[2] / "docs" / "run-file.md").read_text(encoding="utf-8")


def test_the_page_is_made_from_the_code():
    assert page() == PAGE, "python -m swarmtrain.config.docs > docs/run-file.md"


@pytest.mark.parametrize("example", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_its_examples_are_run_files(tmp_path: Path, example: str):
    path = tmp_path / "run.toml"
    path.write_text(example, encoding="utf-8")
    assert config_file.load(path).run.name


def test_no_more_groups_arrive_apart_than_there_can_be_peers():
    assert f"| `arrivals` | 1 | 1 to {CELL_PEERS_MAX} |" in PAGE
    assert all(f"`{name}`" in PAGE for name in BUILT_IN if name != "local")
