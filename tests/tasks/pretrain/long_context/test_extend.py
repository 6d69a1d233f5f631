"""Which scaling a base gets for a longer context, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import AutoConfig

from flows.estimates.arithmetic import shape_to_train
from models.convert import shape_of
from models.foreign import UnknownPartsError, check_positions
from models.kernels.rope_scaling import RopeScaling
from models.presets import ForeignShape, ModelShape
from models.pretrained import extend, load_config
from profiles.load import load
from storage.errors import ConfigError
from tasks.pretrain import PretrainConfig
from tasks.pretrain.base import shape_of_base
from tasks.pretrain.long_context.extend import as_extended, scaled_parameters
from tasks.pretrain.long_context.scaling import RopeScalingConfig
from tasks.stage.runtime import PretrainRuntime
from tests.tasks.foreign import make_foreign

BASE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
THETA: dict[str, Any] = {"rope_theta": 10_000.0}
YARN = {**THETA, "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
LINEAR = {**THETA, "rope_type": "linear", "factor": 2.0}
THEIRS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 2.0, "high_freq_factor": 8.0}
LOCAL = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}


def config_of(scaling: dict[str, Any] | None, context: int = 256) -> PretrainConfig:
    return PretrainConfig.model_validate({"model": None, "steps": 9, "context": context, "rope_scaling": scaling})


@pytest.mark.parametrize(
    ("known", "scaling", "expected"),
    [
        (THETA, {"method": "theta", "theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (THETA, {"method": "ntk"}, {"rope_type": "default", "rope_theta": 10_000.0 * 4 ** (16 / 14)}),
        (THETA, {"method": "linear"}, {**THETA, "rope_type": "linear", "factor": 4.0}),
        (THETA, {"method": "linear", "factor": 6}, {**THETA, "rope_type": "linear", "factor": 6.0}),
        (LINEAR, {"method": "linear"}, {**LINEAR, "factor": 8.0}),
        (THETA, {"method": "yarn"}, {**YARN, "factor": 4.0, "original_max_position_embeddings": 64}),
        (YARN, {"method": "yarn"}, {**YARN, "factor": 8.0}),
        ({**YARN, "attention_factor": 1.2}, {"method": "yarn"}, {**YARN, "factor": 8.0}),
        (YARN, {"method": "yarn", "beta_fast": 16}, {**YARN, "factor": 8.0, "beta_fast": 16.0}),
        (YARN, {"method": "yarn", "attention_factor": 1.3}, {**YARN, "factor": 8.0, "attention_factor": 1.3}),
        (THETA, {"method": "llama3"}, {**LLAMA3, **THEIRS, "factor": 4.0, "original_max_position_embeddings": 64}),
        (LLAMA3, {"method": "llama3"}, {**LLAMA3, "factor": 8.0}),
        (LLAMA3, {"method": "llama3", "low_freq_factor": 3}, {**LLAMA3, "factor": 8.0, "low_freq_factor": 3.0}),
    ],
)  # fmt: skip
def test_positions_reach_the_context(known: dict[str, Any], scaling: dict[str, Any], expected: dict[str, Any]) -> None:
    base = AutoConfig.for_model("qwen3", **BASE, rope_parameters=known)
    found = scaled_parameters(base, RopeScalingConfig.model_validate(scaling), 256)
    assert found == expected
    assert shape_of(extend(base, 256, found)).context == 256


def test_ntk_divides_the_lowest_frequency_by_the_factor_and_keeps_the_highest() -> None:
    base = AutoConfig.for_model("qwen3", **BASE)
    raised = scaled_parameters(base, RopeScalingConfig(method="ntk"), 256)["rope_theta"]
    assert raised ** (-14 / 16) == pytest.approx(base.rope_parameters["rope_theta"] ** (-14 / 16) / 4)


def test_only_layers_that_see_the_whole_context_are_scaled() -> None:
    base = AutoConfig.for_model("gemma3_text", **BASE, **LOCAL)
    before = dict(base.rope_parameters)
    found = scaled_parameters(base, RopeScalingConfig(method="linear"), 256)
    assert found["sliding_attention"] == before["sliding_attention"]
    assert found["full_attention"] == {**before["full_attention"], "rope_type": "linear", "factor": 4.0}
    shape = ForeignShape("gemma3_text", 2, 256, 300, True, True, {}, found)
    check_positions(base, shape)
    local = AutoConfig.for_model("gemma3_text", **{**BASE, **LOCAL, "layer_types": ["sliding_attention"] * 2})
    with pytest.raises(UnknownPartsError, match="gemma3_text computes the same positions whatever its config says"):
        check_positions(local, shape)


@pytest.mark.parametrize(
    ("known", "scaling", "context", "said"),
    [
        (THETA, None, 65, r"pretrain.context is 65, but the base sees 64 tokens.* set pretrain.rope_scaling"),
        (THETA, {"method": "yarn"}, 64, r"rope_scaling is set, but the context of 64 isn't above the base's 64"),
        (THETA, {"method": "yarn", "factor": 3}, 256, r"factor is 3, but 256 tokens are 4 times the base's 64"),
        (THETA, {"method": "theta", "theta": 10_000}, 256, r"theta is 10000, but the base's is 10000"),
        (YARN, {"method": "linear"}, 256, r"scaled by yarn already. Choose yarn, which goes on from there"),
        (YARN, {"method": "ntk"}, 256, r"scaled by yarn already"),
        (YARN, {"method": "theta", "theta": 1e9}, 256, r"scaled by yarn already"),
        (LLAMA3, {"method": "yarn"}, 256, r"scaled by llama3 already. Choose llama3"),
        ({**THETA, "rope_type": "dynamic", "factor": 2.0}, {"method": "yarn"}, 256, r"dynamic already. Choose another"),
        (THETA, {"method": "yarn", "beta_fast": 1, "beta_slow": 2}, 256, r"beta_slow and beta_fast are 2 and 1"),
        (LLAMA3, {"method": "llama3", "high_freq_factor": 1}, 256, r"low_freq_factor and high_freq_factor are 2 and 1"),
    ],
)  # fmt: skip
def test_what_contradicts_the_base_is_refused(
    known: dict[str, Any], scaling: dict[str, Any] | None, context: int, said: str, tmp_path: Path
) -> None:
    model = make_foreign(tmp_path / "model", "llama", max_position_embeddings=64, rope_parameters=known)
    with pytest.raises(ConfigError, match=said):
        shape_of_base(model, config_of(scaling, context), PretrainRuntime())


@pytest.mark.parametrize(
    ("architecture", "method", "said"),
    [
        ("gpt2", "yarn", "the base, a gpt2, has no rotary positions that its config could scale"),
        ("gptj", "linear", "the base, a gptj, has no rotary positions"),
        ("phi3", "yarn", "the config of a phi3 doesn't take it .*longrope"),
        ("phi3", "linear", "the config of a phi3 doesn't take it .*longrope"),
    ],
)
def test_a_base_whose_positions_cant_be_scaled_is_refused(
    architecture: str, method: str, said: str, tmp_path: Path
) -> None:
    names = {"pad_token_id": 0} if architecture == "phi3" else {"n_positions": 64}
    model = make_foreign(tmp_path / "model", architecture, max_position_embeddings=64, **names)
    with pytest.raises(ConfigError, match=said):
        shape_of_base(model, config_of({"method": method}), PretrainRuntime())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": {"depth": 1, "context": 8}, "rope_scaling": {"method": "yarn"}}, "rope_scaling is for a `base`"),
        ({"model": None, "steps": 1, "rope_scaling": {"method": "yarn"}}, "set context, and model to null"),
        *(
            ({"model": None, "steps": 1, "context": 256, "rope_scaling": scaling}, said)
            for scaling, said in (
                ({"method": "theta"}, "the method theta needs theta"),
                ({"method": "theta", "theta": 1e6, "factor": 4}, "factor is of linear and ntk and yarn and llama3"),
                ({"method": "linear", "theta": 1e6}, "theta is of theta, not of linear"),
                ({"method": "ntk", "beta_fast": 8}, "beta_fast is of yarn, not of ntk"),
                ({"method": "llama3", "attention_factor": 1}, "attention_factor is of yarn, not of llama3"),
                ({"method": "yarn", "low_freq_factor": 1}, "low_freq_factor is of llama3, not of yarn"),
                ({"method": "yarn", "factor": 1}, "greater than 1"),
                ({"method": "dynamic"}, "'theta', 'linear', 'ntk', 'yarn' or 'llama3'"),
            )
        ),
    ],
)
def test_numbers_of_another_method_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PretrainConfig.model_validate(settings)


def test_a_plan_knows_the_longer_shape_and_refuses_what_the_run_would(tmp_path: Path) -> None:
    make_foreign(tmp_path / "model", "llama", max_position_embeddings=64)
    file = tmp_path / "longer.yaml"
    file.write_text(
        f"extends: smoke\nbase: {{folder: {tmp_path / 'model'}}}\nsft: null\ndpo: null\n"
        "pretrain: {model: null, context: 256, optimizer: adamw, muon_learning_rate: null}\n"
    )
    shape = shape_to_train(load(str(file), ["pretrain.rope_scaling={method: linear}"]))
    assert isinstance(shape, ModelShape)
    assert (shape.context, shape.rope_scaling) == (256, RopeScaling("linear", 4.0))
    with pytest.raises(ConfigError, match=r"pretrain\.context is 256, but the base sees 64"):
        shape_to_train(load(str(file)))


def test_a_config_without_scaling_has_the_key_of_before() -> None:
    assert "rope_scaling" not in config_of(None).model_dump(mode="json")


def test_later_stages_are_asked_about_the_config_that_will_be_written(tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", "llama", max_position_embeddings=64)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    config = config_of({"method": "llama3"})
    with as_extended(model, config) as folder:
        assert {path.name for path in folder.iterdir()} >= before.keys()
        shape = shape_of(load_config(folder))
    assert isinstance(shape, ModelShape)
    assert shape.context == 256
    assert shape.rope_scaling is not None
    assert shape.rope_parameters == shape_of_base(model, config, PretrainRuntime()).rope_parameters
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    with as_extended(model, config_of(None, 32)) as folder:
        assert folder == model
