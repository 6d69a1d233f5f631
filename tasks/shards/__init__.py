"""Work on shards: one seam for parallel work, resume and progress.

map_shards.py          map_shards: resume, order, lost workers, progress
shard.py         one shard: draft, result, soundness
broadcast.py     the work function, sent to workers once
executors.py     the protocol of an executor; choice.py the one that a map gets
threads.py       threads, for work that releases the interpreter's lock
processes.py     worker processes
dask_workers.py  workers of Dask; each that is started here runs dask_preload.py
ray_workers.py   workers of Ray
worker_checks.py         workers that see the same files and have the same code
temporary.py     folders that are swept after a kill
adopted.py       checks of documents and rows made elsewhere
incremental.py   takes shards from an earlier artifact that has them
"""

from tasks.shards.map_shards import LazyShards, collect, collect_all, map_shards
from tasks.shards.shard import ShardResult

__all__ = ["LazyShards", "ShardResult", "collect", "collect_all", "map_shards"]
