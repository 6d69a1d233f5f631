"""Scores of pieces and of documents, the packages' models unchanged, and a trained model, calibrated."""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.shards.documents import Document, shard_name, write_documents
from storage.store import Store
from tasks.filter.fasttext_model.config import LabelledFile
from tasks.filter.fasttext_model.labelled import read_labelled
from tasks.filter.toxicity.config import PackageModelConfig, ToxicityConfig, ToxicityModelConfig, TrainedModelConfig
from tasks.filter.toxicity.linear import Linear
from tasks.filter.toxicity.lstm import ARRAYS, LONGEST, Lstm
from tasks.filter.toxicity.measure import measure_toxicity, pieces
from tasks.filter.toxicity.package import PASSED_ON, PackageScorer
from tasks.filter.toxicity.stage import fingerprints, toxicity_model, toxicity_signals
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of

INSULT = "You are a stupid idiot, shut up, you ugly piece of shit."
CALM = "The river begins in the hills and flows to the sea, and people have lived along it since the first farms."
SENTENCES = [INSULT, CALM, "Oh.", '"Scum!" he cried.', "no end", "ça va?"]
SCRAPS = st.one_of(st.text(max_size=40), st.text('a b\n\t河。."!', max_size=200))
WORDS = ["you", "are", "stupid", "idiot", "shit", "river", "and", "the", "hills", "kill", "nice", "a", "4th", "don't"]
CONFIG = ToxicityConfig()


def corpus(folder: Path, size: int = 120) -> Artifact:
    words = random.Random(1)
    nouns = ["river", "hill", "town", "farm", "sea", "bridge", "wood", "and", "the", "of"]
    texts = ["\n\n".join(" ".join(words.choices(nouns, k=12)) + "." for _ in range(4)) for _ in range(size)]
    write_documents(folder / shard_name(0), [Document.new(text, "books") for text in texts])
    return Artifact.at(folder)


def make(folder: Path, config: PackageModelConfig | TrainedModelConfig, documents: Artifact) -> Output:
    out = Output.at(folder, stage="toxicity_model", runtime=runtime_of(workers=1))
    toxicity_model.function(config, documents, out)
    return out


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return corpus(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def package(documents: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("package"), PackageModelConfig(), documents).path


@pytest.fixture(scope="module")
def posts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled posts: toxic ones hold one of a few words."""
    words = random.Random(2)
    common = ["you", "I", "this", "is", "so", "really", "today", "what", "lol", "u"]
    path = tmp_path_factory.mktemp("posts") / "posts.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["post", "class"])
        for number in range(300):
            said = [
                *words.choices(common, k=8),
                *(words.choices(["idiot", "scum", "moron"], k=2) if number % 2 else []),
            ]
            writer.writerow([f"{' '.join(words.sample(said, len(said)))}\n{number}", ("fine", "rude")[number % 2]])
    return path


def trained_config(posts: Path, **more: Any) -> TrainedModelConfig:
    file = {"path": str(posts), "text_column": "post", "label_column": "class", "positive": ["rude"]}
    return TrainedModelConfig.model_validate({"files": [file], "training": {"buckets": 10_000}} | more)


def measure(model: Path, texts: Sequence[str], config: ToxicityConfig = CONFIG) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = measure_toxicity(config, model, pa.array(texts, pa.string())).to_pylist()
    return rows


@pytest.mark.shadow("tasks.filter.toxicity.kernels.sum_terms")
@settings(max_examples=60)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(st.characters(codec="ascii"), max_size=8)), max_size=40))
@example(["FUCK", "you_idiot", "naïve", "日本語のテキスト", "x" * 100])
def test_the_linear_model_scores_as_its_package_does(package: Path, words: list[str]) -> None:
    from profanity_check import predict_prob

    text = " ".join(words)
    scores, _ = Linear(package).score(pa.array([text], pa.string()))
    assert scores[0] == pytest.approx(predict_prob([text])[0], abs=1e-9)


@pytest.mark.shadow("tasks.filter.toxicity.lstm_kernels.score_texts")
def test_the_lstm_scores_as_torch_does_with_the_packages_weights(package: Path) -> None:
    import torch

    words = (package / "lstm_words.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert words[:5] == ["the", "to", "of", "and", "a"], "the most frequent words of the comments"
    numbers = {word: number for number, word in enumerate(words, 1)}
    with np.load(package / "lstm.npz") as found:
        weights = {name: torch.tensor(found[name]) for name in ARRAYS}
    lstm = torch.nn.LSTM(50, 50, batch_first=True, bidirectional=True)
    for side, name in (("", "forward"), ("_reverse", "backward")):
        for place, value in (
            ("weight_ih_l0", weights[f"{name}_kernel"].T),
            ("weight_hh_l0", weights[f"{name}_recurrent"].T),
            ("bias_ih_l0", weights[f"{name}_bias"]),
            ("bias_hh_l0", torch.zeros(200)),
        ):
            getattr(lstm, place + side).data = value
    texts = [INSULT, CALM, "I don't know WHAT_you mean: kill/die.", "fuck", f"idiot {'the ' * 150}you liar"]
    odds = Lstm(package).log_odds(pa.array([*texts, "", "zxqvy"], pa.string()))
    for text, found_odds in zip(texts, odds.tolist(), strict=False):
        cut = re.sub(r"[^a-z0-9']", " ", text.lower()).split()
        rows = weights["embedding"][[numbers[word] for word in cut if word in numbers][-LONGEST:]]
        states = lstm(rows[None])[0][0].max(0).values
        hidden = torch.relu(states @ weights["hidden"] + weights["hidden_bias"])
        expected = (hidden @ weights["output"] + weights["output_bias"])[0].item()
        assert found_odds == pytest.approx(expected, abs=1e-4)
    assert odds.tolist()[len(texts) :] == [-math.inf, -math.inf], "no word that it knows"


def test_the_linear_model_settles_what_is_plain_and_the_lstm_the_rest(package: Path) -> None:
    texts = pa.array([INSULT, CALM, "The ass carried the image to the temple.", "This pizza is so fucking good."])
    scores, words = PackageScorer(package).score(texts)
    assert (Linear(package).score(texts)[0] >= PASSED_ON).tolist() == [True, False, True, True]
    assert words.tolist() == [12, 21, 8, 6]
    assert scores[0] > 0.9
    assert scores[1] == pytest.approx(0.01 * Linear(package).score(texts)[0][1])
    assert scores[2] < 0.2, "profane to the linear model, which knows no donkeys"


def test_a_lower_base_rate_makes_every_score_lower(documents: Artifact, tmp_path: Path) -> None:
    texts, found = [INSULT, "Shut up, you donkey."], []
    for rate in (0.0958, 0.01, 0.001):
        model = make(tmp_path / str(rate), PackageModelConfig(base_rate=rate), documents).path
        found.append([row["toxicity_score"] for row in measure(model, texts)])
    for before, after in itertools.pairwise(found):
        assert all(0 < low < high for low, high in zip(after, before, strict=True))
    odds = Lstm(model).log_odds(pa.array(texts))
    assert found[0] == pytest.approx((1 / (1 + np.exp(-odds))).tolist()), "that of the training set: as the model says"


def test_a_document_has_the_mean_of_its_pieces_by_length_and_the_highest(package: Path) -> None:
    (bad,), (good,) = measure(package, [INSULT]), measure(package, [CALM])
    assert bad["toxicity_score"] > 0.9
    assert good["toxicity_score"] < 0.01
    config = ToxicityConfig(piece_bytes=100)
    (both,) = measure(package, [f"{CALM} {INSULT}"], config)
    share = len(INSULT) / (len(CALM) + len(INSULT))
    assert both["toxicity_score"] == pytest.approx(share * bad["toxicity_score"], abs=0.01)
    assert both["toxicity_piece"] == pytest.approx(bad["toxicity_score"])
    (speech,) = measure(package, [f"{CALM} " * 60 + INSULT], config)
    assert speech["toxicity_score"] < 0.02 < 0.9 < speech["toxicity_piece"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(SENTENCES), min_size=1), st.data())
def test_where_lines_end_makes_no_difference(package: Path, sentences: list[str], data: st.DataObject) -> None:
    blanks = st.sampled_from([" ", "\n", "\n\n", "\r\n  ", "\t"])
    text = "".join(f"{sentence}{data.draw(blanks)}" for sentence in sentences)
    config = ToxicityConfig(piece_bytes=120)
    assert measure(package, [text], config) == measure(package, [" ".join(sentences)], config)


@pytest.mark.shadow("tasks.filter.toxicity.kernels.cut_pieces")
@settings(max_examples=80)
@given(st.lists(SCRAPS, max_size=5), st.integers(4, 60))
def test_pieces_are_the_text_and_nothing_else(texts: list[str], most: int) -> None:
    parts, sizes, firsts = pieces(pa.array(texts, pa.string()), most)
    found, ends = parts.to_pylist(), [*firsts[1:].tolist(), len(parts)]
    assert ["".join(found[a:b]) for a, b in zip(firsts.tolist(), ends, strict=False)] == texts
    blanks = "".join(map(chr, range(33)))
    assert sizes.tolist() == [len(re.sub(f"[{blanks}]+", " ", part.strip(blanks)).encode()) for part in found]
    for a, b in zip(firsts.tolist(), ends, strict=False):
        assert all(first + second + 1 >= most for first, second in itertools.pairwise(sizes[a:b].tolist()))


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("One two. Three four! Five six? Seven.", 20, ["One two. Three four! ", "Five six? Seven."]),
        ('He said "No." Then "Go!" (Well.) And', 14, ['He said "No." ', 'Then "Go!" (Well.) ', "And"]),
        ("one two three four five", 8, ["one two ", "three four ", "five"]),
        ("A. " + "x" * 50, 8, ["A. " + "x" * 50]),
        ("河流从山上流下来", 8, ["河流从", "山上流", "下来"]),
        ("河流。从山上。流下来", 20, ["河流。从山上。", "流下来"]),
    ],
)
def test_a_piece_is_whole_sentences_and_a_long_sentence_is_cut_before_a_word(
    text: str, most: int, expected: list[str]
) -> None:
    assert pieces(pa.array([text], pa.string()), most)[0].to_pylist() == expected


@pytest.mark.parametrize("text", ["", " \n\n\n ", "?! ... \n\n —", "👩‍👩‍👧"])
def test_without_a_word_both_are_null(package: Path, text: str) -> None:
    assert measure(package, [text, CALM])[0] == {"toxicity_score": None, "toxicity_piece": None}
    assert measure(package, []) == []


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "same line\n" * 100_000,
        "\n\n" * 100_000 + "a",
        "河流从山上流下来" * 10_000,
        "שלום " * 10_000,
        "cafÃ© " * 10_000,
        "a\0b " * 1000,
    ],
    ids=["one word", "identical lines", "blank lines", "no white space", "right to left", "wrong encoding", "NUL"],
)
def test_bad_input_is_measured(package: Path, text: str) -> None:
    (row,) = measure(package, [text])
    assert 0 <= row["toxicity_score"] <= row["toxicity_piece"] + 1e-12 <= 1


def test_a_trained_model_is_calibrated_and_says_what_a_threshold_brings(
    posts: Path, documents: Artifact, tmp_path: Path
) -> None:
    out = make(tmp_path, trained_config(posts, clean_sources=["books"], piece_bytes=100), documents)
    rude, fine, book = measure(out.path, ["you are so scum moron", "what is this today", "the river and the hill"])
    assert rude["toxicity_score"] > 0.3
    assert max(fine["toxicity_score"], book["toxicity_score"]) < 0.01
    assert out.counts["auc"] > 0.98
    sizes = out.counts["examples"].values()
    assert [sum(part[side] for part in sizes) for side in ("positive", "negative")] == [150, 150 + 2 * 120]
    rows = out.counts["tables"]["Threshold and expected precision"]
    assert [row["recall"] for row in rows] == sorted((row["recall"] for row in rows), reverse=True)
    held_out = out.counts["examples"]["tested"]["positive"]
    assert all(row["positives above"].endswith(f" of {held_out}") for row in rows)


def test_a_trained_model_is_tried_on_documents_and_names_the_threshold_for_a_precision(
    posts: Path, documents: Artifact, tmp_path: Path
) -> None:
    out = make(tmp_path, trained_config(posts, clean_sources=["books"], target_precision=0.8), documents)
    assert out.counts["document_auc"] > 0.99
    threshold = out.counts["max_score_for_target_precision"]
    rows = out.counts["tables"]["Documents: threshold and expected precision"]
    assert all(row["negatives above"].endswith(" of 1,000") for row in rows)
    assert all(row["expected precision"] >= 0.8 for row in rows if row["threshold"] >= threshold and row["recall"])
    assert 0 < threshold < 0.5


def test_csv_and_json_lines_give_the_same_examples(posts: Path, tmp_path: Path) -> None:
    copy = tmp_path / "posts.jsonl"
    with posts.open(encoding="utf-8", newline="") as file:
        copy.write_text("".join(json.dumps(row) + "\n" for row in csv.DictReader(file)), encoding="utf-8")
    described = trained_config(posts).files[0]
    found = list(read_labelled(described))
    assert found == list(read_labelled(described.model_copy(update={"path": str(copy)})))
    assert sum(row.positive for row in found) == 150


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"text,label\nhello,rude\n", "row 1 lacks post or class"),
        ("a.csv", b"post,class\nhello,fine\n", "is labelled rude"),
        ("a.csv", b"post,class\n\xff\xfe,rude\n", "not a CSV file in UTF-8"),
        ("a.jsonl", b"{]\n", "not JSON"),
        ("a.jsonl", b"[1]\n", "not an object"),
        ("a.txt", b"hello", r"neither \.csv nor \.jsonl"),
        ("a.jsonl", b"", "is labelled rude"),
    ],
)
def test_a_file_that_is_not_as_described_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    file = LabelledFile(path=str(tmp_path / name), text_column="post", label_column="class", positive=["rude"])
    with pytest.raises(SourceError, match=message):
        list(read_labelled(file))


def test_what_a_labelled_file_holds_is_part_of_the_key(posts: Path, tmp_path: Path) -> None:
    config = trained_config(posts)
    before = fingerprints(config)
    copy = tmp_path / "posts.csv"
    copy.write_text(posts.read_text() + "one more,rude\n")
    after = fingerprints(trained_config(copy))
    assert before[str(posts)] != after[str(copy)]
    copy.unlink()
    with pytest.raises(SourceError, match="does not exist"):
        fingerprints(trained_config(copy))
    assert list(fingerprints(PackageModelConfig())) == ["alt-profanity-check", "tox-block"]


def test_the_signals_come_from_the_model_and_any_number_of_workers(tmp_path: Path, package: Path) -> None:
    for number in range(3):
        rows = [Document.new(f"{CALM}\n\n{INSULT} {number}", "test"), Document.new("", "test")]
        write_documents(tmp_path / "in" / shard_name(number), rows)
    texts, model = Artifact.at(tmp_path / "in"), Artifact.at(package)
    written = []
    for workers in (1, 2):
        out = Output.at(tmp_path / str(workers), runtime=runtime_of(workers=workers))
        toxicity_signals.function(CONFIG, texts, model, out)
        written.append([path.read_bytes() for path in sorted(out.path.iterdir())])
    assert written[0] == written[1]
    with open_session(Session(Store(str(tmp_path / "store")), runtime_of(workers=1))):
        made, _ = toxicity_model.materialize(PackageModelConfig(), [texts])
        _, cached = toxicity_model.materialize(PackageModelConfig(), [texts])
        toxicity_signals.materialize(CONFIG, [texts, made])
    assert cached


def test_a_config_names_its_kind() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ToxicityModelConfig)
    assert adapter.validate_python({"kind": "package"}) == PackageModelConfig()
    with pytest.raises(ValueError, match="files"):
        adapter.validate_python({"kind": "trained"})


def test_toxic_posts_are_told_from_others_on_labelled_data(shared_data: Callable[[str], Path], package: Path) -> None:
    from tasks.filter.fasttext_model.calibration import area_under_curve

    with (shared_data("filters/tox_surge") / "toxicity_en.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = pa.array([row["text"] for row in rows], pa.string())
    positive = pa.array([row["is_toxic"] == "Toxic" for row in rows]).to_numpy(zero_copy_only=False)
    scores = measure_toxicity(CONFIG, package, texts)["toxicity_score"].fill_null(0.0).to_numpy(zero_copy_only=False)
    assert area_under_curve(scores, positive) == pytest.approx(0.85, abs=0.02)
    assert positive[scores >= 0.15].mean() > 0.9
