"""Evaluation: the harness gives what a hand would compute, chance is called chance, joins are checked."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from models.convert import load
from models.tokenizer import load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError, SourceError, TokenizerMismatch
from storage.token_stream import TokenStream
from tasks.evaluate import EvaluateConfig, evaluate
from tasks.evaluate.benchmarks import select, write_questions
from tasks.evaluate.scores import assemble, side_by_side, verdict
from tasks.output import Output
from tests.tasks.tiny_model import ANIMALS, PLACES, RUNTIME, make_model, make_validation, write_rows

QUESTIONS = [
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
    return folder


def run(folder: Path, out_folder: Path, base: Path | None = None) -> Output:
    model = Artifact.at(folder / "model")
    inputs = [Artifact.at(base) if base else model, model, model]
    out = Output.at(out_folder, stage="evaluate", runtime=RUNTIME)
    parts = (Artifact.at(folder / "validation"), Artifact.at(folder / "benchmarks"))
    evaluate.function(EvaluateConfig(batch_size=4), *inputs, *parts, out)
    return out


def test_scores_are_what_a_hand_would_compute(folder: Path, tmp_path: Path) -> None:
    out = run(folder, tmp_path)
    scores = json.loads((out.path / "scores.json").read_text())["models"]
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
    assert score["accuracy"] == pytest.approx(right / len(QUESTIONS))
    assert score["normalised_accuracy"] == pytest.approx(normalised / len(QUESTIONS))
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
    assert "| places |" in (out.path / "scores.md").read_text()


def test_a_score_near_chance_is_called_so_and_a_sure_one_is_not() -> None:
    def task(value: float) -> dict[str, float]:
        return {"accuracy": value, "normalised_accuracy": value, "normalised_accuracy_stderr": 0.03, "items": 200}

    result = {
        "models": {"base": {"bits_per_byte": 2.0, "tasks": {"easy": task(0.5), "hard": task(0.28)}}},
        "benchmarks": {name: {"chance": 0.25, "too_long": 0} for name in ("easy", "hard")},
    }
    scores = assemble(result)
    rows = {row["measure"]: row["base"] for row in side_by_side(scores)}
    assert rows == {"bits per byte": "2.000", "easy": "0.500 ± 0.030", "hard": "0.280 ± 0.030 (chance)"}
    assert "Away from chance for at least one model: easy." in verdict(scores)
    assert "say nothing of these models: hard" in verdict(scores)


def test_questions_that_dont_fit_go_unasked_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    rows = [{"query": "q", "choices": ["a", "b" * n], "gold": 0} for n in (1, 50)]
    write_rows(path, rows)
    about = write_questions([path], tmp_path / "out", max_items=None, fits=lambda choice: len(choice) < 10)
    assert about == {"b": {"asked": 1, "too_long": 1, "chance": 0.5}}
    with pytest.raises(SourceError, match="None of the 2 questions"):
        write_questions([path], tmp_path / "out", max_items=None, fits=lambda choice: False)
    with pytest.raises(ConfigError, match="no benchmark c"):
        select([path], ["c"])


def test_models_of_different_tokenizers_are_not_compared(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder / "model", tmp_path / "other")
    (other / "chat_template.jinja").write_text("other")
    with pytest.raises(TokenizerMismatch):
        run(folder, tmp_path, base=other)
