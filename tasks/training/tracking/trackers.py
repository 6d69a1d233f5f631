"""Experiment trackers: TensorBoard, Weights & Biases, MLflow. Each is an extra, imported only if used.

Each writes only into its given folder. W&B runs offline, to be synchronised by hand, unless the profile says online
(law 9). A resumed run continues in the tracker. MLflow keeps both values of a repeated step.
"""

from __future__ import annotations

import importlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from storage.errors import ConfigError

PROJECT = "gristmill"
MOST = 100  # params and tags in a batch of MLflow


@dataclass(frozen=True)
class Tracked:
    """A tracked training, or a tracked run of the whole pipeline."""

    folder: Path  # not shared
    settings: Mapping[str, Any]  # flat
    begun: int = 0  # steps that an earlier start has reported
    online: bool = False  # whether W&B may upload
    name: str | None = None
    database: Path | None = None  # the folder of MLflow's database, which may be shared (default: `folder`)


class Tracker(Protocol):
    """Takes scalars by step."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` of `step`."""

    def words(self, texts: Mapping[str, str]) -> None:
        """Record texts by name, such as where artifacts are."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoard:
    """Event files in `folder`, for `tensorboard --logdir`."""

    def __init__(self, tracked: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hide later steps of a killed run, which are about to be repeated
        purge = tracked.begun + 1 if tracked.begun else None
        self.writer = SummaryWriter(str(tracked.folder), purge_step=purge)
        if tracked.name:
            self.words({"settings": "\n".join(f"    {name}: {value}" for name, value in tracked.settings.items())})

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def words(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self.writer.add_text(name, text)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run in `folder`, which `wandb sync` uploads."""

    def __init__(self, tracked: Tracked) -> None:
        os.environ |= {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        wandb = importlib.import_module("wandb")
        self.teardown: Callable[[], None] = wandb.teardown
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_stats=True)
        self.run = wandb.init(
            project=PROJECT,
            dir=str(tracked.folder),
            id=_persistent(tracked.folder / "run-id", uuid.uuid4().hex),
            resume="allow",
            mode="online" if tracked.online else "offline",
            name=tracked.name,
            config=dict(tracked.settings),
            settings=settings,
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def words(self, texts: Mapping[str, str]) -> None:
        self.run.config.update(dict(texts))

    def close(self) -> None:
        self.run.finish()
        self.teardown()  # waits for its service, which still writes after `finish` and would die with this process


class MLflow:
    """A run in an SQLite file in the folder, for `mlflow ui --backend-store-uri sqlite:///…`."""

    def __init__(self, tracked: Tracked) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        tracking = importlib.import_module("mlflow.tracking")
        self.entities = importlib.import_module("mlflow.entities")
        folder = tracked.database or tracked.folder
        self.client = tracking.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        known = tracked.folder / "run-id"
        if not known.is_file():
            known_experiment = self.client.get_experiment_by_name(PROJECT)
            experiment = known_experiment.experiment_id if known_experiment else self._new_experiment(folder)
            _persistent(known, self.client.create_run(experiment, run_name=tracked.name).info.run_id)
            params = [self.entities.Param(name, str(value)) for name, value in tracked.settings.items()]
            for some in _batches(params):
                self.client.log_batch(known.read_text(), params=some)
        self.run = known.read_text()

    def _new_experiment(self, folder: Path) -> str:
        return str(self.client.create_experiment(PROJECT, artifact_location=(folder / "files").as_uri()))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, float(value), now, step) for name, value in values.items()]
        for start in range(0, len(metrics), 1000):  # MLflow's limit for a batch of metrics
            self.client.log_batch(self.run, metrics=metrics[start : start + 1000])

    def words(self, texts: Mapping[str, str]) -> None:
        for some in _batches([self.entities.RunTag(name, text) for name, text in texts.items()]):
            self.client.log_batch(self.run, tags=some)

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: dict[str, Callable[[Tracked], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def open_tracker(name: str, tracked: Tracked) -> Tracker:
    """The tracker with this name in the runtime."""
    tracked.folder.mkdir(parents=True, exist_ok=True)
    return TRACKERS[name](tracked)


def check_installed(field: str, names: Iterable[str]) -> None:
    """Raises ConfigError for a tracker that a `field` of the runtime names and that is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"{field} names {name}, which is not installed.",
                f"Install the extra: pip install 'gristmill[{name}]', or leave it out.",
            )


def by_step(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Rows merged by step, in the order of steps: W&B drops rows that come after a later step."""
    steps: dict[int, dict[str, Any]] = {}
    for row in rows:
        steps.setdefault(row["step"], {}).update(row)
    return [(step, {name: v for name, v in steps[step].items() if name != "step"}) for step in sorted(steps)]


def _batches(of: Sequence[Any]) -> list[Sequence[Any]]:
    return [of[start : start + MOST] for start in range(0, len(of), MOST)]


def _persistent(path: Path, value: str) -> str:
    """`value`, or the one that an earlier start of the same run wrote to `path`."""
    if not path.is_file():
        path.write_text(value)
    return path.read_text()
