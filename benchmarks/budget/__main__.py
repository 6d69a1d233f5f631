"""`python -m benchmarks.budget --sizes 7 100 1000`: where `gristmill run --to tokenize` spends its time, by phase.

One worker with one thread, an empty store, compiled kernels, start-up included. Each size is run `--runs` times under
the sampler (sampler.py), which takes some 5 % itself. Of each phase stand the medians of CPU seconds and, for the
driver's own thread, of wall seconds: what is more than the CPU seconds was spent waiting, for the disk or for a core.

The floor of a phase is its bytes over the speed that one core of such a machine reaches at that work, as measured of
the fastest peer or library (SPEEDS). Work that a run could do without has none. Phases stand in the order of what lies
between them and their floors at the largest size. `--graph` writes a flame graph of the last run.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.budget.graph import flame_graph
from benchmarks.corpus_to_tokens.__main__ import lines, to_tokens, written_profile
from benchmarks.measure import DATA, corpus, count, environment, positive
from benchmarks.memory import REAL, sized
from storage.store import Store

SMALL = 50  # megabytes of text, of which more is held out
# The first that is in a stack, from its innermost call outwards, decides
PHASES = {
    "imports": r"<frozen importlib",
    "kernels loaded": r"/numba/",
    "figures": r"/matplotlib/|display/figures",
    "proof of the tokenizer": r"tasks/tokenizer/(proof|words)|/transformers/",
    "reports": r"/report\.py|display/pages|flows/pages",
    "Parquet read": r"ParquetFile|open_parquet|_as_written_here",
    "Parquet written": r"ParquetWriter|parquet_writer|_to_batch",
    "digests": r"storage/digests|storage/digest_cache|_digests",
    "keys and source": r"tasks/stage/source|storage/keys|tasks/stage/identity.py:.*payload",
    "lines read": r"sources/streams|sources/files|portions.py:_lines",
    "near-duplicates": r"tasks/dedup/|tasks/text/.*sketch",
    "language": r"tasks/filter/language",
    "form": r"tasks/filter/form",
    "contamination": r"tasks/filter/contamination",
    "personal data": r"tasks/filter/pii",
    "decisions": r"tasks/filter/(run|decide|rules|first_pass|side_files|measure)",
    "vocabulary": r"tasks/tokenizer",
    "tokens": r"tasks/tokenize/|storage/shards/tokens",
    "documents made": r"tasks/download",
    "threads without Python": r"^threads without Python$",
    "beside the work": r"",
}
# MB of text a second of one core: what the fastest library or prototype was measured at on such machines
SPEEDS = {
    "lines read": 350,  # orjson
    "Parquet read": 483,
    "Parquet written": 234,  # zstd, level 1
    "digests": 1060,  # SHA-256
    "near-duplicates": 51,  # streaming kernels in C
    "language": 19,  # pycld2
    "form": 31,  # one pass over bytes with a hash table
    "personal data": 182,  # an alternation of re2
    "vocabulary": 22,  # gigabpe
    "tokens": 73,  # gigatoken
}
SCRIPT = Path(__file__).with_name("sampler.py")


class Sampled(NamedTuple):
    """A run: CPU and wall seconds by phase, bytes of text that each phase works on, and CPU seconds by stack."""

    cpu: dict[str, float]
    wall: dict[str, float]
    text: dict[str, int]
    stacks: dict[str, float]


def sampled(text: Path, *, small: bool) -> Sampled:
    """A run over a file of documents."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        found = stacks(text, Path(folder), small=small)
        store = Store(f"{folder}/store")
        return Sampled(by_phase(found["cpu"]), by_phase(found["wall"]), bytes_of(store), found["cpu"])


def stacks(text: Path, folder: Path, *, small: bool = False) -> dict[str, dict[str, float]]:
    """CPU and wall seconds by stack of a run over a file of documents, whose store is made in `folder`."""
    written = folder / "stacks.json"
    _, _, module, *words = to_tokens(written_profile(text, folder, small=small), folder / "store")
    command = [sys.executable, "-m", "benchmarks.budget.sampler", str(written), module, *words]
    subprocess.run(command, env=environment(1), check=True, stdout=sys.stderr)
    found: dict[str, dict[str, float]] = json.loads(written.read_text())
    return found


def by_phase(stacks: Mapping[str, float]) -> dict[str, float]:
    """The seconds of stacks by phase."""
    seconds: dict[str, float] = defaultdict(float)
    for stack, taken in stacks.items():
        seconds[phase_of(stack)] += taken
    return seconds


def phase_of(stack: str) -> str:
    """The phase of a stack: the first pattern of `PHASES` that one of its innermost calls has."""
    calls = stack.split(";")[::-1]
    if any(re.search(PHASES["imports"], call) for call in calls[:-8]):  # runpy imports what it runs
        return "imports"
    for call in calls:
        for phase, pattern in PHASES.items():
            if pattern and phase != "imports" and re.search(pattern, call):
                return phase
    return "beside the work"


def bytes_of(store: Store) -> dict[str, int]:
    """Bytes of text that each phase with a speed works on."""
    sizes = {made.stage: made.facts["text_bytes"] for _, made in store.manifests() if "text_bytes" in made.facts}
    raw, unique, clean = sizes["download"], sizes["dedup"], sizes["filter"]
    passes = 2 * raw + 5 * unique + 3 * clean  # sketches, dedup; four measures, decisions; personal data and tokens
    written = raw + unique + clean
    by_stage = {"near-duplicates": raw, "lines read": raw, "language": unique, "form": unique}
    of_clean = dict.fromkeys(("personal data", "vocabulary", "tokens"), clean)
    return by_stage | of_clean | {"Parquet read": passes, "Parquet written": written, "digests": written}


def report(runs: Mapping[float, list[Sampled]]) -> None:
    """A row for each phase, with three columns for each size."""
    largest = max(runs)
    floors = {
        phase: statistics.median(run.text.get(phase, 0) for run in runs[largest]) / speed / 1e6
        for phase, speed in SPEEDS.items()
    }
    seconds = {
        phase: {size: _median([run.cpu for run in found], phase) for size, found in runs.items()} for phase in PHASES
    }
    print(
        "| phase |" + "".join(f" {size:g} MB: CPU s | wall s |" for size in runs) + f" floor at {largest:g} MB | gap |"
    )
    print("|---|" + "---|---|" * len(runs) + "---|---|")
    for phase in sorted(PHASES, key=lambda phase: floors.get(phase, 0.0) - seconds[phase][largest]):
        cells = (
            f" {seconds[phase][size]:.2f} | {_median([run.wall for run in runs[size]], phase):.2f} |" for size in runs
        )
        floor = floors.get(phase)
        shown = "–" if floor is None else f"{floor:.2f}"
        print(f"| {phase} |{''.join(cells)} {shown} | {seconds[phase][largest] - (floor or 0.0):.2f} |")
    totals = (
        (
            sum(seconds[phase][size] for phase in PHASES),
            sum(_median([run.wall for run in runs[size]], phase) for phase in PHASES),
        )
        for size in runs
    )
    print(
        "| all |" + "".join(f" {cpu:.1f} | {wall:.1f} |" for cpu, wall in totals) + f" {sum(floors.values()):.1f} | |"
    )


def _median(runs: list[dict[str, float]], phase: str) -> float:
    return statistics.median(run.get(phase, 0.0) for run in runs)


def main() -> None:
    """Read the options, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=positive, nargs="+", default=[7, 100], help="megabytes of text (default 7 100)")
    parser.add_argument("--runs", type=count, default=3, help="of each size (default 3)")
    parser.add_argument("--graph", type=Path, help="an SVG to write")
    parser.add_argument("--data", type=Path, default=DATA, help="where corpora are kept")
    options = parser.parse_args()
    data = options.data.resolve()
    texts = {
        size: lines(corpus(data, size) if size < REAL else sized(data, corpus(data, REAL), size))
        for size in sorted(options.sizes)
    }
    print("compiling, not counted", file=sys.stderr)
    sampled(next(iter(texts.values())), small=True)
    runs = {size: [sampled(text, small=size < SMALL) for _ in range(options.runs)] for size, text in texts.items()}
    report(runs)
    if options.graph:
        options.graph.write_text(flame_graph(runs[max(runs)][-1].stacks))


if __name__ == "__main__":
    main()
