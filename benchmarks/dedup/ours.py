"""`python benchmarks/dedup/ours.py IN_DIR OUT_DIR [--workers N]`: the dedup stage as a plain function, no store."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from storage.artifact import Artifact
from tasks.dedup import DedupConfig, dedup
from tasks.stage.output import Output
from tasks.stage.runtime import DataRuntime, Runtime


def main() -> None:
    """Deduplicate the shards of a folder and print how many documents came and stayed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    out = Output.at(arguments.out, stage="dedup", runtime=Runtime(data=DataRuntime(workers=arguments.workers)))
    # Without a digest: hashing the shards is the store's work, and no peer does it
    dedup.function(DedupConfig(max_removed_share_per_source=1.0), Artifact(folder=arguments.source, digest=""), out)
    documents = out.counts["documents"]
    print(json.dumps({"documents": documents["in"], "kept": documents["kept"]}))


if __name__ == "__main__":
    main()
