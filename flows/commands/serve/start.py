"""Starts the server of `gristmill serve`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from profiles.load import read_settings
from storage.errors import harmless
from tasks.checks.extras import need


def serve(
    console: Console,
    releases: Sequence[str],
    config: Path | None,
    policy: Path | None,
    overrides: Sequence[str],
    given: Mapping[str, Any],
) -> None:
    """Serve until a signal. Raises ConfigError, and whatever opening a release raises."""
    need("serve", "gristmill serve")
    settings = [*overrides, *(f"{key}={json.dumps(value)}" for key, value in given.items())]
    if releases:
        settings.append(f"models={json.dumps([{'release': one} for one in releases])}")
    from tasks.serve.config import ServeConfig
    from tasks.serve.guards import GuardsConfig
    from tasks.serve.server import run

    chosen = read_settings(ServeConfig, config, settings)
    if policy is not None:
        chosen = chosen.model_copy(update={"guards": read_settings(GuardsConfig, policy)})

    def say(step: str) -> None:
        console.print(harmless(step), markup=False)

    try:
        asyncio.run(run(chosen, say))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
