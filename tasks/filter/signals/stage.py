"""The stages of a profile's own signal: the model of a classifier, and the signal."""

from __future__ import annotations

import functools
import json
from collections import Counter

from storage.artifact import Artifact
from storage.shards.documents import read_batches
from tasks.filter.classifier.config import ClassifierConfig
from tasks.filter.classifier.source import fingerprints as classifier_fingerprints
from tasks.filter.side_files import read_signals, write_signals
from tasks.filter.signals.config import ERROR, SCORED_BY, ClassifierSignalConfig, PythonSignalConfig, SignalConfig
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.user_function import fingerprints as function_fingerprints

SHOWN = 20  # failures in the table


@stage(version=1, part_of="filter", runtime=("data", "compute"), sources=classifier_fingerprints)
def signals_model(config: ClassifierConfig, documents: Artifact, out: Output) -> None:
    """Prepare a transformers sequence classifier to score, with the first model of its cascade, if any.

    Writes model/, scorer.json and first/. Tabulates how much the first model settles and how well it agrees, and with
    labelled texts the precision by threshold.
    """
    from tasks.filter.classifier.signal_model import make_classifier

    make_classifier(config, documents, out)


def sources(config: SignalConfig) -> dict[str, str]:
    """Digests of what measuring itself reads outside the store. Raises SourceError if something is missing."""
    return function_fingerprints(config) if isinstance(config, PythonSignalConfig) else {}


@stage(version=3, part_of="filter", runtime=("data", "compute"), sources=sources)
def signals(config: SignalConfig, documents: Artifact, model: Artifact | None, out: Output) -> None:
    """Measure a profile's own signal with a user's function, in separate worker processes, or a classifier.

    The columns of a function are its own, and `error`: why a document lacks values. Those of a classifier are null for
    a text without words:

    - `score`: the mean score of a document's pieces, weighted by their characters
    - `highest`, `lowest` and `first`: the highest, the lowest and the first piece's score
    - `share`: the share of characters in pieces above `piece_threshold`
    - `settled`: the share of characters in pieces that the first model of a cascade settled
    - `scored_by`: model, first or both
    """
    if isinstance(config, PythonSignalConfig):
        _call(config, documents, out)
    else:
        assert model is not None
        _score(config, documents, model, out)


def _call(config: PythonSignalConfig, documents: Artifact, out: Output) -> None:
    from tasks.filter.signals.functions import COLUMNS, measure_with

    digests = json.dumps(dict(signals.fingerprints(config)), sort_keys=True)  # those of the key
    measure = functools.partial(measure_with, config, digests)
    write_signals(measure, documents, out, columns=COLUMNS, isolated=True)
    _report_failures(config, documents, out)


def _score(config: ClassifierSignalConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    from tasks.filter.classifier.workers import score_signals
    from tasks.filter.signals.scores import measure_scores

    score_signals(functools.partial(measure_scores, config, model.path), documents, out)
    counted: Counter[str] = Counter()
    for path in sorted(out.path.glob("*.parquet")):
        for batch in read_signals(path, [SCORED_BY]):
            counted.update(by or "nobody: no words" for by in batch[SCORED_BY].to_pylist())
    out.count(scored_by=dict(sorted(counted.items())))
    out.table("Scored by", [{"scored by": by, "documents": count} for by, count in sorted(counted.items())])


def _report_failures(config: PythonSignalConfig, documents: Artifact, out: Output) -> None:
    """Count the documents that the function failed on, and name the first."""
    counted: Counter[str] = Counter()
    rows: list[dict[str, str]] = []
    for shard, side_file in zip(documents.files("*.parquet"), sorted(out.path.glob("*.parquet")), strict=True):
        for (_, batch), columns in zip(read_batches(shard, ["id"]), read_signals(side_file, [ERROR]), strict=True):
            for identity, error in zip(batch["id"].to_pylist(), columns[ERROR].to_pylist(), strict=True):
                if error is not None:
                    counted[error.partition(":")[0]] += 1
                    rows.append({"document": identity, "error": error})
    out.count(failed=counted.total())
    if rows:
        out.table("Documents that the function failed on", sorted(rows, key=lambda row: row["document"])[:SHOWN])
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in counted.most_common(3))
        out.warn(f"{config.where} failed on {counted.total():,} documents ({kinds}), which are left without values")
