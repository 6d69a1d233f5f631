"""The stage of a signal of the profile."""

from __future__ import annotations

import functools
import json
from collections import Counter

from storage.artifact import Artifact
from storage.shards.documents import read_batches
from tasks.filter.side_files import read_signals, write_signals
from tasks.filter.signals.config import ERROR, PythonSignalConfig, SignalConfig
from tasks.filter.signals.hook import fingerprints
from tasks.stage import stage
from tasks.stage.output import Output

SHOWN = 20  # failures in the table


def sources(config: SignalConfig) -> dict[str, str]:
    """Digests of what is read outside the store. Raises SourceError for what is not there."""
    return fingerprints(config)


@stage(version=1, part_of="filter", runtime=("data", "compute"), sources=sources)
def signals(config: SignalConfig, documents: Artifact, out: Output) -> None:
    """A signal of the profile, measured by a function of the user's in worker processes of its own.

    Columns: those of the config, and `error`, why a document has no values.
    """
    from tasks.filter.signals.functions import COLUMNS, measure_with

    digests = json.dumps(sources(config), sort_keys=True)
    measure = functools.partial(measure_with, config, digests)
    write_signals(measure, documents, out, columns=COLUMNS, processes=out.runtime.data.workers)
    _tell_failures(config, documents, out)


def _tell_failures(config: PythonSignalConfig, documents: Artifact, out: Output) -> None:
    """Count the documents that the function failed on, and name the first."""
    counted: Counter[str] = Counter()
    rows: list[dict[str, str]] = []
    for shard, side_file in zip(documents.files("*.parquet"), sorted(out.path.glob("*.parquet")), strict=True):
        for (_, batch), found in zip(read_batches(shard, ["id"]), read_signals(side_file, [ERROR]), strict=True):
            for identity, error in zip(batch["id"].to_pylist(), found[ERROR].to_pylist(), strict=True):
                if error is not None:
                    counted[error.partition(":")[0]] += 1
                    rows.append({"document": identity, "error": error})
    out.count(failed=counted.total())
    if rows:
        out.table("Documents that the function failed on", sorted(rows, key=lambda row: row["document"])[:SHOWN])
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in counted.most_common(3))
        out.note(f"{config.where} failed on {counted.total():,} documents ({kinds}), which have no values")
