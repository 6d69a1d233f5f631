"""Checks the tracking settings before anything starts. No torch."""

from __future__ import annotations

from storage.errors import ConfigError
from tasks.stage.runtime import Runtime
from tasks.training.tracking.trackers import check_installed


def check_insight(runtime: Runtime, steps: int) -> None:
    """Raises ConfigError for steps that the run does not have."""
    for name, step in (
        ("insight_every", runtime.tracking.insight_every),
        ("profile_steps", max(runtime.tracking.profile_steps, default=0)),
    ):
        if step and step > steps:
            raise ConfigError(
                f"runtime.tracking.{name} names step {step:,}, but the run has only {steps:,} steps.",
                f"Lower {name}, or leave it out.",
            )


def check_trackers_here(runtime: Runtime) -> None:
    """Raises ConfigError for a tracker that is not installed."""
    check_installed("runtime.tracking.trackers", runtime.tracking.trackers)
