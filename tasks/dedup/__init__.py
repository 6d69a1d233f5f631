"""Exact and near-duplicate removal: see `tasks.dedup.stage` for the stage, and the modules that it names for its parts."""

from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import dedup

__all__ = ["DedupConfig", "dedup"]
