"""Writes a run of the whole pipeline to experiment trackers, once, at its end, from its record.

    tracking/tensorboard/<run>/   tensorboard --logdir store/tracking/tensorboard
    tracking/mlflow/              mlflow ui --backend-store-uri sqlite:///store/tracking/mlflow/mlflow.db
    tracking/wandb/<run>/         wandb sync

For a store in a bucket they are in its local cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage.runs.record import RunRecord
from storage.store import Store
from tasks.stage.runtime import Runtime
from tasks.training.tracking.trackers import Tracked, check_installed, open_tracker

FOLDER = "tracking"
LONGEST = 500  # characters of a setting


def check_trackers(runtime: Runtime) -> None:
    """Raises ConfigError for a tracker that is not installed."""
    check_installed("runtime.tracking.pipeline", runtime.tracking.pipeline)


def track(record: RunRecord, runtime: Runtime, store: Store) -> None:
    """Report an ended run to the runtime's trackers. Raises OSError."""
    for name in runtime.tracking.pipeline:
        above = store.local / FOLDER / name
        named = f"{record.profile} {record.id}"
        tracked = Tracked(
            above / record.id, settings_of(record), online=runtime.tracking.wandb_online, name=named, database=above
        )
        tracker = open_tracker(name, tracked)
        tracker.scalars(0, metrics_of(record))
        tracker.words(words_of(record, store))
        tracker.close()


def settings_of(record: RunRecord) -> dict[str, Any]:
    """The run's request, then every value of the profile, by dotted name."""
    asked = {"profile": record.profile, "to": record.to or "", "refresh": " ".join(record.refresh)}
    settings = dict(override.partition("=")[::2] for override in record.overrides)
    overrides = {f"set.{name}": value for name, value in settings.items()}
    return {**asked, **overrides, **dict(_values(record.config))}


def _values(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{above}{name}.")
        elif not above and name in ("name", "description"):
            continue
        elif value is not None:
            yield f"{above}{name}", value if isinstance(value, int | float) else str(value)[:LONGEST]


def metrics_of(record: RunRecord) -> dict[str, float]:
    """Each stage's counts and seconds, as `stage/count`, and the scores."""
    metrics = {f"scores/{name}": score.value for name, score in record.scores.items()}
    for name, stage in record.stages.items():
        metrics |= {f"{name}/{figure}": value for figure, value in stage.figures.items()}
        metrics[f"{name}/seconds"] = stage.seconds
    return {**metrics, "seconds": record.seconds or 0.0}


def words_of(record: RunRecord, store: Store) -> dict[str, str]:
    """How the run ended, and where each stage's artifact is."""
    places = {f"artifact.{name}": store.address(f"artifacts/{it.location}") for name, it in record.stages.items()}
    words = {"run": record.id, "state": record.state, "error": record.error, "flow_run": record.flow_run}
    return {**{name: text for name, text in words.items() if text}, **places}
