"""Evaluation: the harness's scores equal those computed by hand, chance is called chance, joins are checked."""

from __future__ import annotations

import html
import json
import math
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.convert import load
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, SourceError, TokenizerMismatch
from storage.shards.token_stream import TokenStream
from tasks.evaluate import EvaluateConfig, evaluate
from tasks.evaluate.benchmarks import chosen
from tasks.evaluate.config import TaskConfig
from tasks.evaluate.score.local import questions_of
from tasks.evaluate.subsets import check_asked, find_dirty, split
from tasks.significance.scores import judged, score_rows, verdict
from tasks.stage.output import Output
from tests.tasks.tiny_model import ANIMALS, PLACES, RUNTIME, make_model, make_validation, write_rows

QUESTIONS: list[dict[str, Any]] = [
    {
        "id": f"{animal}-{place}",
        "query": f"The {animal} lives in the",
        "choices": [f" {other}." for other in PLACES[: 3 + number % 3]],
        "gold": number % 3,
    }
    for number, (animal, place) in enumerate((a, p) for a in ANIMALS[:5] for p in PLACES[:4])
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    make_model(folder / "model")
    make_validation(folder / "validation", folder / "model")
    write_rows(folder / "benchmarks" / "places.jsonl", QUESTIONS)
    write_rows(folder / "contamination" / "questions.jsonl", looked_for(lambda number: number % 4))
    return folder


@pytest.fixture(scope="module")
def scored(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Output:
    return run(folder, tmp_path_factory.mktemp("scored"))


def test_a_question_is_dirty_with_more_than_the_share(tmp_path: Path) -> None:
    rows = [
        {"benchmark": "places", "id": f"{n} of {all}", "ngrams": all, "found": n} for n, all in ((2, 4), (3, 4), (0, 0))
    ]
    write_rows(tmp_path / "questions.jsonl", rows)
    assert find_dirty(tmp_path, 0.5) == {"places": {"2 of 4": False, "3 of 4": True, "0 of 0": None}}


def looked_for(found: Callable[[int], int]) -> list[dict[str, Any]]:
    """The filter's file on the questions: how many of the 4 n-grams of each occur in training documents."""
    about = {"benchmark": "places", "ngrams": 4, "documents": 1}
    return [{**about, "id": row["id"], "found": found(number)} for number, row in enumerate(QUESTIONS)]


def run(folder: Path, out_folder: Path, base: Path | None = None) -> Output:
    model = Artifact.at(folder / "model")
    models = {"dpo": model, "sft": model, "base": Artifact.at(base) if base else model}
    out = Output.at(out_folder, stage="evaluate", runtime=RUNTIME)
    parts = [Artifact.at(folder / name) for name in ("validation", "benchmarks", "contamination")]
    evaluate.function(EvaluateConfig(batch_size=4), models, None, *parts, None, None, out)
    return out


def test_the_answers_of_all_models_stand_side_by_side(folder: Path, scored: Output) -> None:
    runtime = TransformersRuntime(folder / "model")
    rows = scored.counts["tables"]["Answers"]
    assert [row["prompt"] for row in rows] == EvaluateConfig().prompts
    for row in rows:
        alone = runtime.chat([{"role": "user", "content": row["prompt"]}], EvaluateConfig().answer_tokens)
        assert row["base"] == row["sft"] == row["dpo"] == html.escape(" ".join(alone.split()), quote=False)
    assert "| base | sft | dpo |" in (scored.path / "answers.md").read_text()


def test_scores_are_what_a_hand_would_compute(folder: Path, scored: Output) -> None:
    scores = json.loads((scored.path / "scores.json").read_text())["models"]
    assert scores["base"] == scores["sft"] == scores["dpo"]
    model, tokenizer = load(folder / "model"), load_tokenizer(folder / "model")
    right = normalised = 0
    for row in QUESTIONS:
        prefix = tokenizer.encode(str(row["query"]))
        likelihoods, lengths = [], []
        for choice in row["choices"]:
            ids = tokenizer.encode(f"{row['query']}{choice}")
            with torch.no_grad():
                logs = model(torch.tensor([ids]))[0].log_softmax(-1)
            likelihoods.append(sum(float(logs[i - 1, ids[i]]) for i in range(len(prefix), len(ids))))
            lengths.append(len(choice.encode()))
        right += likelihoods.index(max(likelihoods)) == row["gold"]
        shares = [value / length for value, length in zip(likelihoods, lengths, strict=True)]
        normalised += shares.index(max(shares)) == row["gold"]
    score = scores["base"]["tasks"]["places"]
    assert score["metrics"]["acc"]["value"] == pytest.approx(right / len(QUESTIONS))
    assert score["metric"] == "acc_norm"
    assert score["value"] == pytest.approx(normalised / len(QUESTIONS))
    items = [json.loads(line) for line in (scored.path / "items" / "base" / "places.jsonl").read_text().splitlines()]
    assert [item["id"] for item in items] == [row["id"] for row in QUESTIONS]
    assert sum(item["scores"]["acc_norm"] for item in items) == normalised
    assert items[-1]["likelihoods"] == pytest.approx(likelihoods, abs=1e-5)
    assert score["items"] == len(QUESTIONS)
    assert score["chance"] == pytest.approx(
        sum(1 / len(row["choices"]) for row in QUESTIONS) / len(QUESTIONS), abs=1e-6
    )
    stream = TokenStream(sorted((folder / "validation").glob("*")), tokenizer_digest=tokenizer_digest(folder / "model"))
    ids = stream.read(0, stream.tokens).tolist()
    nats = 0.0
    for start in range(0, len(ids) - 1, 128):
        window = torch.tensor([ids[start : start + 129]])
        with torch.no_grad():
            nats += float(model(window[:, :-1], window[:, 1:])) * (window.shape[1] - 1)
    expected = nats / math.log(2) / stream.text_bytes * stream.tokens / (stream.tokens - 1)
    assert scores["base"]["bits_per_byte"] == pytest.approx(expected, rel=1e-5)
    assert "| places, acc_norm |" in (scored.path / "scores.md").read_text()
    kept = {path.name for path in (scored.path / "language" / "base").iterdir()}
    assert kept == {"language.json", "language.md", "calibration.png", "positions.png", "documents.parquet"}


@pytest.mark.soak
def test_as_many_models_are_scored_as_there_are_under_their_names(folder: Path, scored: Output, tmp_path: Path) -> None:
    parts = [Artifact.at(folder / name) for name in ("validation", "benchmarks", "contamination")]
    out = Output.at(tmp_path, stage="evaluate", runtime=RUNTIME)
    evaluate.function(
        EvaluateConfig(batch_size=4), {"mine": Artifact.at(folder / "model")}, None, *parts, None, None, out
    )
    found, expected = (json.loads((each.path / "scores.json").read_text())["models"] for each in (out, scored))
    assert found == {"mine": expected["base"]}
    assert "| measure | mine | chance |" in (out.path / "scores.md").read_text()
    with pytest.raises(ConfigError, match="no model"):
        evaluate.function(EvaluateConfig(), {}, None, *parts, None, None, out)


def test_clean_and_dirty_questions_are_scored_apart(folder: Path, scored: Output) -> None:
    score = json.loads((scored.path / "scores.json").read_text())["models"]["dpo"]["tasks"]["places"]
    clean, dirty = score["clean"], score["dirty"]
    assert (clean["items"], dirty["items"], score["dirty_items"]) == (5, 15, 15)
    for measure in ("value", "chance"):
        together = (5 * clean[measure] + 15 * dirty[measure]) / 20
        assert together == pytest.approx(score[measure], abs=1e-5)
    assert clean["chance"] == pytest.approx(sum(1 / len(row["choices"]) for row in QUESTIONS[::4]) / 5, abs=1e-6)
    table = {row["measure"]: row for row in scored.counts["tables"]["Scores"]}
    assert [table[name]["items"] for name in ("places, acc_norm", "places, clean", "places, dirty")] == [
        "20",
        "5",
        "15",
    ]
    assert table["places, acc_norm"]["dirty"] == "15"
    assert "Dirty are questions of whose text" in (scored.path / "scores.md").read_text()
    half = find_dirty(folder / "contamination", 0.5)["places"]
    assert list(half.values()).count(True) == 5, "2 of 4 n-grams are not more than half"


def answered(*right: float) -> list[dict[str, Any]]:
    """Questions with four choices, as in items.jsonl."""
    return [
        {"id": str(number), "scores": {"acc": value}, "likelihoods": [0.0] * 4} for number, value in enumerate(right)
    ]


def test_a_subsets_error_is_that_of_a_mean_and_unknown_for_one_answer() -> None:
    items = answered(1, 1, 1, 0, 0)
    scores = split(items, "acc", {str(number): number == 4 for number in range(5)})
    assert scores["clean"]["value"] == 0.75
    assert scores["clean"]["stderr"] == pytest.approx(statistics.stdev([1, 1, 1, 0]) / 2)
    assert scores["dirty"]["stderr"] is None
    assert scores["dirty"]["chance"] == 0.25
    clean = split(items, "acc", dict.fromkeys(map(str, range(5)), False))
    assert clean == {"dirty_items": 0, "unchecked_items": 0}
    assert "clean" not in split(items, "acc", dict.fromkeys(map(str, range(5)), True))
    assert split(items, "acc", None) == {"dirty_items": None, "unchecked_items": 5}
    some = split(items, "acc", {"0": None, "1": None, "2": False, "3": False, "4": True})
    assert (some["unchecked_items"], some["clean"]["items"], some["dirty"]["items"]) == (2, 2, 1)


def test_a_benchmark_that_was_not_looked_for_says_so_and_a_lacking_question_is_an_error(tmp_path: Path) -> None:
    rows = looked_for(lambda number: number)
    write_rows(tmp_path / "questions.jsonl", [*rows[:-1], {**rows[-1], "ngrams": 0, "found": 0}])
    dirty = find_dirty(tmp_path, 0.0)
    assert dirty.get("other") is None
    assert {name: met for name, met in dirty["places"].items() if not met} == {
        QUESTIONS[0]["id"]: False,
        QUESTIONS[-1]["id"]: None,
    }
    with pytest.raises(DamagedArtifact, match="lacks 1 questions of places, such as new"):
        check_asked("places", ["new", str(QUESTIONS[0]["id"])], dirty["places"])


def score_of(value: float, stderr: float | None, items: int, chance: float | None = 0.25) -> dict[str, Any]:
    """A score as the stage `score` writes it."""
    metrics = {"acc": {"value": value, "stderr": stderr, "higher_is_better": True}}
    return {"headline": "acc", "metrics": metrics, "chance": chance, "items": items, "subtasks": {}, "too_long": 0}


def of_base(**tasks: dict[str, Any]) -> dict[str, Any]:
    """The scores of one model."""
    return {"models": {"base": {"bits_per_byte": 2.0, "tasks": tasks}}}


def test_a_few_answers_that_are_all_alike_may_be_chance() -> None:
    subsets = split(answered(0, 0), "acc", {"0": True, "1": False})
    scores = of_base(few=judged(score_of(0.0, 0.0, 2), subsets))
    rows = {row["measure"]: row["base"] for row in score_rows(scores)}
    assert rows["few, clean"] == rows["few, dirty"] == "0.000 (chance)"


def test_a_score_is_above_chance_below_it_or_no_better() -> None:
    unchecked = {"dirty_items": None, "unchecked_items": 200}
    scores = of_base(
        easy=judged(score_of(0.5, 0.03, 200), unchecked),
        hard=judged(score_of(0.28, 0.03, 200), {"dirty_items": 0, "unchecked_items": 9}),
        inverse=judged(score_of(0.14, 0.025, 200), unchecked),
        text=judged(score_of(0.02, 0.01, 200, None), unchecked),
    )
    rows = {row["measure"]: row["base"] for row in score_rows(scores)}
    assert [row["dirty"] for row in score_rows(scores)][1:3] == ["unchecked", "none (9 unchecked)"]
    assert rows == {
        "bits per byte": "2.000",
        "easy, acc": "0.500 ± 0.030",
        "hard, acc": "0.280 ± 0.030 (chance)",
        "inverse, acc": "0.140 ± 0.025 (below)",
        "text, acc": "0.020 ± 0.010",
    }
    told = verdict(scores)
    assert "Above chance for at least one model: easy." in told
    assert "Below chance for at least one model, so that something but knowledge decides: inverse." in told
    assert "say nothing of these models: hard" in told
    assert "text" not in told, "a text has no chance level"


def test_questions_that_dont_fit_go_unasked_and_are_counted(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    rows = [{"query": "q", "choices": ["a", "b" * n], "gold": 0} for n in (1, 50)]
    write_rows(path, rows)
    asked, too_long = questions_of(path, None, lambda choice: len(choice) < 10)
    assert (asked, too_long) == (rows[:1], 1)
    with pytest.raises(SourceError, match="None of the 2 questions"):
        questions_of(path, None, lambda choice: False)
    with pytest.raises(ConfigError, match="benchmark c is unknown"):
        chosen(EvaluateConfig(tasks=["c"]), Artifact.at(folder / "benchmarks"))


def test_a_benchmark_asked_twice_needs_two_names() -> None:
    with pytest.raises(ValueError, match="tasks has places twice"):
        EvaluateConfig(tasks=["places", TaskConfig(task="places", chat=True)])
    both = EvaluateConfig(tasks=["places", TaskConfig(task="places", chat=True, name="places by chat")])
    assert [task.label for task in both.asked([])] == ["places", "places by chat"]


def test_models_of_different_tokenizers_are_not_compared(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder / "model", tmp_path / "other")
    (other / "chat_template.jinja").write_text("other")
    with pytest.raises(TokenizerMismatch):
        run(folder, tmp_path, base=other)
