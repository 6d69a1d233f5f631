"""The settings of the model that embeds documents, and of the clusters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.base.config import BaseConfig
from tasks.stage.config import StageConfig


class EmbeddingsConfig(StageConfig):
    """A transformers model whose last hidden states, averaged over a text's tokens, are the text's embedding."""

    encoder: BaseConfig = Field(description="source of the model")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="maximum tokens to read from the beginning of a document, or null for as many as the model can "
        "read",
    )
    batch_tokens: int = Field(8192, ge=1, description="tokens embedded at once, padding included")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="precision of the weights and products. bfloat16 is for GPUs"
    )


class SemanticConfig(StageConfig):
    """Similarity to other documents of a cluster as a signal."""

    model: EmbeddingsConfig = Field(description="the embeddings of documents, computed once")
    clusters: int | None = Field(
        None,
        ge=1,
        description="number of k-means clusters, or null for one per 5,000 documents. Only documents of the same "
        "cluster are compared",
    )
    sample: int = Field(100_000, ge=1, description="documents for computing the clusters, those with the smallest ids")
    iterations: int = Field(20, ge=1, description="maximum rounds of k-means")
    seed: int = Field(1, ge=0, lt=2**32, description="seed for drawing the documents that k-means starts from")
    keep: Literal["farthest", "closest"] = Field(
        "farthest",
        description="which of several similar documents to keep: the farthest from the cluster's centre, as in the "
        "paper, or the closest",
    )
