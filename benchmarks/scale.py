"""`python -m benchmarks.scale --sizes 1 10 100`: whether data stages grow as `gristmill plan --scale` says they do.

`gristmill run --to tokenize` with one worker over corpora of these megabytes, one after the other, each in a store of
its own. Beside the CPU seconds that each stage took stands what the smaller corpora let one predict. A run before the
first, which is not counted, compiles the hot loops. Text beyond 360 MB exchanges words between documents (corpus.py).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.corpus_to_tokens.__main__ import lines, to_tokens, written_profile
from benchmarks.measure import DATA, Run, corpus, environment, measure, positive
from benchmarks.memory import REAL, sized
from flows.commands.scale import corpus_bytes, in_corpus, measured
from models.growth import LAWS, fit
from storage.manifest import Manifest
from storage.store import Store


def main() -> None:
    """Read the options, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=positive, nargs="+", default=[1, 10, 100], help="megabytes of text, ascending")
    parser.add_argument("--data", type=Path, default=DATA, help="where corpora are kept")
    parser.add_argument("--stores", type=Path, help="a folder in which the stores stay (default: none)")
    options = parser.parse_args()
    data, sizes = options.data.resolve(), sorted(options.sizes)
    real = corpus(data, REAL)
    with tempfile.TemporaryDirectory(dir=data) as temporary:
        folder = options.stores.resolve() if options.stores else Path(temporary)
        run(lines(sized(data, real, sizes[0])), Path(temporary), Path(temporary, "warm"))
        manifests: dict[str, Manifest] = {}
        for size in sizes:
            text, store = lines(sized(data, real, size)), folder / f"store-{size:g}"
            taken = run(text, Path(temporary), store)
            print(
                f"{size:g} MB: {taken.wall:,.0f} s, {taken.cpu:,.0f} CPU s, peak {taken.peak / 1e6:,.0f} MB", flush=True
            )
            manifests |= dict(Store(str(store)).manifests())
            report(manifests)


def run(text: Path, folder: Path, store: Path) -> Run:
    """The command over a file of documents. A store that is there already is used again."""
    command = to_tokens(written_profile(text, folder, small=True), store)
    return measure(["sh", "-c", '"$@" 1>&2 && echo {}', "run", *command], environment(1))


def report(manifests: Mapping[str, Manifest]) -> None:
    """Predicted beside measured, a row for each stage and size but the smallest."""
    print("| stage | grows as | MB | CPU s measured | CPU s predicted | predicted / measured | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for stage, law in LAWS.items():
        made = [manifest for manifest in manifests.values() if manifest.stage == stage]
        found = sorted(((corpus_bytes(one, manifests), one) for one in made), key=lambda each: each[0])
        sample = made[0].payload.config.get("sample_bytes_per_source", 1e18) if made else 1e18
        for number, (text, manifest) in enumerate(found):
            told, seconds = None, manifest.facts["cpu_seconds"]
            if number:
                largest = found[number - 1]
                taken = [measured(each, largest, manifests) for each in found[:number]]
                told = fit(law, taken, in_corpus(sample, *largest)).seconds(text)
            shown = "| | " if told is None else f"| {told:,.1f} | {told / seconds:.2f} "
            peak = found[number][1].facts["peak_memory_bytes"] / 1e6
            print(f"| {stage} | {law} | {text / 1e6:,.1f} | {seconds:,.1f} {shown}| {peak:,.0f} |")


if __name__ == "__main__":
    main()
