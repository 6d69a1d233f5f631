"""The scores equal those of lm-evaluation-harness's own command on the same model, files and arguments to the digit:
choices, the likelihood of a word, pages longer than the context, and answers in text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.evaluate.score.config import ScoreConfig
from tasks.evaluate.score.stage import score
from tasks.harness.definitions import families
from tasks.harness.prepare import prepare
from tasks.stage.output import Output
from tests.tasks.harness.made import sources
from tests.tasks.tiny_model import RUNTIME, make_model

TASKS = {"arc_easy": 2, "lambada_openai": 0, "wikitext": 0, "gsm8k": 1}  # and the examples before each question
GENERATION = {"max_gen_toks": 12}
ROUNDING = 1e-6  # of the sums of float32 logarithms behind a perplexity; decisions are equal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("equal")
    make_model(folder / "model")
    for name, source in sources(folder / "files").items():
        prepare(source, folder / "benchmarks" / name, folder / "scratch")
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each task's score.json."""
    out = Output.at(tmp_path_factory.mktemp("ours"), stage="evaluate", runtime=RUNTIME)
    model, benchmarks = Artifact.at(folder / "model"), Artifact.at(folder / "benchmarks")
    calls = {
        name: (ScoreConfig(task=name, shots=shots, generation=of(name)), (model, benchmarks.only(name)))
        for name, shots in TASKS.items()
    }
    made = out.obtain_all(score, calls)
    return {name: json.loads((artifact.path / "score.json").read_text()) for name, artifact in made.items()}


def of(name: str) -> dict[str, Any]:
    """Arguments of generation, for the task that has one."""
    return GENERATION if name == "gsm8k" else {}


def definitions(folder: Path, files: Path) -> Path:
    """The harness's own definitions, each with local files for its data."""
    folder.mkdir()
    for name in TASKS:
        (own,) = [path for family in families(name) for path in family.rglob(f"{name}.yaml")]
        splits = sources(files)[name].files or {}
        (folder / f"{name}.yaml").write_text(
            json.dumps(
                {
                    "include": str(own),
                    "task": name,
                    "dataset_path": "json",
                    "dataset_name": None,
                    "dataset_kwargs": {"data_files": splits, "cache_dir": str(folder / "cache")},
                }
            )
        )
    return folder


def check_equal(ours: dict[str, dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> None:
    """Every metric that the harness reports."""
    for name in TASKS:
        reported = {
            key.removesuffix(",none"): value
            for key, value in theirs[name].items()
            if "," in key and "_stderr" not in key and isinstance(value, float | int)
        }
        assert reported.keys() == ours[name]["metrics"].keys()
        for metric, value in reported.items():
            found = ours[name]["metrics"][metric]
            assert found["value"] == pytest.approx(value, rel=ROUNDING, abs=1e-9), (name, metric)
            error = theirs[name].get(f"{metric},none_stderr".replace(",none_stderr", "_stderr,none"))
            if metric.startswith(("acc", "exact")) and isinstance(error, float):
                assert found["stderr"] == pytest.approx(error, abs=1e-9)


def test_scores_are_those_of_the_harness(
    folder: Path, ours: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval import evaluator, simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)  # lists all packages, for a second each time
    manager = TaskManager(
        include_path=str(definitions(tmp_path / "definitions", folder / "files")), include_defaults=False
    )
    theirs: dict[str, Any] = {}
    for name, shots in TASKS.items():
        measured: Any = simple_evaluate(
            model="hf",
            model_args={"pretrained": str(folder / "model"), "dtype": "float32", "max_length": 128},
            tasks=[name],
            num_fewshot=shots,
            batch_size=4,
            device="cpu",
            task_manager=manager,
            gen_kwargs=of(name) or None,
            bootstrap_iters=10,
        )
        theirs |= measured["results"]
    check_equal(ours, theirs)
    assert ours["arc_easy"]["shots"] == [2]
    assert ours["arc_easy"]["chance"] == pytest.approx((1 / 3 + 1 / 4 + 1 / 5) / 3)
    assert [ours[name]["chance"] for name in ("lambada_openai", "wikitext", "gsm8k")] == [None, None, None]


@pytest.mark.soak
def test_more_shots_than_examples_are_refused(folder: Path, tmp_path: Path) -> None:
    out = Output.at(tmp_path, stage="evaluate", runtime=RUNTIME)
    call = (Artifact.at(folder / "model"), Artifact.at(folder / "benchmarks").only("gsm8k"))
    with pytest.raises(ConfigError, match="gsm8k has fewer examples to show than shots: 99"):
        out.obtain(score, ScoreConfig(task="gsm8k", shots=99), *call)


@pytest.mark.soak
def test_scores_are_those_of_the_harnesss_command(
    folder: Path, ours: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    found = definitions(tmp_path / "definitions", folder / "files")
    theirs: dict[str, Any] = {}
    for name, shots in TASKS.items():
        command = [
            sys.executable,
            "-m",
            "lm_eval",
            "run",
            "--model",
            "hf",
            "--model_args",
            f"pretrained={folder / 'model'},dtype=float32,max_length=128",
            "--tasks",
            name,
            "--num_fewshot",
            str(shots),
            "--batch_size",
            "4",
            "--device",
            "cpu",
            "--include_path",
            str(found),
            "--output_path",
            str(tmp_path / name),
            *(["--gen_kwargs", ",".join(f"{key}={value}" for key, value in of(name).items())] if of(name) else []),
        ]
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True)
        (written,) = (tmp_path / name).rglob("results_*.json")
        theirs |= json.loads(written.read_text())["results"]
    check_equal(ours, theirs)
