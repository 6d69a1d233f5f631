"""Learning curves: snapshots of a real run are models by name, and their scores are a curve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.pretrained import load_pretrained
from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.token_sources import write_sources
from storage.shards.tokens import write_tokens
from storage.store import Store
from tasks.evaluate.learning_curves.curve import Point, curve_table, plot_curve
from tasks.evaluate.learning_curves.snapshots import check_steps, chosen_snapshots, snapshots, tokens_of
from tasks.pretrain import PretrainConfig, pretrain
from tasks.stage.session import Session, open_session
from tasks.tokenizer import load_for_documents
from tasks.training.model_folder import check_tokenizer
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import RUNTIME, make_tokenizer, texts


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Six steps, the first three half as large, with snapshots of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = make_tokenizer(folder / "tokenizer")
    encode = load_for_documents(tokenizer).encode
    for split, part in (("train", list(texts())[:100]), ("validation", list(texts())[100:120])):
        path = folder / "tokens" / split / "00000.tokens"
        write_tokens(
            path,
            [np.array([*encode(text).ids, 0], np.uint16) for text in part],
            vocab_size=600,
            eos_id=0,
            tokenizer_digest=tokenizer_digest(tokenizer),
            text_bytes=sum(len(text.encode()) for text in part),
        )
        write_sources(path.with_suffix(".sources"), ["test"] * len(part))
    config = PretrainConfig.model_validate(
        {
            "model": {"depth": 1, "width": 32, "heads": 2, "context": 32},
            "steps": 6,
            "global_batch": 4,
            "batch_warmup_steps": 3,
            "batch_warmup_parts": 2,
            "warmup_steps": 1,
            "snapshot_every": 2,
            "sample_prompts": [],
        }
    )
    runtime = runtime_of(RUNTIME, preflight="never")
    with open_session(Session(Store(str(folder / "store")), runtime)):
        made, _ = pretrain.materialize(config, (Artifact.at(folder / "tokens"), Artifact.at(tokenizer)))
    return made


@pytest.mark.soak
def test_snapshots_are_models_with_the_tokens_that_they_have_seen(trained: Artifact) -> None:
    found = snapshots(trained)
    assert [one.step for one in found] == [2, 4]
    assert [one.tokens for one in found] == [2 * 2 * 32, (3 * 2 + 4) * 32]
    assert tokens_of(trained.part("model")) == (3 * 2 + 3 * 4) * 32
    digests = {one.model.digest for one in found} | {trained.part("model").digest}
    assert len(digests) == 3
    for one in found:
        check_tokenizer(one.model.path)
        assert load_pretrained(one.model.path).config.num_hidden_layers == 1


def test_chosen_snapshots_have_names_and_others_are_refused(trained: Artifact) -> None:
    assert list(chosen_snapshots(trained, [4, 2, 4])) == ["base@2", "base@4"]
    assert chosen_snapshots(trained, []) == {}
    with pytest.raises(ConfigError, match=r"lacks a snapshot of step 3\. It has: 2, 4\."):
        chosen_snapshots(trained, [2, 3])
    with pytest.raises(ConfigError, match=r"It has: none"):
        chosen_snapshots(trained.part("model"), [2])
    check_steps([2, 4], 2)
    check_steps([], None)
    check_steps([2, 4], 2, 5)
    with pytest.raises(ConfigError, match="Step 4 won't have a snapshot: pretraining ends with step 4"):
        check_steps([2, 4], 2, 4)
    with pytest.raises(ConfigError, match=r"Step 3 won't have a snapshot: pretrain\.snapshot_every is 2"):
        check_steps([2, 3], 2)
    with pytest.raises(ConfigError, match="none is kept"):
        check_steps([2], None)


@pytest.mark.soak
def test_what_an_artifact_does_not_say_is_not_guessed(trained: Artifact) -> None:
    assert trained.manifest is not None
    assert tokens_of(Artifact.at(trained.path / "model")) is None
    assert tokens_of(trained) is None
    for row in trained.manifest.counts["tables"]["Snapshots"]:
        assert {"step", "tokens", "folder"} <= set(row)


def test_a_curve_is_a_table_with_a_column_a_series() -> None:
    points = [Point(2000, 1.5, 0.01, "b"), Point(1000, 2.0, None, "a"), Point(2000, 1.75, 0.02, "a")]
    assert curve_table(points, "bits per byte") == [
        {"tokens": "1,000", "b": "", "a": "2.000"},
        {"tokens": "2,000", "b": "1.500 ± 0.010", "a": "1.750 ± 0.020"},
    ]
    assert curve_table([Point(10, 0.5)], "accuracy") == [{"tokens": "10", "accuracy": "0.500"}]
    assert curve_table([], "accuracy") == []


def test_a_curve_is_drawn_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    points = [Point(tokens, 3 / (tokens + 1) ** 0.1, 0.02, name) for name in ("x", "y") for tokens in (0, 10**6, 10**8)]
    for name in ("one", "two"):
        plot_curve(points, tmp_path / f"{name}.png", title="base", measure="bits per byte", chance=0.25)
    drawn = (tmp_path / "one.png").read_bytes()
    assert drawn == (tmp_path / "two.png").read_bytes()
    plot_curve([*points[:-1], points[-1]._replace(error=0.5)], tmp_path / "wide.png", title="base", measure="x")
    assert drawn != (tmp_path / "wide.png").read_bytes()
    plot_curve([Point(5, 0.1)], tmp_path / "single.png", title="a snapshot", measure="accuracy")


def test_two_scores_in_one_place_and_none_are_refused(tmp_path: Path) -> None:
    twice = [Point(1000, 1.0, None, "a"), Point(1000, 1.5, None, "a")]
    with pytest.raises(ConfigError, match="a has two scores after 1,000 tokens"):
        plot_curve(twice, tmp_path / "x.png", title="", measure="accuracy")
    with pytest.raises(ConfigError, match="A curve of accuracy needs"):
        plot_curve([], tmp_path / "x.png", title="", measure="accuracy")
