"""`python -m benchmarks.filter.threshold`: what a changed threshold costs, and that memory doesn't grow with the text.

On a corpus and on a quarter of it, in a store of its own: signals are measured and the first decision is made, then a
threshold is raised, which lets documents in, and the filter runs again. The second is the figure: signals come from the
store, each run is a process of its own, start included, one worker. Once with personal data measured last, for what the
other rules keep (`filter.measured_last`), and once for every document.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Corpus, corpus, corpus_parser, environment, measure, median


def child(folder: Path, store: str, max_score: float, last: Sequence[str]) -> dict[str, int]:
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
    documents = Artifact(folder=folder, digest=folder.name)
    config = FilterConfig.model_validate(
        {"toxicity": {"max_score": max_score}, "max_quarantined_share": 1, "measured_last": last}
    )
    with open_session(Session(Store(store), Runtime(data=DataRuntime(workers=1)))):
        made, _ = filter_documents.materialize(config, [documents, Artifact(folder=questions, digest="none")])
    assert made.manifest is not None
    return {"kept": made.manifest.counts["documents"]["kept"]}


def compare(text: Corpus, last: Sequence[str], runs: int) -> None:
    """Print the row of one corpus."""
    with tempfile.TemporaryDirectory(dir=text.folder.parent) as store:
        command = [sys.executable, "-m", "benchmarks.filter.threshold", "--child", str(text.folder), f"{store}/store"]
        variables = environment(1)
        first, *others = (measure([*command, str(0.15 + 0.05 * run), *last], variables) for run in range(runs + 1))
        again = median(others)
    print(
        f"| {text.megabytes:.0f} | {text.documents:,} | {', '.join(last) or 'nothing'} | {first.result['kept']:,} "
        f"| {first.cpu:.1f} | {first.peak / 1e6:,.0f} | {again.cpu:.2f} | {again.peak / 1e6:,.0f} |"
    )


def main() -> None:
    """Read the options, make the corpora, print the table."""
    parser = corpus_parser(__doc__, megabytes=100, runs="changed thresholds")
    parser.add_argument("--child", nargs="+", metavar="FOLDER STORE MAX_SCORE LAST", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        folder, store, max_score, *last = options.child
        print(json.dumps(child(Path(folder), store, float(max_score), last)))
        return
    whole = corpus(options.data.resolve(), options.megabytes)
    quarter = corpus(options.data.resolve(), options.megabytes / 4, whole)
    print(f"{platform.machine()}, 1 worker, a changed threshold: medians of {options.runs}\n")
    figures = "signals and decision (CPU s) | peak memory (MB) | new decision (CPU s) | peak memory (MB)"
    print(f"| text (MB) | documents | measured last | kept | {figures} |")
    print("|---|---|---|---|---|---|---|---|")
    for text in (quarter, whole):
        for last in ([], ["pii", "pii_metadata"]):
            compare(text, last, options.runs)


if __name__ == "__main__":
    main()
