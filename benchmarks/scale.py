"""`python -m benchmarks.scale --sizes 1 10 100`: whether data stages grow as `gristmill plan --scale` says they do.

`gristmill run --to tokenize` with one worker over corpora of these megabytes, one after the other, in one store. Beside
the CPU seconds that each stage took stands what the smaller corpora let one predict. The first run compiles the hot
loops; one before it, which is not counted, does so.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.corpus_to_tokens.__main__ import lines, to_tokens, written_profile
from benchmarks.measure import DATA, corpus, environment
from flows.commands.scale import corpus_bytes
from models.growth import LAWS, Measured, fit
from storage.store import Store


def main() -> None:
    """Read the options, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 10, 100], help="megabytes of text, ascending")
    parser.add_argument("--data", type=Path, default=DATA, help="where corpora are kept")
    options = parser.parse_args()
    data = options.data.resolve()
    whole = corpus(data, max(options.sizes))
    with tempfile.TemporaryDirectory(dir=data) as folder:
        smallest = corpus(data, min(options.sizes), whole) if len(options.sizes) > 1 else whole
        run(lines(smallest), Path(folder), "warm")
        for size in sorted(options.sizes):
            text = whole if size == max(options.sizes) else corpus(data, size, whole)
            run(lines(text), Path(folder), "store")
        report(Store(f"{folder}/store"))


def run(text: Path, folder: Path, store: str) -> None:
    """The command over a file of documents."""
    command = to_tokens(written_profile(text, folder, small=True), folder / store)
    subprocess.run(command, env=environment(1), check=True, stdout=sys.stderr)


def report(store: Store) -> None:
    """Predicted beside measured, a row for each stage and size but the smallest."""
    manifests = dict(store.manifests())
    print("| stage | grows as | MB | CPU s measured | CPU s predicted | predicted / measured | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for stage, law in LAWS.items():
        made = [manifest for manifest in manifests.values() if manifest.stage == stage]
        found = sorted(((corpus_bytes(one, manifests), one) for one in made), key=lambda each: each[0])
        taken = [Measured(text, manifest.facts["cpu_seconds"]) for text, manifest in found]
        sample = made[0].payload.config.get("sample_bytes_per_source", 1e18) if made else 1e18
        for number, (text, seconds) in enumerate(taken):
            told = fit(law, taken[:number], sample).seconds(text) if number else None
            shown = "| | " if told is None else f"| {told:,.1f} | {told / seconds:.2f} "
            peak = found[number][1].facts["peak_memory_bytes"] / 1e6
            print(f"| {stage} | {law} | {text / 1e6:,.1f} | {seconds:,.1f} {shown}| {peak:,.0f} |")


if __name__ == "__main__":
    main()
