"""Semantic duplicates as a filter family."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from tasks.checks.extras import need
from tasks.children.devices import check_device_here
from tasks.filter.family import Family, measuring_half
from tasks.filter.rules import NamedBound, Rule, Section
from tasks.filter.semantic.config import SemanticConfig
from tasks.filter.semantic.stage import embeddings, fingerprints, semantic_signals
from tasks.stage.runtime import Runtime


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


def _rules(semantic: SemanticRules | None) -> Iterator[Rule]:
    if semantic is not None and semantic.max_similarity is not None:
        threshold = float(semantic.max_similarity)
        yield NamedBound("semantic.max_similarity", "semantic_duplicate", "max", threshold, remark="semantic_of")


def _check_here(semantic: SemanticRules | None, runtime: Runtime) -> None:
    if semantic is not None:
        need("models", "filter.semantic")
        fingerprints(semantic.measure.model.encoder)
        check_device_here(runtime)


FAMILY = Family(("semantic",), semantic_signals, measuring_half, _rules, model=embeddings, check_here=_check_here)
