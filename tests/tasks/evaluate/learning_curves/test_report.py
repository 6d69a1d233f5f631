"""The curves of an evaluation, and which snapshots a profile may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.load import load
from storage.errors import ConfigError
from tasks.evaluate.learning_curves.report import write_curves
from tasks.stage.output import Output
from tests.tasks.tiny_model import RUNTIME


def test_each_score_is_a_curve_over_the_tokens_that_a_model_had_seen(tmp_path: Path) -> None:
    names = {"base": 3000, "base@10": 1000, "base@20": 2000, "dpo": 4000, "base@30": None}
    scores: dict[str, Any] = {
        "models": {
            name: {"tasks": {"blimp": {"metric": "acc", "value": 0.5 + number / 10, "stderr": 0.01}}}
            for number, name in enumerate(names)
        }
    }
    language = {name: {"bits_per_byte": 2.0 - n / 10, "bits_per_byte_stderr": None} for n, name in enumerate(names)}
    out = Output.at(tmp_path, runtime=RUNTIME)
    write_curves(scores, language, names, out)
    assert out.counts["tables"]["Along training"] == [
        {"tokens": "1,000", "bits per byte": "1.900", "blimp, acc": "0.600 ± 0.010"},
        {"tokens": "2,000", "bits per byte": "1.800", "blimp, acc": "0.700 ± 0.010"},
        {"tokens": "3,000", "bits per byte": "2.000", "blimp, acc": "0.500 ± 0.010"},
    ]
    assert "| tokens | bits per byte | blimp, acc |" in (out.path / "along.md").read_text()
    for name in ("bits_per_byte.png", "benchmarks.png"):
        assert (out.path / name).read_bytes().startswith(b"\x89PNG")


def test_a_profile_names_only_snapshots_that_are_kept_and_models_that_are_measured() -> None:
    kept = ["pretrain.snapshot_every=100", "pretrain.steps=300"]
    assert load("smoke", [*kept, "evaluate.snapshots=[100, 200]"]).evaluate is not None
    with pytest.raises(ConfigError, match=r"Step 150 won't have a snapshot: pretrain\.snapshot_every is 100"):
        load("smoke", [*kept, "evaluate.snapshots=[150]"])
    with pytest.raises(ConfigError, match="none is kept"):
        load("smoke", ["evaluate.snapshots=[100]"])
    gate = "evaluate.gates=[{task: bits_per_byte, model: %s, at_most: 3}]"
    assert load("smoke", [gate % "dpo"]).evaluate is not None
    with pytest.raises(ConfigError, match=r"gates\.0\.model is dop, which this run doesn't measure: it has base, sft"):
        load("smoke", [gate % "dop"])
