"""IFEval's scores equal those of lm-evaluation-harness on the same model and questions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.evaluate.score.config import ScoreConfig
from tasks.evaluate.score.stage import score
from tasks.harness.config import HarnessSource
from tasks.harness.definitions import families
from tasks.harness.prepare import prepare
from tasks.stage.output import Output
from tests.tasks.harness.made import INSTRUCTIONS, write_sentences
from tests.tasks.tiny_model import RUNTIME, make_model, write_rows

GENERATION = {"max_gen_toks": 40}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("ifeval") / "model")


def ours(model: Path, rows: Path, folder: Path, limit: int, generation: dict[str, Any]) -> Path:
    """The artifact of the score."""
    source = HarnessSource(task="ifeval", files={"train": str(rows)})
    prepare(source, folder / "benchmarks" / "ifeval", folder / "scratch")
    config = ScoreConfig(task="ifeval", limit=limit, generation=generation)
    out = Output.at(folder / "out", stage="evaluate", runtime=RUNTIME)
    return out.obtain(score, config, Artifact.at(model), Artifact.at(folder / "benchmarks").only("ifeval")).path


def theirs(model: Path, rows: Path, folder: Path, limit: int) -> dict[str, Any]:
    """The harness's own results, with a seed for its detector."""
    import langdetect
    import nltk
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    (own,) = [path for family in families("ifeval") for path in family.glob("ifeval.yaml")]
    data = {"data_files": {"train": str(rows)}, "cache_dir": str(folder / "cache")}
    (folder / "definition").mkdir()
    (folder / "definition" / "ifeval.yaml").write_text(
        json.dumps({"include": str(own), "task": "ifeval", "dataset_path": "json", "dataset_kwargs": data})
    )
    before, nltk.data.path[:] = list(nltk.data.path), [str(folder / "nltk")]
    langdetect.DetectorFactory.seed = 0
    try:
        measured: Any = simple_evaluate(
            model="hf",
            model_args={"pretrained": str(model), "dtype": "float32", "max_length": 128},
            tasks=["ifeval"],
            batch_size=4,
            device="cpu",
            limit=limit,
            task_manager=TaskManager(include_path=str(folder / "definition"), include_defaults=False),
            gen_kwargs=GENERATION,
            bootstrap_iters=10,
        )
    finally:
        nltk.data.path[:], langdetect.DetectorFactory.seed = before, None
    found: dict[str, Any] = measured["results"]["ifeval"]
    return found


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["made", "real"])
def test_scores_are_those_of_the_harness(
    kind: str, model: Path, shared_data: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NLTK_DATA", str(write_sentences(tmp_path / "nltk")))
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, INSTRUCTIONS)
    if kind == "real":
        rows = shared_data("eval/ifeval") / "input_data.jsonl"
    limit = 40 if kind == "real" else len(INSTRUCTIONS)
    made = ours(model, rows, tmp_path, limit, GENERATION)
    found, expected = json.loads((made / "score.json").read_text()), theirs(model, rows, tmp_path, limit)
    names = {f"{part}_level_{how}_acc" for part in ("prompt", "inst") for how in ("strict", "loose")}
    assert {name: metric["value"] for name, metric in found["metrics"].items()} == {
        name: pytest.approx(expected[f"{name},none"], abs=1e-9) for name in names
    }
    assert found["metrics"]["prompt_level_strict_acc"]["stderr"] == pytest.approx(
        expected["prompt_level_strict_acc_stderr,none"], abs=1e-9
    )
    assert found["headline"] == "prompt_level_strict_acc"
    assert 0 < found["metrics"]["inst_level_loose_acc"]["value"] < 1  # so that the comparison means something


@pytest.mark.soak
def test_answers_longer_than_the_context_are_refused_by_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NLTK_DATA", str(write_sentences(tmp_path / "nltk")))
    write_rows(tmp_path / "rows.jsonl", INSTRUCTIONS)
    with pytest.raises(ConfigError, match="ifeval generates answers of 1,280 tokens, and the model's context"):
        ours(model, tmp_path / "rows.jsonl", tmp_path, 1, {})
