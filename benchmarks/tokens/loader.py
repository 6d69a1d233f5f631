"""`python -m benchmarks.tokens loader`: tokens a core-second that the loader serves, by what the profile asks of it.

Each pattern runs in a fresh process over the same token shards: 64 million ids of 100,000 documents in four shards,
their sources in turns of 50 documents, a context of 256 and batches of 8, as the tiny profile trains. Served means read
from the map, shuffled, widened to int64 and cut into inputs and targets, as a training step takes it. The × column is
against the fastest training step measured on such a machine, the tiny profile's; wanted are 50.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Run, count, environment, measure, median

TRAINING_STEP = 11_000  # tokens a second: the tiny profile's, 1.3M parameters, on two cores
WANTED = 50  # times as many
SHARDS, DOCUMENTS, VOCAB, CONTEXT, STEPS = 4, 25_000, 4096, 256, 2000
DIGEST = "00" * 32
MIXTURE = {"code": 1, "news": 2, "web": 5}
PATTERNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {"mixture": MIXTURE},
    "mixed, documents apart": {"mixture": MIXTURE, "isolate_documents": True},
    "documents apart": {"isolate_documents": True},
    "short at first": {"context_warmup_steps": STEPS},
    "fill in the middle": {"fim_rate": 0.5},
    "best fit": {"packing": "best_fit"},
    "best fit, mixed, documents apart": {"packing": "best_fit", "mixture": MIXTURE, "isolate_documents": True},
}


def write_shards(folder: Path) -> None:
    """Documents of random ids and lengths (mean 640 tokens), with their sources."""
    import numpy as np

    from storage.shards.token_sources import write_sources
    from storage.shards.tokens import write_tokens

    generator = np.random.default_rng(0)
    for number in range(SHARDS):
        lengths = generator.geometric(1 / 640, DOCUMENTS)
        documents = [np.append(generator.integers(1, VOCAB, length, np.uint32), np.uint32(0)) for length in lengths]
        path = folder / f"{number:05d}.tokens"
        write_tokens(path, documents, vocab_size=VOCAB, eos_id=0, tokenizer_digest=DIGEST, text_bytes=1)
        write_sources(path.with_suffix(".sources"), (sorted(MIXTURE)[i // 50 % 3] for i in range(DOCUMENTS)))


def serve(folder: Path, pattern: str) -> dict[str, float]:
    """All steps of one pattern: tokens a CPU second, and the seconds to open the shards."""
    from tasks.pretrain import PretrainConfig
    from tasks.pretrain.fim_tokens import FimTokens
    from tasks.pretrain.loader import open_loader

    config = PretrainConfig.model_validate(
        {"model": {"depth": 4, "context": CONTEXT}, "steps": STEPS + 1, **PATTERNS[pattern]}
    )
    started = time.process_time()
    paths = sorted(folder.glob("*.tokens"))
    loader = open_loader(paths, config, context=CONTEXT, tokenizer_digest=DIGEST, fim_tokens=FimTokens(6, 7, 8))
    opened = time.process_time()
    for step in range(1, STEPS + 1):
        loader.micro_batches(step, rank=0, ranks=1, size=config.global_batch)
    tokens = STEPS * config.global_batch * CONTEXT
    return {"speed": tokens / (time.process_time() - opened), "open": opened - started}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--runs", type=count, default=5, help="of each pattern (default 5)")
    parser.add_argument("--training-step", type=float, default=TRAINING_STEP, help="tokens a second to compare with")


def run(options: argparse.Namespace) -> None:
    """Every pattern in turns; prints the table."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        write_shards(Path(folder))
        command = [sys.executable, "-m", "benchmarks.tokens.loader", folder]
        variables = environment(1) | {"PYTHONPATH": str(ROOT.parent)}
        taken: dict[str, list[Run]] = {pattern: [] for pattern in PATTERNS}
        for _ in range(options.runs):
            for pattern, runs in taken.items():
                runs.append(measure([*command, pattern], variables))
    settings = f"context {CONTEXT}, batches of 8, {STEPS:,} steps, medians of {options.runs}"
    print(f"{platform.machine()}, 1 thread, {settings}; a training step: {options.training_step:,.0f} tokens/s\n")
    print("| pattern | million tokens a core-second | × a training step | opening (s) | peak memory (MB) |")
    print("|---|---|---|---|---|")
    slowest = math.inf
    for pattern, runs in taken.items():
        middle = sorted(runs, key=lambda run: run.result["speed"])[len(runs) // 2].result
        times = middle["speed"] / options.training_step
        slowest = min(slowest, times)
        peak = median(runs).peak / 1e6
        print(f"| {pattern} | {middle['speed'] / 1e6:.1f} | {times:,.0f} | {middle['open']:.3f} | {peak:,.0f} |")
    print(f"\nThe slowest serves {slowest:,.0f} × a training step; wanted: {WANTED} ×.")


if __name__ == "__main__":
    print(json.dumps(serve(Path(sys.argv[1]), sys.argv[2])))
