"""`python -m benchmarks.bpe_training`: learning merges beside the trainer of `tokenizers`, in CPU seconds.

Each run is a process of its own with one thread, timed from texts in memory (the library) or from counted pre-tokens
(ours) to a tokenizer. Ours is merging alone: the library is timed on the whole, and on one merge, which is cutting and
counting. Both must end in the same `tokenizer.json`. Pre-tokens are counted
once for each corpus by the library's own pre-tokenizer, and kept beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import DATA, Corpus, Run, corpus, environment, measure, median

OURS, LIBRARY, COUNTING = "merging, gristmill", "whole, tokenizers", "cutting and counting, tokenizers"
ONE_MERGE = 263  # ids: special tokens, bytes and it
COUNTS = "pretokens.npz"
MIN_FREQUENCY = 2


@dataclass(frozen=True)
class Contender:
    """A side and the size of its vocabulary."""

    side: str
    vocab_size: int

    def run(self, folder: Path) -> Run:
        """One measured run."""
        module = ["-m", "benchmarks.bpe_training", "--measure", self.side, str(self.vocab_size), str(folder)]
        return measure([sys.executable, *module], environment(1))


def texts_of(folder: Path) -> Iterator[Any]:
    """A column of texts for each row group."""
    from storage.documents import read_batches

    for path in sorted(folder.glob("*.parquet")):
        for _, batch in read_batches(path, ["text"]):
            yield batch["text"]


def split(pre_tokenizer: Any, texts: Any) -> tuple[Any, Any, Any]:
    """The library's pieces as (data, starts, ends)."""
    import numpy as np

    from tasks.tokenizer.bpe.alphabet import unspell

    pieces = [piece for text in texts.to_pylist() for piece, _ in pre_tokenizer.pre_tokenize_str(text)]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return np.frombuffer(unspell("".join(pieces)) or b"", np.uint8), np.append(0, ends)[: len(ends)], ends


def ours(folder: Path, vocab_size: int) -> tuple[float, Any]:
    """CPU seconds from counts to a tokenizer, with compiled code at hand; the counts are made if they are not there."""
    from tokenizers.pre_tokenizers import ByteLevel

    from models.tokenizer import SPECIAL_TOKENS
    from tasks.tokenizer.bpe.pretokens import Pretokens, count_pretokens
    from tasks.tokenizer.bpe.train import to_tokenizer, train

    pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    if not (folder / COUNTS).exists():
        count_pretokens(partial(split, pre_tokenizer), texts_of(folder)).save(folder / COUNTS)
    pretokens = Pretokens.load(folder / COUNTS)
    learn = partial(train, min_frequency=MIN_FREQUENCY, special_tokens=SPECIAL_TOKENS)
    learn(pretokens.words, pretokens.ends[:9], pretokens.counts[:9], vocab_size=300)
    started = time.process_time()
    merges, vocabulary, _ = learn(*pretokens, vocab_size=vocab_size)
    tokenizer = to_tokenizer(merges, vocabulary, SPECIAL_TOKENS, pre_tokenizer)
    return time.process_time() - started, tokenizer


def library(folder: Path, vocab_size: int) -> tuple[float, Any]:
    """CPU seconds from texts to a tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    from models.tokenizer import SPECIAL_TOKENS

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for column in texts_of(folder) for text in column.to_pylist()]
    started = time.process_time()
    tokenizer.train_from_iterator(texts, trainer)
    return time.process_time() - started, tokenizer


def child(side: str, vocab_size: int, folder: Path) -> None:
    """In a process of its own: CPU seconds, and what the tokenizer is, as JSON."""
    seconds, tokenizer = (ours if side == OURS else library)(folder, vocab_size)
    digest = hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()
    print(json.dumps({"seconds": seconds, "ids": tokenizer.get_vocab_size(), "digest": digest}))


def report(found: dict[Contender, Run], whole: Corpus, vocab_sizes: list[int]) -> None:
    """Print the table, and whether the files are the same."""
    print("| ids | side | CPU s | peak, MB | ratio to ours |\n|---:|---|---:|---:|---:|")
    for contender, run in found.items():
        seconds, ids = run.result["seconds"], contender.vocab_size
        ours_too = found.get(Contender(OURS, ids))
        ratio = f"{seconds / ours_too.result['seconds']:.1f}" if ours_too else ""
        print(f"| {ids:,} | {contender.side} | {seconds:.2f} | {run.peak / 1e6:,.0f} | {ratio} |")
    for vocab_size in vocab_sizes:
        digests = {found[Contender(side, vocab_size)].result["digest"] for side in (OURS, LIBRARY)}
        print(f"\n{vocab_size:,} ids: tokenizer.json of both {'is the same' if len(digests) == 1 else 'DIFFERS'}")
    print(f"\n{whole.documents:,} documents, {whole.megabytes:.1f} MB of text")


def main() -> None:
    """Run the sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100, help="of UTF-8 text (default 100)")
    parser.add_argument("--ids", type=int, nargs="+", default=[32768], help="sizes of the vocabulary (default 32768)")
    parser.add_argument("--runs", type=int, default=3, help="of each side (default 3)")
    parser.add_argument("--data", type=Path, default=DATA, help="where the corpus lies")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        side, vocab_size, folder = options.measure
        child(side, int(vocab_size), Path(folder))
        return
    whole = corpus(options.data.resolve(), options.megabytes)
    contenders = [Contender(side, size) for size in options.ids for side in (OURS, LIBRARY)] + [
        Contender(COUNTING, ONE_MERGE)
    ]
    found: dict[Contender, list[Run]] = {contender: [] for contender in contenders}
    for _ in range(options.runs):
        for contender in contenders:
            found[contender].append(contender.run(whole.folder))
    print(f"{platform.machine()}, 1 thread, medians of {options.runs}\n")
    report({contender: median(runs) for contender, runs in found.items()}, whole, options.ids)


if __name__ == "__main__":
    main()
