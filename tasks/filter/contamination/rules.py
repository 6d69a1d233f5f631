"""The threshold on what a text shares with benchmarks."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.contamination.config import ContaminationConfig
from tasks.filter.rules import Section


class ContaminationRules(Section):
    """The limit on n-grams of the benchmarks in the training text (Brown et al. 2020, appendix C)."""

    measure: ContaminationConfig = Field(
        default_factory=ContaminationConfig, description="how contamination is measured"
    )
    max_ngrams: int | None = Field(
        0,
        ge=0,
        description="maximum n-grams that a document may share with benchmarks. Null removes nothing, and evaluation "
        "then scores clean and contaminated questions separately",
    )
