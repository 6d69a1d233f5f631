"""The stage `ablate` on plain folders: which documents count, and what becomes of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.artifact import Artifact
from storage.errors import EmptyOutput
from storage.shards.documents import Document, Verdict, write_documents, write_ledger
from tasks.ablate import AblateConfig, ArmConfig, ablate
from tasks.ablate.effects import Measure, effects
from tasks.ablate.laws.law import Point, fit
from tasks.ablate.report import sentence
from tasks.ablate.scaling.saved import write_law
from tasks.ablate.stage import held_out_loss, place
from tasks.evaluate.language.measure import SCHEMA
from tasks.stage.output import Output
from tasks.tokenize import in_validation

SHARE = 0.5
IDS = [hashlib.sha256(f"{number}".encode()).hexdigest()[:32] for number in range(60)]
HELD_OUT = [id for id in IDS if in_validation(id, SHARE)]


def documents(folder: Path, ids: list[str]) -> Artifact:
    folder.mkdir(parents=True)
    rows = [Document(id, "text", "books" if number % 2 else "notes") for number, id in enumerate(ids)]
    write_documents(folder / "00000.parquet", rows)
    return Artifact.at(folder)


def ledger(folder: Path, *verdicts: Verdict) -> Artifact:
    folder.mkdir(parents=True)
    write_ledger(folder / "00000.parquet", verdicts)
    return Artifact.at(folder)


def losses(folder: Path, bits: list[float]) -> Artifact:
    """A model's losses on the held-out documents, of 100 bytes each, in bits per byte in their order."""
    folder.mkdir(parents=True)
    rows = [
        ("books" if number % 2 else "notes", True, number, 100.0, 25, loss * 100 * math.log(2))
        for number, loss in enumerate(bits)
    ]
    pq.write_table(
        pa.table(dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True)), SCHEMA), folder / "documents.parquet"
    )
    return Artifact.at(folder)


def answers(folder: Path, right: float) -> Artifact:
    """Answers to eight questions, whose right choice of four bytes has this many bits."""
    folder.mkdir(parents=True)
    rows = [
        {"id": f"{n}", "scores": {}, "likelihoods": [-9.0, -right * math.log(2)], "bytes": [4, 4], "target": 1}
        for n in range(8)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Artifact.at(folder)


def run(
    folder: Path,
    text: Mapping[str, Artifact],
    kept: Mapping[str, Artifact],
    ledgers: Mapping[str, Artifact],
    asked: Mapping[str, Artifact] | None = None,
    ladder: Artifact | None = None,
    **config: Any,
) -> tuple[Output, dict[str, Any]]:
    arms = [ArmConfig(name=name, validation_share=SHARE) for name in ("as it is", "changed")[: len(text) // 2]]
    given = AblateConfig(**{"arms": arms, "seeds": [0, 1], "link": "pretrain", **config})
    out = Output.at(folder / "out", stage="ablate")
    ablate.function(given, text, asked or {}, kept, ledgers, ladder, out)
    return out, json.loads((out.path / "effects.json").read_text())


def texts(folder: Path, *of_arms: Callable[[int], float]) -> dict[str, Artifact]:
    """The losses of arms with two seeds, of which the second is worse by a hundredth."""
    return {
        place(arm, seed): losses(folder / f"text-{arm}-{seed}", [loss(n) + 0.01 * seed for n in range(len(HELD_OUT))])
        for arm, loss in enumerate(of_arms)
        for seed in range(2)
    }


def test_values_differences_and_benchmarks_are_what_they_are(tmp_path: Path) -> None:
    text = texts(tmp_path, lambda n: 2.0 + n % 2, lambda n: 1.9 + n % 2)
    kept = {f"{arm}": documents(tmp_path / f"kept-{arm}", IDS) for arm in range(2)}
    asked = {
        f"{place(arm, seed)}.arc.easy": answers(tmp_path / f"a{arm}{seed}", 3.0 - arm)
        for arm in (0, 1)
        for seed in (0, 1)
    }
    out, found = run(tmp_path, text, kept, {}, asked)
    measures = {one["name"]: one for one in found["measures"]}
    assert [*measures] == ["held-out text", "books", "notes", "arc.easy: right answers", "arc.easy: accuracy"]
    books = len(HELD_OUT) // 2
    assert (measures["books"]["documents"], measures["notes"]["documents"]) == (books, len(HELD_OUT) - books)
    assert measures["notes"]["values"] == [[2.0, 2.01], [1.9, 1.91]]
    assert measures["arc.easy: right answers"]["values"] == [[0.75, 0.75], [0.5, 0.5]]
    assert measures["arc.easy: accuracy"]["values"] == [[1, 1], [1, 1]]
    effects = {one["measure"]: one for one in found["effects"]}
    assert effects["held-out text"]["difference"] == pytest.approx(-0.1)
    assert (effects["held-out text"]["verdict"], found["winner"]) == ("better", "changed")
    assert out.counts["summary"] == "changed is better by 0.1000"
    assert (out.path / "effects.png").stat().st_size > 1000


def test_a_document_that_an_arm_trained_on_or_may_have_copied_is_left_out(tmp_path: Path) -> None:
    """The changed arm knows by heart what it trained on, and what it has copies of. Elsewhere it is worse."""
    share, trained = a_little_less()
    copied, *missing = [id for id in HELD_OUT if id not in (trained, IDS[0])][:8]
    known = {HELD_OUT.index(trained), HELD_OUT.index(copied)}
    text = texts(tmp_path, lambda n: 2.0, lambda n: 0.1 if n in known else 1.0 if HELD_OUT[n] in missing else 2.2)
    kept = {
        "0": documents(tmp_path / "kept-0", IDS),
        "1": documents(tmp_path / "kept-1", [id for id in IDS if id not in missing]),
    }
    removed = Verdict(IDS[0], "books", "removed", "near_duplicate", 0.9, 0.8, f"duplicate_of {copied} chained")
    ledgers = {"0": ledger(tmp_path / "ledger", removed)}
    arms = [ArmConfig(name="as it is", validation_share=SHARE), ArmConfig(name="changed", validation_share=share)]
    out, found = run(tmp_path, text, kept, ledgers, arms=arms)
    left = {row["why"]: row["documents"] for row in out.counts["tables"]["Held-out documents left out"]}
    assert left == {"an arm trains on it": 1, "it has copies": 1 + (IDS[0] in HELD_OUT)}
    measures = {one["name"]: one for one in found["measures"]}
    assert measures["held-out text"]["values"][1] == [2.2, 2.21]
    assert found["effects"][0]["verdict"] == "worse"
    assert measures["held-out text that an arm leaves out"]["values"][1] == [1.0, 1.01]
    assert held_out_loss(AblateConfig(arms=arms, seeds=[0, 1], link="pretrain"), text, kept, ledgers) == pytest.approx(
        [2.005, 2.205]
    )


def a_little_less() -> tuple[float, str]:
    """A smaller share to hold out, and the one document that an arm with it trains on."""
    for share in (SHARE - n / 10_000 for n in range(1, 5_000)):
        trained = [id for id in HELD_OUT if not in_validation(id, share)]
        if trained:
            return share, trained[0]
    raise AssertionError


def test_a_difference_is_worth_the_compute_with_which_the_reference_would_be_as_good(tmp_path: Path) -> None:
    def loss(flops: float) -> float:
        parameters = math.sqrt(flops / 6)  # with one token for each
        return 0.9 + 30 / math.pow(parameters, 0.3)

    points = [Point(n, d, 0.9 + 15 / n**0.3 + 15 / d**0.3) for n in (1e5, 2e5, 4e5) for d in (1e5, 4e5, 2e6)]
    law = tmp_path / "ladder"
    law.mkdir()
    write_law(fit(points), law / "law.json")
    flops = 6 * 2e5**2
    text = texts(tmp_path, lambda n: loss(flops), lambda n: loss(1.25 * flops))
    kept = {f"{arm}": documents(tmp_path / f"kept-{arm}", IDS) for arm in range(2)}

    def worth(compute: float) -> dict[str, Any]:
        arms = [
            ArmConfig(name="as it is", validation_share=SHARE, flops=flops),
            ArmConfig(name="changed", validation_share=SHARE, flops=compute),
        ]
        out, found = run(tmp_path / f"{compute:g}", text, kept, {}, ladder=Artifact.at(law), arms=arms)
        assert "× compute" in out.counts["tables"]["Worth in compute"][0]["worth"]
        known: dict[str, Any] = found["compute"]["changed"]
        return known

    same = worth(flops)
    assert same["value"] == pytest.approx(1.25, rel=0.03)
    assert same["low"] < same["value"] < same["high"]
    assert worth(2 * flops)["value"] == pytest.approx(same["value"] / 2), "it had twice the compute"


def test_too_few_documents_are_refused(tmp_path: Path) -> None:
    text = texts(tmp_path, lambda n: 2.0, lambda n: 2.0)
    kept = {f"{arm}": documents(tmp_path / f"kept-{arm}", HELD_OUT[: 9 - 5 * arm]) for arm in range(2)}
    with pytest.raises(EmptyOutput, match="Only 4 held-out documents can be compared, of 9"):
        run(tmp_path, text, kept, {})


def test_a_sentence_says_no_more_than_was_tested() -> None:
    arms = [ArmConfig(name=name) for name in ("tiny", "a=1", "b=1")]
    one = AblateConfig(arms=arms, seeds=[0], link="pretrain")
    base = np.ones((1, 10))
    measure = Measure("held-out text", np.stack([base, base, base * 1.1]), np.ones(10))
    assert sentence(one, effects([measure]), measure.name).startswith("not tested: one seed"), "one arm is all the same"
    alone = one.model_copy(update={"arms": arms[:1], "diverged": {"a=1": "NaN"}})
    assert sentence(alone, [], measure.name) == "no arm is left beside tiny"
    assert sentence(alone.model_copy(update={"diverged": {}}), [], measure.name) == "the noise of 1 seed"


def test_one_arm_shows_the_noise_and_its_seeds(tmp_path: Path) -> None:
    out, found = run(tmp_path, texts(tmp_path, lambda n: 2.0), {"0": documents(tmp_path / "kept", IDS)}, {})
    assert out.counts["noise"] == {"sd": pytest.approx(0.01, abs=1e-6), "freedom": 1, "reference": 2.005}
    assert (found["effects"], found["winner"]) == ([], None)
    assert out.counts["summary"] == "the noise of 2 seeds"
    rows = out.counts["tables"]["Seeds that a difference needs"]
    assert [row["difference"] for row in rows][2] == "0.0200 (1.0%)"
    assert not (out.path / "effects.png").exists()
