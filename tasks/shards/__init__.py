"""Work on shards: one seam for parallel work, resume and progress.

seam.py         map_shards: resume, order, progress
processes.py    worker processes
threads.py      threads, for work that releases the interpreter's lock
adopted.py      documents and rows made elsewhere, checked
incremental.py  shards that an earlier artifact holds are taken from it
"""

from tasks.shards.seam import ShardResult, collect, in_threads, map_shards

__all__ = ["ShardResult", "collect", "in_threads", "map_shards"]
