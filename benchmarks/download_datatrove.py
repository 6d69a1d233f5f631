"""datatrove's reader of WARC files, its trafilatura and its writer, by the peers' own environment: no import of the
project here.

`download_datatrove.py FOLDER WORKERS`: the options of trafilatura are ours, and each file is a task.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.readers import WarcReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.logging import logger


def main() -> None:
    """Extract, and print what was read and kept."""
    folder, workers = sys.argv[1:]
    logger.remove()
    with tempfile.TemporaryDirectory() as made:
        files = len(list(Path(folder).iterdir()))
        extractor = Trafilatura(favour_precision=False, deduplicate=False, timeout=10)
        pipeline = [WarcReader(folder, glob_pattern="*.warc.gz"), extractor, ParquetWriter(made)]
        executor = LocalPipelineExecutor(pipeline, tasks=files, workers=int(workers), logging_dir=f"{made}/logs")
        stats = executor.run().stats
        counts = [{name: stat.total for name, stat in block.stats.items()} for block in stats]
    print(json.dumps({"in": counts[0].get("documents", 0), "kept": counts[2].get("total", 0), "counts": str(counts)}))


if __name__ == "__main__":
    main()
