"""`python -m benchmarks.memory --sizes 100 360 1000 2000`: does memory grow with the text?

`gristmill run --to tokenize` with two workers over corpora of these megabytes, each with an empty store. Several times
a second every process of the run is read from /proc: resident memory (RSS), its share of what it has with others (PSS),
and of that what no file holds (anonymous), which the system can't take back. Pages of files that are mapped count in
the first two for as long as nobody else needs the room. A stage is what its manifest says: when it ended, how long it
took. A run before the first, which is not counted, compiles the hot loops.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.corpus_to_tokens.__main__ import lines, to_tokens, written_profile
from benchmarks.measure import DATA, Corpus, corpus, count, environment, positive
from storage.store import Store
from tasks.children.reap_orphans import descendants

REAL = 360  # megabytes of text that are not repeated; see benchmarks/corpus.py
EVERY = 0.2  # seconds


class Sample(NamedTuple):
    """Bytes of one process at one time."""

    time: float
    role: str  # driver or worker
    rss: int
    pss: int
    anonymous: int


Peaks = dict[tuple[str, str], tuple[int, int, int]]  # by stage and role: the most of each


class Watch:
    """Samples a process and all that it started, until the block ends."""

    def __init__(self, driver: int) -> None:
        self.driver = driver
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            for process in (self.driver, *(pid for pid, _ in descendants(self.driver))):
                with contextlib.suppress(OSError, KeyError):  # it has ended
                    self.samples.append(sample(process, self.driver))


def sample(process: int, driver: int) -> Sample:
    """What a process holds. Raises OSError or KeyError when it has ended."""
    folder = Path(f"/proc/{process}")
    role = "driver" if process == driver else "worker"
    text = (folder / "smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in text)}
    return Sample(time.time(), role, sizes["Rss"], sizes["Pss"], sizes["Pss_Anon"] + sizes["Pss_Shmem"])


def run(text: Path, folder: Path, workers: int, to: str) -> tuple[Store, list[Sample]]:
    """The command over a file of documents, watched."""
    folder.mkdir()
    command = to_tokens(written_profile(text, folder, small=True), folder / "store", workers=workers, to=to)
    process = subprocess.Popen(command, env=environment(1), stdout=sys.stderr)
    with Watch(process.pid) as watch:
        status = process.wait()
    if status:
        raise SystemExit(f"the run ended with {status}")
    return Store(str(folder / "store")), watch.samples


def peaks(store: Store, samples: Iterable[Sample]) -> Peaks:
    """The most of each figure, by stage and role. A stage that another obtains is counted in both."""
    found: Peaks = {}
    made = sorted((datetime.fromisoformat(one.created).timestamp(), one) for _, one in store.manifests())
    spans = [*((one.stage, end - one.facts["seconds"], end) for end, one in made), ("all", 0.0, float("inf"))]
    for stage, begin, end in spans:
        for one in samples:
            if begin <= one.time <= end:
                rss, pss, anonymous = found.get((stage, one.role), (0, 0, 0))
                found[stage, one.role] = max(rss, one.rss), max(pss, one.pss), max(anonymous, one.anonymous)
    return found


def report(sizes: list[float], found: list[Peaks]) -> None:
    """A row for each stage and role, a column for each size."""
    heads = " | ".join(f"{size:,.0f} MB" for size in sizes)
    print(f"| stage | process | {heads} | anonymous, largest / smallest |")
    print("|---|---|" + "---|" * (len(sizes) + 1))
    for stage, role in found[0]:
        mine = [one.get((stage, role), (0, 0, 0)) for one in found]
        cells = " | ".join(" / ".join(f"{figure / 1e6:,.0f}" for figure in figures) for figures in mine)
        print(f"| {stage} | {role} | {cells} | {mine[-1][2] / mine[0][2]:.2f} |")
    print("\nRSS / PSS / anonymous in MB, of the largest process of its kind.", flush=True)


def main() -> None:
    """Read the options, run, print the table after each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=positive, nargs="+", default=[100, 360, 1000, 2000], help="megabytes of text")
    parser.add_argument("--workers", type=count, default=2)
    parser.add_argument("--to", default="tokenize", help="the last stage")
    parser.add_argument("--data", type=Path, default=DATA, help="where corpora are kept")
    options = parser.parse_args()
    data = options.data.resolve()
    real = corpus(data, REAL)
    found: list[Peaks] = []
    sizes = sorted(options.sizes)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        run(lines(sized(data, real, 1)), Path(folder) / "warm", options.workers, options.to)
    for size in sizes:
        text = lines(sized(data, real, size))
        with tempfile.TemporaryDirectory(dir=data) as folder:
            found.append(peaks(*run(text, Path(folder) / "run", options.workers, options.to)))
        report(sizes[: len(found)], found)


def sized(data: Path, real: Corpus, megabytes: float) -> Corpus:
    """A corpus of this size, of the same mix."""
    return real if megabytes == REAL else corpus(data, megabytes, real)


if __name__ == "__main__":
    main()
