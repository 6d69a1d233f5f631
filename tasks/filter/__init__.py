"""Filter: measure first (signals), then decide (thresholds), so that a changed threshold costs seconds."""

from tasks.filter.config import FilterConfig
from tasks.filter.pairs.stage import filter_pairs
from tasks.filter.stage import filter_documents

__all__ = ["FilterConfig", "filter_documents", "filter_pairs"]
