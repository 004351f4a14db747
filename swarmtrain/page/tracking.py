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

Tracker = tuple[Callable[[Values, int], None], Callable[[], None]]
"""Takes the values after so many tokens; and keeps, at the end, what is not kept yet."""


def json_lines(directory: Path, run: str) -> Tracker:
    """A line for each round, in a file of the state directory."""
    path = directory / FILE_NAME

    def log(values: Values, tokens: int) -> None:
        if path.exists() and path.stat().st_size >= FILE_BYTES_MAX:
            path.replace(path.with_name("metrics.1.jsonl"))
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"tokens": tokens, **values}) + "\n")

    return log, lambda: None


def tensorboard(directory: Path, run: str) -> Tracker:
    """Event files of TensorBoard, by tensorboardX, which needs no torch."""
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(directory / "tensorboard"))

    def log(values: Values, tokens: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, tokens)
        writer.flush()

    return log, writer.close


def wandb(directory: Path, run: str) -> Tracker:
    """Weights & Biases, offline: `wandb sync` sends it when its owner wants."""
    import wandb

    its = wandb.init(
        project="swarmtrain", name=run, dir=str(directory), mode="offline", reinit=True
    )
    return lambda values, tokens: its.log({**values, "tokens": tokens}), its.finish


def mlflow(directory: Path, run: str) -> Tracker:
    """MLflow, into a folder of the state directory."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")
    found = client.get_experiment_by_name("swarmtrain")
    experiment = found.experiment_id if found else client.create_experiment("swarmtrain")
    its = client.create_run(experiment, run_name=run).info.run_id

    def log(values: Values, tokens: int) -> None:
        for name, value in values.items():
            client.log_metric(its, name, value, step=tokens)

    return log, lambda: client.set_terminated(its)


def trackio(directory: Path, run: str) -> Tracker:
    """trackio, on this machine."""
    import trackio

    trackio.init(project="swarmtrain", name=run)
    return lambda values, tokens: trackio.log(dict(values), step=tokens), trackio.finish


TRACKERS: Mapping[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow, "trackio": trackio,
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
        self._making: dict[str, Callable[[Path, str], Tracker]] = {FILE_NAME: json_lines}
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
                    trackers[name][0](*item)
                    continue
                del trackers[name]
        for name, (_, close) in trackers.items():
            with _left_alone(name):
                close()


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
