"""Runs of the download stage on a plain folder, and what they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage.shards.documents import Verdict, read_documents, read_ledger
from tasks.download import DownloadConfig, download
from tasks.download.config import ExtractedSource
from tasks.stage.output import Output
from tests.runtimes import runtime_of


def run(folder: Path, *sources: ExtractedSource, workers: int = 1, **more: Any) -> Output:
    """A run on some sources, in which any share of the documents may be quarantined."""
    values = {"sources": [one.model_dump() for one in sources], "benchmarks": [], "max_quarantined_share": 1.0, **more}
    out = Output.at(folder / "made", stage="download", runtime=runtime_of(workers=workers))
    download.function(DownloadConfig.model_validate(values), out)
    return out


def documents_of(out: Output) -> list[tuple[str, dict[str, Any]]]:
    """Text and metadata of each document, in their order."""
    found = (document for path in sorted(out.path.glob("documents/*")) for document in read_documents(path))
    return [(document.text, json.loads(document.metadata)) for document in found]


def verdicts_of(out: Output) -> list[Verdict]:
    """The lines of the ledger."""
    return [verdict for path in sorted(out.path.glob("ledger/*")) for verdict in read_ledger(path)]
