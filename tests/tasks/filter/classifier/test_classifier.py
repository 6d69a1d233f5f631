"""A transformers sequence classifier scores as plain code does, in pieces, by itself or after a fast model."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import ConfigError, GristmillError, SourceError
from storage.store import Store
from tasks.base.config import BaseConfig
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.classifier.cascade import least, lower_bound
from tasks.filter.classifier.config import CascadeConfig
from tasks.filter.classifier.pieces import WORD, pieces_of
from tasks.filter.classifier.scorer import ClassifierScorer
from tasks.filter.classifier.stage import classifier
from tasks.filter.quality.measure import QualityConfig, quality_model, quality_signals
from tasks.filter.side_files import read_signals
from tasks.filter.signals.config import ClassifierSignalConfig
from tasks.filter.signals.stage import signals, signals_model
from tasks.filter.toxicity.config import ToxicityConfig
from tasks.filter.toxicity.stage import toxicity_model, toxicity_signals
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.filter.signals.test_signals import OFF, corpus
from tests.tasks.filter.test_filter import questions
from tests.tasks.filter.tiny_classifier import LENGTH, save_classifier, texts, word_tokenizer

SMALL = {"buckets": 10_000, "min_count": 1}  # of a first model, for a vocabulary of a test


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def made(
    place: Path, documents: Artifact, *, workers: int = 1, model: Artifact | None = None, **config: Any
) -> tuple[Output, Output]:
    """The outputs of the two stages: the model, and the signal."""
    chosen = ClassifierSignalConfig.model_validate({"label": "good", **config})
    runtime = runtime_of(workers=workers, device="cpu")
    first = Output.at(place / "model", stage="signals_model", runtime=runtime)
    if model is None:
        signals_model.function(chosen.scorer(), documents, first)
    out = Output.at(place / "signals", stage="signals", runtime=runtime)
    signals.function(chosen, documents, model or Artifact.at(first.path), out)
    return first, out


def rows_of(out: Output) -> list[dict[str, Any]]:
    files = sorted(out.path.glob("*.parquet"))
    return [row for path in files for batch in read_signals(path) for row in batch.to_pylist()]


def scorer_of(folder: Path, source: Path, **config: Any) -> ClassifierScorer:
    chosen = ClassifierSignalConfig.model_validate({"folder": str(source), "label": "good", **config})
    out = Output.at(folder, stage="signals_model", runtime=runtime_of(workers=1, device="cpu"))
    signals_model.function(chosen.scorer(), Artifact.at(source), out)
    return ClassifierScorer(out.path, "cpu")


def plain_scores(folder: Path, pieces: list[str], label: int = 1) -> list[float]:
    """The probability of a label, one piece at a time, as transformers' own documentation has it."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    for piece in pieces:
        inputs = tokenizer(piece, truncation=True, max_length=LENGTH, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits
        scores.append(float(torch.softmax(logits, dim=-1)[0, label]))
    return scores


def test_columns_are_those_of_plain_code_on_the_same_pieces(folder: Path, tmp_path: Path) -> None:
    long = [" ".join(texts(n, seed=n, words=9)) for n in (1, 5, 9, 14)]
    given = [*long, *texts(20), "", "?! …", f"{long[1]}\n\n{long[2]}\n \n\ncheap offer"]
    _, out = made(tmp_path, corpus(tmp_path / "in", given, 1), folder=str(folder), pieces="paragraphs")
    rows = rows_of(out)
    many = 0
    for text, row in zip(given, rows, strict=True):
        pieces = pieces_of(word_tokenizer(), text, LENGTH - 2, "paragraphs")
        if not pieces:
            assert set(row.values()) == {None}
            continue
        many += len(pieces) > 1
        scores, sizes = np.array(plain_scores(folder, pieces)), np.array([len(piece) for piece in pieces])
        assert row["score"] == pytest.approx((scores * sizes).sum() / sizes.sum(), abs=1e-5)
        assert row["highest"] == pytest.approx(scores.max(), abs=1e-5)
        assert row["lowest"] == pytest.approx(scores.min(), abs=1e-5)
        assert row["first"] == pytest.approx(scores[0], abs=1e-5)
        assert row["share"] == pytest.approx(sizes[scores > 0.5].sum() / sizes.sum(), abs=1e-5)
        assert (row["settled"], row["scored_by"]) == (0, "model")
    assert many > 3
    assert rows[-4]["score"] is not None
    assert out.counts["scored_by"] == {"model": len(given) - 2, "nobody: no words": 2}


def test_workers_and_the_order_in_a_batch_change_nothing(folder: Path, tmp_path: Path) -> None:
    given = [" ".join(texts(n % 7 + 1, seed=n)) for n in range(60)]
    documents = corpus(tmp_path / "in", given, 2)
    model, one = made(tmp_path / "one", documents, folder=str(folder), batch_tokens=128)
    _, eight = made(
        tmp_path / "eight", documents, workers=8, model=Artifact.at(model.path), folder=str(folder), batch_tokens=128
    )
    digests = [
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.path.glob("*.parquet"))]
        for out in (one, eight)
    ]
    assert digests[0] == digests[1]
    scorer = ClassifierScorer(model.path, "cpu")
    pieces = [piece for text in given for piece in scorer.pieces(text)]
    shuffled = random.Random(1).sample(range(len(pieces)), len(pieces))
    straight, other = scorer.score_pieces(pieces).values, scorer.score_pieces([pieces[n] for n in shuffled]).values
    np.testing.assert_allclose(straight[shuffled], other, atol=1e-6)


@given(
    st.lists(
        st.sampled_from(["river ", "cheap", " ", "\n", "\n\n", "\n \n\n", "é", "東京", "🙂", "x" * 50]), max_size=120
    )
)
def test_pieces_follow_one_another_and_fit(words: list[str]) -> None:
    tokenizer, text = word_tokenizer(), "".join(words)
    for how in ("windows", "paragraphs"):
        pieces = pieces_of(tokenizer, text, 8, how)
        place = 0
        for piece in pieces:
            found = text.index(piece, place)
            assert not WORD.search(text[place:found]), "nothing with a word is left out"
            place = found + len(piece)
            assert len(tokenizer(piece, add_special_tokens=False)["input_ids"]) <= 8
        assert not WORD.search(text[place:])
    assert pieces_of(tokenizer, text, 8, "beginning") == pieces_of(tokenizer, text, 8, "windows")[:1]


def test_a_score_is_a_probability_an_expectation_or_a_value(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    given = texts(8)

    def logits(folder: Path) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.no_grad():
            return model(**tokenizer(given, padding=True, return_tensors="pt")).logits.double()

    six = save_classifier(tmp_path / "six", steps=0, id2label={n: str(n) for n in range(6)})
    many = save_classifier(
        tmp_path / "many",
        steps=0,
        id2label={0: "rude", 1: "lewd", 2: "good"},
        problem_type="multi_label_classification",
    )
    one = save_classifier(tmp_path / "one", steps=0, id2label={0: "value"}, problem_type="regression")
    cases: list[tuple[Path, dict[str, Any], Any]] = [
        (six, {"output": "expected", "label": None}, (logits(six).softmax(-1) * torch.arange(6)).sum(-1)),
        (six, {"label": "4"}, logits(six).softmax(-1)[:, 4]),
        (six, {"label": "4", "activation": "sigmoid"}, logits(six).sigmoid()[:, 4]),
        (many, {"label": "lewd"}, logits(many).sigmoid()[:, 1]),
        (many, {"label": "lewd", "activation": "softmax"}, logits(many).softmax(-1)[:, 1]),
        (one, {"output": "value", "label": None}, logits(one)[:, 0]),
    ]
    for number, (source, config, wanted) in enumerate(cases):
        scores = scorer_of(tmp_path / str(number), source, **config).score_pieces(given).values
        np.testing.assert_allclose(scores, wanted.numpy(), atol=1e-5)


def test_a_decoder_without_a_padding_token_scores_the_same_alone_and_in_a_batch(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    tokenizer = word_tokenizer()
    torch.manual_seed(1)
    model = LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
            initializer_range=0.3,
            id2label={0: "poor", 1: "good"},
            pad_token_id=None,
            eos_token_id=3,
        )
    )
    model.save_pretrained(tmp_path / "llama")
    tokenizer.eos_token, tokenizer.pad_token = "[SEP]", None
    tokenizer.save_pretrained(tmp_path / "llama")
    scorer = scorer_of(tmp_path / "made", tmp_path / "llama")
    given = [" ".join(text.split()[: 2 + n]) for n, text in enumerate(texts(9))]
    together = scorer.score_pieces(given).values
    alone = [float(scorer.score_pieces([text]).values[0]) for text in given]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert len({round(score, 4) for score in alone}) > 5


@pytest.fixture(scope="module")
def cascade(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Output, Output]:
    """A cascade trained on 8,000 documents, and the signal of 2,000 others."""
    place = tmp_path_factory.mktemp("cascade")
    config: dict[str, Any] = {"folder": str(folder), "first": {"sample": 8000, "agreement": 0.98, "training": SMALL}}
    model, _ = made(place / "trained", corpus(place / "in", texts(8000), 2), **config)
    _, out = made(
        place / "used", corpus(place / "other", texts(2000, seed=7), 1), model=Artifact.at(model.path), **config
    )
    return model, out


@pytest.mark.soak
def test_a_cascade_settles_what_is_clear_and_says_how_well(folder: Path, cascade: tuple[Output, Output]) -> None:
    model, out = cascade
    counts = model.counts
    assert 1800 < counts["first_held_out"] < 2200, "a quarter of the sample, which nothing was chosen on"
    assert 0.5 < counts["first_settled"] < 1
    assert counts["first_agreement"] >= 0.98
    low, high = counts["tables"]["Cascade"]
    assert low["settled as"] == "low"
    assert low["score given"] < 0.2 < 0.8 < high["score given"]
    assert low["share of held-out pieces"] + high["share of held-out pieces"] == pytest.approx(
        counts["first_settled"], abs=1e-3
    )
    given = texts(2000, seed=7)
    truth = np.array(plain_scores(folder, given))
    rows = rows_of(out)
    settled = np.array([row["scored_by"] == "first" for row in rows])
    scores = np.array([row["score"] for row in rows])
    assert np.mean(settled) == pytest.approx(counts["first_settled"], abs=0.05)
    assert np.mean((scores >= 0.5)[settled] == (truth >= 0.5)[settled]) >= 0.98
    np.testing.assert_allclose(scores[~settled], truth[~settled], atol=1e-5)
    assert set(scores[settled].round(4)) == {low["score given"], high["score given"]}
    assert out.counts["scored_by"] == {"first": int(settled.sum()), "model": int((~settled).sum())}


@pytest.mark.soak
def test_a_cascade_that_can_not_keep_its_word_is_refused(folder: Path, tmp_path: Path) -> None:
    first: dict[str, Any] = {"sample": 1000, "training": SMALL}
    documents = corpus(tmp_path / "in", texts(1000), 1)
    with pytest.raises(SourceError, match=r"can't be trained on \d+ pieces: There are 0 positive"):
        made(tmp_path / "one", documents, folder=str(folder), first={**first, "cut": 2})
    with pytest.raises(SourceError, match=r"on 4,380 pieces of either side"):
        made(tmp_path / "two", documents, folder=str(folder), first={**first, "agreement": 0.999})


def test_the_bound_of_the_agreement_is_exact() -> None:
    assert least(CascadeConfig()) == 437
    assert lower_bound(437, 437, 1 - 0.05 / 4) >= 0.99 > lower_bound(436, 436, 1 - 0.05 / 4)
    assert lower_bound(0, 10, 0.95) == 0
    from scipy.stats import binom

    assert binom.sf(979, 1000, lower_bound(980, 1000, 0.95)) == pytest.approx(0.05)


def test_precision_by_threshold_is_held_out(folder: Path, tmp_path: Path) -> None:
    draw = random.Random(3)
    rows = [
        {"text": text, "label": draw.choice("ab") if draw.random() < 0.2 else "a" if n % 2 == 0 else "b"}
        for n, text in enumerate(texts(600, seed=5))
    ]
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config: dict[str, Any] = {"folder": str(folder), "labelled": [{"path": str(file), "positive": ["a"]}]}
    model, _ = made(tmp_path / "made", corpus(tmp_path / "in", texts(10), 1), **config)
    assert model.counts["labelled"] == 600
    assert 0.75 < model.counts["auc"] < 0.95, "a tenth of the labels is wrong, and a tenth of the texts is both"
    table = model.counts["tables"]["Threshold and precision"]
    assert [row["score"] for row in table] == sorted(row["score"] for row in table)
    assert all(0 <= row["score"] <= 1 for row in table)
    half = next(row for row in table if row["threshold"] == 0.5)
    assert 0.7 < half["expected precision"] < 0.95
    assert half["recall"] > 0.8
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:30]))
    with pytest.raises(SourceError, match=r"positive and \d+ other texts, but 20 of each"):
        made(tmp_path / "few", corpus(tmp_path / "in2", texts(10), 1), **config)


def test_toxicity_and_quality_take_a_classifier_too(folder: Path, tmp_path: Path) -> None:
    given = [*texts(12), "", f"{texts(1)[0]}\n\n{texts(2)[1]}"]
    documents = corpus(tmp_path / "in", given, 1)
    model = {"kind": "classifier", "folder": str(folder), "label": "good"}
    runtime = runtime_of(workers=1, device="cpu")
    quality, toxicity = QualityConfig(model=model), ToxicityConfig(model=model)
    found = {}
    for stage, scored, config in (
        (quality_model, quality_signals, quality),
        (toxicity_model, toxicity_signals, toxicity),
    ):
        trained = Output.at(tmp_path / stage.name, stage=stage.name, runtime=runtime)
        stage.function(config.model, documents, trained)
        out = Output.at(tmp_path / scored.name, stage=scored.name, runtime=runtime)
        scored.function(config, documents, Artifact.at(trained.path), out)
        found[scored.name] = rows_of(out)
    plain = plain_scores(folder, given[:12])
    np.testing.assert_allclose([row["quality_score"] for row in found["quality"][:12]], plain, atol=1e-5)
    np.testing.assert_allclose([row["toxicity_score"] for row in found["toxicity"][:12]], plain, atol=1e-5)
    assert found["quality"][12] == {"quality_score": None}
    pair = plain_scores(folder, [texts(1)[0], texts(2)[1]])
    assert found["toxicity"][13]["toxicity_piece"] == pytest.approx(max(pair), abs=1e-5)


def test_only_what_changes_is_measured_anew(folder: Path, tmp_path: Path) -> None:
    import shutil

    mine = shutil.copytree(folder, tmp_path / "mine")
    measure = {"kind": "classifier", "folder": str(mine), "label": "good"}
    base = {**OFF, "max_quarantined_share": 1.0}
    store, runtime = Store(str(tmp_path / "store")), runtime_of(workers=1, device="cpu")
    inputs = [corpus(tmp_path / "in", texts(10), 1), questions(tmp_path / "benchmarks")]

    def run(least: float, **changes: Any) -> set[str]:
        signal = {"measure": {**measure, **changes}, "min": {"score": least}}
        before = set(store.locations())
        with open_session(Session(store, runtime)):
            filter_documents.materialize(FilterConfig.model_validate({**base, "signals": {"edu": signal}}), inputs)
        made = {location.partition("/")[0] for location in set(store.locations()) - before}
        return made - {"passed", "pii", "pii_metadata"}  # of the documents that pass now

    assert {"classifier", "signals_model", "signals", "filter"} <= run(0.0)
    assert run(0.1) == {"filter"}
    assert run(0.1, piece_threshold=0.6) == {"signals", "filter"}
    assert run(0.1, max_tokens=16) == {"signals_model", "signals", "filter"}
    shutil.rmtree(mine)
    save_classifier(mine, steps=1)
    assert run(0.1) == {"classifier", "signals_model", "signals", "filter"}


def refusal(folder: Path) -> str:
    with pytest.raises(GristmillError) as error:
        classifier.function(BaseConfig(folder=str(folder)), Output.at(folder.parent / f"{folder.name} made"))
    return error.value.message


def test_what_is_no_classifier_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    def copy(name: str) -> Path:
        return shutil.copytree(folder, tmp_path / name)

    pickled = copy("pickled")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    assert refusal(pickled) == (
        "The weights of the classifier are only in pytorch_model.bin, which is not opened: a pickle can run code."
    )
    coded = copy("coded")
    settings = json.loads((coded / "config.json").read_text())
    (coded / "config.json").write_text(json.dumps({**settings, "auto_map": {"AutoModel": "code.Model"}}))
    assert "its own code" in refusal(coded)
    headless = copy("headless")
    weights = load_file(headless / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in weights.items() if not name.startswith("classifier")},
        headless / "model.safetensors",
        {"format": "pt"},
    )
    assert refusal(headless) == "headless is not a trained classifier: missing are classifier.bias, classifier.weight."
    broken = copy("broken")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    assert "is unusable: classifier.bias has NaN" in refusal(broken)
    longer = copy("longer")
    vocabulary = json.loads((longer / "tokenizer.json").read_text())
    ids = vocabulary["model"]["vocab"]
    ids["a-word-too-many"] = max(ids.values()) + 1
    (longer / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert "tokens, but its model" in refusal(longer)
    bare = copy("bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    assert refusal(bare) == "bare lacks a tokenizer."


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"label": "fine"}, "lacks the label fine. Choose one of its labels: poor, good"),
        ({"label": None, "output": "value"}, "has 2 outputs, but output: value needs one"),
        ({"max_tokens": 64}, "max_tokens is 64, but .* can read 32"),
    ],
)
def test_a_score_that_the_model_can_not_give_is_refused(
    folder: Path, tmp_path: Path, config: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        scorer_of(tmp_path, folder, **config)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"label": "a"}, "set one of them: a folder, or a repository"),
        ({"repository": "a/b", "label": "a"}, "a repository needs its revision"),
        ({"folder": "a"}, "output: probability needs a label"),
        ({"folder": "a", "label": "b", "output": "value"}, "output: probability needs a label"),
    ],
)
def test_a_config_that_can_not_be_meant_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        FilterConfig.model_validate({"signals": {"mine": {"measure": {"kind": "classifier", **config}}}})


def test_a_value_is_no_probability_of_toxicity() -> None:
    with pytest.raises(ValidationError, match="put this classifier under filter"):
        ToxicityConfig(model={"kind": "classifier", "folder": "a", "output": "value"})


def test_a_folder_that_is_not_there_is_found_before_a_run(tmp_path: Path) -> None:
    measure = {"kind": "classifier", "folder": str(tmp_path / "none"), "label": "good"}
    config = FilterConfig.model_validate({"signals": {"mine": {"measure": measure}}})
    abusive = FilterConfig.model_validate({"toxicity": {"measure": {"model": measure}}})
    for one in (config, abusive):
        with pytest.raises(SourceError, match=r"The classifier's folder .*none does not exist"):
            filter_documents.check_here(one, runtime_of(workers=1))
