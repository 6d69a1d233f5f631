"""Section: sampling. Our exported model as everybody would run it, by transformers with its KV cache, one and many rows
at a time; and the sampler of the pretrain stage, which has no cache and writes a few samples only.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench

NAME = "generation"
PROMPT, NEW, TINY_NEW = 64, 256, 16
WARM = 8  # tokens before those that are counted
ROWS = (1, 32)


def run(bench: Bench) -> None:
    """A row for each way and number of rows at a time."""
    for way in ("transformers", "pretrain's sampler"):
        for rows in ROWS:
            asked = {
                "way": way,
                "rows": rows,
                "device": bench.device,
                "data": str(bench.data),
                "tokenizer": str(bench.tokens[1]),
                "tiny": bench.tiny,
            }
            found = bench.measured(NAME, f"{way}, {rows} at a time", asked)
            if found is not None:
                bench.results.row(NAME, way=way, rows=rows, **found)


def measure(way: str, rows: int, device: str, data: str, tokenizer: str, tiny: bool) -> dict[str, float]:
    """In the shared process: tokens a second."""
    from benchmarks.gpu.models import base_model
    from models.kernels.attention import for_any_shape

    with for_any_shape():
        return _measure(way, rows, device, base_model(data, tokenizer, tiny=tiny), TINY_NEW if tiny else NEW)


def _measure(way: str, rows: int, device: str, model: Path, new: int) -> dict[str, float]:
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)
    if way == "transformers":
        from transformers import AutoModelForCausalLM

        theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device).eval()
        vocab = theirs.config.vocab_size

        def sample(ids: Any, number: int) -> Any:
            return theirs.generate(ids, max_new_tokens=number, min_new_tokens=number, do_sample=False)
    else:
        from models.convert import load

        ours = load(model).to(device=device, dtype=dtype).eval()
        vocab = ours.shape.vocab_size

        def sample(ids: Any, number: int) -> Any:
            return ours.generate(ids, number)

    ids = torch.randint(vocab, (rows, PROMPT), generator=generator).to(device)
    sample(ids, WARM)[0, -1].item()
    began = time.perf_counter()
    sample(ids, new)[0, -1].item()
    return {"tokens_a_second": rows * new / (time.perf_counter() - began)}
