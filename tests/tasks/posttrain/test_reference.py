"""Log-probabilities under the reference model: computed once, looked up by row, refused for other tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, EmptyOutput
from storage.store import Store
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.reference.config import ReferenceConfig
from tasks.posttrain.reference.stage import reference
from tasks.posttrain.reference.table import FILE, key_of, with_reference, write_reference
from tasks.posttrain.rows.preference import render_preference
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.posttrain.in_process import log_probability
from tests.tasks.posttrain.uneven import output, uneven_pairs
from tests.tasks.tiny_model import make_model, question, write_rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """84 pairs, one of them twice, and one that is too long."""
    rows = uneven_pairs()
    long = {**rows[0], "id": "long", "prompt": question("fox " * 200)}
    return Artifact.at(write_rows(tmp_path_factory.mktemp("pairs") / "all.jsonl", [*rows, rows[5], long]))


@pytest.fixture(scope="module")
def known(model: Artifact, pairs: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("known"), "reference")
    reference.function(ReferenceConfig(), model, pairs, out)
    return out


def test_they_are_those_of_the_answers_of_each_pair_and_all_pairs_are_accounted_for(
    model: Artifact, known: Output
) -> None:
    tokenizer, scored = load_tokenizer(model.path), load_pretrained(model.path)
    rendered = [render_preference(row, tokenizer, 128) for row in uneven_pairs()]
    for row in with_reference(rendered, known.path / FILE)[::7]:
        for name in ("chosen", "rejected"):
            expected = log_probability(scored, row["prompt_ids"], row[f"{name}_ids"])
            assert row[f"ref_{name}_logps"] == pytest.approx(expected, rel=1e-6)
    removed = {"exact_duplicate": 1, "overlong": 1}
    assert known.counts["pairs"] == {"in": 86, "kept": 84, "removed": removed, "quarantined": 0}


@pytest.mark.soak
def test_a_base_without_a_token_for_padding_has_the_same(
    model: Artifact, pairs: Artifact, known: Output, tmp_path: Path
) -> None:
    shutil.copytree(model.path, tmp_path / "model")
    settings = tmp_path / "model" / "tokenizer_config.json"
    left = {name: value for name, value in json.loads(settings.read_text()).items() if name != "pad_token"}
    settings.write_text(json.dumps(left))
    (tmp_path / "model" / "special_tokens_map.json").unlink(missing_ok=True)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    assert load_tokenizer(tmp_path / "model").pad_token_id is None
    out = output(tmp_path / "out", "reference")
    reference.function(ReferenceConfig(), Artifact.at(tmp_path / "model"), pairs, out)
    assert (out.path / FILE).read_bytes() == (known.path / FILE).read_bytes()


def test_each_answer_gets_its_own_number_back_and_other_tokens_none(tmp_path: Path) -> None:
    rows = [{"id": name, "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3, 4]} for name in ("one", "two")]
    write_reference(tmp_path / FILE, map(key_of, rows), [[-1.0, -2.0], [-3.0, -4.0]])
    found = with_reference(rows[::-1], tmp_path / FILE)
    assert [(row["ref_chosen_logps"], row["ref_rejected_logps"]) for row in found] == [(-3.0, -4.0), (-1.0, -2.0)]
    for name in ("prompt_ids", "chosen_ids", "rejected_ids"):
        with pytest.raises(DamagedArtifact, match="pair one with its present tokens"):
            with_reference([{**rows[0], name: [9]}], tmp_path / FILE)


def test_a_row_of_other_tokens_is_refused_by_its_id(model: Artifact, known: Output) -> None:
    (row, *_) = uneven_pairs()
    rendered = render_preference(row, load_tokenizer(model.path), 128)
    changed = {**rendered, "chosen_ids": [*rendered["chosen_ids"], 5]}
    with pytest.raises(DamagedArtifact, match=f"pair {row['id']} with its present tokens") as caught:
        with_reference([rendered, changed], known.path / FILE)
    assert "--refresh reference" in caught.value.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"beta": 0.5},
        {"loss": "ipo"},
        {"learning_rate": 1e-5},
        {"epochs": 3, "global_batch": 8},
        {"seed": 1},
        {"validation_share": 0.2},
        {"adapter": {"rank": 4}},
    ],
    ids=str,
)
def test_what_only_the_training_depends_on_asks_for_the_same_artifact(changes: dict[str, Any]) -> None:
    assert ReferenceConfig.of(DpoConfig.model_validate(changes)) == ReferenceConfig.of(DpoConfig())


def test_what_the_numbers_depend_on_asks_for_another() -> None:
    for changes in ({"max_length": 64}, {"precision": "bfloat16"}, {"adapter": {"quantize": "nf4"}}):
        assert ReferenceConfig.of(DpoConfig.model_validate(changes)) != ReferenceConfig.of(DpoConfig()), changes


@pytest.mark.soak
def test_pairs_none_of_which_fits_are_refused(model: Artifact, pairs: Artifact, tmp_path: Path) -> None:
    with pytest.raises(EmptyOutput, match=r"preferences .* can't be used"):
        reference.function(ReferenceConfig(max_length=8), model, pairs, output(tmp_path, "reference"))


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["ddp", "fsdp", "deepspeed"])
def test_two_processes_of_any_engine_find_the_same(
    engine: str, model: Artifact, pairs: Artifact, known: Output, tmp_path: Path
) -> None:
    settings = {} if engine == "ddp" else {"engine": engine, "zero_stage": 3}
    out = output(tmp_path, "reference", processes=2, **settings)
    reference.function(ReferenceConfig(), model, pairs, out)
    assert out.counts == known.counts
    assert (out.path / FILE).read_bytes() == (known.path / FILE).read_bytes()


@pytest.mark.soak
def test_another_beta_computes_nothing_again(model: Artifact, pairs: Artifact, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))

    def made(**config: Any) -> set[str]:
        before = set(store.locations())
        dpo.materialize(DpoConfig.model_validate({"epochs": 0.2, **config}), (model, pairs))
        return {location.partition("/")[0] for location in set(store.locations()) - before}

    with open_session(Session(store, runtime_of(group="posttrain", threads=1, device="cpu"))):
        assert made() == {"reference", "dpo"}
        assert made(beta=0.5, loss="hinge") == {"dpo"}
