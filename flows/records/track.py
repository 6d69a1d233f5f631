"""A run of the whole pipeline in an experiment tracker: written once, when it has ended, from its record.

    tracking/tensorboard/<run>/   tensorboard --logdir store/tracking/tensorboard
    tracking/mlflow/              mlflow ui --backend-store-uri sqlite:///store/tracking/mlflow/mlflow.db
    tracking/wandb/<run>/         wandb sync

A store in a bucket has them in its local cache.
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
    """Report a run that has ended to the trackers that the runtime names. Raises OSError."""
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
    """What was asked for, then every single value of the profile, by dotted name."""
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
    """What each stage counted and how long it took, as `stage/count`; and the scores."""
    found = {f"scores/{name}": score.value for name, score in record.scores.items()}
    for name, stage in record.stages.items():
        found |= {f"{name}/{figure}": value for figure, value in stage.figures.items()}
        found[f"{name}/seconds"] = stage.seconds
    return {**found, "seconds": record.seconds or 0.0}


def words_of(record: RunRecord, store: Store) -> dict[str, str]:
    """How it ended, and where each stage's artifact is."""
    places = {f"artifact.{name}": store.address(f"artifacts/{it.location}") for name, it in record.stages.items()}
    told = {"run": record.id, "state": record.state, "error": record.error, "flow_run": record.flow_run}
    return {**{name: text for name, text in told.items() if text}, **places}
