"""Run files of tests."""

from pathlib import Path

from swarmtrain.config import file as config_file
from swarmtrain.config.settings import RunConfig


def loaded(directory: Path, text: str) -> RunConfig:
    """Read a run file with this text after the run's name."""
    path = directory / "run.toml"
    path.write_text(f'[run]\nname = "t"\n{text}', encoding="utf-8")
    return config_file.load(path)
