"""The stage `mix` on plain folders: a useless source is found, and a target is what was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.ablate.config import Target
from tasks.ablate.measures import target_of, text_measures
from tasks.ablate.mix import MixConfig, mix
from tasks.ablate.mix.swarm import drawn
from tasks.ablate.stage import place
from tasks.stage.output import Output
from tests.tasks.ablate.test_stage import HELD_OUT, answers, documents, ledger, losses, run

NAMES = ["books", "notes", "noise"]
NATURAL = np.array([0.5, 0.2, 0.3])


def of_source(number: int, share: Any) -> float:
    """The loss of a held-out document: of books, every second one, or notes. Each gains by its own share."""
    return float(
        1.0 + np.exp(-2.0 * share[0 if number % 2 else 1] + 0.3 * share[2]) + 0.002 * np.sin(17 * share[0] + number)
    )


def texts(folder: Path, swarm: list[Any], apart: int = 99) -> dict[str, Artifact]:
    """The losses of each mixture's model. Those from `apart` on are worse by a twentieth."""
    every = range(len(HELD_OUT))
    return {
        place(run, 0): losses(folder / f"{run}", [of_source(n, one) + 0.05 * (run >= apart) for n in every])
        for run, one in enumerate(swarm)
    }


def config(swarm: list[Any], **given: Any) -> MixConfig:
    mixtures = [dict(zip(NAMES, one.tolist(), strict=True)) for one in swarm]
    return MixConfig(
        **{
            "natural": mixtures[0],
            "swarm": [{name: share for name, share in one.items() if share} for one in mixtures],
            "target": ["books", "notes"],
            "most": dict.fromkeys(NAMES, 1.0),
            **given,
        }
    )


def mixed(folder: Path, given: MixConfig, text: dict[str, Artifact], *more: dict[str, Artifact]) -> dict[str, Any]:
    out = Output.at(folder / "out", stage="mix")
    mix.function(given, text, {}, *(more or ({}, {})), out)
    assert yaml.safe_load((out.path / "mixture.yaml").read_text()) == {"pretrain": {"mixture": out.counts["proposed"]}}
    assert (out.path / "shares.png").stat().st_size > 5000
    found: dict[str, Any] = json.loads((out.path / "mix.json").read_text())
    assert found["proposed"] == out.counts["proposed"]
    return found


def test_a_useless_source_is_found_also_by_models_of_an_earlier_swarm(tmp_path: Path) -> None:
    swarm = drawn(NATURAL, np.ones(3), 24)
    text = texts(tmp_path, swarm, apart=16)
    kept, before = documents(tmp_path / "kept", HELD_OUT), documents(tmp_path / "before", HELD_OUT[::2])
    ledgers = {"0": ledger(tmp_path / "ledger")}
    for given, more in (
        (config(swarm[:16]), ()),
        (config(swarm, earlier=8, held_out=[0.5, 0.5]), ({"0": kept, "1": before}, ledgers)),
    ):
        found = mixed(tmp_path / f"{given.earlier}", given, text, *more)
        assert found["laws"][0]["law"] == "log-linear"
        assert found["proposed"].get("noise", 0) < 0.02
        assert found["interval"]["noise"][1] < 0.1
        assert found["proposed"]["books"] == pytest.approx(0.5, abs=0.1)
        assert found["swarm"][0]["losses"].keys() == {"books", "notes"}


def test_a_limit_of_the_profile_holds_and_an_unmeasured_target_is_refused(tmp_path: Path) -> None:
    swarm = drawn(NATURAL, np.ones(3), 10)
    text = texts(tmp_path, swarm)
    most = {"books": 1.0, "notes": 0.2, "noise": 1.0}
    found = mixed(tmp_path / "limited", config(swarm, most=most), text)
    assert 0.15 < found["proposed"]["notes"] <= 0.2
    with pytest.raises(ConfigError, match="target poems has fewer"):
        mixed(tmp_path / "poems", config(swarm, target={"poems": 1.0, "books": 1.0}), text)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["books", "notes"], None),
        (["notes"], 3.0),
        ({"books": 3.0, "notes": 1.0}, 2.25),
        ({"q": 1.0, "books": 1.0}, 2.5),
    ],
)
def test_a_target_is_what_it_is_made_of(tmp_path: Path, target: Target, expected: float | None) -> None:
    bits = [2.0 if n % 2 else 3.0 for n in range(len(HELD_OUT))]
    text = {place(arm, seed): losses(tmp_path / f"{arm}{seed}", bits) for arm in (0, 1) for seed in (0, 1)}
    kept = {f"{arm}": documents(tmp_path / f"kept{arm}", HELD_OUT) for arm in range(2)}
    asked = {f"{place(arm, seed)}.q": answers(tmp_path / f"q{arm}{seed}", 12.0) for arm in (0, 1) for seed in (0, 1)}
    _, found = run(tmp_path, text, kept, {}, asked, target=target)
    first, second, *_ = found["measures"]
    assert (first["name"], second["name"]) == ("target", "held-out text")
    assert first["values"][0][0] == pytest.approx(expected or second["values"][0][0], abs=1e-5)
    measures = text_measures([[text[place(0, 0)]]], None)
    if "q" not in target:
        assert target_of(measures, target).values[0, 0] == pytest.approx(first["values"][0][0], abs=1e-5)
