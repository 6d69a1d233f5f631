"""The layer below a store: disks and their faults, locks, flushing, the local cache, and unreachable buckets."""
