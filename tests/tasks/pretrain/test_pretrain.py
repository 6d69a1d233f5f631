"""Pretraining: the order of the data, the schedule, and a resume that is exact."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.convert import load
from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, DamagedArtifact, EmptyOutput, TokenizerMismatch, TrainingError
from storage.shards.token_stream import TokenStream
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.healing.divergence import DivergenceMonitor
from tasks.pretrain.healing.skipped_batches import BatchSchedule
from tasks.pretrain.loader import WindowLoader, permute
from tasks.pretrain.loader.windows import StreamWindows
from tasks.pretrain.log import Log
from tasks.pretrain.world import World
from tasks.stage.output import Output
from tasks.training.bits_per_byte import likelihood
from tasks.training.logs import cut_log, read_log
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.pretrain.tiny_training import CONFIG, losses_of, output
from tests.tasks.tiny_model import make_tokenizer

SERVED_OTHERWISE = PretrainConfig.model_validate(
    {
        **CONFIG.model_dump(),
        "mixture": {"even": 1, "odd": 3},
        "curriculum": [{"from_step": 7, "mixture": {"even": 1}}],
        "isolate_documents": True,
        "context_warmup_steps": 6,
        "context_warmup_parts": 4,
    }
)
IN_TWO = {"processes": 2, "micro_batch": 2}
ZERO_2 = {"engine": "deepspeed", "zero_stage": 2}
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def undisturbed(data: tuple[Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("undisturbed"))
    pretrain.function(CONFIG, *data, out)
    return out


def test_it_learns_and_leaves_a_model_a_log_a_plot_and_samples(
    undisturbed: Output, data: tuple[Artifact, Artifact]
) -> None:
    rows = read_log(undisturbed.path / "log.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[0]["loss"] == pytest.approx(math.log(600), abs=0.3)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    assert [row["step"] for row in rows if "validation_loss" in row] == [5, 10, 12]
    assert (undisturbed.path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "## The" in (undisturbed.path / "samples.md").read_text()
    model = load(undisturbed.path / "model")
    stream = TokenStream(data[0].files("validation/*"), tokenizer_digest=tokenizer_digest(data[1].path))
    measured = likelihood(model, stream, context=32)
    assert measured.nats_per_token == pytest.approx(rows[-1]["validation_loss"], abs=1e-5)
    assert measured.bits_per_byte == pytest.approx(undisturbed.counts["validation_bits_per_byte"], abs=1e-5)


@pytest.fixture(scope="module")
def in_two(
    data: tuple[Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[dict[str, Any]], Output]:
    """The undisturbed run of two processes under an engine, cached for each engine."""
    made: dict[str, Output] = {}

    def run(engine: dict[str, Any]) -> Output:
        if str(engine) not in made:
            out = output(tmp_path_factory.mktemp("in_two"), **IN_TWO, **engine)
            pretrain.function(CONFIG, *data, out)
            made[str(engine)] = out
        return made[str(engine)]

    return run


@pytest.mark.parametrize(
    "engine",
    [
        {"engine": "ddp"},
        *(pytest.param({"engine": "deepspeed", "zero_stage": stage}, marks=pytest.mark.soak) for stage in (1, 2, 3)),
    ],
    ids=str,
)
def test_two_processes_of_which_one_is_killed_end_with_the_same_bytes(
    engine: dict[str, Any],
    in_two: Callable[[dict[str, Any]], Output],
    data: tuple[Artifact, Artifact],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undisturbed, killed = in_two(engine), output(tmp_path, **IN_TWO, **engine)
    monkeypatch.setenv("GRISTMILL_FAULTS", "kill:1@8")  # SIGKILL to the second rank
    pretrain.function(CONFIG, *data, killed)
    assert killed.facts["restarts"] == 1, killed.facts["events"]
    assert killed.facts["resumed_from_step"] == 6
    assert tree_digest(list_files(killed.path)) == tree_digest(list_files(undisturbed.path))


@pytest.mark.soak
@pytest.mark.parametrize("step", [2, 8])
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    step: int, undisturbed: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out = output(tmp_path)
    interrupt_and_resume(pretrain, CONFIG, data, out, at=step)
    assert out.facts["resumed_from_step"] == step // 3 * 3
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(undisturbed.path))
    assert out.counts == undisturbed.counts


@pytest.mark.parametrize(
    "engine", [pytest.param({"engine": "fsdp"}, marks=pytest.mark.soak), ZERO_2], ids=str
)  # all of them: test_engines.py
def test_neither_micro_batch_nor_processes_change_what_is_learned(
    engine: dict[str, Any], undisturbed: Output, in_two: Callable[[dict[str, Any]], Output]
) -> None:
    assert losses_of(in_two(engine)) == pytest.approx(losses_of(undisturbed), abs=2e-4)  # sums in another order


@pytest.fixture(scope="module")
def served_otherwise(data: tuple[Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("otherwise"))
    pretrain.function(SERVED_OTHERWISE, *data, out)
    return out


@pytest.mark.soak
def test_a_mixture_is_reported_by_source(served_otherwise: Output) -> None:
    rows = {row["source"]: row for row in served_otherwise.counts["tables"]["Samples by source"]}
    assert list(rows) == ["even", "odd"]
    assert rows["even"]["served"] + rows["odd"]["served"] == 12 * 8
    assert rows["even"]["served"] >= 6 * 8  # all from step 7 on
    assert rows["even"]["epochs"] == pytest.approx(rows["even"]["served"] / rows["even"]["windows"], abs=1e-4)


@pytest.mark.soak
def test_mixed_isolated_and_short_at_first_it_resumes_to_the_same_bytes(
    served_otherwise: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out = output(tmp_path)
    interrupt_and_resume(pretrain, SERVED_OTHERWISE, data, out, at=5)
    assert out.facts["resumed_from_step"] == 3
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(served_otherwise.path))


@pytest.mark.soak
def test_a_token_weighs_the_same_in_any_micro_batch_of_any_process(
    served_otherwise: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out = output(tmp_path, micro_batch=1, processes=2)
    pretrain.function(SERVED_OTHERWISE, *data, out)
    assert losses_of(out) == pytest.approx(losses_of(served_otherwise), abs=2e-4)  # sums in another order


def test_a_shard_with_changed_bytes_is_refused_by_name(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    shutil.copytree(data[0].path, tmp_path / "tokens")
    path = tmp_path / "tokens" / "train" / "00001.tokens"
    changed = bytearray(path.read_bytes())
    changed[300] ^= 1
    path.write_bytes(changed)
    with pytest.raises(DamagedArtifact, match=r"00001\.tokens has changed bytes"):
        pretrain.function(CONFIG, Artifact.at(tmp_path / "tokens"), data[1], output(tmp_path))


def test_a_tokenizer_that_does_not_match_its_shards_is_refused(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    other = make_tokenizer(tmp_path / "other")
    (other / "chat_template.jinja").write_text("other")
    with pytest.raises(TokenizerMismatch, match="was made with tokenizer"):
        pretrain.function(CONFIG, data[0], Artifact.at(other), output(tmp_path))


@pytest.mark.parametrize(
    ("change", "named"), [({"warmup_steps": 12}, "warmup_steps is 12"), ({"global_batch": 6}, "can't share evenly")]
)
def test_what_cant_work_is_refused_by_name(
    change: dict[str, int], named: str, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=named):
        pretrain.function(CONFIG.model_copy(update=change), *data, output(tmp_path, micro_batch=4))
    assert not (tmp_path / "scratch" / "healing.json").exists()  # it would recur, so it is not retried


def test_a_checkpoint_of_another_run_is_refused_and_a_torn_one_removed(tmp_path: Path) -> None:
    (tmp_path / "step-000000003").mkdir()
    (tmp_path / "step-000000003" / "complete.json").write_text(json.dumps({"identity": "mine", "step": 3, "files": {}}))
    (tmp_path / "step-000000006").mkdir()
    (tmp_path / "zero_to_fp32.py").touch()  # as DeepSpeed leaves it there
    assert Checkpoints(tmp_path, "mine", world=ALONE).latest() == 3
    assert not (tmp_path / "step-000000006").exists()
    with pytest.raises(TrainingError, match="refused"):
        Checkpoints(tmp_path, "other", world=ALONE).latest()


def test_a_nan_ends_the_run_and_names_its_step(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl", ALONE, DivergenceMonitor(CONFIG, BatchSchedule()), [])
    log.add(1, 0.1, torch.tensor(2.0), torch.tensor(1.0))
    log.add(2, 0.1, torch.tensor(math.nan), torch.tensor(1.0))
    with pytest.raises(TrainingError, match="Step 2: loss is nan"):
        log.flush()


def test_a_log_is_cut_back_to_the_checkpoint_and_a_gap_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3, 4)))
    assert [row["step"] for row in cut_log(path, 2)] == [1, 2]
    assert len(read_log(path)) == 2
    with pytest.raises(TrainingError, match="every step up to 3"):
        cut_log(path, 3)


@given(st.integers(1, 3000), st.text(max_size=5))
def test_an_epoch_visits_each_window_once(size: int, key: str) -> None:
    assert sorted(permute(np.arange(size, dtype=np.uint64), size, key).tolist()) == list(range(size))


def test_what_a_step_sees_follows_from_its_number_alone(data: tuple[Artifact, Artifact]) -> None:
    loader = make_loader(data, seed=1)
    ids, targets, _ = loader.batch(loader.windows - 3, 7)  # across the end of an epoch
    assert np.array_equal(ids[:, 1:], targets[:, :-1])
    one_by_one = np.concatenate([loader.batch(loader.windows - 3 + i, 1)[0] for i in range(7)])
    assert np.array_equal(ids, one_by_one)
    first, second = (loader.batch(epoch * loader.windows, loader.windows)[0] for epoch in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(np.sort(first.sum(1)), np.sort(second.sum(1)))
    assert not np.array_equal(make_loader(data, seed=2).batch(0, 8)[0], loader.batch(0, 8)[0])


def test_too_few_tokens_for_one_window_are_an_error(data: tuple[Artifact, Artifact]) -> None:
    with pytest.raises(EmptyOutput, match="less than one window"):
        make_loader(data, context=100_000)


def make_loader(data: tuple[Artifact, Artifact], *, context: int = 32, seed: int = 0) -> WindowLoader:
    stream = TokenStream(data[0].files("train/*.tokens"), tokenizer_digest=tokenizer_digest(data[1].path))
    return WindowLoader(StreamWindows(stream, context), seed=seed)
