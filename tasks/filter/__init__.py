"""Filter: first measure (signals), then decide (thresholds). A changed threshold costs seconds."""

from tasks.filter.config import FilterConfig
from tasks.filter.stage import filter_documents

__all__ = ["FilterConfig", "filter_documents"]
