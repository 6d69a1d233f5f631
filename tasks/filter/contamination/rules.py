"""How much a text may share with a benchmark."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.contamination.config import ContaminationConfig
from tasks.filter.rules import Section


class ContaminationRules(Section):
    """n-grams of the benchmarks in the training text (Brown et al. 2020, appendix C)."""

    measure: ContaminationConfig = Field(
        default_factory=ContaminationConfig, description="how contamination is measured"
    )
    max_ngrams: int | None = Field(
        0,
        ge=0,
        description="n-grams that a document may share with a benchmark; null removes nothing, and evaluation then "
        "scores clean and contaminated questions apart",
    )
