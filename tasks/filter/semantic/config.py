"""Which model embeds documents, and how they are clustered."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.base.config import BaseConfig
from tasks.stage.config import StageConfig


class EmbeddingsConfig(StageConfig):
    """A model of transformers whose last hidden states, averaged over a text's tokens, are the text's embedding."""

    encoder: BaseConfig = Field(description="where the model is")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="how much of a document is read, in the model's tokens from its beginning on; null: as much as the "
        "model can read",
    )
    batch_tokens: int = Field(8192, ge=1, description="tokens that are embedded together, padding counted")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="precision of the weights and products; bfloat16 is for GPUs"
    )


class SemanticConfig(StageConfig):
    """Similarity to other documents of a cluster as a signal."""

    model: EmbeddingsConfig = Field(description="the embeddings of documents, made once")
    clusters: int | None = Field(
        None,
        ge=1,
        description="clusters of k-means; only documents of one cluster are compared. null: one for every 5,000 "
        "documents",
    )
    sample: int = Field(
        100_000, ge=1, description="documents that the clusters are computed from, those with the smallest ids"
    )
    iterations: int = Field(20, ge=1, description="rounds of k-means, at most")
    seed: int = Field(1, ge=0, lt=2**32, description="seed for the documents that k-means starts from")
    keep: Literal["farthest", "closest"] = Field(
        "farthest",
        description="which of similar documents comes first, and stays: the one farthest from the cluster's centre, "
        "as in the paper, or the closest",
    )
