"""FineWeb-2's file for a language (configs/deu_Latn.yml in its repository) as sections of a profile.

Its thresholds were measured on words that spaCy or another library cuts. The preset cuts at white space, which makes a
clause of a language without spaces one word. Files for such languages are therefore refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from storage.errors import ConfigError
from tasks.filter.form.languages.unspaced import UNSPACED
from tasks.stage.config import StageConfig

Share = Annotated[float, Field(ge=0, le=1)]


class LanguageFile(StageConfig):
    """The keys of a language's file."""

    dup_line_frac: Share = Field(description="largest share of duplicate lines")
    dup_n_grams: list[tuple[int, Share]] = Field(description="largest share of characters in duplicate n-grams, by n")
    top_n_grams: list[tuple[int, Share]] = Field(description="largest share of characters in the top n-gram, by n")
    language_score: Share = Field(description="smallest probability of the language")
    line_punct_thr: Share = Field(description="smallest share of lines that end in terminal punctuation")
    new_line_ratio: float = Field(ge=0, description="most newlines per word")
    min_avg_word_length: float = Field(ge=0, description="smallest mean length of words")
    max_avg_word_length: float = Field(ge=0, description="largest mean length of words")
    max_non_alpha_words_ratio: Share = Field(description="smallest share of words with a letter, despite its name")
    stopwords: list[str] = Field(min_length=1, description="stop words")


def read_language_file(path: Path) -> LanguageFile:
    """Read a language's file. Raises ConfigError, with the wrong key, for any other file."""
    try:
        return LanguageFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        wrong = str(error).splitlines()[0]
    except ValidationError as error:
        wrong = "; ".join(": ".join(filter(None, (_place(one["loc"]), one["msg"]))) for one in error.errors())
    raise ConfigError(f"{path} is not a language file of FineWeb-2: {wrong}.", "Use a file from its configs/.")


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def section(files: Mapping[str, LanguageFile]) -> dict[str, Any]:
    """The section `filter` of a profile with the thresholds and stop words of these languages, given by code. Raises
    ConfigError for a language without spaces."""
    codes = sorted(files)
    unspaced = sorted(UNSPACED.keys() & files.keys())
    if unspaced:
        raise ConfigError(
            f"FineWeb-2 cuts words of {', '.join(unspaced)} with a library for the language, and we don't.",
            "Leave it out: without a preset, a language allowed in `filter.language` has built-in thresholds.",
        )
    return {
        "preset": "fineweb2",
        "language": {"allowed": codes, "scores": {code: files[code].language_score for code in codes}},
        "form": {"stop_words_of": {code: files[code].stopwords for code in codes}},
        "languages": {code: _thresholds(files[code]) for code in codes},
    }


def _thresholds(file: LanguageFile) -> dict[str, dict[str, float | None]]:
    top = {f"max_top_{n}gram_characters": share for n, share in file.top_n_grams}
    duplicates = {f"max_duplicate_{n}gram_characters": share for n, share in file.dup_n_grams}
    return {
        "gopher_quality": {
            # 0 switches a rule of datatrove off
            "min_mean_word_length": file.min_avg_word_length or None,
            "max_mean_word_length": file.max_avg_word_length or None,
            "min_alphabetic_words": file.max_non_alpha_words_ratio or None,
        },
        "gopher_repetition": {"max_duplicate_lines": file.dup_line_frac or None, **top, **duplicates},
        "fineweb": {"min_punctuated_lines": file.line_punct_thr, "max_newlines_per_word": file.new_line_ratio},
    }
