"""Whole runs over 200 shards by every executor, some of them killed in the middle."""
