"""Three stages: the embedding model, the embeddings of documents, and the similarity of each to another."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.base.config import BaseConfig
from tasks.filter.semantic.config import EmbeddingsConfig, SemanticConfig
from tasks.filter.semantic.source import fingerprints
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, part_of="filter", runtime=("data", "compute"), sources=fingerprints)
def encoder(config: BaseConfig, out: Output) -> None:
    """Take a transformers model: its config, its weights and its tokenizer, byte for byte.

    Raises SourceError for code, pickles, quantized or missing weights, and weights that are NaN or infinite.
    """
    from tasks.filter.classifier.source import take_files
    from tasks.filter.semantic.source import check_encoder

    known = take_files(config, check_encoder, out)
    out.count(summary=f"{config.named}, {known.model_type}")


def sources(config: EmbeddingsConfig) -> dict[str, str]:
    """Digests of the model's files. Raises SourceError."""
    return fingerprints(config.encoder)


@stage(version=3, part_of="filter", runtime=("data", "compute"), sources=sources)
def embeddings(config: EmbeddingsConfig, documents: Artifact, out: Output) -> None:
    """Embed the beginning of each document: the mean of the model's last hidden states, of length 1.

    Writes NNNNN.npy, a row of float16 for each document of the shard, and NNNNN.parquet with `tokens`, the number read.
    A text without words gets null and a row of zeros.
    """
    from tasks.filter.semantic.embed import embed_documents

    embed_documents(config, documents, out.obtain(encoder, config.encoder), out)


@stage(version=1, name="semantic", part_of="filter", runtime=("data", "compute"))
def semantic_signals(config: SemanticConfig, documents: Artifact, embedded: Artifact, out: Output) -> None:
    """Cluster documents by k-means over their embeddings, and compare those of a cluster (SemDeDup: Abbas et al. 2023).

    Columns: `semantic_cluster`, `semantic_duplicate` (the highest cosine to a preferred document of the cluster, 0 for
    the first) and `semantic_of` (the beginning of that document's id). Null for a text without words.
    """
    from tasks.filter.semantic.compare import find_semantic_duplicates

    find_semantic_duplicates(config, documents, embedded, out)
