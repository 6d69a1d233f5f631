"""Opens an environment, and what it needs: its files in the key, and checks before a run. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.posttrain.rewards.environments.config import EnvironmentConfig, OwnEnvironmentConfig, PythonToolConfig
from tasks.posttrain.rewards.environments.own import OwnEnvironments
from tasks.posttrain.rewards.environments.protocol import Environments
from tasks.posttrain.rewards.environments.tool import ToolEnvironments, shown_tools
from tasks.sandbox.levels import means_for
from tasks.stage.user_function import fingerprints


def open_environments(config: EnvironmentConfig, digests: Mapping[str, str] | None = None) -> Environments:
    """The environment of a profile. `digests` are those of the artifact's key."""
    if isinstance(config, OwnEnvironmentConfig):
        return OwnEnvironments(config, digests)
    return ToolEnvironments(config)


def tools_of(config: EnvironmentConfig | None) -> list[dict[str, Any]]:
    """The tools that all prompts describe. Those of a user's own environment may differ by row, and aren't known."""
    return [] if config is None or isinstance(config, OwnEnvironmentConfig) else shown_tools(config)


def environment_fingerprints(config: EnvironmentConfig | None) -> dict[str, str]:
    """Digests of a user's environment. Raises SourceError if a file is missing."""
    return fingerprints(config) if isinstance(config, OwnEnvironmentConfig) else {}


def check_environment_here(config: EnvironmentConfig) -> None:
    """Raises SourceError for a class that can't be loaded, ConfigError for too weak a sandbox."""
    if isinstance(config, OwnEnvironmentConfig):
        OwnEnvironments(config).check()
    elif isinstance(config, PythonToolConfig):
        means_for(config.sandbox)
