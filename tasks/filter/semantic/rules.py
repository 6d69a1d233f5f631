"""The threshold on the similarity to another document."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.rules import Section
from tasks.filter.semantic.config import SemanticConfig


class SemanticRules(Section):
    """Removes documents that say the same as another, by their embeddings (SemDeDup: Abbas et al. 2023)."""

    measure: SemanticConfig = Field(description="how documents are embedded and clustered")
    max_similarity: float | None = Field(
        0.95,
        ge=0,
        le=1,
        description="maximum cosine to a preferred document of the cluster, 1 − ε in the paper. The right value "
        "differs from model to model, so look at examples",
    )
