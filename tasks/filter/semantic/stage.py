"""Three stages: the model that embeds, the embeddings of documents, and how similar each is to another."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.base.config import BaseConfig
from tasks.filter.semantic.config import EmbeddingsConfig, SemanticConfig
from tasks.filter.semantic.source import fingerprints
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, part_of="filter", runtime=("data", "compute"), sources=fingerprints)
def encoder(config: BaseConfig, out: Output) -> None:
    """Take a model of transformers: its config, its weights and its tokenizer, byte for byte.

    Raises SourceError for code, pickles, quantized weights, missing ones, and weights that are no numbers.
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

    Writes NNNNN.npy, a row of float16 for each document of the shard, and NNNNN.parquet with `tokens`, how many of it
    were read; null, and a row of zeros, for a text without words.
    """
    from tasks.filter.semantic.embed import embed_documents

    embed_documents(config, documents, out.obtain(encoder, config.encoder), out)


@stage(version=1, name="semantic", part_of="filter", runtime=("data", "compute"))
def semantic_signals(config: SemanticConfig, documents: Artifact, embedded: Artifact, out: Output) -> None:
    """Cluster documents by k-means over their embeddings, and compare those of a cluster (SemDeDup: Abbas et al.
    2023). Columns: `semantic_cluster`; `semantic_duplicate`, the highest cosine to a document of the cluster that is
    preferred, 0 for the first; `semantic_of`, the beginning of that one's id. Null for a text without words."""
    from tasks.filter.semantic.compare import find_semantic_duplicates

    find_semantic_duplicates(config, documents, embedded, out)
