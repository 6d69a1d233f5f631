"""Engines that sample answers: each with the answers and the probabilities of the model as it is at that step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from models.conversation import render
from models.pretrained import load_pretrained
from models.runtimes.greedy import ends_of, greedy
from models.tokenizer import load_tokenizer
from storage.errors import ConfigError, TrainingError
from tasks.posttrain.batches import training_order
from tasks.posttrain.methods.grpo import GRPO, GrpoConfig
from tasks.posttrain.rewards.held_out import seeded
from tasks.posttrain.rollouts.config import GrpoRolloutConfig, VllmConfig
from tasks.posttrain.rollouts.llama_cpp import LlamaCppEngine
from tests.runtimes import runtime_of
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.tiny_model import ANIMALS, make_model, question

ENGINES = ("transformers", "continuous", "llama.cpp")
PROMPTS = [question(animal) for animal in ANIMALS[:3]]
ROWS = [{"prompt": prompt, "reference": "one"} for prompt in PROMPTS]
LENGTH, GROUP = 5, 4
COLDEST = 1e-4  # a temperature at which draws are greedy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model some of whose answers end: the first one at once, others later or never."""
    folder = make_model(tmp_path_factory.mktemp("base") / "model")
    loaded, tokenizer = load_pretrained(folder), load_tokenizer(folder)
    torch.manual_seed(2)
    for value in loaded.parameters():
        torch.nn.init.normal_(value, std=0.3) if value.dim() == 2 else None
    first, second, _ = greedy(loaded, tokenizer, PROMPTS, [], LENGTH)
    assert first[0] not in second[:3]
    assert second[2] not in second[:2]
    loaded.generation_config.eos_token_id = [*ends_of(loaded, tokenizer), first[0], second[2]]
    loaded.save_pretrained(folder)
    return folder


def trainer_of(model: Path, folder: Path, engine: str, **settings: Any) -> Any:
    config = GrpoConfig.model_validate(
        {"rewards": [{"kind": "length", "target": 3}], "global_batch": 3, "group": GROUP, "max_new_tokens": LENGTH}
        | {"learning_rate": 1e-3, "validation_share": 0, "max_drop": None, "max_kl": None, "epochs": 3}
        | {"rollout": {"engine": engine}, **settings}
    )
    parts = parts_of(GRPO, config, model, ROWS, folder)
    if config.adapter is not None:
        from tasks.training.adapters.lora import peft_config

        parts.common["peft_config"] = peft_config("grpo", config.adapter, parts.common["model"])  # type: ignore[index]
    trainer = GRPO.make_trainer(parts)
    trainer.train_dataset = trainer.train_dataset.select(training_order(config, len(ROWS)))
    trainer.args.save_strategy = "no"
    return trainer


def sampled(trainer: Any, step: int = 0) -> tuple[list[list[int]], Any]:
    """Answers to the prompts, each asked as often as a group has answers."""
    trainer.state.global_step = step
    ids = [
        render(trainer.processing_class, prompt, add_generation_prompt=True)["input_ids"]
        for prompt in PROMPTS
        for _ in range(GROUP)
    ]
    trainer.model.train()
    samples = trainer._drawn(ids, [f"{step} {place}" for place in range(len(ids))])
    return [sample.ids for sample in samples], [sample.log_probabilities for sample in samples]


def expected(trainer: Any, answers: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
    """The log-probabilities of answers by one forward pass each."""
    values = []
    for place, answer in enumerate(answers):
        prompt = render(trainer.processing_class, PROMPTS[place // GROUP], add_generation_prompt=True)["input_ids"]
        with torch.no_grad():
            logits = trainer.model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].double() / temperature
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        values.append(rows.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist())
    return values


@pytest.mark.parametrize("engine", ENGINES)
def test_it_has_the_answers_of_the_weights_of_each_step_up_to_their_end(
    engine: str, model: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(model, tmp_path, engine, temperature=COLDEST, rollout={"engine": engine})
    known = []
    for step in (0, 1):
        answers, _ = sampled(trainer, step)
        best = greedy(trainer.model, trainer.processing_class, PROMPTS, trainer.eos_token_ids, LENGTH)
        assert answers == [answer for answer in best for _ in range(GROUP)]
        known.append(best)
        with torch.no_grad():
            for value in trainer.model.parameters():
                value += 0.5 * value.std() * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    assert known[0] != known[1]
    assert list(map(len, known[0]))[:2] == [1, 3]
    assert len(known[0][2]) <= LENGTH


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize("adapter", [None, {"rank": 2}])
def test_its_probabilities_are_the_trainers_and_its_samples_those_of_seed_and_step(
    engine: str, adapter: Any, model: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(model, tmp_path, engine, temperature=0.7, adapter=adapter)
    for name, value in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.1)
    answers, drawn = sampled(trainer)
    for ours, theirs in zip(drawn, expected(trainer, answers, 0.7), strict=True):
        assert ours == pytest.approx(theirs, abs=2e-4)
    again, _ = sampled(trainer)
    other, _ = sampled(trainer, 1)
    assert answers == again != other
    assert len({tuple(answer) for answer in answers[2 * GROUP :]}) > 1, "answers to one prompt differ"


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_it_learns_as_from_samples_of_its_own_with_each_answer_corrected(
    engine: str, model: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(model, tmp_path, engine, updates=2)
    trainer.train()
    log = [row for row in trainer.state.log_history if "loss" in row]
    assert len(log) == 6
    for row in log:
        assert row["sampling/sampling_logp_difference/mean"] <= row["sampling/sampling_logp_difference/max"] < 2e-4
        assert row["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-4)
        assert abs(row["sampling/kl"]) < 1e-6
    assert trainer.facts()["rollout_tokens"] > 0
    stale = trainer_of(model, tmp_path, engine, rollout={"engine": engine, "max_mismatch": 1e-12})
    with pytest.raises(TrainingError, match=rf"Step 1: log-probabilities of {engine} differ .*max_mismatch, 1e-12"):
        stale.train()


def test_a_tokens_loss_is_weighed_by_the_trainers_probability_over_the_engines(model: Path, tmp_path: Path) -> None:
    losses = []
    for shift in (0.0, 0.5, 5.0):
        trainer = trainer_of(
            model, tmp_path, "llama.cpp", beta=0, rollout={"engine": "llama.cpp", "max_mismatch": None}
        )
        sample = trainer.engine.sample
        trainer.engine.sample = lambda *given, sample=sample, shift=shift: [
            each._replace(log_probabilities=[value - shift for value in each.log_probabilities])
            for each in sample(*given)
        ]
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        with seeded(0, 0):
            batch = trainer._generate_and_score_completions([dict(row) for row in ROWS for _ in range(GROUP)])
        batch["advantages"] = torch.ones_like(batch["advantages"])
        losses.append(float(trainer._compute_loss(trainer.model, batch).detach()))
    assert losses[0] != 0
    assert losses[1] == pytest.approx(losses[0] * 2.718281828**0.5, rel=1e-3)
    assert losses[2] == pytest.approx(losses[0] * 3, rel=1e-3), "the cap"


REFUSED = [
    ({"rollout": {"cap": 2.0}}, "cap doesn't apply to transformers"),
    ({"rollout": {"engine": "continuous", "vllm": {}}}, "the engine is continuous"),
    ({"rollout": {"engine": "vllm", "vllm": {"mode": "server"}}}, "url belongs to mode server"),
    ({"rollout": {"engine": "llama.cpp"}, "adapter": {"quantize": "nf4"}}, "takes a LoRA over float32 only"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
def test_settings_that_an_engine_cant_honour_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        GrpoConfig.model_validate(settings)


def test_a_model_that_llama_cpp_computes_differently_is_refused_with_another_engine_as_the_remedy(
    tmp_path: Path,
) -> None:
    folder = make_model(tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "attention_bias": True}))
    with pytest.raises(ConfigError, match=r"its projections have biases\. Choose another rollout\.engine"):
        LlamaCppEngine(folder, [], 1.0, 1)


def test_vllm_is_refused_without_its_package_or_a_gpu_and_else_gets_trls_arguments() -> None:
    config = GrpoConfig.model_validate({"rollout": {"engine": "vllm"}})
    with pytest.raises(ConfigError, match=r"grpo\.rollout\.engine is vllm, but the package vllm isn't installed"):
        GRPO.check_here(config, runtime_of(group="posttrain", threads=1))
    with pytest.raises(ConfigError, match="vllm, which gets its weights on a GPU"):
        GRPO.check_runtime(config, runtime_of(group="posttrain", device="cpu", threads=1))
    from trl import GRPOConfig

    from tasks.posttrain.arguments import arguments_of
    from tasks.posttrain.rollouts.open import vllm_arguments

    server = VllmConfig(mode="server", url="http://127.0.0.1:8000")
    given = vllm_arguments(GrpoRolloutConfig(engine="vllm", vllm=server, cap=2.0))
    made = arguments_of(GRPOConfig, {"output_dir": "x", "bf16": False, "use_cpu": True}, **given)
    assert (made.use_vllm, made.vllm_mode, made.vllm_server_base_url) == (True, "server", server.url)
    assert made.vllm_importance_sampling_clip_max == 2.0


def test_a_profile_without_it_keeps_its_key() -> None:
    assert "rollout" not in GrpoConfig().model_dump()
    assert "rollout" not in GrpoConfig.model_validate({"rollout": {"engine": "transformers"}}).model_dump()
