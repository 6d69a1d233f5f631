"""`python -m benchmarks.filter.threshold`: what a changed threshold costs, and that memory doesn't grow with the text.

On a corpus and on a quarter of it, in a store of its own: all signals are measured and the first decision is made, then
a threshold changes and the filter runs again. The second is the figure: signals come from the store, each run is a
process of its own, start included, one worker.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Corpus, corpus, corpus_parser, environment, measure, median


def child(folder: Path, store: str, max_score: float) -> dict[str, int]:
    """One run of the filter on a plain folder of shards, with a store."""
    from storage.artifact import Artifact
    from storage.store import Store
    from tasks.filter import FilterConfig, filter_documents
    from tasks.stage.runtime import DataRuntime, Runtime
    from tasks.stage.session import Session, open_session

    questions = Path(store).parent / "benchmarks"
    questions.mkdir(exist_ok=True)
    (questions / "none.jsonl").write_text("")
    # The digest names the corpus: hashing the shards would be the work of the stage before
    documents = Artifact(path=folder, digest=folder.name)
    config = FilterConfig.model_validate({"toxicity": {"max_score": max_score}, "max_quarantined_share": 1})
    with open_session(Session(Store(store), Runtime(data=DataRuntime(workers=1)))):
        made, _ = filter_documents.materialize(config, [documents, Artifact(path=questions, digest="none")])
    assert made.manifest is not None
    return {"kept": made.manifest.counts["documents"]["kept"]}


def compare(text: Corpus, runs: int) -> None:
    """Print the row of one corpus."""
    with tempfile.TemporaryDirectory(dir=text.folder.parent) as store:
        command = [sys.executable, "-m", "benchmarks.filter.threshold", "--child", str(text.folder), f"{store}/store"]
        variables = environment(1)
        first = measure([*command, "0.8"], variables)
        again = median([measure([*command, str(0.7 - 0.01 * run)], variables) for run in range(runs)])
    print(
        f"| {text.megabytes:.0f} | {text.documents:,} | {first.wall:.1f} | {first.peak / 1e6:,.0f} "
        f"| {again.wall:.2f} | {again.peak / 1e6:,.0f} |"
    )


def main() -> None:
    """Read the options, make the corpora, print the table."""
    parser = corpus_parser(__doc__, megabytes=100, runs="changed thresholds")
    parser.add_argument("--child", nargs=3, metavar=("FOLDER", "STORE", "MAX_SCORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        folder, store, max_score = options.child
        print(json.dumps(child(Path(folder), store, float(max_score))))
        return
    whole = corpus(options.data.resolve(), options.megabytes)
    quarter = corpus(options.data.resolve(), options.megabytes / 4, whole)
    print(f"{platform.machine()}, 1 worker, a changed threshold: medians of {options.runs}\n")
    figures = "all signals and decision (s) | peak memory (MB) | new decision (s) | peak memory (MB)"
    print(f"| text (MB) | documents | {figures} |")
    print("|---|---|---|---|---|---|")
    for text in (quarter, whole):
        compare(text, options.runs)


if __name__ == "__main__":
    main()
