"""A classifier trained by the pipeline: repeatable bit for bit, held-out figures, refusals, fastText's own scores."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import ConfigError, SourceError
from storage.shards.documents import Document, shard_name, write_documents
from tasks.filter.fasttext_model.calibration import (
    Sigmoid,
    area_under_curve,
    fit_sigmoid,
    threshold_for,
    threshold_table,
)
from tasks.filter.fasttext_model.scorer import MODEL, load_scorer
from tasks.filter.fasttext_model.tokens import tokens
from tasks.filter.quality.measure import QualityModelConfig, fingerprints, measure_quality, quality_model
from tasks.stage.output import Output
from tests.runtimes import runtime_of

GOOD = [
    "river",
    "hill",
    "town",
    "history",
    "century",
    "people",
    "water",
    "bridge",
    "castle",
    "mountain",
    "forest",
    "valley",
]
POOR = ["click", "buy", "cheap", "offer", "login", "cookie", "subscribe", "discount", "banner", "checkout", "coupon"]
SMALL = {"positive": ["good"], "training": {"buckets": 10_000}}


def documents(size: int = 400) -> list[Document]:
    """Two sources of texts, which share half of their words."""
    words = random.Random(1)
    both = ["the", "of", "and", "to", "in", "a", "is", "for", "with", "on"]
    texts = [" ".join(words.choices((GOOD, POOR)[n % 2] + both, k=30)) + "." for n in range(size)]
    return [Document.new(text, ("good", "crawl")[n % 2]) for n, text in enumerate(texts)]


def shards(folder: Path, rows: Sequence[Document], number: int = 3) -> Artifact:
    for shard in range(number):
        write_documents(folder / shard_name(shard), rows[shard::number])
    return Artifact.at(folder)


def train(folder: Path, corpus: Artifact, **config: Any) -> Output:
    out = Output.at(folder, stage="quality_model", runtime=runtime_of(workers=1))
    quality_model.function(QualityModelConfig.model_validate(SMALL | config), corpus, out)
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("quality")
    return train(folder / "model", shards(folder / "in", documents()))


def test_good_text_scores_above_ordinary_text_and_figures_are_held_out(trained: Output) -> None:
    texts = ["The castle by the river.", "Buy cheap: click the banner!", "", "?!"]
    good, poor, *silent = measure_quality(trained.path, pa.array(texts, pa.string()))["quality_score"].to_pylist()
    assert 0 <= poor < 0.2 < 0.8 < good <= 1
    assert silent == [None, None]
    assert trained.counts["auc"] > 0.99
    assert trained.counts["accuracy"] > 0.95
    sizes = trained.counts["examples"]
    assert sum(count for part in sizes.values() for count in part.values()) == 400
    assert sum(sizes["trained"].values()) == pytest.approx(320, abs=40)
    table = trained.counts["tables"]["Threshold and expected precision"]
    assert [row["threshold"] for row in table] == sorted(row["threshold"] for row in table)
    assert measure_quality(trained.path, pa.array([], pa.string())).num_rows == 0


def test_a_learning_rate_that_was_halved_stands_in_the_counts_and_in_a_table(trained: Output, tmp_path: Path) -> None:
    assert (trained.counts["attempts"], trained.counts["learning_rate"]) == (1, 0.5)
    words = random.Random(1)  # one word again and again under labels by chance: the weights overflow
    texts = [" ".join([words.choice(["river", "hill"])] * 400) + " " * number for number in range(500)]
    rows = [Document.new(text, words.choice(["good", "crawl"])) for text in texts]
    out = train(tmp_path / "model", shards(tmp_path / "in", rows), training={"learning_rate": 2.0, "dim": 4})
    attempts = out.counts["attempts"]
    assert attempts > 1
    assert out.counts["learning_rate"] == 2.0 / 2 ** (attempts - 1)
    assert out.counts["tables"]["Training"] == [{"attempts": attempts, "learning rate": out.counts["learning_rate"]}]


def test_training_is_repeatable_whatever_the_order_and_the_memory(
    trained: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Memory that is not zero where the library forgets to set it, and is used again instead of fresh
    monkeypatch.setenv("MALLOC_PERTURB_", "165")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 32))
    rows = documents()
    random.Random(2).shuffle(rows)
    again = train(tmp_path / "model", shards(tmp_path / "in", rows, number=5))
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(again.path.iterdir())] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(trained.path.iterdir())
    ]
    assert again.counts == trained.counts


@settings(max_examples=60)
@given(st.lists(st.one_of(st.sampled_from([*GOOD, *POOR, "the"]), st.text(max_size=20)), max_size=30).map(" ".join))
@example("__label__positive river __label__negative")
@example("İstanbul STRASSE Straße ﬁne e\u0301t\u00e9 日本語のテキスト です")
@example("</s> river\x00castle\nbuy")
def test_a_score_is_fasttexts_own(trained: Output, text: str) -> None:
    import fasttext

    fasttext.FastText.eprint = lambda *args: None
    model = fasttext.load_model(str(trained.path / MODEL))
    chances = {label: chance for chance, label in model.f.predict(f"{tokens(text)}\n", 2, 0.0, "strict")}
    odds, words = load_scorer(trained.path).log_odds(pa.array([text], pa.string()))
    assert words[0] == len(tokens(text).split())
    assert 1 / (1 + np.exp(-odds[0])) == pytest.approx(chances["__label__positive"], abs=5e-5)


def test_a_text_that_names_a_label_teaches_no_third_class(tmp_path: Path) -> None:
    rows = documents(200)
    rows += [
        Document.new(f"{row.text} __label__third __label__positive", "crawl") for row in rows if row.source != "good"
    ]
    out = train(tmp_path / "model", shards(tmp_path / "in", rows))
    assert measure_quality(out.path, pa.array(["castle river"], pa.string()))["quality_score"][0].as_py() > 0.5


def test_a_sample_is_chosen_by_id_and_not_by_order(tmp_path: Path) -> None:
    out = train(tmp_path / "model", shards(tmp_path / "in", documents(800)), sample=150, negative=["crawl"])
    sizes = out.counts["examples"].values()
    assert [sum(part[side] for part in sizes) for side in ("positive", "negative")] == [150, 150]


def test_classes_that_are_missing_or_tiny_are_refused(tmp_path: Path) -> None:
    corpus = shards(tmp_path / "in", [*documents(120), *(Document.new(f"a word {n}", "few") for n in range(10))])
    with pytest.raises(ConfigError, match=r"No document is from gold\. The sources are crawl, few, good"):
        train(tmp_path / "unknown", corpus, positive=["gold"])
    with pytest.raises(SourceError, match="10 positive examples"):
        train(tmp_path / "few", corpus, positive=["few"])
    with pytest.raises(SourceError, match="0 negative examples"):
        train(tmp_path / "none", corpus, positive=["good", "crawl", "few"])


def test_a_sigmoid_is_found_again_from_its_outcomes() -> None:
    chance = np.random.default_rng(0)
    odds = chance.normal(0, 3, 40_000)
    positive = chance.random(40_000) < Sigmoid(0.6, -1.0)(odds)
    found = fit_sigmoid(odds, positive)
    assert found.slope == pytest.approx(0.6, abs=0.02)
    assert found.offset == pytest.approx(-1.0, abs=0.04)
    scores = found(odds)
    near = (scores > 0.7) & (scores < 0.8)
    assert positive[near].mean() == pytest.approx(0.75, abs=0.02), "what scores 0.75 is right three times of four"


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_a_sigmoid_stays_finite_where_classes_part_cleanly(scale: float) -> None:
    found = fit_sigmoid(np.array([-2.0, -1.0, 1.0, 2.0]) * scale, np.array([False, False, True, True]))
    assert np.isfinite(found).all()
    assert 0 < float(found(np.array([-2.0 * scale]))[0]) < 0.5 < float(found(np.array([2.0 * scale]))[0]) < 1


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_the_area_under_the_curve_is_sklearns(pairs: list[tuple[int, bool]]) -> None:
    from sklearn.metrics import roc_auc_score

    scores, positive = np.array([float(score) for score, _ in pairs]), np.array([flag for _, flag in pairs])
    if positive.any() and not positive.all():
        assert area_under_curve(scores, positive) == pytest.approx(roc_auc_score(positive, scores))


def test_a_threshold_table_counts_what_lies_above() -> None:
    scores, positive = np.array([0.15, 0.55, 0.85, 0.65]), np.array([0, 0, 1, 1]) > 0
    rows = {row["threshold"]: row for row in threshold_table(scores, positive)}
    assert rows[0.6] == {
        "threshold": 0.6,
        "positives above": "2 of 2",
        "negatives above": "0 of 2",
        "recall": 1.0,
        "expected precision": 1.0,
    }
    assert rows[0.5]["expected precision"] == pytest.approx(2 / 3, abs=1e-3)
    assert rows[0.95]["expected precision"] is None
    rare = {row["threshold"]: row for row in threshold_table(scores, positive, base_rate=0.01)}
    assert rare[0.5]["expected precision"] == pytest.approx(0.01 / (0.01 + 0.99 / 2), abs=1e-3)
    assert json.dumps(list(rows.values()))


def test_the_threshold_for_a_precision_is_the_lowest_that_brings_it() -> None:
    chance = np.random.default_rng(0)
    positive = np.arange(40_000) < 20_000
    scores = np.where(positive, chance.normal(3, 1, 40_000), chance.normal(0, 1, 40_000))
    threshold = threshold_for(scores, positive, base_rate=0.01, precision=0.9)
    assert threshold is not None

    def precision(level: float) -> float:
        hits, alarms = (scores[positive] >= level).mean(), (scores[~positive] >= level).mean()
        return float(0.01 * hits / (0.01 * hits + 0.99 * alarms))

    assert precision(threshold) >= 0.9 > precision(threshold - 0.2)
    assert threshold_for(-scores, positive, base_rate=0.01, precision=0.9) is None
    few = np.arange(20) < 10
    found = threshold_for(few.astype(np.float64), few, base_rate=0.01, precision=0.9)
    assert found is None, "ten texts without one above don't prove that none is above"


def test_labelled_texts_teach_it_alone_or_beside_sources(tmp_path: Path) -> None:
    labelled = tmp_path / "labels.jsonl"
    rows = [{"text": row.text, "label": {"good": "yes", "crawl": "no"}[row.source]} for row in documents(300)]
    rows += [{"text": f"not judged {number}", "label": "skip"} for number in range(40)]
    labelled.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = [{"path": str(labelled), "positive": ["yes"], "negative": ["no"]}]
    corpus = shards(tmp_path / "in", documents(200))
    texts = pa.array(["The castle by the river.", "Buy cheap: click the banner!"], pa.string())
    beside: list[dict[str, Any]] = [{"positive": []}, {"positive": ["good"], "negative": ["crawl"]}]
    for number, sources in enumerate(beside):
        out = train(tmp_path / str(number), corpus, files=files, **sources)
        good, poor = measure_quality(out.path, texts)["quality_score"].to_pylist()
        assert poor < 0.3 < 0.7 < good
        total = sum(count for part in out.counts["examples"].values() for count in part.values())
        assert total == 300, "those that are skipped count for nothing, those that stand in both once"
    config = QualityModelConfig.model_validate({"files": files})
    before = fingerprints(config)
    labelled.write_text(labelled.read_text() + json.dumps({"text": "one more", "label": "no"}) + "\n")
    assert fingerprints(config) != before
    with pytest.raises(
        ValueError, match="nothing to learn from: list sources of good text in positive, or labelled texts in files"
    ):
        QualityModelConfig()
