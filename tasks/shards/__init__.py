"""Work on shards: one seam for parallel work, resume and progress.

seam.py         map_shards
incremental.py  shards that an earlier artifact holds are taken from it
"""

from tasks.shards.seam import ShardResult, collect, in_threads, map_shards

__all__ = ["ShardResult", "collect", "in_threads", "map_shards"]
