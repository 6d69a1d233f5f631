"""The page of a matrix: every effect is on it, what is foreign is text, and damage is said."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.report.matrix_page import page_of_matrix, read_matrix
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import DamagedArtifact
from storage.keys import KeyPayload
from storage.manifest import Manifest
from tasks.ablate.effects import BETTER, UNCLEAR, WORSE
from tests.flows.report.made import HOSTILE
from tests.flows.report.test_page import Read


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
    files = list_files(folder)
    payload = KeyPayload(stage="ablate", version=1, config={}, inputs={})
    counts = {"summary": f"{arm} is better", "tables": {"Seeds that a difference needs": [{"difference": "0.01"}]}}
    manifest = Manifest(
        key=payload.key(),
        payload=payload,
        digest=tree_digest(files),
        files=files,
        counts=counts,
        created=datetime.now(UTC).isoformat(),
    )
    return replace(Artifact.at(folder), manifest=manifest, location=f"ablate/{payload.key()}")


def test_every_effect_is_on_the_page_and_a_foreign_name_is_text(tmp_path: Path) -> None:
    effects = [
        effect("held-out text", HOSTILE, BETTER),
        effect("books", HOSTILE, UNCLEAR, low=-0.2, high=0.1),
        effect("arc: right answers", HOSTILE, WORSE, difference=0.25),
    ]
    made = artifact(tmp_path, *effects, winner=HOSTILE, arm=HOSTILE)
    page = page_of_matrix("tiny/ablate", made, read_matrix(made))
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
    page = page_of_matrix("tiny/ablate", made, read_matrix(made))
    assert {figure.name: figure.value for figure in page.figures}["Best"] == best


def test_damage_is_said(tmp_path: Path) -> None:
    made = artifact(tmp_path, effect("held-out text", "b", BETTER), winner="b", arm="b")
    (tmp_path / "effects.json").write_text("{}")
    with pytest.raises(DamagedArtifact, match=r"effects\.json can't be read"):
        read_matrix(made)
