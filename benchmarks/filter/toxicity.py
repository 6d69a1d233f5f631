"""`python -m benchmarks.filter.toxicity`: what toxicity scores cost; with labelled sets, what they are worth.

Speed: each model in a process of its own, in turns, over texts that lie in memory; loading and compiling are not
counted, figures are medians.

With `--labelled FOLDER` (it holds tox_davidson, tox_wiki_madlibs and tox_surge) and `--clean`, JSON lines of text that
is not toxic: the default model, its linear half alone, and fastText trained on one half of tox_davidson and
tox_wiki_madlibs with clean documents of the same half. Posts, test cases by function (`hate_cases.py`) and documents
(`toxic_documents.py`) are reported; the half `tuned`, on which the default threshold was chosen, stands beside the half
`reported`, on which nothing was. No model saw any post of tox_surge.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.filter.hate_cases import cases
from benchmarks.filter.toxic_documents import (
    HALVES,
    Made,
    Posts,
    clean_documents,
    half_of,
    read_posts,
    sentences_of,
    thread_documents,
    toxic_documents,
)
from benchmarks.measure import ROOT, corpus, corpus_parser, environment
from storage.artifact import Artifact
from storage.shards.arrays import Bool, Float64
from storage.shards.documents import Document, shard_name, write_documents
from tasks.filter.fasttext_model.calibration import area_under_curve, threshold_for
from tasks.filter.fasttext_model.config import LabelledFile
from tasks.filter.toxicity.config import PackageModelConfig, ToxicityConfig, TrainedModelConfig
from tasks.filter.toxicity.family import ToxicityRules
from tasks.filter.toxicity.stage import toxicity_model
from tasks.stage.output import Output
from tasks.stage.runtime import DataRuntime, Runtime

PIECE = ToxicityConfig().piece_bytes
BASE_RATE = 0.01  # share of toxic documents for which precision is reported


def make(config: PackageModelConfig | TrainedModelConfig, documents: Path, folder: Path) -> Output:
    """The model stage on plain folders."""
    out = Output.at(folder, stage="toxicity_model", runtime=Runtime(data=DataRuntime(workers=1)))
    toxicity_model.function(config, Artifact(folder=documents, digest=""), out)
    return out


def child(side: str, documents: Path, model: Path) -> None:
    """In a process of its own: CPU seconds of one model over a folder of shards, as JSON."""
    from tasks.filter.toxicity.measure import score_documents

    columns = []
    for path in sorted(documents.glob("*.parquet")):
        columns += pq.read_table(path, columns=["text"], use_threads=False)["text"].chunks
    scorer = scorer_of(side, model)
    score_documents(scorer, columns[0], PIECE)
    started = time.process_time()
    for column in columns:
        score_documents(scorer, column, PIECE)
    print(json.dumps({"seconds": time.process_time() - started}))


def scorer_of(name: str, folder: Path) -> Any:
    """The scorer of a model."""
    from tasks.filter.toxicity.linear import Linear
    from tasks.filter.toxicity.measure import load_model

    return Linear(folder) if name == "linear alone" else load_model(folder)


def speeds(models: dict[str, Path], options: argparse.Namespace) -> None:
    """Megabytes a core-second of each model over the corpus."""
    text = corpus(options.data, options.megabytes)
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.runs):
        for name, folder in models.items():
            command = [sys.executable, "-m", "benchmarks.filter.toxicity", "--measure", name, str(text.folder)]
            done = subprocess.run(
                [*command, str(folder)], cwd=ROOT.parent, env=environment(1), stdout=subprocess.PIPE, check=True
            )
            found[name].append(json.loads(done.stdout.splitlines()[-1])["seconds"])
    print(
        f"{platform.machine()}, 1 thread, medians of {options.runs}\n\n| model | MB | MB a core-second |\n|---|---|---|"
    )
    for name, taken in found.items():
        print(f"| {name} | {text.megabytes:.1f} | {text.megabytes / statistics.median(taken):.1f} |")


def trained_on(posts: dict[str, Posts], clean: Sequence[Made], scratch: Path) -> Output:
    """fastText, trained on the half `tuned` of two of the sets and of the clean documents."""
    files = []
    for name in ("davidson, hate", "davidson, offence", "madlibs"):
        path = scratch / f"{name}.jsonl"
        rows = [
            {"text": text, "label": label}
            for label, texts in (("toxic", posts[name].toxic), ("harmless", posts[name].harmless))
            for text in texts
            if half_of(text) == "tuned"
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        files.append(LabelledFile(path=str(path), positive=["toxic"]))
    (scratch / "clean").mkdir()
    write_documents(scratch / "clean" / shard_name(0), (Document.new(made.text, "clean") for made in clean))
    return make(TrainedModelConfig(files=files, clean_sources=["clean"]), scratch / "clean", scratch / "trained")


def scored(scorer: Any, texts: Sequence[str]) -> Float64:
    """`toxicity_score` of texts; one without words has 0."""
    from tasks.filter.toxicity.measure import score_documents

    return score_documents(scorer, pa.array(texts, pa.string()), PIECE)[0]


def report_posts(scorers: dict[str, Any], posts: dict[str, Posts]) -> None:
    """Area under the curve over posts, and over test cases by function."""
    print("\nPosts of the half `reported`; area under the ROC curve.")
    print(f"\n| posts | toxic | harmless | {' | '.join(scorers)} |\n|---|---|---|{'---|' * len(scorers)}")
    for name, found in posts.items():
        toxic, harmless = ([text for text in side if half_of(text) == "reported"] for side in found)
        positive = np.arange(len(toxic) + len(harmless)) < len(toxic)
        areas = [area_under_curve(scored(scorer, [*toxic, *harmless]), positive) for scorer in scorers.values()]
        print(f"| {name} | {len(toxic):,} | {len(harmless):,} | {' | '.join(f'{area:.3f}' for area in areas)} |")
    made = cases()
    positive = np.array([case.abusive for case in made])
    scores = {name: scored(scorer, [case.text for case in made]) for name, scorer in scorers.items()}
    over_all = " | ".join(f"{area_under_curve(found, positive):.3f}" for found in scores.values())
    print(f"\n{len(made)} test cases, {positive.sum()} of them abusive. By function: mean score.")
    print(f"\n| function | cases | abusive | {' | '.join(scorers)} |\n|---|---|---|{'---|' * len(scorers)}")
    print(f"| all, area under the curve | {len(made)} | {positive.sum()} | {over_all} |")
    for function in dict.fromkeys(case.function for case in made):
        rows = np.array([case.function == function for case in made])
        means = " | ".join(f"{found[rows].mean():.2f}" for found in scores.values())
        print(f"| {function} | {rows.sum()} | {'yes' if positive[rows].all() else 'no'} | {means} |")


def report_documents(scorers: dict[str, Any], halves: dict[str, list[Made]]) -> None:
    """Area under the curve, recall and precision at the default threshold and at that for a precision of 0.9."""
    default = ToxicityRules().max_score or 0.0
    print(f"\nDocuments; precision where {BASE_RATE:.0%} of all are toxic. The default of max_score is {default:g}.\n")
    heads = "model | half | toxic | clean | AUC | max_score | toxic found | clean flagged | recall | precision"
    print(f"| {heads} |\n|{'---|' * 10}")
    for name, scorer in scorers.items():
        chosen = None
        for half, made in halves.items():
            positive = np.array([one.toxic for one in made])
            scores = scored(scorer, [one.text for one in made])
            chosen = threshold_for(scores, positive, BASE_RATE, 0.9) if half == "tuned" else chosen
            for threshold in (default, chosen):
                if threshold is not None:
                    print(f"| {name} | {half} | {_at(scores, positive, threshold)} |")
    for name, scorer in scorers.items():
        made = halves["reported"]
        scores = scored(scorer, [one.text for one in made])
        found: dict[str, list[bool]] = {}
        for one, score in zip(made, scores.tolist(), strict=True):
            for kind in (one.source, f"{one.share:.0%} toxic", one.layout) if one.toxic else (f"clean: {one.source}",):
                found.setdefault(kind, []).append(score > default)
        told = "; ".join(f"{kind} {sum(flags):,} of {len(flags):,}" for kind, flags in found.items())
        print(f"\n{name}, removed of the half `reported` at {default:g}: {told}.")


def _at(scores: Float64, positive: Bool, threshold: float) -> str:
    """The figures of a half at a threshold."""
    hits, alarms = int((scores[positive] > threshold).sum()), int((scores[~positive] > threshold).sum())
    recall, wrong = hits / positive.sum(), alarms / (~positive).sum()
    right = BASE_RATE * recall
    precision = right / max(1e-12, right + (1 - BASE_RATE) * wrong)
    area = area_under_curve(scores, positive)
    return (
        f"{positive.sum():,} | {(~positive).sum():,} | {area:.3f} | {threshold:.3f} | {hits:,} | {alarms:,} "
        f"| {recall:.3f} | {precision:.3f}"
    )


def main() -> None:
    """Read the options, make the models, measure, print."""
    parser = corpus_parser(__doc__, megabytes=40)
    parser.add_argument("--labelled", type=Path, help="folder with tox_davidson, tox_wiki_madlibs and tox_surge")
    parser.add_argument("--clean", type=Path, nargs="*", default=[], help="JSON lines of text that is not toxic")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, documents, model = options.measure
        child(name, Path(documents), Path(model))
        return
    options.data = options.data.resolve()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        default = make(PackageModelConfig(), scratch, scratch / "default").path
        models = {"default": default, "linear alone": default}
        if options.labelled and options.clean:
            posts = read_posts(options.labelled)
            clean = {half: clean_documents(options.clean, half) for half in HALVES}
            out = trained_on(posts, clean["tuned"], scratch)
            models["trained"] = out.path
            figures = {name: value for name, value in out.counts.items() if name not in ("tables", "documents")}
            print(f"trained, held out of what it was trained on: {json.dumps(figures)}")
            scorers = {name: scorer_of(name, path) for name, path in models.items()}
            report_posts(scorers, posts)
            halves = {
                half: toxic_documents(posts, sentences_of(made), half) + made + thread_documents(posts, half)
                for half, made in clean.items()
            }
            report_documents(scorers, halves)
        speeds(models, options)


if __name__ == "__main__":
    main()
