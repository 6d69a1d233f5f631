"""The table of signals by language, and the thresholds that it suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.documents import Document, shard_name, write_documents
from storage.shards.lines import read_json_lines
from tasks.filter import FilterConfig, filter_documents
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.filter.test_filter import FRENCH, GOOD, RULES, questions

ENGLISH = [f"{GOOD} {'The boat is here. ' * n}" for n in range(20)]
OTHER = [f"{FRENCH} {'Le bateau est ici. ' * (3 * n)}" for n in range(20)]
MEASURES = {"min_documents": 10, "sample": 100, "tail": 0.2}


def run(folder: Path, texts: list[str], **config: Any) -> Output:
    for number in range(2):
        documents = [Document.new(text, "a") for text in texts[number::2]]
        write_documents(folder / "in" / shard_name(number), documents)
    out = Output.at(folder, stage="filter", runtime=runtime_of(workers=1))
    chosen = FilterConfig.model_validate({**RULES, "gopher_repetition": None, **config})
    filter_documents.function(chosen, Artifact.at(folder / "in"), questions(folder / "benchmarks"), out)
    return out


def test_thresholds_are_carried_over_by_their_quantile(tmp_path: Path) -> None:
    rules = {"min_words": 70, "min_stop_words": 2}
    out = run(tmp_path / "a", [*ENGLISH, *OTHER], gopher_quality=rules, measures=MEASURES)
    lines = list(read_json_lines(out.path / "measures" / "thresholds.jsonl"))
    assert {line["language"] for line in lines} == {"en", "fr"}
    words = {line["language"]: line for line in lines if line["rule"] == "gopher_quality.min_words"}
    lengths = {"en": [len(t.split()) for t in ENGLISH], "fr": [len(t.split()) for t in OTHER]}
    share = float(np.mean(np.array(lengths["en"]) < 70))
    assert 0 < share < 1
    for language, found in lengths.items():
        line = words[language]
        assert line["threshold"] == 70
        assert line["removes_in_reference"] == pytest.approx(share)
        assert line["removes"] == pytest.approx(np.mean(np.array(found) < 70))
        assert line["same_quantile_removes"] == pytest.approx(share), "twenty different lengths each"
        assert line["same_quantile"] == sorted(found)[round(share * 20)]
        assert (line["tail"], line["tail_removes"]) == (sorted(found)[4], pytest.approx(0.2))
    suggested = yaml.safe_load((out.path / "measures" / "thresholds.yaml").read_text())
    assert list(suggested) == ["fr"]
    assert suggested["fr"]["gopher_quality"]["min_words"] == words["fr"]["same_quantile"]
    ready = {"languages": suggested, "language": {"allowed": ["en", "fr"]}, "gopher_repetition": None}
    assert (
        FilterConfig.model_validate(ready).languages["fr"].gopher_quality["min_words"]
        == sorted(lengths["fr"])[round(share * 20)]
    )
    stop_words = next(
        line for line in lines if (line["language"], line["rule"]) == ("fr", "gopher_quality.min_stop_words")
    )
    assert stop_words["removes"] == 1, "English stop words remove all French"
    assert stop_words["same_quantile_removes"] == 0


def test_signals_are_told_by_language_whatever_the_order(tmp_path: Path) -> None:
    rare = "Der Fluss beginnt in den Hügeln und fließt zum Meer, und die Menschen leben an seinen Ufern."
    texts = [*ENGLISH, *OTHER, rare, "", "1 2 3"]
    out = run(tmp_path / "a", texts, measures=MEASURES)
    again = run(tmp_path / "b", texts[::-1], measures=MEASURES)
    for name in ("signals.jsonl", "thresholds.jsonl", "thresholds.yaml"):
        assert (out.path / "measures" / name).read_bytes() == (again.path / "measures" / name).read_bytes()
    lines = list(read_json_lines(out.path / "measures" / "signals.jsonl"))
    (words,) = (line for line in lines if (line["language"], line["signal"]) == ("en", "words"))
    counts = [len(text.split()) for text in ENGLISH]
    assert (words["documents"], words["measured"], words["q0.5"]) == (20, 20, np.median(counts))
    assert words["mean"] == pytest.approx(np.mean(counts))
    assert {line["language"] for line in lines} == {"en", "fr"}, "of German there is one document"
    assert out.counts["measured_languages"] == 2


def test_a_reference_that_is_hardly_there_and_languages_that_are_not_measured_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Only 0 documents are in de"):
        run(tmp_path / "a", ENGLISH, measures=MEASURES | {"reference": "de"})
    out = run(tmp_path / "b", ENGLISH)
    assert not (out.path / "measures").exists()
