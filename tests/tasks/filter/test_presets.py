"""Presets: what they fill in, what overrides them, and that FineWeb's filter sees what C4's leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from pydantic import ValidationError

from profiles.load import load
from storage.errors import ConfigError
from tasks.filter.config import FilterConfig
from tasks.filter.families import rules
from tasks.filter.form.c4 import keep_c4_lines
from tasks.filter.form.config import FormConfig
from tasks.filter.form.measure import FINEWEB, measure_form
from tasks.filter.presets import Preset
from tests.flows.commands.test_cli import gristmill
from tests.tasks.filter.form.test_form import CONFIGS, TEXTS
from tests.tasks.filter.test_filter import GOOD, ledger_of, run, texts_in

SENTENCE = "The river begins in the hills and flows to the sea, and that is all they have to say of it in verse {}."


def filter_of(*overrides: str, profile: str = "tiny") -> FilterConfig:
    found = load(profile, overrides).filter
    assert found is not None
    return found


@pytest.mark.parametrize("preset", get_args(Preset))
def test_a_preset_has_the_published_thresholds_whatever_its_parents_say(preset: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: tiny\nfilter: {{preset: {preset}}}\n")
    chosen = filter_of(profile=str(path))
    assert chosen.form.as_datatrove == (preset not in ("web", "clean"))
    assert chosen.gopher_quality is None or chosen.gopher_quality.min_words == 50
    assert chosen.c4 is None or chosen.c4.min_c4_sentences == 5
    assert chosen == filter_of(f"filter.preset={preset}")
    assert FilterConfig.model_validate(chosen.model_dump(mode="json")) == chosen


def test_what_stands_beside_a_preset_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "extends: tiny\nfilter: {preset: fineweb, gopher_quality: {min_words: 7}, language: {allowed: [de]}}\n"
    )
    chosen = filter_of(profile=str(path))
    assert chosen.gopher_quality is not None
    assert (chosen.gopher_quality.min_words, chosen.gopher_quality.min_stop_words) == (7, 2)
    assert chosen.language is not None
    assert (chosen.language.allowed, chosen.language.min_score) == (["de"], 0.65)
    overrides = ("filter.gopher_quality.min_words=9", "filter.preset=gopher")
    assert filter_of(*overrides) == filter_of(*reversed(overrides))
    assert filter_of("filter.preset=fineweb", "filter.c4=null").c4 is None
    kept = filter_of("filter.preset=c4", "filter.language.allowed=[de]").language
    assert kept is not None
    assert kept.allowed == ["de"], "what a preset does not fill in is kept"


def test_a_preset_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="unknown preset fineweeb: choose one of web, clean, gopher, c4, fineweb"):
        load("tiny", ["filter.preset=fineweeb"])


@given(TEXTS, CONFIGS)
def test_in_the_chain_fineweb_sees_what_c4_leaves(text: str, config: FormConfig) -> None:
    chained = config.model_copy(update={"fineweb_after_c4": True})
    (row,) = measure_form(chained, pa.array([text])).to_pylist()
    (raw,) = measure_form(config, pa.array([text])).to_pylist()
    (left,) = measure_form(config, pa.array([keep_c4_lines(text, config.c4, config.part_unspaced)])).to_pylist()
    assert {name: row[name] for name in FINEWEB} == {name: left[name] for name in FINEWEB}
    assert {name: row[name] for name in set(row) - set(FINEWEB)} == {
        name: raw[name] for name in set(row) - set(FINEWEB)
    }


def test_the_order_of_the_chain_decides(tmp_path: Path) -> None:
    # Half of the lines are of two words, which C4 drops and FineWeb would count as short
    page = "\n".join(
        f"{SENTENCE.format(number)}\n{number} Home\n{number} About\n{number} Contact" for number in range(9)
    )
    usual: dict[str, Any] = {"gopher_repetition": None, "toxicity": None, "gopher_quality": None}
    chained = run(tmp_path / "chain", [page], preset="fineweb", **usual)
    assert "Home" not in texts_in(chained)[0]
    with pytest.raises(Exception, match=r"kept none.*max_short_lines"):
        run(tmp_path / "raw", [page], fineweb={}, c4=None, **usual)


GERMAN = (
    "Der Fluss entspringt in den Hügeln und fließt durch die Ebene zum Meer. Seit die ersten Höfe gebaut wurden, leben "
    "Menschen an seinen Ufern. Die Donaudampfschifffahrtsgesellschaft und die Flussschifffahrtsverwaltungsbehörde "
    "haben ihre Verwaltungsgebäude in der Hauptstadt errichtet, wo die Wasserversorgungsunternehmen sie beliefern. "
)
BOTH = [GOOD, GERMAN]
LONG_WORDS: dict[str, Any] = {
    "gopher_quality": {"min_words": 20, "max_mean_word_length": 7},
    "c4": None,
    "toxicity": None,
}


def reasons(folder: Path, scores: dict[str, float] | None = None, **config: Any) -> list[str]:
    language = {"allowed": ["en", "de"], "scores": scores or {}}
    chosen: dict[str, Any] = {**LONG_WORDS, **config}
    out = run(folder, BOTH, language=language, **chosen)
    return sorted(verdict.reason for verdict in ledger_of(out) if verdict.verdict == "removed")


def test_a_language_has_thresholds_and_stop_words_of_its_own(tmp_path: Path) -> None:
    assert reasons(tmp_path / "usual") == ["gopher_quality.max_mean_word_length"]
    longer = {"de": {"gopher_quality": {"max_mean_word_length": 15}}}
    assert reasons(tmp_path / "longer", languages=longer) == ["gopher_quality.min_stop_words"]
    assert reasons(tmp_path / "own", languages=longer, form={"stop_words_of": {"de": ["der", "und", "die"]}}) == []
    off = {"de": {"gopher_quality": {"max_mean_word_length": None, "min_stop_words": None}}}
    assert reasons(tmp_path / "off", languages=off) == []
    assert reasons(tmp_path / "sure", {"de": 1.0}) == ["language.min_score.de"]
    few = {"de": {"gopher_quality": {"max_mean_word_length": 15, "min_stop_words": 3}}}
    assert reasons(tmp_path / "few", languages=few, form={"stop_words_of": {"de": ["der", "haben"]}}) == [
        "gopher_quality.min_stop_words.de"
    ]


FILE = """
dup_line_frac: 0.263
dup_n_grams: [[5, 0.141], [6, 0.134], [7, 0.126], [8, 0.117], [9, 0.108], [10, 0.098]]
language_score: 0.821
line_punct_thr: 0.0
max_avg_word_length: 15
max_non_alpha_words_ratio: 0.774
min_avg_word_length: 0
new_line_ratio: 0.152
stopwords: [der, und, die]
top_n_grams: [[2, 0.169], [3, 0.153], [4, 0.137]]
"""


def test_a_file_of_fineweb_2_becomes_a_section_of_a_profile(tmp_path: Path) -> None:
    (tmp_path / "deu.yml").write_text(FILE)
    done = gristmill("filter", "fineweb2", f"de={tmp_path / 'deu.yml'}")
    profile = tmp_path / "mine.yaml"
    profile.write_text("extends: tiny\n" + done.stdout)
    chosen = filter_of(profile=str(profile))
    tests = {rule.name: rule.threshold for rule in rules(chosen)}
    assert tests["gopher_quality.max_mean_word_length.de"] == 15
    assert tests["gopher_repetition.max_top_3gram_characters.de"] == 0.153
    assert tests["language.min_score.de"] == 0.821
    assert "gopher_quality.min_mean_word_length.de" not in tests, "0 is off"
    assert chosen.form.stop_words_of == {"de": ["der", "und", "die"]}
    (tmp_path / "bad.yml").write_text(FILE.replace("0.263", "3").replace("[5, 0.141]", "[5, high]"))
    told = " ".join(gristmill("filter", "fineweb2", f"de={tmp_path / 'bad.yml'}").stderr.split())
    assert "bad.yml is not a language file" in told
    assert "dup_line_frac: Input should be less than or equal to 1" in told
    assert "dup_n_grams.0.1: Input should be a valid number" in told
    assert "Write CODE=FILE" in gristmill("filter", "fineweb2", "deu.yml").stderr


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"languages": {"de": {"fineweb": {"min_words": 3}}}}, "fineweb lacks a threshold min_words"),
        ({"languages": {"en": {"c4": {"min_c4_sentences": 3}}}, "c4": None}, "c4 is switched off"),
        ({"languages": {"de": {"c4": {"min_c4_sentences": 1}}}}, "language.allowed leaves it out"),
        ({"form": {"stop_words_of": {"de": ["der"]}}}, "language.allowed leaves it out"),
        ({"form": {"stop_words_of": {"en": []}}}, "at least 1 item"),
    ],
)
def test_thresholds_that_mean_nothing_are_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        FilterConfig.model_validate(config)
