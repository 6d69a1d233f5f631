"""Dedup: exact duplicates first, then near-duplicates, verified before anything is removed."""

from tasks.dedup.config import DedupConfig
from tasks.dedup.stage import dedup

__all__ = ["DedupConfig", "dedup"]
