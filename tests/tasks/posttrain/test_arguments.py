"""Every argument of TRL that changes a loss is set by us, and every mixture is trained by the tokens' loss only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments
from trl import DPOConfig, GRPOConfig, KTOConfig, RewardConfig, SFTConfig

from models.pretrained import empty_model, load_pretrained
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.posttrain.arguments import FIXED, arguments_of
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.rows.instruction import render_instruction
from tasks.stage.output import Output
from tasks.training.adapters.config import LoraConfig
from tasks.training.adapters.lora import check_adapters, targets_of
from tests.runtimes import runtime_of
from tests.tasks.base.test_base import take
from tests.tasks.foreign import make_foreign
from tests.tasks.tiny_model import answer, make_instructions, make_preferences, question, write_rows

MIXTURE = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "output_router_logits": True,
    "router_jitter_noise": 0.1,
    "attention_dropout": 0.1,
}
# Set by a method itself, from its own config or as its rows need
SET = {
    "max_length",
    "beta",
    "loss_type",
    "label_smoothing",
    "desirable_weight",
    "undesirable_weight",
    "precompute_ref_log_probs",
    "disable_dropout",
    "center_rewards_coefficient",
    "num_generations",
    "num_generations_eval",
    "max_completion_length",
    "temperature",
    "scale_rewards",
    "reward_weights",
    "shuffle_dataset",
    "num_iterations",
    "epsilon",
    "epsilon_high",
    "importance_sampling_level",
    "mask_truncated_completions",
}
# Without effect on a loss: how rows are read, that ours are rendered, how another program samples answers
NO_LOSS = {
    "model_init_kwargs",
    "trust_remote_code",
    "dataset_text_field",
    "dataset_kwargs",
    "dataset_num_proc",
    "pad_token",
    "truncation_mode",
    "packing_strategy",
    "pad_to_multiple_of",
    "eval_packing",
    "activation_offloading",
    "precompute_ref_batch_size",
    "cast_lm_head_to_fp32",
    "ds3_gather_for_generation",
    "generation_batch_size",
    "steps_per_generation",
    "generation_kwargs",
    "chat_template_kwargs",
    "cache_implementation",
    "log_completions",
    "log_multimodal",
    "num_completions_to_print",
    "log_unique_prompts",
    "log_completions_hub_repo",
    "max_tool_calling_iterations",
    "use_transformers_continuous_batching",
    "transformers_continuous_batching_config",
    "use_transformers_paged",
}
# Of losses or references that we don't use: they are not read without them
OF_OTHERS = {
    "f_alpha_divergence_coef",
    "discopop_tau",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "sapo_temperature_neg",
    "sapo_temperature_pos",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
    "entropy_coef_min",
    "entropy_coef_max",
    "entropy_coef_delta",
    "entropy_target",
}
KINDS: tuple[type[Any], ...] = (SFTConfig, DPOConfig, KTOConfig, RewardConfig, GRPOConfig)
# Those of transformers that decide what is learned and how fast
OF_TRAINING = {
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "optim",
    "seed",
    "data_seed",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_steps",
    "train_sampling_strategy",
    "bf16",
}


def names(kind: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_of_trl_is_set_or_known_to_change_no_loss(kind: type[Any], tmp_path: Path) -> None:
    own = {name for name in names(kind) - names(TrainingArguments) if not name.startswith("vllm_")}
    assert not own - FIXED.keys() - SET - NO_LOSS - OF_OTHERS, "decide on these"
    given: dict[str, Any] = {"loss_type": ["sigmoid"]} if kind is DPOConfig else {}
    given |= {"loss_type": "kto"} if kind is KTOConfig else {"loss_type": "grpo"} if kind is GRPOConfig else {}
    made = arguments_of(kind, {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}, **given)
    wrong = {name: getattr(made, name) for name in names(kind) & FIXED.keys() - {"loss_type", "lr_scheduler_kwargs"}}
    assert wrong == {name: FIXED[name] for name in wrong}


def test_what_is_fixed_is_an_argument_of_some_config() -> None:
    known = set().union(*map(names, KINDS))
    assert FIXED.keys() <= known
    assert known >= OF_TRAINING


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("mixture")
    return Artifact.at(take(make_foreign(folder / "theirs", "mixtral", **MIXTURE), folder / "base").path / "model")


def test_a_mixture_is_trained_by_the_loss_of_its_tokens_alone(mixture: Artifact, tmp_path: Path) -> None:
    rows = (make_instructions(tmp_path / "all") / "all.jsonl").read_text().splitlines()[:64]
    pairs = Artifact.at(write_rows(tmp_path / "pairs" / "all.jsonl", [json.loads(row) for row in rows]))
    states, counts = [], []
    for micro_batch in (1, 8):
        runtime = runtime_of(group="posttrain", threads=1, device="cpu", micro_batch=micro_batch)
        out = Output.at(tmp_path / f"sft{micro_batch}", stage="sft", runtime=runtime)
        sft.function(SftConfig(epochs=1, global_batch=16, learning_rate=5e-3), mixture, pairs, out)
        states.append(load_pretrained(out.path / "model").state_dict())
        counts.append(out.counts["initial_validation_loss"])
    assert counts[0] == pytest.approx(counts[1], abs=1e-5)
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=0, atol=2e-5)


@pytest.mark.soak
def test_preferences_begin_at_ln_2_whatever_noise_a_base_was_trained_with(mixture: Artifact, tmp_path: Path) -> None:
    preferences = Artifact.at(make_preferences(tmp_path / "preferences"))
    runtime = runtime_of(group="posttrain", threads=1, device="cpu")
    out = Output.at(tmp_path / "dpo", stage="dpo", runtime=runtime)
    dpo.function(DpoConfig(global_batch=64, epochs=1), mixture, preferences, out)
    assert out.counts["initial_validation_loss"] == pytest.approx(0.693147, abs=1e-5), "ln 2"


def test_the_loss_of_a_mixture_is_the_cross_entropy_of_transformers(mixture: Artifact) -> None:
    model, tokenizer = load_pretrained(mixture.path), load_tokenizer(mixture.path)
    row = render_instruction({"id": "1", "messages": [*question("fox"), answer("wood")]}, tokenizer, 128)
    ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
    with torch.no_grad():
        made = model.train()(input_ids=ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(made.logits[0, :-1], labels[0, 1:], ignore_index=-100)
    assert float(made.loss) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("architecture", "settings", "left_out"),
    [
        ("llama", {}, None),
        ("gpt2", {}, None),
        ("qwen2", {}, None),
        ("phi", {}, None),
        ("mixtral", {"num_local_experts": 4}, "experts.down_proj, experts.gate_up_proj, gate.weight"),
        ("qwen2_moe", {"num_experts": 4, "moe_intermediate_size": 32}, "experts.down_proj, experts.gate_up_proj"),
    ],
)
def test_an_adapter_leaves_no_matrix_out_without_a_word(
    architecture: str, settings: dict[str, Any], left_out: str | None, tmp_path: Path
) -> None:
    folder = make_foreign(tmp_path / "theirs", architecture, **settings)
    adapted = {"sft": LoraConfig(rank=4), "dpo": None}
    if left_out is None:
        check_adapters(adapted, folder)
        return
    with pytest.raises(ConfigError, match=rf"sft\.adapter would leave out {left_out}"):
        check_adapters(adapted, folder)
    named = LoraConfig(rank=4, targets=["q_proj", "v_proj"])
    assert targets_of("sft", named, empty_model(folder)) == (["q_proj", "v_proj"], False)
