"""What is measured, and what is decided over it. Only `measure`, `form` and `repair` cost time to change.

Each group of rules is optional: null switches it off, and what only it needs is not measured.
"""

from __future__ import annotations

from pydantic import Field

from tasks.filter.contamination.rules import ContaminationRules
from tasks.filter.form.config import FormConfig
from tasks.filter.form.rules import C4Rules, FineWebRules, GopherQualityRules, GopherRepetitionRules
from tasks.filter.language.rules import LanguageRules
from tasks.filter.perplexity.rules import PerplexityRules
from tasks.filter.pii.rules import PiiRules
from tasks.filter.quality.rules import QualityRules
from tasks.filter.repair.config import RepairConfig
from tasks.filter.rules import Section
from tasks.filter.toxicity.rules import ToxicityRules
from tasks.stage.config import StageConfig


class FilterConfig(StageConfig):
    """Signals, and the rules over them in the order in which they are tried."""

    repair: RepairConfig | None = Field(None, description="mend the text before anything is measured; null: as it came")
    form: FormConfig = Field(default_factory=FormConfig, description="how form is measured, for the next four groups")
    language: LanguageRules = Field(default_factory=LanguageRules, description="languages kept")
    gopher_quality: GopherQualityRules | None = Field(
        default_factory=GopherQualityRules, description="form of the text (Rae et al. 2021, appendix A.1.1)"
    )
    gopher_repetition: GopherRepetitionRules | None = Field(
        default_factory=GopherRepetitionRules, description="repeated parts (Rae et al. 2021, table A1)"
    )
    c4: C4Rules | None = Field(default_factory=C4Rules, description="form of the lines (Raffel et al. 2020, 2.2)")
    fineweb: FineWebRules | None = Field(
        default_factory=FineWebRules, description="form of the lines (Penedo et al. 2024, 3.6)"
    )
    quality: QualityRules | None = Field(None, description="a classifier trained on text that you trust")
    perplexity: PerplexityRules | None = Field(None, description="an n-gram model trained on text that you trust")
    toxicity: ToxicityRules | None = Field(default_factory=ToxicityRules, description="abusive language")
    pii: PiiRules = Field(default_factory=PiiRules, description="personal data")
    contamination: ContaminationRules = Field(
        default_factory=ContaminationRules, description="benchmark questions in the training text"
    )
    max_quarantined_share: float = Field(
        0.05, ge=0, le=1, description="of documents that could not be measured; more ends the run"
    )
    max_removed_share_per_source: float = Field(
        1.0, ge=0, le=1, description="of a source's documents; more ends the run. 1: a language may take a whole source"
    )

    def named_sources(self) -> dict[str, list[str]]:
        """The sources that are named somewhere in this config, by the path of the field."""
        return {
            f"{field}.{path}": names
            for field, section in self
            if isinstance(section, Section)
            for path, names in section.named_sources().items()
        }
