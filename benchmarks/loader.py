"""`python -m benchmarks.loader`: tokens a core-second that the loader serves, by what the profile asks of it.

Each pattern runs in a fresh process over the same token shards: 64 million ids of 100,000 documents in four shards,
their sources in turns of 50 documents, a context of 256 and batches of 8, as the tiny profile trains. Served means read
from the map, shuffled, widened to int64 and cut into inputs and targets, as a training step takes it. The last column
is against the fastest measured training step of RESULTS.md. Figures are medians of 5.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, environment, measure, median

REPEATS = 5
TRAINING_STEP = 11_000  # tokens a second: the tiny profile's step on two cores
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
}


def write_shards(folder: Path) -> None:
    """Documents of random ids and lengths (mean 640 tokens), with their sources."""
    import numpy as np

    from storage.token_sources import write_sources
    from storage.tokens import write_tokens

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
    from tasks.pretrain.loader import open_loader
    from tasks.pretrain.marks import Marks

    config = PretrainConfig.model_validate(
        {"model": {"depth": 4, "context": CONTEXT}, "steps": STEPS + 1, **PATTERNS[pattern]}
    )
    started = time.process_time()
    paths = sorted(folder.glob("*.tokens"))
    loader = open_loader(paths, config, context=CONTEXT, tokenizer_digest=DIGEST, marks=Marks(6, 7, 8))
    opened = time.process_time()
    for step in range(1, STEPS + 1):
        loader.micro_batches(step, rank=0, ranks=1, size=config.global_batch)
    tokens = STEPS * config.global_batch * CONTEXT
    return {"speed": tokens / (time.process_time() - opened), "open": opened - started}


def main() -> None:
    """Every pattern in turns; prints the table."""
    rows = {}
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        write_shards(Path(folder))
        command = [sys.executable, "-m", "benchmarks.loader", "--serve", folder, "--pattern"]
        variables = environment(1) | {"PYTHONPATH": str(ROOT.parent)}
        runs: dict[str, list[Any]] = {pattern: [] for pattern in PATTERNS}
        for _ in range(REPEATS):
            for pattern, found in runs.items():
                found.append(measure([*command, pattern], variables))
    for pattern, found in runs.items():
        middle = sorted(found, key=lambda run: run.result["speed"])[REPEATS // 2]
        rows[pattern] = (middle.result["speed"], middle.result["open"], median(found).peak)
    print(f"{platform.machine()}, 1 thread, context {CONTEXT}, batches of 8, {STEPS:,} steps, medians of {REPEATS}\n")
    print("| pattern | million tokens a core-second | × a training step | opening (s) | peak memory (MB) |")
    print("|---|---|---|---|---|")
    for pattern, (speed, opening, peak) in rows.items():
        print(f"| {pattern} | {speed / 1e6:.1f} | {speed / TRAINING_STEP:,.0f} | {opening:.3f} | {peak / 1e6:,.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", type=Path, help="measure one pattern over the shards of this folder")
    parser.add_argument("--pattern", choices=list(PATTERNS), default="plain")
    arguments = parser.parse_args()
    if arguments.serve:
        print(json.dumps(serve(arguments.serve, arguments.pattern)))
    else:
        main()
