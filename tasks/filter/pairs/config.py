"""What pairs must pass: the sections of the filter's config that apply to them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.filter.contamination.family import ContaminationRules
from tasks.filter.pii.family import PiiRules
from tasks.filter.toxicity.family import ToxicityRules
from tasks.stage.config import StageConfig

ByChoice = Literal["contamination", "toxicity"]


class PairRules(StageConfig):
    """Rules for pairs. By default only those for personal data apply, and the stage's config is a `PiiRules`."""

    pii: PiiRules | None = Field(None, description="personal data")
    contamination: ContaminationRules | None = Field(None, description="overlap with benchmark questions")
    toxicity: ToxicityRules | None = Field(None, description="abusive language in answers")

    @classmethod
    def of(cls, config: PiiRules | PairRules) -> PairRules:
        """The same rules, with a section for each family."""
        return config if isinstance(config, PairRules) else cls(pii=config)
