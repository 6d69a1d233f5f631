"""`python -m benchmarks.export.four_bits MODEL_FOLDER --text FILE`: perplexity by format, beside that in float32.

The first half of the text calibrates, the second measures: windows of so many tokens, evenly spread, each read by
itself. Every format is written as a release has it and opened again in transformers.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from models.runtimes.protocol import ModelRuntime
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import load_tokenizer
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Source

NAMES = ("w4a16", "gptq", "awq", "w8a8")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model folder of transformers")
    parser.add_argument("--text", type=Path, required=True, help="plain text, UTF-8")
    parser.add_argument("--formats", nargs="+", choices=[*FORMATS], default=[*NAMES])
    parser.add_argument("--calibration", type=int, default=32, help="windows to calibrate on")
    parser.add_argument("--held-out", type=int, default=24, help="windows to measure on")
    parser.add_argument("--tokens", type=int, default=512, help="of a window")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="on which formats are written")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    text = asked.text.read_text(encoding="utf-8")
    calibration = windows(asked.model, text[: len(text) // 2], asked.calibration, asked.tokens)
    held_out = windows(asked.model, text[len(text) // 2 :], asked.held_out, asked.tokens)
    source = Source(asked.model, calibration, threads=asked.threads, device=asked.device)
    print(
        f"{len(calibration) * asked.tokens:,} tokens calibrate, {len(held_out) * (asked.tokens - 1):,} are measured\n"
    )
    print("| format | MB | perplexity | increase | written in, s |\n|---|---|---|---|---|")
    full = perplexity(TransformersRuntime(asked.model), held_out)
    size = (asked.model / "model.safetensors").stat().st_size
    print(f"| checkpoint | {size / 1e6:,.0f} | {full:.2f} | | |", flush=True)
    for name in asked.formats:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            FORMATS[name].write(source, Path(folder))
            seconds = time.monotonic() - began
            size = sum(file.stat().st_size for file in FORMATS[name].files(Path(folder)))
            found = perplexity(FORMATS[name].open(Path(folder), asked.threads), held_out)
        print(f"| {name} | {size / 1e6:,.0f} | {found:.2f} | {found / full - 1:+.1%} | {seconds:.0f} |", flush=True)


def windows(model: Path, text: str, count: int, tokens: int) -> tuple[tuple[int, ...], ...]:
    """Windows of token ids, evenly spread over a text. Raises ValueError for a text that is too short for them."""
    ids = load_tokenizer(model).encode(text, split_special_tokens=True)
    if len(ids) < count * tokens:
        raise ValueError(f"the half of the text has {len(ids):,} tokens, fewer than {count} windows of {tokens}")
    step = len(ids) // count
    return tuple(tuple(ids[start : start + tokens]) for start in range(0, count * step, step))


def perplexity(runtime: ModelRuntime, held_out: Sequence[Sequence[int]]) -> float:
    """Of all tokens but the first of each window."""
    losses = []
    for ids in held_out:
        log_TV = runtime.all_log_probabilities(ids)
        losses.append(-log_TV[np.arange(len(ids) - 1), list(ids[1:])].astype(np.float64))
    runtime.close()
    return math.exp(float(np.concatenate(losses).mean()))


if __name__ == "__main__":
    main()
