"""Under an engine that divides a model, no process holds the whole of it at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.tokenizer import DIGEST_FIELD, copy_tokenizer, tokenizer_digest
from tasks.posttrain.methods.sft import SftConfig
from tasks.posttrain.spec import PosttrainSpec
from tests.models.measured import peaks_of
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import make_instructions, make_tokenizer

ENGINES: dict[str, dict[str, Any]] = {
    "zero 3": {"processes": 2, "engine": "deepspeed", "zero_stage": 3},
    "fsdp": {"processes": 2, "engine": "fsdp", "zero_stage": 3},
}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
LARGE = {"hidden_size": 768, "num_hidden_layers": 16, "num_attention_heads": 12, "intermediate_size": 2048}
HALF_AND_ROOM = 0.85  # of the weights: half of each, one whole, and room between them. Loaded whole, 1.1 to 1.4


def start_of(folder: Path, sizes: dict[str, int], dtype: torch.dtype, **runtime: Any) -> tuple[int, int]:
    """The most bytes that a process takes until its first step, and those of the weights in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    tokenizer = make_tokenizer(folder / "tokenizer")
    marks = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "max_position_embeddings": 128}
    config = AutoConfig.for_model("llama", vocab_size=600, tie_word_embeddings=False, **sizes, **marks)
    setattr(config, DIGEST_FIELD, tokenizer_digest(tokenizer))
    model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0, pad_token_id=1)
    model.save_pretrained(folder / "model")
    copy_tokenizer(tokenizer, folder / "model")
    settings = {"threads": 1, "device": "cpu", **runtime}
    spec = PosttrainSpec(
        method="sft",
        config=SftConfig(global_batch=2, adapter={"rank": 2}).model_dump(mode="json"),
        model=folder / "model",
        base="base",
        rows=list(make_instructions(folder / "pairs").iterdir()),
        identity="mine",
        runtime=runtime_of(group="posttrain", **settings),
        scratch=folder / "scratch",
        out=folder / "out",
    )
    for made in (spec.scratch, spec.out):
        made.mkdir()
    (path := folder / "spec.json").write_text(spec.model_dump_json())
    peak = max(peaks_of("tests.tasks.posttrain.start", path, spec.runtime))
    return peak, 4 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_process_starts_with_its_part_of_the_weights(engine: str, dtype: torch.dtype, tmp_path: Path) -> None:
    (libraries, _), (peak, weights) = (
        start_of(tmp_path / str(sizes["hidden_size"]), sizes, dtype, **ENGINES[engine]) for sizes in (SMALL, LARGE)
    )
    assert peak - libraries < HALF_AND_ROOM * weights, f"{peak - libraries:,} bytes for {weights:,} of weights"
