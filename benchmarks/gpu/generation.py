"""Section: sampling. Our exported model as everybody would run it, by transformers with its KV cache, one and many rows
at a time; and the sampler of the pretrain stage, which has no cache and writes a few samples only.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import base_model
from models.kernels.attention import for_any_shape

NAME = "generation"
PROMPT, NEW, TINY_NEW = 64, 256, 16
ROWS = (1, 32)


def run(bench: Bench) -> None:
    """A row for each way and number of rows at a time."""
    for way in ("transformers", "pretrain's sampler"):
        for rows in ROWS:
            asked = {
                "way": way, "rows": rows, "new": TINY_NEW if bench.tiny else NEW, "device": bench.device,
                "model": str(base_model(bench)),
            }  # fmt: skip
            found = bench.measured(NAME, f"{way}, {rows} at a time", "gpu.generation", json.dumps(asked))
            if found is not None:
                bench.results.row(NAME, way=way, rows=rows, **found)


@for_any_shape()
def _measure(way: str, rows: int, new: int, device: str, model: str) -> dict[str, float]:
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

        ours = load(Path(model)).to(device=device, dtype=dtype).eval()
        vocab = ours.shape.vocab_size

        def sample(ids: Any, number: int) -> Any:
            return ours.generate(ids, number)

    ids = torch.randint(vocab, (rows, PROMPT), generator=generator).to(device)
    for number in (new, new):  # the first is a warm-up
        began = time.perf_counter()
        sample(ids, number)[0, -1].item()
        took = time.perf_counter() - began
    return {"tokens_a_second": rows * new / took}


if __name__ == "__main__":
    print(json.dumps(_measure(**json.loads(sys.argv[1]))))
