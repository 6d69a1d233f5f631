"""What is measured, and what is decided over it. Only `measure`, `form` and `repair` cost time to change.

Each group of rules is optional: null switches it off, and what only it needs is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from tasks.filter.contamination.config import ContaminationConfig
from tasks.filter.form.config import FormConfig
from tasks.filter.form.rules import C4Rules, FineWebRules, GopherQualityRules, GopherRepetitionRules
from tasks.filter.language.config import LanguageConfig
from tasks.filter.perplexity.config import PerplexityConfig
from tasks.filter.pii.config import Action, NameEntity, PatternEntity, PiiConfig
from tasks.filter.pii.salt import HIDDEN, REMEDY, SaltSource, without_secret
from tasks.filter.quality.config import QualityConfig
from tasks.filter.repair.config import RepairConfig
from tasks.filter.toxicity.config import ToxicityConfig
from tasks.stage.config import StageConfig


class LanguageRules(StageConfig):
    """Language identification by fastText's lid.176 (Joulin et al. 2016)."""

    measure: LanguageConfig = Field(default_factory=LanguageConfig, description="the measuring half")
    allowed: list[str] = Field(["en"], min_length=1, description="codes that are kept, ISO 639-1 where there is one")
    min_score: float | None = Field(0.65, ge=0, le=1, description="probability of the first language (FineWeb: 0.65)")
    min_margin: float | None = Field(None, ge=0, le=1, description="probability of the first less that of the second")
    min_share: float | None = Field(
        None, ge=0, le=1, description="share of the letters that stand in pieces of the first language"
    )


class QualityRules(StageConfig):
    """A fastText classifier of good against ordinary text, trained by the pipeline itself."""

    measure: QualityConfig = Field(description="the measuring half: what it is trained on")
    min_score: float | None = Field(0.1, ge=0, le=1, description="probability of being good text")


class PerplexityRules(StageConfig):
    """Perplexity under an n-gram model of trusted text (CCNet: Wenzek et al. 2020)."""

    measure: PerplexityConfig = Field(default_factory=PerplexityConfig, description="the measuring half")
    buckets: list[Literal["head", "middle", "tail"]] = Field(
        ["head", "middle", "tail"], min_length=1, description="terciles of perplexity that are kept"
    )
    max_percentile: float | None = Field(None, ge=0, le=100, description="of perplexity, in this corpus")


class ToxicityRules(StageConfig):
    """Scores of a classifier; a word list alone never removes a document."""

    measure: ToxicityConfig = Field(default_factory=ToxicityConfig, description="the measuring half: which classifier")
    max_score: float | None = Field(
        0.8, ge=0, le=1, description="mean of the paragraphs' scores, weighted by their length"
    )
    max_paragraph: float | None = Field(None, ge=0, le=1, description="the highest score of a paragraph")


# The names of places and peoples are what half of all sentences are about; a person's name has a stand-in
USUAL_ACTIONS: dict[str, Action] = {
    "PERSON": "surrogate", "LOCATION": "keep", "NRP": "keep", "ORGANIZATION": "keep",
}  # fmt: skip


class PiiRules(StageConfig):
    """What is done with personal data, by kind: redact (a placeholder), surrogate (a stand-in), drop, keep."""

    measure: PiiConfig = Field(default_factory=PiiConfig, description="the measuring half: what is looked for")
    confidence: float = Field(0.4, ge=0, le=1, description="Presidio's score from which a finding counts")
    max_findings: int | None = Field(None, ge=0, description="a document with more goes: it is a directory")
    action: Action = Field(
        "redact",
        description="for every kind that `actions` does not name, but persons (surrogate), places, peoples and "
        "organizations (keep)",
    )
    actions: dict[PatternEntity | NameEntity, Action] = Field(
        {},
        description="by Presidio's name, such as {EMAIL_ADDRESS: surrogate}; placeholders where no values are reserved",
    )
    salt: SaltSource | None = Field(
        None,
        description="where the secret that surrogates depend on is: {env: NAME} or {file: PATH}. Without one, anyone "
        "can compute the surrogate of a value that they guess",
    )

    @model_validator(mode="before")
    @classmethod
    def _hide_salt(cls, data: Any) -> Any:
        """Errors quote their input, so a salt in clear is taken out before anything is checked."""
        if isinstance(data, Mapping) and "salt" in data:
            return {**data, "salt": without_secret(data["salt"])}
        return data

    @field_validator("salt", mode="before")
    @classmethod
    def _refuse_salt_in_clear(cls, value: Any) -> Any:
        if value == HIDDEN:
            raise ValueError(REMEDY)
        return value

    @field_serializer("salt", when_used="json")
    def _spell_no_salt(self, salt: SaltSource | None) -> dict[str, str] | str:
        """No salt is spelled as an empty string in keys, as it was when a salt was a string."""
        return "" if salt is None else salt.model_dump(exclude_none=True)

    def action_of(self, entity: str) -> Action:
        """What is done with findings of a kind."""
        named = {str(name): action for name, action in self.actions.items()}
        return (USUAL_ACTIONS | named).get(entity, self.action)

    def kinds(self, *actions: Action) -> list[str]:
        """The kinds of findings with which one of these is done."""
        return [entity for entity in self.measure.entities if self.action_of(entity) in actions]


class ContaminationRules(StageConfig):
    """n-grams of the benchmarks in the training text (Brown et al. 2020, appendix C)."""

    measure: ContaminationConfig = Field(default_factory=ContaminationConfig, description="the measuring half")
    max_ngrams: int | None = Field(
        0, ge=0, description="shared with a benchmark; null removes nothing, and scores tell clean from dirty questions"
    )


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
        named: dict[str, list[str]] = {}
        if self.quality is not None:
            named["quality.measure.model.positive"] = self.quality.measure.model.positive
            named["quality.measure.model.negative"] = self.quality.measure.model.negative
        if self.perplexity is not None:
            named["perplexity.measure.model.sources"] = self.perplexity.measure.model.sources
        if self.toxicity is not None and self.toxicity.measure.model.kind == "trained":
            named["toxicity.measure.model.clean_sources"] = self.toxicity.measure.model.clean_sources
        return named
