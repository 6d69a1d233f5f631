"""`python -m tests.executors [NAME …]`: the same run by every executor with 1, 2 and 4 workers, and killed; prints what
came of it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from storage.store import Store
from tests.executors.drills import MAP, SHARDS, Drilled, done, kill_driver, kill_worker, run

EXECUTORS = ("thread", "process", "dask", "ray")
WORKERS = (1, 2, 4)


def main() -> int:
    """Returns 1 where a digest differs."""
    names = [name for name in EXECUTORS if not sys.argv[1:] or name in sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="gristmill-executors-") as folder:
        expected = run(Path(folder) / "alone", "auto", 1)
        (documents,) = [found for found in Store(f"{folder}/alone").manifests() if found[1].stage == "dedup"]
        shards = sum(name.startswith("documents/") for name in documents[1].files)
        assert shards >= SHARDS, f"{shards} shards"
        print(f"{shards} shards, download to tokenize; {len(expected.digests)} artifacts\n")
        print("| executor | workers | disturbed | seconds | digests |\n|---|---|---|---|---|")
        print(f"| auto | 1 | – | {expected.seconds:.0f} | |", flush=True)
        same = True
        for name in names:
            for workers in WORKERS:
                same &= told(name, workers, "–", run(Path(folder) / f"{name}-{workers}", name, workers), expected)
            if name in ("dask", "ray"):
                killed = run(Path(folder) / f"{name}-worker", name, 2, kill_worker)
                same &= told(name, 2, f"a worker {killed.said}", killed, expected)
            same &= rerun(Path(folder) / f"{name}-driver", name, expected)
    return int(not same)


def rerun(store: Path, name: str, expected: Drilled) -> bool:
    """A run whose driver is killed, and another that finishes its work."""
    before: set[int] = set()

    def kill(process: object, folder: Path) -> str:
        said = kill_driver(process, folder)  # type: ignore[arg-type]
        before.update(path.stat().st_ino for result in done(folder) for path in result.parent.glob("*.parquet"))
        return said

    killed = run(store, name, 2, kill)
    published = {entry.stat().st_ino for entry in (store / "artifacts" / MAP).rglob("*.parquet")}
    taken = f"{len(before & published)} of {len(before)} files taken over"
    kept = before <= published
    return told(name, 2, f"the run {killed.said}; {taken}", killed, expected) and kept


def told(name: str, workers: int, disturbed: str, found: Drilled, expected: Drilled) -> bool:
    """Print a row; whether its digests are the expected ones."""
    same = found.digests == expected.digests
    row = f"| {name} | {workers} | {disturbed} | {found.seconds:.0f} | {'the same' if same else 'DIFFER'} |"
    print(row, flush=True)
    return same


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
