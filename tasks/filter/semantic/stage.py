"""Three stages: the embedding model, the embeddings of documents, and the similarity of each to another.

The model's files are identified by their digests, and refused if they are code, pickles or half a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.pretrained import load_encoder
from storage.artifact import Artifact
from storage.errors import SourceError
from tasks.base.config import BaseConfig
from tasks.base.source import fingerprint
from tasks.filter.classifier.source import check_saved, take_files
from tasks.filter.semantic.config import EmbeddingsConfig, SemanticConfig
from tasks.stage import stage
from tasks.stage.output import Output

SAFE = "Save it as AutoModel.from_pretrained(…).save_pretrained(…) does, with its tokenizer."
POOLER = "pooler."  # weights of BERT and similar models that a mean over the tokens doesn't need


def fingerprints(config: BaseConfig) -> dict[str, str]:
    """Digests of the model's files, or its revision. Raises SourceError."""
    if config.folder is not None and not (folder := Path(config.folder).expanduser()).is_dir():
        raise SourceError(f"The model's folder {folder} does not exist.", "Check the path under `filter.semantic`.")
    return {name.replace("base/", "encoder/", 1): digest for name, digest in fingerprint(config).items()}


def check_encoder(folder: Path) -> Any:
    """The config of a model that transformers can build from only these files. Raises SourceError for any other."""
    return check_saved(folder, "encoder", load_encoder, SAFE, unneeded=POOLER)


@stage(version=1, part_of="filter", runtime=("data", "compute"), sources=fingerprints)
def encoder(config: BaseConfig, out: Output) -> None:
    """Take a transformers model: its config, its weights and its tokenizer, byte for byte.

    Raises SourceError for code, pickles, quantized or missing weights, and weights that are NaN or infinite.
    """
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
