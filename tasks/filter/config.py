"""The filter's config: what is measured, and the thresholds. Only changes of `measure`, `form` and `repair` are slow.

Null switches an optional group of rules off. Signals that no other group needs are then not measured.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from tasks.filter.code.family import CodeRules
from tasks.filter.contamination.family import ContaminationRules
from tasks.filter.form.config import FormConfig
from tasks.filter.form.languages.thresholds import GROUPS, LanguageThresholds
from tasks.filter.form.languages.unspaced import ready
from tasks.filter.form.rules import C4Rules, FineWebRules, GopherQualityRules, GopherRepetitionRules
from tasks.filter.language.family import LanguageRules
from tasks.filter.lists.family import ListsRules
from tasks.filter.mathematics.family import MathematicsRules
from tasks.filter.pairs.config import ByChoice, PairRules
from tasks.filter.perplexity.family import PerplexityRules
from tasks.filter.pii.family import PiiRules
from tasks.filter.pii_metadata.fields import Fields
from tasks.filter.presets import Preset, expanded, laid_over
from tasks.filter.quality.family import QualityRules
from tasks.filter.repair.text import RepairConfig
from tasks.filter.rules import Section
from tasks.filter.semantic.family import SemanticRules
from tasks.filter.signal_statistics.table import MeasuresConfig
from tasks.filter.signals.family import NamedSignals
from tasks.filter.templates.family import TemplatesRules
from tasks.filter.toxicity.family import ToxicityRules
from tasks.stage.config import StageConfig


def _plain(section: Any) -> Any:
    """A section as a mapping of the fields that were set in it."""
    return section.model_dump(exclude_unset=True) if isinstance(section, BaseModel) else section


class FilterConfig(StageConfig):
    """Signals and the rules over them. Rules are tried in the order of the table in `families.py`."""

    preset: Preset | None = Field(
        None,
        description="a named set of rules, which fills in `form`, `gopher_quality`, `gopher_repetition`, `c4`, "
        "`fineweb` and, if the preset sets them, `language` and `toxicity`. `web` is all of ours, for web pages. "
        "`clean` is none of them, for books, documentation and wikis. The others are those of data sets. A profile "
        "that extends no other and reads only files is `clean`. Keys beside it override it. Settings of these groups "
        "in the profiles that this one extends are dropped",
    )
    repair: RepairConfig | None = Field(
        None, description="repairs of the text before anything is measured, or null for none"
    )
    form: FormConfig = Field(
        default_factory=FormConfig, description="how the form of texts is measured, for `gopher_*`, `c4` and `fineweb`"
    )
    language: LanguageRules | None = Field(default_factory=LanguageRules, description="languages to keep")
    languages: dict[str, LanguageThresholds] = Field(
        {},
        description="thresholds for documents in a language, as identified, in place of the usual ones, such as "
        "{de: {gopher_quality: {max_mean_word_length: 15}}}. Chinese, Japanese, Thai, Lao, Khmer and Burmese have "
        "built-in thresholds, except with `form.as_datatrove` or `form.spacy`. A threshold set here overrides them",
    )
    gopher_quality: GopherQualityRules | None = Field(
        default_factory=GopherQualityRules, description="Gopher's quality rules (Rae et al. 2021, appendix A.1.1)"
    )
    gopher_repetition: GopherRepetitionRules | None = Field(
        default_factory=GopherRepetitionRules, description="Gopher's repetition rules (Rae et al. 2021, table A1)"
    )
    c4: C4Rules | None = Field(default_factory=C4Rules, description="C4's page rules (Raffel et al. 2020, section 2.2)")
    fineweb: FineWebRules | None = Field(
        default_factory=FineWebRules, description="FineWeb's own rules (Penedo et al. 2024, section 3.6)"
    )
    lists: ListsRules | None = Field(None, description="hosts, addresses and words that you list")
    code: CodeRules | None = Field(None, description="source code, by the rules of The Stack and StarCoder 2")
    mathematics: MathematicsRules | None = Field(
        None, description="LaTeX formulas, and the rules that don't apply to documents with them"
    )
    templates: TemplatesRules | None = Field(None, description="text that a host fills into templates")
    quality: QualityRules | None = Field(None, description="quality classifier, trained on sources that you trust")
    perplexity: PerplexityRules | None = Field(
        None, description="n-gram language model, trained on sources that you trust"
    )
    toxicity: ToxicityRules | None = Field(default_factory=ToxicityRules, description="abusive language")
    pii: PiiRules | None = Field(default_factory=PiiRules, description="personal data")
    pii_metadata: Fields = Field(
        "all",
        description="metadata fields that are searched for personal data, with the actions of `pii`, by name or path "
        "(`meta.url`, `tags`), or all for every text, [] for none",
    )
    contamination: ContaminationRules | None = Field(
        default_factory=ContaminationRules, description="overlap of the training text with benchmark questions"
    )
    semantic: SemanticRules | None = Field(
        None, description="documents that say the same as another, by their embeddings, or null to keep them"
    )
    pairs: list[ByChoice] = Field(
        [],
        exclude_if=operator.not_,
        description="groups whose rules instruction and preference pairs must pass too, besides `pii`. toxicity judges "
        "answers, but no rejected ones, so that a model can learn from these",
    )
    signals: NamedSignals = Field({}, description="your own signals, by name, each with its bounds")
    measured_last: list[Literal["pii", "pii_metadata"]] = Field(
        ["pii", "pii_metadata"],
        description="signals measured only for the documents that pass all other rules. Their rules are tried last. "
        "[] measures every signal of every document, which keeps the same documents and takes longer",
    )
    measures: MeasuresConfig | None = Field(
        None, description="a table of all signals by language with the thresholds it suggests, or null for none"
    )
    keep_removed: bool = Field(
        True, description="keep the removed documents in the artifact's folder removed/, which only its owner can read"
    )
    max_quarantined_share: float = Field(
        0.05, ge=0, le=1, description="maximum share of documents that can't be measured. A larger share ends the run"
    )
    max_removed_share_per_source: float = Field(
        1.0,
        ge=0,
        le=1,
        description="maximum share of a source's documents to remove. A larger share ends the run. With 1 a whole "
        "source may be lost, such as one in another language",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_what_is_ready(cls, data: Any) -> Any:
        """Fill in the groups of a preset, and the thresholds of languages that are written without spaces."""
        if not isinstance(data, Mapping):
            return data
        section = {name: _plain(value) for name, value in data.items()}
        preset = section.get("preset")
        if isinstance(preset, str):
            section = expanded(preset, section)
        own = ready(section)
        return laid_over(own, section) if own or isinstance(preset, str) else data

    @model_validator(mode="after")
    def _bounds_leave_something(self) -> Self:
        """Refuse a minimum above its maximum, which would remove every document."""
        crossed = [
            f"{group}.{name} is {least} and {group}.{most} is {getattr(rules, most)}"
            for group, rules in self
            if isinstance(rules, StageConfig)
            for name, least in rules
            if name.startswith("min_") and least is not None
            if getattr(rules, most := f"max_{name.removeprefix('min_')}", None) is not None
            if least > getattr(rules, most)
        ]
        if crossed:
            raise ValueError(f"{'; '.join(crossed)}: no document can pass. Lower the minimum or raise the maximum")
        return self

    @model_validator(mode="after")
    def _languages_change_what_is_on(self) -> Self:
        for language, own in self.languages.items():
            for group in GROUPS:
                if getattr(own, group) and getattr(self, group) is None:
                    raise ValueError(f"languages.{language}.{group} has thresholds, but {group} is switched off")
        apart = {*self.languages, *self.form.stop_words_of, *(self.language.scores if self.language else ())}
        for language in sorted(apart - set(self.language.allowed if self.language else ())):
            what = "language.allowed leaves it out" if self.language else "no language is identified"
            raise ValueError(f"{language} has thresholds or stop words of its own, but {what}")
        return self

    @model_validator(mode="after")
    def _pairs_pass_what_is_on(self) -> Self:
        for name in self.pairs:
            if getattr(self, name) is None:
                raise ValueError(f"pairs names {name}, which is switched off")
        if "toxicity" in self.pairs and self.toxicity and self.toxicity.measure.model.kind == "trained":
            raise ValueError("pairs names toxicity, whose classifier is trained on documents: choose another kind")
        return self

    @property
    def texts(self) -> FilterConfig:
        """The config of `filter`: what pairs must pass changes nothing there."""
        return self.model_copy(update={"pairs": []})

    @property
    def pair_rules(self) -> PiiRules | PairRules | None:
        """The config of `pairs`."""
        if not self.pairs:
            return self.pii
        return PairRules(pii=self.pii, **{name: getattr(self, name) for name in self.pairs})

    def named_sources(self) -> dict[str, list[str]]:
        """The sources named anywhere in this config, by the path of the field."""
        return {
            f"{field}.{path}": names
            for field, section in self
            if isinstance(section, Section)
            for path, names in section.named_sources().items()
        }
