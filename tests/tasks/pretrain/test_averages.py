"""Averages of the weights, against sums over the weights of each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.pretrained import load_pretrained
from storage.errors import ConfigError
from tasks.pretrain import PretrainConfig, averages, pretrain
from tasks.stage.output import Output
from tests.tasks.pretrain.one_process import one_process, open_ddp, train, weights_of
from tests.tasks.pretrain.tiny_training import MODEL, make_data, output

__all__ = ["one_process"]
STEPS = 12
SETTINGS: dict[str, Any] = {"steps": STEPS, "ema_decay": 0.4, "average": {"last": 3, "every": 2}}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_averages_are_sums_over_the_weights_of_each_step(optimizer: str) -> None:
    engine = open_ddp(**SETTINGS, optimizer=optimizer)
    engine.spec = engine.spec.model_copy(update={"steps": STEPS})
    by_step = []
    for step in range(1, STEPS + 1):
        train(engine, range(step, step + 1))
        averages.update(engine, step)
        by_step.append(weights_of(engine).double())
    exponential = by_step[0]
    for step, weights in enumerate(by_step[1:], 2):
        decay = min(0.4, (1 + step) / (10 + step))
        exponential = decay * exponential + (1 - decay) * weights
    expected = {"ema": exponential, "mean": (by_step[7] + by_step[9] + by_step[11]) / 3}
    last, kept = weights_of(engine), averages.Averages(engine)
    engine.free_states()
    for name, average in expected.items():
        kept.swap(name)
        assert torch.allclose(weights_of(engine).double(), average, rtol=0, atol=1e-6), name
        assert not torch.allclose(weights_of(engine), last, rtol=0, atol=1e-4)
        kept.swap(name)
    assert torch.equal(weights_of(engine), last)


def test_a_parameter_without_gradients_keeps_its_weights_and_its_optimizer() -> None:
    engine = open_ddp(**SETTINGS)
    scale = engine.model.get_parameter("blocks.1.attention_norm.weight")
    scale.requires_grad_(False)
    train(engine, range(1, 2))
    averages.update(engine, 1)
    scale.requires_grad_(True)
    train(engine, range(2, 3))
    averages.update(engine, 2)
    assert engine.optimizer.state[scale].keys() == {"step", "exp_avg", "exp_avg_sq", "ema"}


def trained(folder: Path, out: Path, **settings: Any) -> Output:
    written = output(out, engine="ddp")
    config = {"model": MODEL, "global_batch": 4, "warmup_steps": 2, "sample_tokens": 4, "validation_tokens": 256}
    pretrain.function(PretrainConfig.model_validate({**config, **settings}), *make_data(folder), written)
    return written


def test_each_average_is_measured_and_the_chosen_one_is_the_model_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(tmp_path, tmp_path / "plain", steps=STEPS, snapshot_every=2)
    monkeypatch.setenv("GRISTMILL_FAULTS", "kill:0@10")
    out = trained(tmp_path, tmp_path / "killed", **SETTINGS, final_weights="mean")
    assert out.facts["resumed_from_step"] == 9
    losses = out.counts["weights"]
    assert losses.keys() == {"last", "ema", "mean"}
    assert out.counts["validation_loss"] == losses["mean"]
    assert [row["weights"] for row in out.counts["tables"]["Weights"]] == ["last", "ema", "mean (model/)"]
    assert plain.counts["validation_loss"] == losses["last"]
    assert "weights" not in plain.counts
    folders = [*(plain.path / "snapshots" / f"step-{step}" for step in (8, 10)), plain.path / "model"]
    models = [load_pretrained(folder).state_dict() for folder in folders]
    for name, value in load_pretrained(out.path / "model").state_dict().items():
        mean = torch.stack([model[name].double() for model in models]).mean(0)
        assert torch.allclose(value.double(), mean, rtol=0, atol=1e-6), name


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"final_weights": "ema"}, "final_weights is ema: set ema_decay too"),
        ({"final_weights": "mean", "ema_decay": 0.9}, "final_weights is mean: set average too"),
        ({"ema_decay": 1.0}, "less than 1"),
        ({"average": {"last": 1, "every": 2}}, "greater than or equal to 2"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PretrainConfig.model_validate({"model": MODEL, **settings})


def test_a_mean_that_reaches_back_before_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pretrain\.average needs 13 steps"):
        trained(tmp_path, tmp_path / "out", steps=12, average={"last": 4, "every": 4})


def test_keys_of_runs_without_averages_stay() -> None:
    fields = PretrainConfig.model_validate({"model": MODEL}).model_dump().keys()
    assert not {"ema_decay", "average", "final_weights", "adapter", "freeze"} & fields
