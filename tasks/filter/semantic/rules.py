"""How similar to another document a document may be."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.rules import Section
from tasks.filter.semantic.config import SemanticConfig


class SemanticRules(Section):
    """Documents that say the same as another, by their embeddings (SemDeDup: Abbas et al. 2023)."""

    measure: SemanticConfig = Field(description="how documents are embedded and clustered")
    max_similarity: float | None = Field(
        0.95,
        ge=0,
        le=1,
        description="highest cosine to a document of the cluster that is preferred, 1 − ε in the paper. What is right "
        "differs from model to model: look at it",
    )
