"""The thresholds of the four form filters, in the order in which datatrove 0.10 applies them.

A field `min_SIGNAL` or `max_SIGNAL` bounds that signal, and null switches the rule off. A document exactly at the bound
passes: all four filters remove by a strict `<` or `>`.
"""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig

_A1 = "Gopher, Rae et al. 2021, appendix A.1.1"
_TABLE = "Gopher, Rae et al. 2021, table A1"
_C4 = "C4, Raffel et al. 2020, section 2.2"
_FINEWEB = "FineWeb, Penedo et al. 2024, section 3.6"


class GopherQualityRules(StageConfig):
    """Gopher's document quality rules (Rae et al. 2021, appendix A.1.1)."""

    min_words: int | None = Field(50, ge=0, description=f"number of words, except words of only symbols ({_A1})")
    max_words: int | None = Field(100_000, ge=0, description=f"number of words, except words of only symbols ({_A1})")
    min_mean_word_length: float | None = Field(3, ge=0, description=f"mean word length in characters ({_A1})")
    max_mean_word_length: float | None = Field(10, ge=0, description=f"mean word length in characters ({_A1})")
    max_hashes_per_word: float | None = Field(0.1, ge=0, description=f"hash signs per word ({_A1})")
    max_ellipses_per_word: float | None = Field(0.1, ge=0, description=f"ellipses (... and …) per word ({_A1})")
    max_bullet_lines: float | None = Field(
        0.9, ge=0, le=1, description=f"share of lines that start with • or - ({_A1})"
    )
    max_ellipsis_lines: float | None = Field(
        0.3, ge=0, le=1, description=f"share of lines that end with ... or … ({_A1})"
    )
    min_alphabetic_words: float | None = Field(
        0.8, ge=0, le=1, description=f"share of words that contain a letter ({_A1})"
    )
    min_stop_words: int | None = Field(2, ge=0, description=f"number of distinct stop words ({_A1})")


class GopherRepetitionRules(StageConfig):
    """Gopher's repetition rules (Rae et al. 2021, table A1). Shares of characters refer to the whole text."""

    min_characters: int | None = Field(1, ge=0, description="length in characters: datatrove removes empty texts")
    max_duplicate_paragraphs: float | None = Field(
        0.3, ge=0, le=1, description=f"share of paragraphs that duplicate an earlier one ({_TABLE})"
    )
    max_duplicate_paragraph_characters: float | None = Field(
        0.2, ge=0, le=1, description=f"share of characters in duplicate paragraphs ({_TABLE})"
    )
    max_duplicate_lines: float | None = Field(
        0.3, ge=0, le=1, description=f"share of lines that duplicate an earlier one ({_TABLE})"
    )
    max_duplicate_line_characters: float | None = Field(
        0.2, ge=0, le=1, description=f"share of characters in duplicate lines ({_TABLE})"
    )
    max_top_2gram_characters: float | None = Field(
        0.2, ge=0, le=1, description=f"share of characters in the most frequent 2-gram ({_TABLE})"
    )
    max_top_3gram_characters: float | None = Field(
        0.18, ge=0, le=1, description=f"share of characters in the most frequent 3-gram ({_TABLE})"
    )
    max_top_4gram_characters: float | None = Field(
        0.16, ge=0, le=1, description=f"share of characters in the most frequent 4-gram ({_TABLE})"
    )
    max_duplicate_5gram_characters: float | None = Field(
        0.15, ge=0, le=1, description=f"share of characters in duplicate 5-grams ({_TABLE})"
    )
    max_duplicate_6gram_characters: float | None = Field(
        0.14, ge=0, le=1, description=f"share of characters in duplicate 6-grams ({_TABLE})"
    )
    max_duplicate_7gram_characters: float | None = Field(
        0.13, ge=0, le=1, description=f"share of characters in duplicate 7-grams ({_TABLE})"
    )
    max_duplicate_8gram_characters: float | None = Field(
        0.12, ge=0, le=1, description=f"share of characters in duplicate 8-grams ({_TABLE})"
    )
    max_duplicate_9gram_characters: float | None = Field(
        0.11, ge=0, le=1, description=f"share of characters in duplicate 9-grams ({_TABLE})"
    )
    max_duplicate_10gram_characters: float | None = Field(
        0.1, ge=0, le=1, description=f"share of characters in duplicate 10-grams ({_TABLE})"
    )


class C4Rules(StageConfig):
    """C4's page rules (Raffel et al. 2020, section 2.2), over the lines that its line rules keep."""

    max_c4_lorem_ipsum_lines: int | None = Field(
        0, ge=0, description=f'number of kept lines with "lorem ipsum" ({_C4})'
    )
    max_c4_curly_bracket_lines: int | None = Field(0, ge=0, description=f"number of kept lines with {{ ({_C4})")
    min_c4_sentences: int | None = Field(5, ge=0, description=f"number of sentences in the kept lines ({_C4})")
    remove_lines: bool = Field(
        False, description=f"also remove the lines that C4 drops, and blank lines, from the kept documents ({_C4})"
    )


class FineWebRules(StageConfig):
    """FineWeb's own rules (Penedo et al. 2024, section 3.6), over non-blank lines."""

    min_nonblank_lines: int | None = Field(
        1, ge=0, description="number of non-blank lines: datatrove removes texts without one"
    )
    min_punctuated_lines: float | None = Field(
        0.12, ge=0, le=1, description=f"share of lines that end in terminal punctuation ({_FINEWEB})"
    )
    max_short_lines: float | None = Field(
        0.67, ge=0, le=1, description=f"share of lines up to `form.short_line_length` ({_FINEWEB})"
    )
    max_repeated_line_characters: float | None = Field(
        0.01, ge=0, le=1, description=f"share of characters in duplicate lines ({_FINEWEB})"
    )
    max_newlines_per_word: float | None = Field(
        0.3, ge=0, description="newlines per word (datatrove's fineweb_quality_filter.py, not in the paper)"
    )
