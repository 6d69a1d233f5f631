"""Below a store: disks and their faults, locks, flushing, the local cache, and buckets that stay away."""
