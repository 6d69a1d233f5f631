"""`python -m benchmarks.estimates tiny finetune mine.yaml`: what a plan expects, beside what comes.

A store of its own has run `--first` alone (smoke). Each profile is then run in a copy of it, with what its plan had
expected in the record; the first one once more, with every stage made anew. `--keep FOLDER` leaves the stores, which a
later call goes on with.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from storage.runs import history
from storage.runs.record import RunRecord
from storage.store import Store


def main() -> None:
    """Run, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="*", default=["tiny"], help="names or files (default tiny)")
    parser.add_argument("--first", default="smoke", help="the profile whose run is known (default smoke)")
    parser.add_argument("--keep", type=Path, help="where the stores stay")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        above = (asked.keep or Path(folder)).resolve()
        known = above / "first"
        if not known.exists():
            run(asked.first, known)
        print("| profile | stage | expected s | took s | expected / took | by |")
        print("|---|---|---|---|---|---|")
        for profile in asked.profiles:
            store = above / Path(profile).stem
            if not store.exists():
                shutil.copytree(known, store)
                run(profile, store, last(known).made if profile == asked.first else ())
            report(last(store))


def run(profile: str, store: Path, refreshed: Sequence[str] = ()) -> None:
    """To the end."""
    again = [word for name in refreshed for word in ("--refresh", name)]
    command = [sys.executable, "-m", "flows.cli", "run", profile, "--store", str(store), *again]
    subprocess.run(command, check=True, stdout=sys.stderr)


def last(store: Path) -> RunRecord:
    """The record of a store's last run."""
    record = next(iter(history.records(Store(str(store)))))
    if not isinstance(record, RunRecord):
        raise record
    return record


def report(record: RunRecord) -> None:
    """A row for each stage that was made, and one for all of which anything was expected."""
    done, expected, took = record.planned
    for name in record.made:
        stage, estimate = record.stages[name], record.estimates.get(name)
        if stage.part_of:
            continue
        told = f"{estimate.seconds:,.1f}" if estimate else "?"
        ratio = f"{estimate.seconds / stage.seconds:.2f}" if estimate and stage.seconds else ""
        by = estimate.source if estimate else ""
        print(f"| {record.profile} | {name} | {told} | {stage.seconds:,.1f} | {ratio} | {by} |")
    print(f"| {record.profile} | all {len(done)} | {expected:,.1f} | {took:,.1f} | {expected / took:.2f} | |")


if __name__ == "__main__":
    main()
