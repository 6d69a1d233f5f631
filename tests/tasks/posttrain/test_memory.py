"""The peak of a process of post-training on a CPU is what the plan says, for rows of `max_length` tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flows.estimates.posttraining import needs
from models.tokenizer import DIGEST_FIELD, copy_tokenizer, load_tokenizer, tokenizer_digest
from profiles.load import load
from tasks.base.source import parameters_of_base
from tasks.posttrain.methods import METHODS
from tasks.posttrain.reward_model.model import load_classifier
from tasks.posttrain.rows.form import Dropped
from tasks.posttrain.rows.prompt import PROMPT
from tasks.posttrain.spec import PosttrainSpec
from tests.models.measured import peaks_of
from tests.models.test_resident import MIDDLE, NEAR
from tests.tasks.tiny_model import make_tokenizer, question, write_rows

LENGTH, ROWS, SAMPLED = 512, 16, 64
ROLES = ("documents", "instructions", "preferences", "labelled")
REWARDS = "[{kind: length, target: 8}]"
FURTHER: dict[str, list[str]] = {
    "grpo": [f"grpo.rewards={REWARDS}", "grpo.group=4", "grpo.max_drop=null", "grpo.max_kl=null"],
    "ppo": ["reward={}", "ppo.max_kl=null"],
    "kto": ["kto.loss=apo_zero"],
}
IN_TWO = "runtime.training.processes=2"
# Section, family, whether it has an adapter, overrides of the profile
CASES: dict[str, tuple[str, str, bool, tuple[str, ...]]] = {
    "sft": ("sft", "llama", False, ("micro_batch=4",)),
    "sft, LoRA": ("sft", "llama", True, ("micro_batch=4",)),
    "sft, LoRA, whole": ("sft", "llama", True, ("micro_batch=4", "sft.adapter.whole=[embedding, head]")),
    "sft, qwen2": ("sft", "qwen2", False, ("micro_batch=2",)),
    "sft, phi, recomputed": ("sft", "phi", False, ("micro_batch=4", "recompute=full")),
    "orpo, gemma2": ("orpo", "gemma2", False, ("micro_batch=1",)),
    "cpo, LoRA": ("cpo", "llama", True, ("micro_batch=2",)),
    "kto": ("kto", "llama", False, ("micro_batch=2",)),
    "reward": ("reward", "llama", False, ("micro_batch=2",)),
    "distill": ("distill", "llama", False, ("micro_batch=2",)),
    "grpo": ("grpo", "llama", False, ("micro_batch=1",)),
    "grpo, LoRA": ("grpo", "llama", True, ("micro_batch=1",)),
    "grpo, llama.cpp": ("grpo", "llama", False, ("micro_batch=1", "grpo.rollout.engine=llama.cpp")),
    "grpo, continuous": ("grpo", "llama", False, ("micro_batch=1", "grpo.rollout.engine=continuous")),
    "ppo": ("ppo", "llama", False, ("micro_batch=2",)),
    "ppo, llama.cpp": ("ppo", "llama", False, ("micro_batch=2", "ppo.rollout.engine=llama.cpp")),
    "ppo, LoRA": ("ppo", "llama", True, ("micro_batch=2",)),
    "sft, DDP": ("sft", "llama", False, ("micro_batch=2", IN_TWO)),
    "sft, FSDP": ("sft", "llama", False, ("micro_batch=2", IN_TWO, "engine=fsdp", "zero_stage=3")),
    "sft, ZeRO 3": ("sft", "llama", False, ("micro_batch=2", IN_TWO, "engine=deepspeed", "zero_stage=3")),
}


def made(folder: Path, family: str) -> Path:
    """A base of random weights, with a tokenizer for conversations."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    tokenizer = make_tokenizer(folder / "tokenizer")
    marks = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    config = AutoConfig.for_model(family, **MIDDLE, **marks)
    setattr(config, DIGEST_FIELD, tokenizer_digest(tokenizer))
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(**marks)
    model.save_pretrained(folder / "base")
    copy_tokenizer(tokenizer, folder / "base")
    return folder / "base"


def judged(base: Path, folder: Path) -> Path:
    """A reward model of the base's shape."""
    load_classifier(base, 0).save_pretrained(folder)
    copy_tokenizer(base, folder)
    return folder


def longest(number: int, method: str, base: Path) -> dict[str, Any]:
    """The longest pair of its kind that fits."""
    tokenizer, form = load_tokenizer(base), METHODS[method].rows
    fitting: dict[str, Any] = {}
    text = str(number)
    while True:
        row: dict[str, Any] = {"id": str(number), "source": "test"}
        said = {"role": "assistant", "content": text}
        if form is PROMPT:
            row["messages"] = [{"role": "user", "content": text}, {"role": "assistant", "content": "so"}]
        elif method in ("sft", "distill"):
            row["messages"] = [*question("fox", number), said]
        elif method == "kto":
            row |= {"prompt": question("fox", number), "completion": [said], "label": bool(number % 2)}
        else:
            other = {"role": "assistant", "content": f"{text}!"}
            row |= {"prompt": question("fox", number), "chosen": [said], "rejected": [other]}
        try:
            form.render(row, tokenizer, LENGTH - (SAMPLED if form is PROMPT else 0))
        except Dropped:
            return fitting
        fitting, text = row, f"{text} lives in the wood, they say"


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_the_peak_of_a_process_is_near_the_plan(name: str, tmp_path: Path) -> None:
    method, family, adapted, chosen = CASES[name]
    base = made(tmp_path, family)
    ranks = 2 if IN_TWO in chosen else 1
    settings = [f"{method}.adapter={{rank: 8}}" if adapted else f"{method}.adapter=null", f"base={{folder: {base}}}"]
    settings += [one if "." in one else f"runtime.posttrain.{one}" for one in chosen]
    batch = ranks * int(chosen[0].rpartition("=")[2])
    settings += FURTHER.get(method, [])
    settings += [
        f"{method}.global_batch={batch}",
        f"{method}.validation_share=0",
        f"{method}.epochs={2 * batch / ROWS}",
    ]
    settings += ["runtime.compute.device=cpu", "runtime.compute.threads=1", f"{method}.max_length={LENGTH}"]
    unread = ", ".join(f"{{kind: files, name: {role}, role: {role}, paths: [none.jsonl]}}" for role in ROLES)
    profile = load("finetune", [*settings, f"download.sources=[{unread}]"])  # so that rows may be of `max_length`
    assert profile.base is not None
    planned = needs(profile, [method], None, parameters_of_base(profile.base) or 0, cuda=False)[method]
    rows = write_rows(tmp_path / "pairs" / "all.jsonl", [longest(one, method, base) for one in range(ROWS)])
    spec = PosttrainSpec(
        method=method,
        config=getattr(profile, method).model_dump(mode="json"),
        model=base,
        base="base",
        rows=list(rows.iterdir()),
        identity="mine",
        runtime=profile.runtime,
        teacher=base if method == "distill" else None,
        judge=judged(base, tmp_path / "judge") if method == "ppo" else None,
        scratch=tmp_path / "scratch",
        out=tmp_path / "out",
    )
    for folder in (spec.scratch, spec.out):
        folder.mkdir()
    (path := tmp_path / "spec.json").write_text(spec.model_dump_json())
    taken = max(peaks_of("tasks.posttrain.train", path, profile.runtime))
    assert planned.most
    assert planned.bytes == pytest.approx(taken, rel=NEAR), f"{planned.bytes / 1e6:,.0f} MB planned, {taken / 1e6:,.0f}"
