"""Experiment trackers: TensorBoard, Weights & Biases, MLflow. Each is an extra, imported only if used.

All write beside the artifact and nowhere else. W&B runs offline, to be synchronised by hand, unless the profile says
online (law 9). A resumed run continues in the tracker; MLflow keeps both values of a repeated step.
"""

from __future__ import annotations

import importlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from tasks.pretrain.spec import TrainSpec

PROJECT = "gristmill"


class Tracker(Protocol):
    """Takes scalars by step."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` of `step`."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoard:
    """Event files in `folder`, for `tensorboard --logdir`."""

    def __init__(self, folder: Path, spec: TrainSpec, begun: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # hides later steps of a killed run
        self.writer = SummaryWriter(str(folder), purge_step=begun + 1 if begun else None)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run in `folder`; `wandb sync` uploads it."""

    def __init__(self, folder: Path, spec: TrainSpec, begun: int) -> None:
        os.environ |= {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        wandb = importlib.import_module("wandb")
        self.teardown: Callable[[], None] = wandb.teardown
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_stats=True)
        self.run = wandb.init(
            project=PROJECT, dir=str(folder), id=_lasting(folder / "run-id", uuid.uuid4().hex), resume="allow",
            mode="online" if spec.runtime.tracking.wandb_online else "offline",
            config=_settings_of(spec), settings=settings,
        )  # fmt: skip

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()
        self.teardown()  # its service still writes after `finish`, and would be killed with this process


class MLflow:
    """A run in an SQLite file in `folder`, for `mlflow ui --backend-store-uri sqlite:///…`."""

    def __init__(self, folder: Path, spec: TrainSpec, begun: int) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        tracking = importlib.import_module("mlflow.tracking")
        self.entities = importlib.import_module("mlflow.entities")
        self.client = tracking.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        known = folder / "run-id"
        if not known.is_file():
            found = self.client.get_experiment_by_name(PROJECT)
            experiment = found.experiment_id if found else self._new_experiment(folder)
            _lasting(known, self.client.create_run(experiment).info.run_id)
            params = [self.entities.Param(name, str(value)) for name, value in _settings_of(spec).items()]
            self.client.log_batch(known.read_text(), params=params)
        self.run = known.read_text()

    def _new_experiment(self, folder: Path) -> str:
        return str(self.client.create_experiment(PROJECT, artifact_location=(folder / "files").as_uri()))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, float(value), now, step) for name, value in values.items()]
        for start in range(0, len(metrics), 1000):  # the limit of a batch
            self.client.log_batch(self.run, metrics=metrics[start : start + 1000])

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: dict[str, Callable[[Path, TrainSpec, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def open_trackers(spec: TrainSpec, begun: int) -> list[Tracker]:
    """The trackers that the runtime names, each in its own folder beside the artifact."""
    opened: list[Tracker] = []
    for name in spec.runtime.tracking.trackers:
        folder = spec.insight / name
        folder.mkdir(parents=True, exist_ok=True)
        opened.append(TRACKERS[name](folder, spec, begun))
    return opened


def by_step(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Rows merged by step, in the order of steps: W&B drops what comes after a later step."""
    steps: dict[int, dict[str, Any]] = {}
    for row in rows:
        steps.setdefault(row["step"], {}).update(row)
    return [(step, {name: v for name, v in steps[step].items() if name != "step"}) for step in sorted(steps)]


def _settings_of(spec: TrainSpec) -> dict[str, Any]:
    """The settings of the run as a flat dict: config, model shape and steps."""
    config = {name: value for name, value in spec.config.model_dump(mode="json").items() if name != "model"}
    shape = {f"model.{name}": value for name, value in asdict(spec.shape).items() if name != "rules"}
    return {**config, **shape, "steps": spec.steps}


def _lasting(path: Path, value: str) -> str:
    """`value`, or the one that an earlier start of the same run wrote to `path`."""
    if not path.is_file():
        path.write_text(value)
    return path.read_text()
