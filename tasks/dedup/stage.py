"""The `dedup` stage and its nested stage `sketches`. Compiled code is imported only when a stage runs."""

from __future__ import annotations

from collections.abc import Mapping

from storage.artifact import Artifact
from tasks.dedup.against import earlier_digests
from tasks.dedup.config import DedupConfig, SketchConfig
from tasks.shards.adopted import check_documents
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.protocol import Forecast
from tasks.stage.runtime import Runtime


@stage(version=6, part_of="dedup", runtime=("data",))
def sketches(config: SketchConfig, documents: Artifact, out: Output) -> None:
    """Measure every document. Writes rows/: id, source, the 128-bit hash (xxh3), bytes and words of the normalised
    text, and of the original the defects and the characters in lines of text, in other lines and in the longest line.
    Writes signatures/, a uint32 matrix of documents × permutations, equal to datasketch's."""
    from tasks.dedup.sketch import sketch_corpus

    sketch_corpus(config, documents, out)


def forecast(config: DedupConfig, documents: int, runtime: Runtime) -> Forecast:
    """The memory and disk that dedup will need."""
    from tasks.dedup.forecast import forecast_dedup

    return forecast_dedup(config, documents, runtime)


def parts(config: DedupConfig) -> dict[str, StageConfig]:
    """The config of the stage that dedup obtains, by name."""
    return {"sketches": config.sketch}


def check_adopted(config: DedupConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that a folder made elsewhere has documents in our layout. Raises DamagedArtifact, EmptyOutput."""
    check_documents(folder)


@stage(version=6, runtime=("data",), sources=earlier_digests, forecast=forecast, adopted=check_adopted, parts=parts)
def dedup(config: DedupConfig, documents: Artifact, out: Output) -> None:
    """Remove exact and near-duplicates, keeping one of each cluster.

    Exact duplicates are equal after normalisation. Near-duplicates are MinHash LSH candidates, verified by the exact
    Jaccard similarity of their shingles. Clusters are connected components of verified edges only. Of each cluster, the
    document of the most trusted source is kept, then the one with most clean text. Writes documents/, ledger/ and
    copies/. For each removed document the ledger has the kept one, their similarity and the method. copies/ repeats
    them with the removed one's source and metadata, so that a kept document's provenance is that of all its copies.
    With `spans`, text that several documents share is then removed from all but one of them.
    """
    from tasks.dedup.run import remove_duplicates

    remove_duplicates(config, documents, out.obtain(sketches, config.sketch, documents), out)
