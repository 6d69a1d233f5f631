"""Gates: what stops a release and what does not, what the table says, what a damaged file does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, GateError
from storage.store import Store
from tasks.evaluate import EvaluateConfig
from tasks.export import ExportConfig, export
from tasks.significance.answered import Answered
from tasks.significance.gate_config import GateConfig, Reference, unknown_models
from tasks.significance.gates import (
    FILE,
    GateResult,
    check_gates,
    gate_digests,
    gate_references,
    judge_gates,
    rows,
    write_results,
)
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, open_session
from tests.flows.commands.test_cli import publish
from tests.tasks.significance.evaluations import right, write_evaluation

BITS = {"base": 1.4, "dpo": 1.45}
MODELS = {"base": {"blimp": right(130)}, "dpo": {"blimp": right(100)}}  # 30 of 200 questions are lost


@pytest.fixture
def run(tmp_path: Path) -> Answered:
    return Answered.read(write_evaluation(tmp_path / "run", MODELS, bits=BITS), "this run")


def judge(run: Answered, **gate: Any) -> GateResult:
    (result,) = judge_gates([GateConfig(**gate)], run, {})
    return result


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        ({"task": "blimp", "at_least": 0.5}, True),
        ({"task": "blimp", "at_least": 0.501}, False),
        ({"task": "blimp", "at_least": 0.501, "model": "base", "metric": "acc"}, True),
        ({"task": "blimp", "at_most": 0.4}, False),
        ({"task": "blimp", "no_worse_than": "base"}, False),
        ({"task": "blimp", "no_worse_than": "base", "by": 0.05}, False),
        (
            {"task": "blimp", "no_worse_than": "base", "by": 0.12},
            True,
        ),  # 0.15 are lost, and 0.12 within the noise of it
        ({"task": "blimp", "model": "base", "no_worse_than": "dpo"}, True),
        ({"task": "bits_per_byte", "at_most": 1.44}, False),
        ({"task": "bits_per_byte", "at_most": 1.45}, True),
        ({"task": "bits_per_byte", "no_worse_than": "base"}, False),
        ({"task": "bits_per_byte", "no_worse_than": "base", "by": 0.06}, True),
        ({"task": "mmlu", "at_least": 0.1}, False),  # not measured, so not passed
        ({"task": "blimp", "metric": "f1", "at_least": 0.1}, False),
        ({"task": "blimp", "model": "ppo", "at_least": 0.1}, False),
        ({"task": "blimp", "no_worse_than": "bsae"}, False),
    ],
)
def test_a_gate_passes_or_fails(gate: dict[str, Any], passed: bool, run: Answered) -> None:
    assert judge(run, **gate).passed is passed


def test_a_loss_within_noise_passes_and_what_would_be_found_is_said(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    base = (generator.random(100) < 0.6).astype(float)
    again = np.where(generator.random(100) < 0.2, 1 - base, base)
    models = {"base": {"blimp": base.tolist()}, "sft": {"blimp": again.tolist()}}
    result = judge(Answered.read(write_evaluation(tmp_path, models), "run"), task="blimp", no_worse_than="base")
    assert result.passed
    assert base.mean() > again.mean()
    assert "worse by" in result.why
    assert "would be found four times in five" in result.why


def test_few_questions_stop_nothing_and_say_so(tmp_path: Path) -> None:
    models = {"base": {"blimp": right(3, 4)}, "sft": {"blimp": right(0, 4)}}
    result = judge(Answered.read(write_evaluation(tmp_path, models), "run"), task="blimp", no_worse_than="base")
    assert result.passed
    assert "too few questions to show a loss" in result.why


def test_less_is_better_for_some_metrics(tmp_path: Path) -> None:
    losses = [1.0 + n / 100 for n in range(60)]
    models = {"base": {"text": losses}, "sft": {"text": [loss + 0.2 + loss / 100 for loss in losses]}}
    run = Answered.read(write_evaluation(tmp_path, models, metric="nats", better=False), "run")
    assert not judge(run, task="text", no_worse_than="base", by=0.1).passed
    assert judge(run, task="text", no_worse_than="base", by=0.3).passed
    assert judge(run, task="text", model="base", no_worse_than="sft").passed


@pytest.mark.parametrize(
    "gate",
    [
        {"task": "blimp"},
        {"task": "", "at_least": 1},
        {"task": "blimp", "at_least": 0.6, "at_most": 0.5},
        {"task": "blimp", "at_least": 0.6, "by": 0.1},
        {"task": "blimp", "no_worse_than": "base", "by": -0.1},
        {"task": "blimp", "model": "base", "no_worse_than": "base"},
        {"task": "bits_per_byte", "metric": "acc", "at_most": 1},
        {"task": "bits_per_byte", "at_least": 1},
        {"task": "blimp", "at_least": float("nan")},
        {"task": "blimp", "at_leats": 0.6},
    ],
)
def test_a_gate_that_says_nothing_is_refused(gate: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GateConfig(**gate)


@pytest.mark.parametrize(
    ("text", "ref", "model"),
    [
        ("base", None, "base"),
        ("org/model:Q4", None, "org/model:Q4"),
        ("tiny/evaluate@3", "tiny/evaluate@3", None),
        ("tiny/evaluate@3:org/model:Q4", "tiny/evaluate@3", "org/model:Q4"),
        ("tiny/evaluate", "tiny/evaluate", None),
        ("evaluate/79a340c3e3a6", "evaluate/79a340c3e3a6", None),
    ],
)
def test_a_model_of_this_run_is_told_from_another_evaluation(text: str, ref: str | None, model: str | None) -> None:
    assert GateConfig(task="blimp", no_worse_than=text).reference == Reference(ref, model)


def test_an_earlier_evaluation_is_named_with_its_version_and_enters_by_its_digest(
    run: Answered, tmp_path: Path
) -> None:
    folder = write_evaluation(tmp_path / "earlier", {"sft": {"blimp": right(140)}})
    store = Store(str(tmp_path / "store"))
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    location = publish(store, "evaluate", files)
    gate = GateConfig(task="blimp", no_worse_than="tiny/evaluate@1")
    with open_session(Session(store, Runtime())):
        found = gate_references([gate])
        assert gate_digests([gate]) == {"gate tiny/evaluate@1": store.get(location).digest}
        with pytest.raises(ConfigError, match="which moves"):
            gate_digests([GateConfig(task="blimp", no_worse_than="tiny/evaluate")])
    others = {ref: Answered.of(artifact, ref) for ref, artifact in found.items()}
    (result,) = judge_gates([gate], run, others)
    assert not result.passed
    assert result.condition == "score no worse than tiny/evaluate@1:sft"  # the last of that chain: it has no dpo
    assert result.score == "0.5 against 0.7"


def test_a_failed_gate_stops_a_release_with_the_table_and_a_better_model_passes(run: Answered, tmp_path: Path) -> None:
    gates = [GateConfig(task="blimp", at_least=0.6), GateConfig(task="bits_per_byte", at_most=1.5)]
    results = judge_gates(gates, run, {})
    write_results(results, run.folder)
    with pytest.raises(GateError, match="1 of 2 gates stop the release") as stopped:
        check_gates(Artifact.at(run.folder))
    assert "| FAILED | blimp | dpo | score at least 0.6 | 0.5 ± 0.01 | below it by 0.1, " in stopped.value.message
    assert "evaluate.gates" in stopped.value.remedy
    assert [row["gate"] for row in stopped.value.facts["gates"]] == ["FAILED", "passed"]
    assert rows(results)[0]["why"] == "below it by 0.1, 10.0 standard errors off"
    better = {**MODELS, "dpo": {"blimp": right(125)}}
    again = Answered.read(write_evaluation(tmp_path / "again", better, bits=BITS), "this run")
    write_results(judge_gates(gates, again, {}), again.folder)
    assert check_gates(Artifact.at(again.folder)) == 2


def write_documents(run: Answered, model: str, nats: list[float], *, sizes: list[float], sources: list[str]) -> None:
    """The losses of held-out documents, and the bits per byte of their sources, as language_modelling leaves them."""
    folder = run.folder / "language" / model
    folder.mkdir(parents=True)
    columns = {"text": sources, "held_out": [True] * len(nats), "number": range(len(nats)), "bytes": sizes}
    pq.write_table(pa.table({**columns, "nats": nats}), folder / "documents.parquet")
    rows = []
    for name in sorted(set(sources)):
        of = [n for n, source in enumerate(sources) if source == name]
        size, bits = sum(sizes[n] for n in of), sum(nats[n] for n in of) / math.log(2)
        rows.append({"name": name, "bytes": size, "bits_per_byte": bits / size, "bits_per_byte_stderr": 0.01})
    (folder / "language.json").write_text(json.dumps({"held_out": {"is_sample": False, "by_source": rows}}))


@pytest.mark.parametrize(
    ("gate", "passed", "why"),
    [
        ({"no_worse_than": "base"}, True, "better by"),  # what the domain gains is more
        ({"no_worse_than": "base", "source": "general"}, False, "beyond noise"),
        ({"no_worse_than": "base", "source": "general", "by": 0.05}, True, "worse by 0.0383 on 40 documents ± 0.0039"),
        (
            {"no_worse_than": "base", "source": "general", "by": 0.035},
            True,
            "worse by 0.0383",
        ),  # within the noise of it
        ({"no_worse_than": "base", "source": "general", "by": 0.02}, False, "beyond noise"),
        ({"model": "base", "no_worse_than": "dpo", "source": "domain"}, False, "beyond noise"),
        ({"source": "general", "at_most": 2.0}, True, "standard errors to spare"),
        ({"source": "general", "at_most": 1.0}, False, "above it"),
        ({"source": "poems", "at_most": 9.0}, False, "on no text of poems, but of domain, general"),
        ({"no_worse_than": "base", "source": "poems"}, False, "on no text of poems, but of domain, general"),
    ],
)
def test_a_gate_on_a_source_judges_by_documents(gate: dict[str, Any], passed: bool, why: str, run: Answered) -> None:
    rng = np.random.default_rng(0)
    sizes = (1000 * rng.uniform(0.5, 2, 80)).tolist()
    sources = ["domain", "general"] * 40
    hard = rng.normal(1.3, 0.3, 80)  # texts differ far more than models do
    changed = np.where(np.array(sources) == "general", 0.04, -0.1) + rng.normal(0, 0.02, 80)
    for model, bits in (("base", hard), ("dpo", hard + changed)):
        write_documents(run, model, (bits * sizes * math.log(2)).tolist(), sizes=sizes, sources=sources)
    result = judge(run, task="bits_per_byte", **gate)
    assert result.passed is passed
    assert why in result.why


@pytest.mark.parametrize("damage", ["other documents", "other parts", "parts in turn", "bytes", "a name"])
def test_documents_that_differ_or_are_damaged(damage: str, run: Answered) -> None:
    names, texts = ["a"] * 20, [500.0] * 20
    write_documents(run, "base", [400.0] * 20, sizes=texts, sources=names)
    parts = {"other parts": [250.0] * 20, "parts in turn": [250.0, 750.0] * 10}.get(damage, texts)
    write_documents(run, "dpo", [400.0] * 20, sizes=parts, sources=["b"] * 20 if damage == "other documents" else names)
    gate = {"task": "bits_per_byte", "no_worse_than": "base"}
    if damage == "bytes":
        path = run.folder / "language" / "dpo" / "documents.parquet"
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(DamagedArtifact, match=r"documents\.parquet of dpo in this run"):
            judge(run, **gate)
    elif damage == "a name":
        outside = Answered(run.name, run.folder, {"../base": run.models["base"], "dpo": run.models["dpo"]})
        with pytest.raises(DamagedArtifact, match="can't be read"):
            judge(outside, **{**gate, "no_worse_than": "../base"})
    else:
        result = judge(run, **gate)
        assert not result.passed
        assert f"measured on different {'documents' if damage == 'other documents' else 'parts'}" in result.why


def test_a_loss_on_documents_has_the_error_of_a_ratio(run: Answered) -> None:
    rng = np.random.default_rng(1)
    sizes, bits = 1000 * rng.uniform(0.2, 3, 50), rng.normal(1.2, 0.2, (2, 50))
    for model, one in zip(("base", "dpo"), bits, strict=True):
        write_documents(run, model, (one * sizes * math.log(2)).tolist(), sizes=sizes.tolist(), sources=["a"] * 50)
    drawn = rng.integers(50, size=(20_000, 50))  # the bootstrap, over documents
    means = (bits[1] * sizes)[drawn].sum(1) / sizes[drawn].sum(1) - (bits[0] * sizes)[drawn].sum(1) / sizes[drawn].sum(
        1
    )
    why = judge(run, task="bits_per_byte", no_worse_than="base", by=9).why
    assert float(why.split("± ")[1]) == pytest.approx(float(means.std()), rel=0.05)


@pytest.mark.parametrize("text", ["", "{", "[{}]", "null", '[{"passed": 1}]', "[" * 100_000])
def test_damaged_results_do_not_pass(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(DamagedArtifact):
        check_gates(Artifact.at(tmp_path))


def test_the_release_itself_is_refused_before_anything_is_made(run: Answered, tmp_path: Path) -> None:
    write_results(judge_gates([GateConfig(task="blimp", at_least=0.6)], run, {}), run.folder)
    out, empty = Output.at(tmp_path / "release"), Artifact.at(run.folder / "items")
    with pytest.raises(GateError):
        export.function(ExportConfig(), empty, Artifact.at(run.folder), empty, {}, None, out)
    assert not list(out.path.iterdir())


def test_a_model_that_is_not_measured_is_told_before_a_run() -> None:
    gates = [
        GateConfig(task="blimp", model="dop", at_least=0.6),
        GateConfig(task="blimp", model="dpo", no_worse_than="bsae"),
        GateConfig(task="blimp", no_worse_than="tiny/evaluate@3:gone"),
    ]
    assert unknown_models(gates, ["base", "dpo"]) == ["gates.0.model is dop", "gates.1.no_worse_than is bsae"]


def test_an_evaluation_without_gates_stops_nothing(run: Answered) -> None:
    assert check_gates(Artifact.at(run.folder)) == 0
    write_results([], run.folder)
    assert json.loads((run.folder / FILE).read_text()) == []
    assert check_gates(Artifact.at(run.folder)) == 0


def test_gates_are_about_the_model_that_is_released() -> None:
    config = EvaluateConfig.model_validate(
        {"gates": [{"task": "arc_easy", "at_least": 0.3}, {"task": "arc_easy", "model": "base", "at_least": 0.2}]}
    )
    assert [gate.model for gate in config.with_release("sft").gates] == ["sft", "base"]
