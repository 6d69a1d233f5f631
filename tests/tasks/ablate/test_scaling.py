"""The stage `scaling` on plain folders: a law of losses that were measured, its tables and its file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from tasks.ablate.laws.law import Law
from tasks.ablate.scaling import RungConfig, ScalingConfig, SizeConfig, TargetConfig, read_law, scaling
from tasks.ablate.scaling.report import doubts
from tasks.stage.output import Output
from tests.tasks.ablate.test_stage import HELD_OUT, losses

TRUE = Law(E=0.9, A=25.0, alpha=0.33, B=60.0, beta=0.30)
SIZES = [SizeConfig(width=16 * n, depth=n, parameters=int(2e4 * n**2), size=1.5e4 * n**2) for n in range(1, 12)]
BUDGETS = (2e11, 5e11, 1e12, 2e12)


def loss(of: SizeConfig, tokens: float, rate: float = 1.0) -> float:
    """By the law. The best rate is 1.3 times the profile's, at all sizes."""
    return float(TRUE.loss(of.size, tokens)) + 0.05 * math.log(rate / 1.3) ** 2


def ladder(
    folder: Path,
    sizes: Sequence[SizeConfig] = SIZES[:4],
    rates: Sequence[float] = (),
    noise: float = 0.002,
    **config: Any,
) -> tuple[ScalingConfig, dict[str, Artifact]]:
    """The trainings of these sizes for each budget, and more of other rates, with their measured losses."""
    rungs = [RungConfig(of=of, tokens=int(budget / 6 / of.size), seed=0) for budget in BUDGETS for of in sizes]
    ends = [rungs[0], rungs[len(sizes) - 1]]
    rungs += [rung.model_copy(update={"rate": rate}) for rung in ends for rate in rates]
    named = {f"{number}.0": rung for number, rung in enumerate(rungs)}
    random = np.random.default_rng(0)
    text = {}
    for name, rung in named.items():
        bits = loss(rung.of, rung.tokens, rung.rate) * np.exp(noise * random.standard_normal())
        text[name] = losses(folder / name, [bits] * len(HELD_OUT))
    return ScalingConfig(rungs=named, sizes=SIZES, **config), text


def fitted(folder: Path, config: ScalingConfig, text: dict[str, Artifact]) -> Output:
    out = Output.at(folder / "run", stage="scaling")
    scaling.function(config, text, out)
    return out


def test_a_ladder_gives_a_law_best_sizes_predictions_and_its_own_error(tmp_path: Path) -> None:
    target = TargetConfig(of=SIZES[6], tokens=3_000_000)
    config, text = ladder(
        tmp_path,
        rates=(0.5, 2.0),
        targets={"mine": target, "huge": TargetConfig(of=SIZES[10], tokens=10**9)},
        computes=[1e13],
    )
    out = fitted(tmp_path, config, text)
    tables = out.counts["tables"]
    assert len(tables["Ladder"]) == 16
    assert [row["number"][0] for row in tables["Law"]] == ["E", "α", "β", "γ", "n"]
    assert out.counts["held_out_error"] < 0.02
    assert len(tables["Largest trainings, predicted from the others"]) == 4
    mine, huge, best = tables["Predictions"]
    low, high = (float(part) for part in mine["bits per byte (95 %)"].split("(")[1][:-1].split(" to "))
    assert low < loss(SIZES[6], 3e6) < high
    assert huge["bits per byte (95 %)"].endswith("× the largest training: too far")
    assert best["training"] == "best size for 1e+13 FLOPs"
    assert float(tables["Best size"][1]["N by approach 3"]) == pytest.approx(float(TRUE.best_size(1e13)), rel=0.4)
    law = read_law(Artifact.at(out.path))
    saved = json.loads((out.path / "law.json").read_text())
    assert law.law == Law(**saved["law"])
    assert law.predict(target.of.size, target.tokens).value == pytest.approx(
        float(mine["bits per byte (95 %)"][:6]), abs=1e-4
    )
    assert len(saved["losses"]) == 20
    assert len(law.points) == 16  # other rates are no points of the law
    assert (out.path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    assert out.counts["summary"].startswith("bits per byte = ")


def test_the_best_learning_rate_is_said_at_both_sizes(tmp_path: Path) -> None:
    config, text = ladder(tmp_path, rates=(0.5, 2.0))
    rows = fitted(tmp_path, config, text).counts["tables"]["Learning rate"]
    assert [row["size"] for row in rows] == ["16 × 1", "64 × 4"]
    for row in rows:
        assert float(row["best"].removeprefix("× ")) == pytest.approx(1.3, rel=0.3)


def test_a_ladder_of_one_size_says_that_its_law_is_reduced(tmp_path: Path) -> None:
    config, text = ladder(tmp_path, SIZES[1:2], targets={"other": TargetConfig(of=SIZES[4], tokens=1_000_000)})
    tables = fitted(tmp_path, config, text).counts["tables"]
    assert [row["number"][0] for row in tables["Law"]] == ["E", "β", "n"]
    assert "Best size" not in tables
    assert tables["Predictions"][0]["bits per byte (95 %)"] == "another size or length than the law is of"


def test_a_ladder_that_says_little_is_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    law = read_law(Artifact.at(fitted(tmp_path / "quiet", *ladder(tmp_path / "quiet")).path))
    assert doubts(law) == []
    (doubt,) = doubts(replace(law, noise=0.031))
    assert doubt.startswith("trainings lie 3.1% off the law by chance")
    (doubt,) = doubts(replace(law, law=law.law._replace(alpha=5.0)))
    assert "exponent of size ends where the search does, at 5" in doubt
    (doubt,) = doubts(replace(law, law=law.law._replace(beta=0.01)))
    assert "how the loss falls with tokens" in doubt
    warned: list[str] = []
    monkeypatch.setattr(Output, "warn", lambda self, message: warned.append(message))
    fitted(tmp_path / "loud", *ladder(tmp_path / "loud", noise=0.05))
    assert any("off the law by chance" in warning for warning in warned)


def test_a_damaged_law_is_named(tmp_path: Path) -> None:
    (tmp_path / "law.json").write_text('{"law": {"E": 1}}')
    with pytest.raises(DamagedArtifact, match="is not a law"):
        read_law(Artifact.at(tmp_path))
