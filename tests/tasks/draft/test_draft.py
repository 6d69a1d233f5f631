"""A draft: the released model pruned and distilled, or another with its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from models.tokenizer import tokenizer_digest
from profiles.load import load
from storage.artifact import Artifact
from storage.errors import ConfigError, TokenizerMismatch
from tasks.base import BaseConfig
from tasks.draft import DraftConfig, draft
from tasks.posttrain.methods.distill import DistillConfig
from tasks.posttrain.prune import PruneConfig
from tasks.stage.output import Output
from tasks.training.model_folder import check_tokenizer
from tests.tasks.posttrain.uneven import output
from tests.tasks.tiny_model import make_instructions, make_model

PRUNE = PruneConfig(layers=1, calibration_rows=8, measured_rows=8)
DISTILL = DistillConfig(epochs=1, global_batch=16, validation_share=0.2)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    folder = tmp_path_factory.mktemp("draft")
    return Artifact.at(make_model(folder / "model")), Artifact.at(make_instructions(folder / "pairs"))


def test_it_is_the_model_pruned_and_distilled(given: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    out = output(tmp_path, "draft")
    draft.function(DraftConfig(prune=PRUNE, distill=DISTILL), *given, out)
    assert json.loads((out.path / "model" / "config.json").read_text())["num_hidden_layers"] == 1
    assert out.counts["bytes"] < out.counts["bytes_of_model"]
    learned = out.scratch / "draft.distill" / "out" / "model" / "model.safetensors"
    assert (out.path / "model" / "model.safetensors").read_bytes() == learned.read_bytes()


def test_another_model_may_be_taken_as_it_is(given: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    small = make_model(tmp_path / "small" / "model", depth=1)
    out = output(tmp_path / "made", "draft")
    draft.function(DraftConfig(base=BaseConfig(folder=str(small)), distill=None), *given, out)
    assert json.loads((out.path / "model" / "config.json").read_text())["num_hidden_layers"] == 1
    assert tokenizer_digest(out.path / "model") == check_tokenizer(given[0].path)


def test_another_vocabulary_is_refused(given: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    other = make_model(tmp_path / "other" / "model")
    settings = (other / "tokenizer.json").read_text()
    vocabulary = json.loads(settings)["model"]["vocab"]
    one, two = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]
    changed = json.loads(settings)
    changed["model"]["vocab"] |= {one: vocabulary[two], two: vocabulary[one]}
    (other / "tokenizer.json").write_text(json.dumps(changed))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({k: v for k, v in config.items() if not k.startswith("gristmill")}))
    out: Output = output(tmp_path / "made", "draft")
    with pytest.raises(TokenizerMismatch, match="another vocabulary"):
        draft.function(DraftConfig(base=BaseConfig(folder=str(other)), distill=None), *given, out)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, "the draft would be the released model itself"),
        ({"prune": {"layers": 1}, "distill": {"teacher": "sft"}}, "teacher can't be chosen here"),
        (
            {"prune": {"layers": 1}, "distill": {"endpoint": {"url": "https://a/v1", "model": "m"}}},
            "teacher can't be chosen here",
        ),
    ],
)
def test_what_is_no_draft_is_refused(section: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DraftConfig.model_validate(section)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["draft.prune.layers=99"], "draft.prune.layers is 99"),
        (["draft.prune.layers=1", "export.formats=[int8]"], "no format of the release can use the draft"),
        (["draft.prune.layers=1", "export=null"], "no format of the release can use the draft"),
    ],
)
def test_a_profile_with_a_draft_of_no_use_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load("tiny", settings)
