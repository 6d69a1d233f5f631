"""`python -m tests.faults`: a storm of faults, and a table of what came of it.

python -m tests.faults --count 500 --seed 7               until 500 faults have struck
python -m tests.faults --seed 7 --on disk --fault 132     one of them again, with its log
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from profiles.stage_names import STAGE_NAMES
from tests.faults.bucket import IN_BUCKET, BucketScene, used_here
from tests.faults.command import OF_COMMANDS
from tests.faults.kinds import ON_DISK, Kind
from tests.faults.scene import Scene
from tests.faults.storm import Fault, at_every_commit, drawn, storm, undisturbed
from tests.s3_server import s3_server

# What is disturbed, with its share of the faults
ON: dict[str, tuple[Sequence[Kind], float]] = {
    "disk": (ON_DISK, 0.7),
    "bucket": (IN_BUCKET, 0.2),
    "command": (OF_COMMANDS, 0.1),
}


def main() -> int:
    """Weather the storm; returns 1 if anything was wrong afterwards."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="A storm of faults.")
    parser.add_argument("--count", type=int, default=20, help="faults that strike")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", choices=ON, action="append", help="what is disturbed; all without")
    parser.add_argument("--to", choices=STAGE_NAMES, default=STAGE_NAMES[-1], help="the last stage to be disturbed")
    parser.add_argument("--fault", type=int, action="append", help="only the faults of these numbers")
    parser.add_argument("--every-commit", choices=STAGE_NAMES, action="append", metavar="STAGE", help="kill -9 at each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--folder", type=Path, help="where the stores lie; by default a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gristmill-storm-") as folder:
        return weather(given.folder or Path(folder), given)


def weather(folder: Path, given: argparse.Namespace) -> int:
    """Faults until enough have struck, a line for each, then the table."""
    print("The pipeline undisturbed …", flush=True)
    base = undisturbed(folder, STAGE_NAMES[: STAGE_NAMES.index(given.to) + 1])
    print(f"{sum(base.seconds.values()):.0f} s. Seed {given.seed}.", flush=True)
    met: list[Fault] = []
    if given.every_commit:
        with scenes("disk", folder, given.jobs) as places:
            for fault in storm(base, places, at_every_commit(base, given.every_commit)):
                tell("disk", fault, False)
                met.append(fault)
    chosen = [] if given.every_commit else given.on or list(ON)
    for name in chosen:
        kinds, share = ON[name]
        due = given.count if len(chosen) == 1 else round(given.count * share)
        numbers = given.fault or itertools.count(1)
        with scenes(name, folder, given.jobs) as places:
            struck = 0
            for fault in storm(base, places, drawn(base, kinds, given.seed, numbers)):
                tell(name, fault, given.fault is not None)
                met.append(fault)
                struck += fault.struck
                if struck >= due:
                    break
    print(table(met))
    return 1 if any(fault.problems for fault in met) else 0


@contextmanager
def scenes(name: str, folder: Path, jobs: int) -> Iterator[list[Callable[[], Scene]]]:
    """Where faults of one sort are met, one for each job."""
    places = [folder / f"{name}-{job}" for job in range(jobs)]
    if name != "bucket":
        yield [functools.partial(Scene, place) for place in places]
        return
    with s3_server() as address, used_here(address):
        yield [functools.partial(BucketScene, place, address) for place in places]


def tell(name: str, fault: Fault, whole: bool) -> None:
    """A line for a fault; more if something was wrong."""
    outcome = "; ".join(fault.problems) or ("ok" if fault.struck else "over before it struck")
    print(f"{name} {fault.number} {fault.stage}: {fault.kind.name}, code {fault.code}: {outcome}", flush=True)
    if fault.problems or whole:
        print(fault.log, flush=True)


def table(met: Iterable[Fault]) -> str:
    """Faults by kind, as Markdown."""
    struck: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for fault in met:
        struck[fault.kind.name] += fault.struck
        wrong[fault.kind.name] += bool(fault.problems)
    rows = [f"| {name} | {number} | {wrong[name]} |" for name, number in sorted(struck.items())]
    total = f"| **all** | **{struck.total()}** | **{wrong.total()}** |"
    return "\n".join(["| fault | struck | not as it must be |", "|---|---:|---:|", *rows, total])


if __name__ == "__main__":
    sys.exit(main())
