"""The cache folder of this machine, for data that can be lost: copies of a bucket's artifacts, remembered digests."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import ConfigError

LIMIT = "GRISTMILL_CACHE_GB"


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/gristmill`, by default `~/.cache/gristmill` (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill"


def cache_limit() -> float:
    """Bytes that this machine's copies of one bucket may take, from the environment (default: infinite). Raises
    ConfigError."""
    text = os.environ.get(LIMIT) or "inf"
    try:
        limit = float(text) * 1e9
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise ConfigError(f"{LIMIT} is {text}.", "Give gigabytes, such as 200, or unset it.")
    return limit
