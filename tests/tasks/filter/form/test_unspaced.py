"""Languages that are written without spaces: their own thresholds, and real text in them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks.filter.config import FilterConfig
from tasks.filter.decide import KEPT, decide
from tasks.filter.form.family import FAMILY
from tasks.filter.form.languages.unspaced import UNSPACED
from tasks.filter.form.measure import measure_form
from tasks.filter.rules import Rule

DECLARATION = {"zh": "cmn_hans", "yue": "cmn_hant", "ja": "jpn", "th": "tha", "lo": "lao", "km": "khm", "my": "mya"}


def config_of(code: str, **section: Any) -> FilterConfig:
    return FilterConfig.model_validate({"language": {"allowed": ["en", code]}} | section)


def rules_of(config: FilterConfig) -> dict[str, Rule]:
    return {rule.name: rule for rule in FAMILY.rules(*FAMILY.sections(config))}


def verdict(config: FilterConfig, language: str, text: str) -> str:
    rules = list(rules_of(config).values())
    measured = measure_form(config.form, pa.array([text]))
    columns = dict(zip(measured.schema.names, measured.columns, strict=True))
    decisions = decide(pa.record_batch(columns | {"language": pa.array([language])}), rules)
    (rule,) = decisions.rule.tolist()
    return "kept" if rule == KEPT else rules[rule].name


@pytest.mark.parametrize("language", DECLARATION)
def test_a_declaration_is_kept_and_a_sentence_again_and_again_is_not(
    language: str, shared_data: Callable[[str], Path]
) -> None:
    with zipfile.ZipFile(shared_data("filters/langid_udhr") / "udhr2.zip") as archive:
        text = archive.read(f"udhr2/{DECLARATION[language]}.txt").decode()
    config = config_of(language)
    by_white_space = config.model_copy(update={"form": config.form.model_copy(update={"as_datatrove": True})})
    assert verdict(config, language, text) == "kept"
    assert verdict(by_white_space, language, text) != "kept"
    assert verdict(config, "en", text) != "kept", "the thresholds are the language's own"
    sentence = text[400:500].replace("\n", " ")
    assert verdict(config, language, sentence * 10) != "kept"


def test_rules_that_count_words_count_letters_for_each() -> None:
    rules = rules_of(config_of("zh"))
    assert rules["gopher_quality.min_words.zh"].threshold == 85
    assert rules["gopher_quality.min_words"].threshold == 50
    assert "gopher_quality.min_mean_word_length.zh" not in rules
    assert rules["gopher_quality.min_stop_words.zh"].threshold == 2


def test_what_a_profile_says_has_the_last_word() -> None:
    own = {"zh": {"gopher_quality": {"min_words": 300, "max_mean_word_length": None}}}
    config = config_of("zh", languages=own, form={"stop_words_of": {"zh": ["的"]}}, c4=None)
    rules = rules_of(config)
    assert rules["gopher_quality.min_words.zh"].threshold == 300
    assert "gopher_quality.max_mean_word_length.zh" not in rules
    assert config.form.stop_words_of == {"zh": ["的"]}
    assert not config.languages["zh"].c4, "a group that is off has no thresholds"
    assert FilterConfig.model_validate(config.model_dump()) == config


def test_others_get_nothing_and_datatroves_counts_neither() -> None:
    assert config_of("de").languages == {}
    assert config_of("zh", form={"as_datatrove": True}).languages == {}
    assert config_of("zh", preset="fineweb2").form.stop_words_of == {}


@pytest.mark.parametrize("section", [{"language": 3}, {"language": {"allowed": [["zh"]]}}, {"languages": 3}])
def test_a_malformed_section_is_the_users_error(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config_of("zh", **section)


def test_every_language_has_thresholds_that_are_some() -> None:
    for language in UNSPACED:
        assert config_of(language).languages[language].gopher_repetition["max_duplicate_10gram_characters"]
