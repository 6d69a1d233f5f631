"""Scores of paragraphs and what is made of them; the package's model as it is; a trained one, calibrated."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.shards.documents import Document, shard_name, write_documents
from storage.store import Store
from tasks.filter.toxicity.config import (
    LabelledFile,
    PackageModelConfig,
    ToxicityConfig,
    ToxicityModelConfig,
    TrainedModelConfig,
)
from tasks.filter.toxicity.measure import load_model, measure_toxicity, paragraphs
from tasks.filter.toxicity.stage import fingerprints, toxicity_model, toxicity_signals
from tasks.filter.toxicity.train import read_labelled
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of

INSULT = "You are a stupid idiot, shut up, you ugly piece of shit."
CALM = "The river begins in the hills and flows to the sea, and people have lived along it since the first farms."
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
    file = {"path": str(posts), "text_column": "post", "label_column": "class", "toxic": ["rude"]}
    return TrainedModelConfig.model_validate({"files": [file], "training": {"buckets": 10_000}} | more)


def measure(model: Path, texts: Sequence[str], config: ToxicityConfig = CONFIG) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = measure_toxicity(config, model, pa.array(texts, pa.string())).to_pylist()
    return rows


@pytest.mark.shadow("tasks.filter.toxicity.kernels.sum_terms")
@settings(max_examples=60)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(st.characters(codec="ascii"), max_size=8)), max_size=40))
@example(["FUCK", "you_idiot", "naïve", "日本語のテキスト", "x" * 100])
def test_the_given_model_scores_as_its_package_does(package: Path, words: list[str]) -> None:
    from profanity_check import predict_prob

    text = " ".join(words)
    scores, _ = load_model(package).score(pa.array([text], pa.string()))
    assert scores[0] == pytest.approx(predict_prob([text])[0], abs=1e-9)


def test_a_document_has_the_mean_of_its_paragraphs_by_length_and_the_worst(package: Path) -> None:
    (bad,), (good,) = measure(package, [INSULT]), measure(package, [CALM])
    assert bad["toxicity_score"] > 0.9
    assert good["toxicity_score"] < 0.2
    (both,) = measure(package, [f"{CALM}\n\n{INSULT}\n \n\n?!"])
    parts, characters, _ = paragraphs(pa.array([f"{CALM}\n\n{INSULT}\n \n\n?!"], pa.string()), 2000)
    assert len(parts) == 3
    lengths = characters[:2].tolist()
    mean = (good["toxicity_score"] * lengths[0] + bad["toxicity_score"] * lengths[1]) / sum(lengths)
    assert both["toxicity_score"] == pytest.approx(mean)
    assert both["toxicity_paragraph"] == pytest.approx(bad["toxicity_score"])
    (speech,) = measure(package, [f"{CALM}\n\n" * 60 + INSULT])
    assert speech["toxicity_score"] < 0.2 < 0.9 < speech["toxicity_paragraph"]


@pytest.mark.shadow("tasks.filter.toxicity.kernels.cut_paragraphs")
@settings(max_examples=80)
@given(st.lists(st.one_of(st.text(max_size=40), st.text("a b\n\t河。", max_size=80)), max_size=5), st.integers(1, 30))
def test_paragraphs_are_the_text_and_nothing_else(texts: list[str], most: int) -> None:
    parts, characters, firsts = paragraphs(pa.array(texts, pa.string()), most)
    found, ends = parts.to_pylist(), [*firsts[1:].tolist(), len(parts)]
    assert characters.tolist() == [len(part) for part in found]
    assert ["".join(found[a:b]) for a, b in zip(firsts.tolist(), ends, strict=False)] == texts
    for part in found:
        assert "\n\n" not in part.strip(), "a blank line ends a paragraph"


def test_a_long_paragraph_is_cut_before_a_word_and_a_long_word_is_not() -> None:
    parts, _, _ = paragraphs(pa.array(["one two three four five", "x" * 50, "河流从山上流下来"], pa.string()), 8)
    assert parts.to_pylist() == ["one two ", "three four ", "five", "x" * 50, "河流从", "山上流", "下来"]


@pytest.mark.parametrize("text", ["", " \n\n\n ", "?! ... \n\n —", "👩‍👩‍👧"])
def test_without_a_word_both_are_null(package: Path, text: str) -> None:
    assert measure(package, [text, CALM])[0] == {"toxicity_score": None, "toxicity_paragraph": None}
    assert measure(package, []) == []


@pytest.mark.parametrize(
    "text",
    ["x" * 10_000_000, "same line\n" * 100_000, "\n\n" * 100_000 + "a", "河流从山上流下来" * 10_000, "שלום " * 10_000,
     "cafÃ© " * 10_000, "a\0b " * 1000],
    ids=["one word", "identical lines", "blank lines", "no white space", "right to left", "wrong encoding", "NUL"],
)  # fmt: skip
def test_bad_input_is_measured(package: Path, text: str) -> None:
    (row,) = measure(package, [text])
    assert 0 <= row["toxicity_score"] <= row["toxicity_paragraph"] + 1e-12 <= 1


def test_a_trained_model_is_calibrated_and_says_what_a_threshold_brings(
    posts: Path, documents: Artifact, tmp_path: Path
) -> None:
    out = make(tmp_path, trained_config(posts, clean_sources=["books"]), documents)
    rude, fine, book = measure(out.path, ["you are so scum moron", "what is this today", "the river and the hill"])
    assert rude["toxicity_score"] > 0.8
    assert max(fine["toxicity_score"], book["toxicity_score"]) < 0.3
    assert out.counts["auc"] > 0.98
    sizes = out.counts["examples"].values()
    assert [sum(part[side] for part in sizes) for side in ("positive", "negative")] == [150, 150 + 2 * 120]
    rows = out.counts["tables"]["Threshold and expected precision"]
    assert [row["recall"] for row in rows] == sorted((row["recall"] for row in rows), reverse=True)
    assert all(row["expected precision"] > 0.9 for row in rows if row["threshold"] == 0.5)


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
        ("a.csv", b"text,label\nhello,rude\n", "row 1: no post or no class"),
        ("a.csv", b"post,class\nhello,fine\n", "no row labelled rude"),
        ("a.csv", b"post,class\n\xff\xfe,rude\n", "not a CSV file in UTF-8"),
        ("a.jsonl", b"{]\n", "not JSON"),
        ("a.jsonl", b"[1]\n", "not an object"),
        ("a.txt", b"hello", r"neither \.csv nor \.jsonl"),
        ("a.jsonl", b"", "no row labelled rude"),
    ],
)
def test_a_file_that_is_not_as_described_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    file = LabelledFile(path=str(tmp_path / name), text_column="post", label_column="class", toxic=["rude"])
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
    with pytest.raises(SourceError, match="no file"):
        fingerprints(trained_config(copy))
    assert list(fingerprints(PackageModelConfig())) == ["alt-profanity-check"]


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


def test_insults_are_told_from_posts_on_labelled_data(shared_data: Callable[[str], Path], package: Path) -> None:
    from tasks.filter.fasttext_model.calibration import area_under_curve

    with (shared_data("filters/tox_surge") / "toxicity_en.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    scores = measure_toxicity(CONFIG, package, pa.array([row["text"] for row in rows], pa.string()))["toxicity_score"]
    positive = pa.array([row["is_toxic"] == "Toxic" for row in rows]).to_numpy(zero_copy_only=False)
    assert area_under_curve(scores.fill_null(0.0).to_numpy(zero_copy_only=False), positive) == pytest.approx(
        0.84, abs=0.02
    )
