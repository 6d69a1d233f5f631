"""Named models in one table: a link in other formats, a third-party model with its own tokenizer, an endpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from profiles.load import load
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.evaluate import EvaluateConfig, evaluate
from tasks.evaluate.language import LanguageConfig
from tasks.evaluate.language.stage import language_modelling
from tasks.evaluate.other_models.config import NamedModel, QuantizedConfig
from tasks.evaluate.other_models.models import check_here, sources
from tasks.evaluate.other_models.quantized_model import quantized_model
from tasks.harness.prepare import prepare
from tasks.significance.scores import score_rows
from tasks.stage.output import Output
from tasks.tokenizer import TokenizerConfig, train_tokenizer
from tests.tasks.endpoint.completions import Body, Said, Server, serve
from tests.tasks.harness import made
from tests.tasks.tiny_model import PLACES, RUNTIME, make_model, make_tokenizer, make_validation, write_rows

KEY = "sk-never-written-down"
QUESTIONS = [
    {"id": place, "query": "The fox lives in the", "choices": [f" {one}." for one in (place, PLACES[0])], "gold": 0}
    for place in PLACES[1:]
]


class Measured:
    """An evaluation, its models, and the server that it called."""

    def __init__(self, out: Output, server: Server, folder: Path) -> None:
        self.out, self.server, self.folder = out, server, folder
        self.scores: dict[str, Any] = json.loads((out.path / "scores.json").read_text())["models"]

    def items(self, model: str, task: str) -> list[dict[str, Any]]:
        lines = (self.out.path / "items" / model / f"{task}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def language(self, model: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out.path / "language" / model / "language.json").read_text())
        return found["held_out"]  # type: ignore[no-any-return]


def others_model(folder: Path) -> Path:
    """A model with a tokenizer of 300 ids."""
    shutil.copytree(make_tokenizer(folder.parent / "tokenizer").parent / "documents", folder / "tokenizer/documents")
    out = Output.at(folder / "tokenizer", runtime=RUNTIME)
    train_tokenizer.function(TokenizerConfig(vocab_size=300), Artifact.at(folder / "tokenizer/documents"), out)
    return make_model(folder / "model", vocab_size=300, context=64)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("named")
    make_model(folder / "model")
    make_validation(folder / "validation", folder / "model")
    write_rows(folder / "benchmarks" / "places.jsonl", QUESTIONS)
    prepare(made.sources(folder / "files")["gsm8k"], folder / "benchmarks" / "gsm8k", folder / "scratch")
    others = others_model(folder / "others")
    os.environ["WISE_API_KEY"] = KEY

    def answer(body: Body) -> Said:
        return Said("#### 4, I say.\n\nQuestion: how many legs have you?")

    with serve(answer) as server:
        endpoint = {"url": server.url, "model": "wise", "api_key_env": "WISE_API_KEY"}
        config = EvaluateConfig.model_validate(
            {
                "tasks": ["places", {"task": "gsm8k", "shots": 1, "generation": {"max_gen_toks": 12}}],
                "models": [
                    {"name": "dpo-f32", "link": "dpo", "format": "gguf-f32"},
                    {"name": "dpo-int8", "link": "dpo", "format": "int8"},
                    {"name": "others", "base": {"folder": str(others)}},
                    {"name": "wise", "endpoint": endpoint},
                ],
                "prompts": ["Where does the fox live?"],
                "answer_tokens": 4,
            }
        )
        out = Output.at(tmp_path_factory.mktemp("measured"), stage="evaluate", runtime=RUNTIME)
        parts = [Artifact.at(folder / name) for name in ("validation", "benchmarks")]
        models = {"dpo": Artifact.at(folder / "model")}
        evaluate.function(config, models, None, *parts, None, None, None, out)
        yield Measured(out, server, folder)
    del os.environ["WISE_API_KEY"]


@pytest.mark.soak
def test_a_gguf_file_is_measured_by_llama_cpp_as_the_link_is_by_transformers(measured: Measured) -> None:
    link, file = (measured.items(name, "places") for name in ("dpo", "dpo-f32"))
    for one, other in zip(link, file, strict=True):
        assert other["scores"] == one["scores"]
        assert other["likelihoods"] == pytest.approx(one["likelihoods"], abs=2e-3)
        assert other["likelihoods"] != one["likelihoods"], "llama.cpp rounds in another way"
    assert [one["answers"] for one in measured.items("dpo-f32", "gsm8k")] == [
        one["answers"] for one in measured.items("dpo", "gsm8k")
    ]
    text, in_llama = measured.language("dpo"), measured.language("dpo-f32")
    assert in_llama["tokens"] == text["tokens"]
    assert in_llama["bits_per_byte"] == pytest.approx(text["bits_per_byte"], rel=1e-4)
    error = text["calibration"]["ece"]
    assert in_llama["calibration"]["ece"] == pytest.approx(error, abs=1e-3)


@pytest.mark.soak
def test_a_quantized_link_is_another_model_and_answers_like_one(measured: Measured) -> None:
    assert measured.scores["dpo-int8"]["tasks"].keys() == {"places", "gsm8k"}
    bits, exact = (measured.scores[name]["bits_per_byte"] for name in ("dpo-int8", "dpo"))
    assert bits == pytest.approx(exact, rel=0.01)
    assert bits != exact


def test_a_model_of_others_reads_the_same_text_with_its_own_tokenizer(measured: Measured) -> None:
    ours, theirs = measured.language("dpo"), measured.language("others")
    assert theirs["tokens"] > 1.05 * ours["tokens"]
    assert theirs["documents"] == ours["documents"]
    assert measured.scores["others"]["tasks"]["places"]["items"] == len(QUESTIONS)


@pytest.mark.soak
def test_questions_as_held_out_text_are_encoded_for_each_model(measured: Measured, tmp_path: Path) -> None:
    for name in ("homes", "places"):
        write_rows(tmp_path / "questions" / f"{name}.jsonl", QUESTIONS)
    questions = Artifact.at(tmp_path / "questions")
    ours, others = (Artifact.at(measured.folder / name) for name in ("model", "others/model"))
    out = Output.at(tmp_path / "out", stage="language_modelling", runtime=RUNTIME)
    language_modelling.function(LanguageConfig(), others, questions, ours, out)
    found = json.loads((out.path / "language.json").read_text())["held_out"]
    assert found["bits_per_byte"] > 0
    assert [row["name"] for row in found["by_source"]] == ["homes", "places"]


def test_an_endpoint_is_asked_for_text_alone(measured: Measured) -> None:
    assert measured.scores["wise"]["bits_per_byte"] is None
    assert measured.scores["wise"]["tasks"].keys() == {"gsm8k"}
    items = measured.items("wise", "gsm8k")
    assert [item["scores"]["exact_match,strict-match"] for item in items] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert {tuple(item["answers"]) for item in items} == {("#### 4, I say.\n\n",)}, "cut at the task's own words"
    assert len(measured.server.asked) == len(items)
    (turn,) = measured.server.asked[0]["messages"]
    assert turn["role"] == "user"
    assert turn["content"].count("Question: ") == 2, "the example and the question"
    assert measured.server.asked[0]["max_tokens"] == 12
    assert {headers["Authorization"] for headers in measured.server.headers} == {f"Bearer {KEY}"}
    written = [path for path in measured.out.path.parent.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


@pytest.mark.soak
def test_the_table_has_a_dash_where_a_model_can_not_be_asked(measured: Measured) -> None:
    rows = {row["measure"]: row for row in measured.out.counts["tables"]["Scores"]}
    models = ["dpo", "dpo-f32", "dpo-int8", "others", "wise"]
    assert list(rows["bits per byte"])[1:6] == models
    assert rows["bits per byte"]["wise"] == rows["places, acc_norm"]["wise"] == "–"
    assert all("–" not in row[name] for row in rows.values() for name in models[:-1])
    assert rows["gsm8k, exact_match,strict-match"]["wise"] == "0.167 ± 0.167"
    assert "–" in (measured.out.path / "scores.md").read_text()
    (answers,) = measured.out.counts["tables"]["Answers"]
    assert list(answers)[1:] == ["dpo", "dpo-int8", "others"], "those that transformers runs"


def test_a_first_model_without_a_benchmark_hides_it_from_no_other() -> None:
    score = {"metric": "acc", "value": 0.5, "stderr": None, "chance": None, "worth": None, "items": 2, "dirty_items": 0}
    score["unchecked_items"] = 0
    models = {"a": {"bits_per_byte": None, "tasks": {}}, "b": {"bits_per_byte": 1.0, "tasks": {"t": score}}}
    assert [(row["a"], row["b"]) for row in score_rows({"models": models})] == [("–", "1.000"), ("–", "0.500")]


@pytest.mark.soak
def test_another_file_of_a_model_is_another_evaluation(measured: Measured, tmp_path: Path) -> None:
    shutil.copytree(measured.folder / "others" / "model", tmp_path / "model")
    named = [NamedModel.model_validate({"name": "others", "base": {"folder": str(tmp_path / "model")}})]
    before = sources(named)
    assert any(name.startswith("models.others: ") for name in before)
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert sources(named) != before


def test_without_models_the_key_is_what_it_was() -> None:
    assert "models" not in EvaluateConfig().model_dump(mode="json")
    assert "models" in EvaluateConfig(models=[NamedModel(name="x", link="dpo", format="int8")]).model_dump(mode="json")


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ([{"name": "x"}], "x must be one of base, link and endpoint"),
        ([{"name": "x", "link": "dpo"}], "link and format go together"),
        ([{"name": "x", "link": "dpo", "format": "gguf-q3"}], "the formats are"),
        ([{"name": "x", "link": "dpo", "format": "pt2"}], "neither transformers nor llama.cpp runs"),
        ([{"name": "x", "link": "ppo", "format": "int8"}], "is of ppo, but the links are base, sft, dpo"),
        ([{"name": "sft", "link": "dpo", "format": "int8"}], "has the name of a link, sft"),
        ([{"name": "a/b", "link": "dpo", "format": "int8"}], r"its name in tables; the pattern is \^\[A-Za-z0-9\]"),
        ([{"name": "x", "link": "dpo", "format": "int8"}] * 2, "models has x twice"),
        ([{"name": "x", "base": {"folder": "a", "gguf": "b"}}], "name one source: a folder"),
    ],
)
def test_a_model_that_there_is_not_is_told_when_the_profile_is_read(named: list[Any], problem: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=problem):
        load("smoke", [f"evaluate.models={json.dumps(named)}"])


def test_a_gate_may_name_such_a_model() -> None:
    gate = "evaluate.gates=[{task: arc_easy, model: %s, no_worse_than: dpo, by: 0.01}]"
    named = "evaluate.models=[{name: small, link: dpo, format: gguf-q4_0}]"
    assert load("smoke", [named, gate % "small"]).evaluate is not None
    with pytest.raises(ConfigError, match="which this run doesn't measure"):
        load("smoke", [named, gate % "smaller"])


def test_an_endpoint_without_its_key_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WISE_API_KEY", raising=False)
    endpoint = {"url": "http://127.0.0.1:1/v1", "model": "wise", "api_key_env": "WISE_API_KEY"}
    with pytest.raises(ConfigError, match=r"evaluate\.models wise\.api_key_env: .* WISE_API_KEY is not set"):
        check_here([NamedModel.model_validate({"name": "wise", "endpoint": endpoint})])


@pytest.mark.soak
def test_a_format_that_is_fitted_to_text_is_fitted_to_what_was_held_out(tmp_path: Path) -> None:
    model = Artifact.at(make_model(tmp_path / "model"))
    text = Artifact.at(make_validation(tmp_path / "validation", model.path))
    out = Output.at(tmp_path / "fitted", stage="quantized_model", runtime=RUNTIME)
    quantized_model.function(QuantizedConfig(format="gptq"), model, text, out)
    settings = json.loads((out.path / "model" / "config.json").read_text())["quantization_config"]
    assert settings["quant_method"] == "compressed-tensors"
    without = Output.at(tmp_path / "without", stage="quantized_model", runtime=RUNTIME)
    with pytest.raises(ConfigError, match="calibrat"):
        quantized_model.function(QuantizedConfig(format="gptq"), model, None, without)
