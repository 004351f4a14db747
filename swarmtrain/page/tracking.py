"""The run's numbers for trackers of experiments: a file of JSON lines always, others on wish.

A tracker is somebody else's program: it runs on a thread of its own behind a bounded queue, and one
that fails is told once and left alone. No round waits for it, and none is stopped.
"""

import contextlib
import json
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from swarmtrain.foundation.errors import UserError
from swarmtrain.page.history import Round
from swarmtrain.page.view import RunView

logger = logging.getLogger(__name__)

FILE_NAME = "metrics.jsonl"
FILE_BYTES_MAX = 64 << 20
"""A file of this size becomes metrics.1.jsonl, in the place of an older one."""

_WAITING_MAX = 256
_CLOSE_S = 5.0

Values = Mapping[str, float]


class Tracker(Protocol):
    """A tracker of experiments."""

    def log(self, values: Values, tokens: int) -> None:
        """Take the values after so many tokens."""

    def close(self) -> None:
        """Keep what is not kept yet."""


class JsonLines:
    """A line for each round, in a file of the state directory."""

    def __init__(self, directory: Path, run: str) -> None:
        self._path = directory / FILE_NAME

    def log(self, values: Values, tokens: int) -> None:
        """Append a line."""
        if self._path.exists() and self._path.stat().st_size >= FILE_BYTES_MAX:
            self._path.replace(self._path.with_name("metrics.1.jsonl"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"tokens": tokens, **values}) + "\n")

    def close(self) -> None:
        """Nothing is open."""


class TensorBoard:
    """Event files of TensorBoard, by tensorboardX, which needs no torch."""

    def __init__(self, directory: Path, run: str) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, values: Values, tokens: int) -> None:
        """Add a point to each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, tokens)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


class WandB:
    """Weights & Biases, offline: `wandb sync` sends it when its owner wants."""

    def __init__(self, directory: Path, run: str) -> None:
        import wandb

        self._run = wandb.init(
            project="swarmtrain", name=run, dir=str(directory), mode="offline", reinit=True
        )

    def log(self, values: Values, tokens: int) -> None:
        """Log a step."""
        self._run.log({**values, "tokens": tokens})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow:
    """MLflow, into a folder of the state directory."""

    def __init__(self, directory: Path, run: str) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")
        found = self._client.get_experiment_by_name("swarmtrain")
        experiment = found.experiment_id if found else self._client.create_experiment("swarmtrain")
        self._run = self._client.create_run(experiment, run_name=run).info.run_id

    def log(self, values: Values, tokens: int) -> None:
        """Log metrics."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=tokens)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


class Trackio:
    """trackio, on this machine."""

    def __init__(self, directory: Path, run: str) -> None:
        import trackio

        self._trackio = trackio
        trackio.init(project="swarmtrain", name=run)

    def log(self, values: Values, tokens: int) -> None:
        """Log a step."""
        self._trackio.log(dict(values), step=tokens)

    def close(self) -> None:
        """End the run."""
        self._trackio.finish()


TRACKERS: Mapping[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow, "trackio": Trackio,
}  # fmt: skip
_PACKAGES = {"tensorboard": "tensorboardX"}


class Tracking:
    """Trackers of one run, on a thread of their own.

    Args:
        names: trackers beside the file.

    Raises:
        UserError: SWT-E102, a tracker's package is not installed.
    """

    def __init__(self, directory: Path, run: str, names: tuple[str, ...] = ()) -> None:
        self._making: dict[str, Callable[[Path, str], Tracker]] = {FILE_NAME: JsonLines}
        for name in names:
            _check_installed(name)
            self._making[name] = TRACKERS[name]
        self._directory, self._run = directory, run
        self._queue: queue.Queue[tuple[Values, int] | None] = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._work, name="swarmtrain-track", daemon=True)
        self._thread.start()

    def tell(self, view: RunView, rounds: Iterable[Round], losses: Mapping[int, float]) -> None:
        """Log rounds that have ended. Never waits for a tracker and never raises.

        Args:
            rounds: rounds that are new, the oldest first.
            losses: validation losses by round.
        """
        for one in rounds:
            try:
                self._queue.put_nowait((values_of(view, one, losses.get(one.number)), one.tokens))
            except queue.Full:
                logger.warning("Trackers are slow: round %d is not logged.", one.number)

    def close(self) -> None:
        """Let trackers end, for a few seconds at most."""
        try:
            self._queue.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        trackers: dict[str, Tracker] = {}
        for name, make in self._making.items():
            with _left_alone(name):
                trackers[name] = make(self._directory, self._run)
        while (item := self._queue.get()) is not None:
            for name in list(trackers):
                with _left_alone(name):
                    trackers[name].log(*item)
                    continue
                del trackers[name]
        for name, tracker in trackers.items():
            with _left_alone(name):
                tracker.close()


@contextlib.contextmanager
def _left_alone(name: str) -> Iterator[None]:
    """Say that this tracker has failed, if it does: from now on it is left alone."""
    try:
        yield
    except BaseException as error:  # whatever another's program does ends it alone
        logger.warning("The tracker %s has failed and is left alone: %r", name, error)


def values_of(view: RunView, one: Round, loss: float | None) -> dict[str, float]:
    """Return the numbers of a round by their names in trackers; rates and bytes are of now."""
    training = None if one.low is None or one.high is None else (one.low + one.high) / 2
    found: dict[str, float | None] = {
        "round": one.number, "val/loss": loss, "train/loss": training,
        "perf/tok_s": view.tokens_per_s, "swarm/peers": one.peers,
        "swarm/bytes_up": view.traffic.up, "swarm/bytes_down": view.traffic.down,
        "time": view.at_s,
    }  # fmt: skip
    return {name: float(value) for name, value in found.items() if value is not None}


def _check_installed(name: str) -> None:
    from importlib.util import find_spec

    package = _PACKAGES.get(name, name)
    if find_spec(package) is None:
        raise UserError(
            "SWT-E102",
            f"The tracker {name} needs {package}, which is not installed.",
            "The run has not begun.",
            f"pip install {package}, or leave out --track {name}; {FILE_NAME} is written always.",
        )
