"""`python -m benchmarks.tokens train`: documents to a tokenizer, beside the trainer of `tokenizers`, by core-second.

Ours is what the `tokenizer` stage does before its proofs: read Parquet, measure the sources, draw the sample (here:
all), cut, count shard by shard, add up, merge, make a `tokenizer.json`; by one thread and by two. The library reads the
same row groups, a list of texts each, and has one thread. CPU seconds are those of the work, with compiled code at
hand; what the whole process took, start included, stands beside them. All must end in the same `tokenizer.json`, byte
for byte. The library takes long: it has fewer runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import DATA, ROOT, Corpus, Run, corpus, count, environment, measure, median, positive

LIBRARY = "tokenizers"
THREADS = {"gristmill, 1 thread": 1, "gristmill, 2 threads": 2}
OURS = next(iter(THREADS))
SIDES = (*THREADS, LIBRARY)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--megabytes", type=positive, default=100, help="of UTF-8 text (default 100)")
    parser.add_argument("--vocab-size", type=int, default=32_768, help="of the tokenizer (default 32768)")
    parser.add_argument("--runs", type=count, default=5, help="of ours (default 5)")
    parser.add_argument("--library-runs", type=int, default=3, help=f"of {LIBRARY} (default 3)")
    parser.add_argument("--data", type=Path, default=DATA, help="where the corpus lies")


def run(options: argparse.Namespace) -> None:
    """Run the sides in turns and print the table."""
    whole = corpus(options.data.resolve(), options.megabytes)
    _measured(OURS, options.vocab_size, whole)  # compiles the kernels if need be
    runs = {side: options.library_runs if side == LIBRARY else options.runs for side in SIDES}
    taken: dict[str, list[Run]] = {side: [] for side in SIDES}
    for number in range(max(runs.values())):
        for side in SIDES:
            if number < runs[side]:
                print(f"run {number + 1}/{runs[side]}: {side}, {whole.megabytes:.1f} MB", file=sys.stderr)
                taken[side].append(_measured(side, options.vocab_size, whole))
    _print(taken, whole, options.vocab_size)


def _print(taken: dict[str, list[Run]], whole: Corpus, vocab_size: int) -> None:
    seconds = {side: sorted(run.result["seconds"] for run in runs)[len(runs) // 2] for side, runs in taken.items()}
    figures = {side: median(runs) for side, runs in taken.items()}
    print(f"{platform.machine()}, {whole.documents:,} documents, {whole.megabytes:.1f} MB, {vocab_size:,} ids\n")
    print(
        "| side | runs | CPU s | MB a core-second | ours / it | process CPU s | ours / it | wall s | peak memory (MB) |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for side, took in seconds.items():
        figure, mine = figures[side], figures[OURS]
        print(
            f"| {side} | {len(taken[side])} | {took:.2f} | {whole.megabytes / took:.1f} | {took / seconds[OURS]:.2f} "
            f"| {figure.cpu:.2f} | {figure.cpu / mine.cpu:.2f} | {figure.wall:.2f} | {figure.peak / 1e6:,.0f} |"
        )
    digests = {run.result["digest"] for runs in taken.values() for run in runs}
    print(f"\ntokenizer.json of all sides and runs: {'the same' if len(digests) == 1 else 'DIFFERENT'}")


def _measured(side: str, vocab_size: int, whole: Corpus) -> Run:
    command = [sys.executable, "-m", "benchmarks.tokens.train", side, str(vocab_size), str(whole.folder)]
    return measure(command, environment(THREADS.get(side, 1)) | {"PYTHONPATH": str(ROOT.parent)})


def ours(shards: list[Path], vocab_size: int, threads: int) -> tuple[float, Any]:
    """CPU seconds from shards to a tokenizer, and the tokenizer."""
    from storage.shards.documents import Document, write_documents
    from tasks.stage.output import Output
    from tasks.stage.runtime import DataRuntime, Runtime
    from tasks.tokenizer import TokenizerConfig
    from tasks.tokenizer.stage import learn

    runtime = Runtime(data=DataRuntime(workers=threads))
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.parquet"
        write_documents(small, [Document.new("It loads now, it loads.", "small")])
        everything = TokenizerConfig(vocab_size=300, sample_bytes_per_source=1 << 40)
        learn(everything, [small], Output.at(Path(folder) / "small", stage="tokenizer", runtime=runtime))
        out = Output.at(Path(folder) / "whole", stage="tokenizer", runtime=runtime)
        started = time.process_time()
        tokenizer, _, _ = learn(everything.model_copy(update={"vocab_size": vocab_size}), shards, out)
        return time.process_time() - started, tokenizer


def library(shards: list[Path], vocab_size: int) -> tuple[float, Any]:
    """The same by `tokenizers` alone."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    from models.tokenizer import SPECIAL_TOKENS
    from tasks.tokenizer import TokenizerConfig
    from tasks.tokenizer.patterns import pre_tokenizer

    config = TokenizerConfig(vocab_size=vocab_size)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(config.pattern)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    started = time.process_time()
    tokenizer.train_from_iterator(_texts(shards), trainer)
    return time.process_time() - started, tokenizer


def _texts(shards: list[Path]) -> Iterator[list[str]]:
    from storage.shards.documents import read_batches

    for path in shards:
        for _, batch in read_batches(path, ["text"]):
            yield batch["text"].to_pylist()


def child(side: str, vocab_size: int, folder: Path) -> None:
    """In a process of its own: CPU seconds, and what the tokenizer is, as JSON."""
    shards = sorted(folder.glob("*.parquet"))
    seconds, made = library(shards, vocab_size) if side == LIBRARY else ours(shards, vocab_size, THREADS[side])
    digest = hashlib.sha256(made.to_str(pretty=True).encode()).hexdigest()
    print(json.dumps({"seconds": seconds, "digest": digest}))


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
