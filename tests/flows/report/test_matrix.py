"""The pages of many runs (a matrix, a ladder, a mixture) hold their numbers. What is foreign is text, and damage is
said."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.report.drawing.page import Chart, Page
from flows.report.matrices.ablation_page import page_of_matrix
from flows.report.matrices.law_page import page_of_law
from flows.report.matrices.mixture_page import page_of_mixture
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import DamagedArtifact
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.ablate.effects import BETTER, UNCLEAR, WORSE
from tasks.ablate.mix.swarm import drawn
from tests.flows.report.made import HOSTILE
from tests.flows.report.test_page import Read
from tests.tasks.ablate.mix.test_stage import NATURAL, config, mixed, texts
from tests.tasks.ablate.test_scaling import fitted, ladder


def effect(measure: str, arm: str, verdict: str, **other: Any) -> dict[str, Any]:
    numbers = {"reference": 2.0, "value": 1.9, "difference": -0.1, "low": -0.15, "high": -0.05, "p_corrected": 0.01}
    return {"measure": measure, "arm": arm, "verdict": verdict, **numbers, **other}


def artifact(folder: Path, *effects: dict[str, Any], winner: str | None, arm: str) -> Artifact:
    folder.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(one["measure"] for one in effects)
    measures = [{"name": name, "lower_is_better": True, "values": [[2.0, 2.1], [1.9, 2.0]]} for name in names]
    written = {
        "link": "pretrain",
        "arms": [{"name": "tiny", "settings": {}}, {"name": arm, "settings": {"dedup": "null"}}],
        "seeds": [0, 1],
        "winner": winner,
        "measures": measures,
        "effects": [*effects],
    }
    (folder / "effects.json").write_text(json.dumps(written))
    tables = {"Seeds that a difference needs": [{"difference": "0.01"}]}
    return whole(folder, "ablate", {"summary": f"{arm} is better", "tables": tables})


def whole(folder: Path, stage: str, counts: dict[str, Any]) -> Artifact:
    """A stage's output as an artifact."""
    files = list_files(folder)
    payload = KeyPayload(stage=stage, version=1, config={}, inputs={})
    manifest = Manifest(
        key=payload.key(),
        payload=payload,
        digest=tree_digest(files),
        files=files,
        counts=counts,
        created=datetime.now(UTC).isoformat(),
    )
    return replace(Artifact.at(folder), manifest=manifest, location=f"{stage}/{payload.key()}")


def test_every_effect_is_on_the_page_and_a_foreign_name_is_text(tmp_path: Path) -> None:
    effects = [
        effect("held-out text", HOSTILE, BETTER),
        effect("books", HOSTILE, UNCLEAR, low=-0.2, high=0.1),
        effect("arc: right answers", HOSTILE, WORSE, difference=0.25),
    ]
    made = artifact(tmp_path, *effects, winner=HOSTILE, arm=HOSTILE)
    page = page_of_matrix("tiny/ablate", made)
    assert [section.title for section in page.sections] == ["Effects", "Sources", "Benchmarks", "Noise", "Runs"]
    assert {figure.name: figure.value for figure in page.figures}["Real differences"] == "2"
    read = Read(page.render())
    shown = " ".join(read.text)
    for said in ("−0.1000", "+0.2500", "−0.2000 to +0.1000", UNCLEAR, "2.1000"):
        assert said in shown
    assert not [tag for tag, attributes in read.tags if tag in ("img", "iframe") or "onerror" in attributes]
    assert len(page.data["effects"]) == 3


@pytest.mark.parametrize(
    ("verdict", "winner", "best"), [(BETTER, "b", "b"), (WORSE, None, "tiny"), (UNCLEAR, None, UNCLEAR)]
)
def test_the_best_is_named_only_beyond_noise(tmp_path: Path, verdict: str, winner: str | None, best: str) -> None:
    made = artifact(tmp_path, effect("held-out text", "b", verdict), winner=winner, arm="b")
    page = page_of_matrix("tiny/ablate", made)
    assert {figure.name: figure.value for figure in page.figures}["Best"] == best


def drawn_by_vega(page: Page) -> list[str]:
    """The titles of the page's charts, which Vega draws."""
    vega = pytest.importorskip("vl_convert")
    charts = [block for section in page.sections for block in section.blocks if isinstance(block, Chart)]
    for chart in charts:
        assert vega.vegalite_to_vega(json.loads(chart.json))["marks"]
    return [chart.title for chart in charts]


def test_a_ladder_has_its_law_predictions_and_error_on_a_page(tmp_path: Path) -> None:
    out = fitted(tmp_path, *ladder(tmp_path, rates=(0.5, 2.0), computes=[1e13]))
    made = whole(out.path, "scaling", out.counts)
    page = page_of_law("tiny/scaling", made)
    sections = {section.title for section in page.sections}
    assert sections == {"Law", "Predictions", "Error", "Learning rate", "Trainings"}
    assert drawn_by_vega(page) == ["Loss over compute", "Loss over size"]
    shown = " ".join(Read(page.render()).text)
    tables = out.counts["tables"]
    for said in (out.counts["summary"], tables["Law"][0]["value"], tables["Predictions"][0]["bits per byte (95 %)"]):
        assert said in shown
    assert len(page.data["points"]) == 16
    (out.path / "law.json").write_text("{}")
    with pytest.raises(DamagedArtifact, match=r"law\.json is not a law"):
        page_of_law("tiny/scaling", made)


def test_a_mixture_has_its_shares_and_runs_on_a_page(tmp_path: Path) -> None:
    swarm = drawn(NATURAL, np.ones(3), 12)
    found = mixed(tmp_path, config(swarm), texts(tmp_path, swarm))
    counts = {"summary": "books 50%", "law": found["laws"][0]["law"], "tables": {"Laws": [{"law": HOSTILE}]}}
    out = next(tmp_path.rglob("mix.json")).parent
    made = whole(out, "mix", counts)
    page = page_of_mixture("tiny/mix", made)
    assert [section.title for section in page.sections] == ["Shares", "Law", "Runs"]
    assert drawn_by_vega(page) == ["Shares", "books", "notes", "noise"]
    assert {figure.name: figure.value for figure in page.figures}["Law"] == found["laws"][0]["law"]
    assert [run["target"] for run in page.data["swarm"]] == [run["target"] for run in found["swarm"]]
    of_run = found["swarm"][0]["losses"]
    assert found["swarm"][0]["target"] == pytest.approx(sum(of_run[name] * found["weights"][name] for name in of_run))
    assert not [tag for tag, attributes in Read(page.render()).tags if tag in ("img", "iframe")]
    (out / "mix.json").write_text("{}")
    with pytest.raises(DamagedArtifact, match=r"mix\.json can't be read"):
        page_of_mixture("tiny/mix", made)


def test_damage_is_said(tmp_path: Path) -> None:
    made = artifact(tmp_path, effect("held-out text", "b", BETTER), winner="b", arm="b")
    (tmp_path / "effects.json").write_text("{}")
    with pytest.raises(DamagedArtifact, match=r"effects\.json can't be read"):
        page_of_matrix("tiny/ablate", made)
