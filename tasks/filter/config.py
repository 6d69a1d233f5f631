"""What is measured, and what is decided over it. Only `signals` costs time to change."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.config import StageConfig

Action = Literal["redact", "drop", "keep"]


class SignalsConfig(StageConfig):
    """What measuring needs to know."""

    language_bytes: int = Field(2000, ge=100, description="UTF-8 bytes of a document that the language model reads")
    paragraph_characters: int = Field(
        2000, ge=100, description="toxicity is scored on pieces of this length at the most"
    )
    pii_window: int = Field(60, ge=20, description="characters around a candidate that the PII recognisers see")


class LanguageRules(StageConfig):
    """Language identification (fastText lid.176, Joulin et al. 2016)."""

    allowed: list[str] = Field(["en"], min_length=1, description="ISO 639-1 codes that are kept")
    min_score: float = Field(0.65, ge=0, le=1, description="probability of the first language (FineWeb: 0.65)")


class QualityRules(StageConfig):
    """Gopher's quality rules (Rae et al. 2021, appendix A.1.1) and C4's (Raffel et al. 2020, section 2.2)."""

    min_words: int = Field(20, ge=0, description="Gopher has 50: encyclopedia leads are shorter")
    max_words: int = Field(100_000, ge=1, description="Gopher: 100,000")
    min_mean_word_length: float = Field(3.0, description="characters; Gopher: 3")
    max_mean_word_length: float = Field(10.0, description="characters; Gopher: 10")
    max_symbol_ratio: float = Field(0.1, description="# and … a word; Gopher: 0.1")
    max_bullet_lines: float = Field(0.9, description="share of lines that start with a bullet; Gopher: 0.9")
    max_ellipsis_lines: float = Field(0.3, description="share of lines that end with an ellipsis; Gopher: 0.3")
    min_alphabetic_words: float = Field(0.8, description="share of words with a letter; Gopher: 0.8")
    min_stop_words: int = Field(2, description="of the, be, to, of, and, that, have, with; Gopher: 2")
    max_curly_brackets: float = Field(0.002, description="share of characters; C4 allows none at all")
    allow_lorem_ipsum: bool = Field(False, description="C4 removes pages with this phrase")


class RepetitionRules(StageConfig):
    """Gopher's repetition rules (Rae et al. 2021, table A1), those over lines, paragraphs and top n-grams."""

    max_duplicate_lines: float = Field(0.3, description="share of lines that repeat an earlier one")
    max_duplicate_paragraphs: float = Field(0.3, description="share of paragraphs that repeat an earlier one")
    max_top_2gram: float = Field(0.2, description="share of characters in the commonest 2-gram")
    max_top_3gram: float = Field(0.18, description="share of characters in the commonest 3-gram")
    max_top_4gram: float = Field(0.16, description="share of characters in the commonest 4-gram")


class ToxicityRules(StageConfig):
    """A linear model over words (`alt-profanity-check`): it knows insults, not implicit hate."""

    max_score: float = Field(0.8, ge=0, le=1, description="mean of the paragraphs' scores, weighted by length")


class PiiRules(StageConfig):
    """What is done with each kind of finding of Presidio's pattern recognisers."""

    min_score: float = Field(0.4, ge=0, le=1, description="Presidio's confidence")
    email_address: Action = Field("redact", description="e-mail addresses")
    phone_number: Action = Field("redact", description="telephone numbers")
    ip_address: Action = Field("redact", description="IP addresses")
    credit_card: Action = Field("redact", description="card numbers with a valid checksum")
    iban_code: Action = Field("redact", description="bank accounts with a valid checksum")
    us_ssn: Action = Field("redact", description="US social security numbers")


class FilterConfig(StageConfig):
    """Signals, and the rules over them in the order in which they are tried."""

    signals: SignalsConfig = Field(default_factory=SignalsConfig, description="the measuring half: costly to change")
    language: LanguageRules = Field(default_factory=LanguageRules, description="languages kept")
    quality: QualityRules = Field(default_factory=QualityRules, description="form of the text")
    repetition: RepetitionRules = Field(default_factory=RepetitionRules, description="repeated parts")
    toxicity: ToxicityRules = Field(default_factory=ToxicityRules, description="abusive language")
    pii: PiiRules = Field(default_factory=PiiRules, description="personal data")
