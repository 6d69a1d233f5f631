"""Semantic duplicates as a filter family."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.checks.extras import need
from tasks.children.devices import check_device_here
from tasks.filter.family import Family, measuring_half
from tasks.filter.rules import NamedBound, Rule
from tasks.filter.semantic.rules import SemanticRules
from tasks.filter.semantic.source import fingerprints
from tasks.filter.semantic.stage import embeddings, semantic_signals
from tasks.stage.runtime import Runtime


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
