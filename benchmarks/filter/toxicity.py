"""`python -m benchmarks.filter.toxicity`: toxicity scores, ours beside the package's own code; with labels, how good.

Speed: each side in a process of its own, in turns, over texts that lie in memory; loading and compiling are not
counted, figures are medians. The package gets the same paragraphs, in batches.

With `--labelled FOLDER` (it holds tox_davidson, tox_wiki_madlibs and tox_surge) a fastText model is trained on four
fifths of tox_davidson and on tox_wiki_madlibs: alone, with clean documents of the corpus beside them, and with those of
`--books` too. Measured are what was held out of tox_davidson, all of tox_surge, and, with `--clean`, the share of
documents flagged in text that is not toxic and that no model saw. Both options take JSON lines with `text`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
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

from benchmarks.measure import ROOT, corpus, corpus_parser, environment
from storage.artifact import Artifact
from storage.shards.documents import Document, document_id, write_documents
from tasks.filter.fasttext_model.calibration import area_under_curve
from tasks.filter.fasttext_model.sample import draw
from tasks.filter.toxicity.config import LabelledFile, PackageModelConfig, ToxicityConfig, TrainedModelConfig
from tasks.filter.toxicity.stage import toxicity_model
from tasks.stage.output import Output
from tasks.stage.runtime import DataRuntime, Runtime

CLEAN_SOURCES = ["encyclopedia-en", "speeches", "docstrings"]
HELD_OUT = 0.2
Labelled = tuple[list[str], list[bool]]


def make(config: PackageModelConfig | TrainedModelConfig, documents: Path, folder: Path) -> Output:
    """The model stage on plain folders."""
    out = Output.at(folder, stage="toxicity_model", runtime=Runtime(data=DataRuntime(workers=1)))
    toxicity_model.function(config, Artifact(path=documents, digest=""), out)
    return out


def child(side: str, documents: Path, model: Path) -> None:
    """In a process of its own: CPU seconds of one side over a folder of shards, as JSON."""
    from tasks.filter.toxicity.measure import measure_toxicity, paragraphs

    config = ToxicityConfig()
    columns = []
    for path in sorted(documents.glob("*.parquet")):
        columns += pq.read_table(path, columns=["text"], use_threads=False)["text"].chunks
    if side == "the package's code":
        from profanity_check import predict_prob

        started = time.process_time()
        for column in columns:
            predict_prob(paragraphs(column, config.paragraph_bytes)[0].to_pylist())
    else:
        measure_toxicity(config, model, columns[0])
        started = time.process_time()
        for column in columns:
            measure_toxicity(config, model, column)
    print(json.dumps({"seconds": time.process_time() - started}))


def speeds(models: dict[str, Path], options: argparse.Namespace) -> None:
    """The table of sides; the package's own code gets a twelfth of the text."""
    whole = corpus(options.data, options.megabytes)
    part = corpus(options.data, options.megabytes / 12, whole)
    sides = {"the package's code": part, **dict.fromkeys(models, whole)}
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(options.runs):
        for side, text in sides.items():
            places = [str(text.folder), str(models.get(side, ROOT))]
            command = [sys.executable, "-m", "benchmarks.filter.toxicity", "--measure", side, *places]
            done = subprocess.run(command, cwd=ROOT.parent, env=environment(1), stdout=subprocess.PIPE, check=True)
            found[side].append(json.loads(done.stdout.splitlines()[-1])["seconds"])
    print(
        f"{platform.machine()}, 1 thread, medians of {options.runs}\n\n| side | MB | MB a core-second |\n|---|---|---|"
    )
    for side, taken in found.items():
        print(f"| {side} | {sides[side].megabytes:.1f} | {sides[side].megabytes / statistics.median(taken):.1f} |")


def labelled_files(folder: Path, scratch: Path) -> tuple[list[LabelledFile], dict[str, Labelled]]:
    """Files to train on, and texts to test with: tox_davidson is divided by the hash of its texts."""
    with (folder / "tox_davidson" / "labeled_data.csv").open(encoding="utf-8", newline="") as file:
        rows = [{"text": row["tweet"], "label": row["class"]} for row in csv.DictReader(file)]
    held_out = [row for row in rows if draw(document_id(row["text"]), "benchmark") < HELD_OUT]
    kept = [row for row in rows if draw(document_id(row["text"]), "benchmark") >= HELD_OUT]
    posts = scratch / "posts.jsonl"
    posts.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    files = [LabelledFile(path=str(posts), text_column="text", label_column="label", toxic=["0", "1"])]
    for name in ("toxicity_fuzzed_testset.csv", "toxicity_nonfuzzed_testset.csv"):
        path = str(folder / "tox_wiki_madlibs" / name)
        files.append(LabelledFile(path=path, text_column="comment", label_column="toxic", toxic=["True"]))
    with (folder / "tox_surge" / "toxicity_en.csv").open(encoding="utf-8", newline="") as file:
        surge = list(csv.DictReader(file))
    return files, {
        "tox_davidson, held out": ([row["text"] for row in held_out], [row["label"] != "2" for row in held_out]),
        "tox_surge": ([row["text"] for row in surge], [row["is_toxic"] == "Toxic" for row in surge]),
    }


def with_books(corpus_folder: Path, books: Sequence[Path], folder: Path) -> tuple[Path, list[str]]:
    """The corpus with books as one more source, and the name of that source."""
    if not books:
        return corpus_folder, []
    folder.mkdir()
    for path in corpus_folder.glob("*.parquet"):
        (folder / path.name).symlink_to(path)
    write_documents(
        folder / "books.parquet", (Document.new(text, "books") for path in books for text in texts_in(path))
    )
    return folder, ["books"]


def texts_in(path: Path) -> list[str]:
    """The texts of JSON lines, compressed or not."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def quality(models: dict[str, Path], tests: dict[str, Labelled], clean: Sequence[Path]) -> None:
    """Precision, recall and F1 at 0.5, the area under the curve, and the share of clean documents above thresholds."""
    print("\nThe given model's makers trained it on tox_davidson, held out from ours alone.")
    print("\n| model | texts | number | toxic | precision | recall | F1 | AUC |\n|---|---|---|---|---|---|---|---|")
    for model, folder in models.items():
        for name, (texts, labels) in tests.items():
            scores, _ = scored(folder, texts)
            positive = np.array(labels)
            flagged = scores >= 0.5
            hits = int((flagged & positive).sum())
            precision, recall = hits / max(1, int(flagged.sum())), hits / int(positive.sum())
            f1 = 2 * hits / max(1, int(flagged.sum()) + int(positive.sum()))
            figures = " | ".join(f"{x:.3f}" for x in (precision, recall, f1, area_under_curve(scores, positive)))
            print(f"| {model} | {name} | {len(texts):,} | {int(positive.sum()):,} | {figures} |")
    print("\n| model | clean texts | documents | `toxicity_score` ≥ 0.5 | ≥ 0.8 | a paragraph ≥ 0.5 | ≥ 0.95 |")
    print("|---|---|---|---|---|---|---|")
    for model, folder in models.items():
        for path in clean:
            texts = texts_in(path)
            scores, worst = scored(folder, texts)
            shares = [np.mean(scores >= 0.5), np.mean(scores >= 0.8), np.mean(worst >= 0.5), np.mean(worst >= 0.95)]
            print(f"| {model} | {path.parent.name} | {len(texts):,} | {' | '.join(f'{x:.2%}' for x in shares)} |")


def scored(folder: Path, texts: Sequence[str]) -> tuple[Any, Any]:
    """`toxicity_score` and `toxicity_paragraph` of texts; one without words has 0, as if it had passed."""
    from tasks.filter.toxicity.measure import measure_toxicity

    batch = measure_toxicity(ToxicityConfig(), folder, pa.array(texts, pa.string()))
    return tuple(batch[i].fill_null(0.0).to_numpy(zero_copy_only=False) for i in (0, 1))


def main() -> None:
    """Read the options, make the models, measure, print."""
    parser = corpus_parser(__doc__, megabytes=120)
    parser.add_argument("--labelled", type=Path, help="folder with tox_davidson, tox_wiki_madlibs and tox_surge")
    parser.add_argument("--books", type=Path, nargs="*", default=[], help="JSON lines of clean text to train on")
    parser.add_argument("--clean", type=Path, nargs="*", default=[], help="JSON lines of text that is not toxic")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        side, documents, model = options.measure
        child(side, Path(documents), Path(model))
        return
    options.data = options.data.resolve()
    text = corpus(options.data, options.megabytes)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        models = {"given model, ours": make(PackageModelConfig(), text.folder, scratch / "package").path}
        if options.labelled:
            files, tests = labelled_files(options.labelled, scratch)
            documents, books = with_books(text.folder, options.books, scratch / "documents")
            clean = {"posts alone": [], "clean documents too": CLEAN_SOURCES, "and books": [*CLEAN_SOURCES, *books]}
            for kind, sources in clean.items() if books else list(clean.items())[:2]:
                name = f"fastText, {kind}"
                out = make(TrainedModelConfig(files=files, clean_sources=sources), documents, scratch / name)
                models[name] = out.path
                print(f"{name}: {json.dumps({key: out.counts[key] for key in ('examples', 'accuracy', 'auc')})}\n")
        speeds(models, options)
        if options.labelled:
            quality(models, tests, options.clean)


if __name__ == "__main__":
    main()
