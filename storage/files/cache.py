"""Where this machine keeps what can be lost: local copies of a bucket's artifacts, remembered digests."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/gristmill`, by default `~/.cache/gristmill` (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill"
