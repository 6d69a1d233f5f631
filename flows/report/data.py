"""What became of the documents: how many each stage kept, why others were removed, and what is left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from flows.report.lineage import Lineage
from flows.report.reading import counted, mapping, table, whole
from storage.artifact import Artifact
from storage.manifest import Manifest
from storage.shards.by_id import documents_of, title_of
from storage.shards.documents import LEDGER_SCHEMA, read_batches

LENGTHS = (0, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)  # characters: edges of the histogram
COPIES = (1, 2, 3, 5, 10, 100)  # edges of the histogram of clusters
CUT = 240  # characters of an example
KEPT_LICENCES = 12  # of documents, the most frequent
MOST_BYTES = (
    256 << 20
)  # of the shards read for languages, and for lengths: those of a large corpus are told by its first ones


class Step(BaseModel):
    """The documents of one stage: in = kept + removed by reason + quarantined."""

    stage: str
    came_in: int
    kept: int
    removed: dict[str, int]
    quarantined: int


class Source(BaseModel):
    """The documents of a source after each stage that counts by source, and its licence as the profile states it."""

    name: str
    documents: dict[str, int]
    licence: str = ""


class Example(BaseModel):
    """The beginning of a document that was removed, without personal data of a fixed form."""

    stage: str
    reason: str
    id: str
    source: str
    value: float | None
    title: str
    begins: str


class Bin(BaseModel):
    """Documents between two bounds, the upper one excluded and None for the last."""

    low: int
    high: int | None
    documents: int


class Data(BaseModel):
    """The documents of a run."""

    steps: list[Step] = []
    pairs: list[Step] = []
    sources: list[Source] = []
    licences: dict[str, int] = {}
    languages: dict[str, int] = {}
    languages_kept: list[str] = []
    lengths: list[Bin] = []
    clusters: list[Bin] = []
    examples: list[Example] = []


def data_of(lineage: Lineage, licences: Mapping[str, str], examples: int) -> Data | None:
    """What the manifests, ledgers and signals say, with up to `examples` removed documents for each reason. None for a
    lineage without documents."""
    stages = lineage.stages()
    steps = [step for stage, manifest in stages.items() for step in _steps(stage, manifest.counts, "documents")]
    steps = [step for step in steps if step.stage in DOCUMENTS]
    filtered = stages.get("filter")
    allowed = mapping(filtered.payload.config, "language").get("allowed") if filtered else None
    data = Data(
        steps=steps,
        pairs=[
            step
            for stage, manifest in stages.items()
            for role in ("instructions", "preferences", "labelled")
            for step in _steps(stage, manifest.counts, role)
        ],
        sources=_sources(stages, licences),
        licences=_licences(stages),
        languages=_languages(lineage),
        languages_kept=[str(one) for one in allowed] if isinstance(allowed, list) else [],
        lengths=_lengths(lineage, stages),
        clusters=_clusters(lineage, stages),
        examples=list(_examples(lineage, stages, examples)) if examples else [],
    )
    return data if data.steps or data.pairs else None


DOCUMENTS = ("download", "synthesise", "dedup", "filter", "tokenize")


def _steps(stage: str, counts: Mapping[str, Any], what: str) -> Iterator[Step]:
    found = mapping(counts, what)
    came_in, kept = whole(found.get("in")), whole(found.get("kept"))
    if came_in is not None and kept is not None:
        yield Step(
            stage=stage if what == "documents" else f"{stage}, {what}",
            came_in=came_in,
            kept=kept,
            removed=counted(found.get("removed")),
            quarantined=whole(found.get("quarantined")) or 0,
        )


# A stage's table of documents by source, and the column of those that it kept
BY_SOURCE = {
    "download": ("Sources", "documents"),
    "dedup": ("Removed by source", "kept"),
    "filter": ("By source", "kept"),
}


def _sources(stages: Mapping[str, Manifest], licences: Mapping[str, str]) -> list[Source]:
    """Sources with documents, in the order of the download."""
    found: dict[str, dict[str, int]] = {}
    for stage, (title, column) in BY_SOURCE.items():
        for row in table(stages.get(stage), title):
            if (number := whole(row.get(column))) is not None:
                found.setdefault(str(row.get("source")), {})[stage] = number
    return [
        Source(name=name, documents=counts, licence=licences.get(name, ""))
        for name, counts in found.items()
        if any(counts.values()) and name != "all"
    ]


def _licences(stages: Mapping[str, Manifest]) -> dict[str, int]:
    counts = Counter[str]()
    for stage in ("download", "synthesise"):
        for row in table(stages.get(stage), "Documents by licence"):
            counts[str(row.get("licence"))] += whole(row.get("documents")) or 0
    return dict(counts.most_common(KEPT_LICENCES))


def _languages(lineage: Lineage) -> dict[str, int]:
    """Documents by language, as the filter identified it, the most frequent first."""
    counts = Counter[str]()
    for node in lineage.parts("language")[-1:]:
        artifact = lineage.open(node.manifest) if node.manifest else None
        for batch in _batches(artifact, "*.parquet", ["language"], MOST_BYTES):
            for row in batch["language"].value_counts().to_pylist():
                counts[str(row["values"] or "unknown")] += row["counts"]
    return dict(counts.most_common())


def _lengths(lineage: Lineage, stages: Mapping[str, Manifest]) -> list[Bin]:
    """The documents that are left, by their characters."""
    last = next((stages[name] for name in ("filter", "dedup", "synthesise", "download") if name in stages), None)
    counts = np.zeros(len(LENGTHS), np.int64)
    for batch in _batches(lineage.open(last) if last else None, "documents/*.parquet", ["text"], MOST_BYTES):
        lengths = pc.utf8_length(batch["text"]).to_numpy(zero_copy_only=False)
        counts += np.histogram(lengths, [*LENGTHS, np.iinfo(np.int64).max])[0]
    return _bins(LENGTHS, counts.tolist())


def _clusters(lineage: Lineage, stages: Mapping[str, Manifest]) -> list[Bin]:
    """Kept documents that stand for copies, by the number of these copies."""
    dedup = stages.get("dedup")
    sizes = Counter[str]()
    for batch in _batches(lineage.open(dedup) if dedup else None, "copies/*.parquet", ["kept"]):
        sizes.update({row["values"]: row["counts"] for row in batch["kept"].value_counts().to_pylist()})
    return _bins(COPIES, np.histogram([*sizes.values()], [*COPIES, np.iinfo(np.int64).max])[0].tolist())


def _bins(edges: tuple[int, ...], counts: list[int]) -> list[Bin]:
    """Bins up to the last that isn't empty."""
    bins = [
        Bin(low=low, high=high, documents=count)
        for low, high, count in zip(edges, (*edges[1:], None), counts, strict=True)
    ]
    while bins and not bins[-1].documents:
        bins.pop()
    return bins


def _batches(
    artifact: Artifact | None, pattern: str, columns: list[str], most: float = math.inf
) -> Iterator[pa.RecordBatch]:
    """Columns of the first shards with `most` bytes, or of all."""
    read = 0
    for name in artifact.names(pattern) if artifact else ():
        assert artifact is not None
        assert artifact.manifest is not None
        if read and read + artifact.manifest.files[name].size > most:
            return
        read += artifact.manifest.files[name].size
        for _, batch in read_batches(artifact.file(name), columns):
            yield batch


def _examples(lineage: Lineage, stages: Mapping[str, Manifest], number: int) -> Iterator[Example]:
    """The first removed documents of each reason, as far as the store has their texts."""
    opened = {stage: lineage.open(stages[stage]) for stage in DOCUMENTS if stage in stages}
    before: list[Artifact] = []
    for stage, artifact in opened.items():
        if artifact is None:
            continue
        chosen = list(_first_of_each(artifact, number))
        before.insert(0, artifact)
        found = documents_of([row["id"] for row in chosen], [one.path for one in before]) if chosen else {}
        shown = [row for row in chosen if row["id"] in found]
        texts = [" ".join(found[row["id"]].text[: 4 * CUT].split()) for row in shown]
        titles = [title_of(found[row["id"]].metadata)[:CUT] for row in shown]
        for row, text, title in zip(shown, masked(texts), masked(titles), strict=True):
            yield Example(
                stage=stage,
                reason=row["reason"],
                id=row["id"],
                source=row["source"],
                value=row["value"],
                title=title,
                begins=text if len(text) <= CUT else f"{text[: CUT - 1]}…",
            )


def _first_of_each(artifact: Artifact, number: int) -> Iterator[dict[str, Any]]:
    taken = Counter[str]()
    for batch in _batches(artifact, "ledger/*.parquet", LEDGER_SCHEMA.names):
        removed = batch.filter(pc.not_equal(batch["verdict"], "changed"))
        for reason in sorted({*removed["reason"].to_pylist()}):
            rows = removed.filter(pc.equal(removed["reason"], reason)).slice(0, number - taken[reason]).to_pylist()
            taken[reason] += len(rows)
            yield from rows


def masked(texts: Iterable[str]) -> list[str]:
    """Texts with placeholders for personal data of a fixed form, such as addresses and numbers of telephones."""
    from tasks.filter.pii.config import PATTERN_ENTITIES, PiiConfig
    from tasks.filter.pii.findings import Finding
    from tasks.filter.pii.measure import measure_pii
    from tasks.filter.pii.replace import replace

    listed = list(texts)
    rows = measure_pii(PiiConfig(entities=[*PATTERN_ENTITIES]), pa.array(listed, pa.string()))["pii"].to_pylist()
    found = [[Finding(**one) for one in row] for row in rows]
    return [replace(text, each, lambda one: "redact", "")[0] for text, each in zip(listed, found, strict=True)]
