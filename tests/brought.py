"""Packages that bring strategies, as if they were installed."""

import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from swarmtrain_optimizers.strategies import registry

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "own_strategy"


def install(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Packages with these entry points are there, and no others."""
    points = EntryPoints(EntryPoint(name, value, registry.GROUP) for name, value in values.items())
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: points.select(**wanted))


def install_example(monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """The example of the repository is there, and these."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    monkeypatch.syspath_prepend(str(EXAMPLE))
    install(monkeypatch, **project["entry-points"][registry.GROUP], **more)
