"""`python benchmarks/dedup/command.py IN_DIR OUT_DIR [--workers N]`: the same by `gristmill run --to dedup`.

A profile in OUT_DIR names the shards as a source of files; the store is beside it. All that the command does counts:
start-up, hashing and reading the files, download's own shards, sketches, dedup, the store and the report.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

PROFILE = """
extends: tiny
name: measured
download:
  sources: [{{kind: files, name: corpus, paths: ["{folder}/*.parquet"]}}]
dedup: {{max_removed_share_per_source: 1.0}}
runtime:
  store: {store}
  data: {{workers: {workers}}}
"""


def main() -> None:
    """Run the command and print how many documents came and stayed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    profile, store = arguments.out / "measured.yaml", arguments.out / "store"
    profile.write_text(PROFILE.format(folder=arguments.source, store=store, workers=arguments.workers))
    command = [sys.executable, "-m", "flows.cli", "run", str(profile), "--to", "dedup"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    shards = list(arguments.source.glob("*.parquet")), list(store.glob("**/dedup/*/documents/*.parquet"))
    documents, kept = (sum(pq.read_metadata(path).num_rows for path in paths) for paths in shards)
    print(json.dumps({"documents": documents, "kept": kept}))


if __name__ == "__main__":
    main()
