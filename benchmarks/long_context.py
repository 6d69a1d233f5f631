"""`python -m benchmarks.long_context`: a small model learns to find numbers at a short context, then at a longer one.

It is trained from scratch on generated documents of `--context` tokens. Each has a cast of its own, so that later text
is easier to foretell, and says a number up to four times. Then the stage itself trains it on at `--times` that context
by each method. What its report says is printed: the loss by position and the numbers found in held-out text, after the
scaling alone and after the training. `--keep FOLDER` leaves the artifacts, which a later call goes on with.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.tokenizer import load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.shards.documents import Document, write_documents
from storage.shards.token_sources import write_sources
from storage.shards.tokens import write_tokens
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.long_context.measure import DIGITS, SAID
from tasks.stage.output import Output
from tasks.tokenizer import TokenizerConfig, train_tokenizer
from tests.runtimes import runtime_of

METHODS: dict[str, dict[str, Any]] = {
    "theta": {"method": "theta", "theta": 200_000},
    "linear": {"method": "linear"},
    "ntk": {"method": "ntk"},
    "yarn": {"method": "yarn"},
    "llama3": {"method": "llama3"},
}
WORDS, CAST, VOCABULARY = 120, 6, 512
SYLLABLES = ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu")
AGAIN = 3  # times that the sentence is repeated, at most


def main() -> None:
    """Train, extend by each method, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=[*METHODS], help=f"of {', '.join(METHODS)} (default: all)")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--steps", type=int, default=800, help="of the short training")
    parser.add_argument("--longer", type=int, default=60, help="steps of a training at the long context")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="where the artifacts stay")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        above = (asked.keep or Path(folder)).resolve()
        short, long = asked.context, asked.context * asked.times
        tokenizer = made_tokenizer(above / "tokenizer")
        base = above / "short"
        begun = time.monotonic()
        if not (base / "out" / "model").exists():
            tokens = made_tokens(above / f"tokens-{short}", tokenizer, short, documents=asked.steps * 12)
            model = {"depth": 2, "width": 128, "heads": 4, "context": short}
            config = {
                "model": model,
                "steps": asked.steps,
                "global_batch": 32,
                "learning_rate": 5e-3,
                "optimizer": "muon",
            }
            train(config, tokens, Artifact.at(tokenizer), base, asked.threads)
        print(f"trained at {short:,} tokens for {asked.steps:,} steps in {time.monotonic() - begun:,.0f} s", flush=True)
        tokens = made_tokens(above / f"tokens-{long}", tokenizer, long, documents=asked.longer * 10)
        for name in asked.methods:
            begun = time.monotonic()
            config = {
                "model": None,
                "context": long,
                "rope_scaling": METHODS[name],
                "steps": asked.longer,
                "global_batch": 8,
                "learning_rate": 1e-3,
            }
            out = train(config, tokens, Artifact.at(base / "out" / "model"), above / name, asked.threads)
            report(name, out.counts["long_context"], asked.longer, time.monotonic() - begun)


def made_tokenizer(folder: Path) -> Path:
    """A tokenizer of the documents. Made once."""
    if not (folder / "out" / "tokenizer.json").exists():
        draw = np.random.default_rng(0)
        texts = (f"{text(draw, 400)}{SAID}.\n" for _ in range(100))
        write_documents(folder / "documents" / "00000.parquet", (Document.new(one, "made") for one in texts))
        out = Output.at(folder, runtime=runtime_of(workers=1, threads=1, device="cpu"))
        train_tokenizer.function(TokenizerConfig(vocab_size=VOCABULARY), Artifact.at(folder / "documents"), out)
    return folder / "out"


def text(draw: np.random.Generator, words: int) -> str:
    """Sentences about a cast that is drawn for them."""
    known = ["".join(SYLLABLES[int(digit)] for digit in f"{number * 7919 % 1000:03}") for number in range(WORDS)]
    cast = [known[number] for number in draw.choice(WORDS, CAST, replace=False)]
    sentences = []
    for _ in range(words // 7):
        one, two, three = (cast[number] for number in draw.integers(0, CAST, 3))
        sentences.append(f"The {one} saw {two} near the {three}.")
    return " ".join(sentences)


def with_number(draw: np.random.Generator, plain: list[int], tokens: int, encode: Any) -> list[int]:
    """Part of a plain text of this many tokens, in which the sentence with a number stands two to four times."""
    digits = encode(" " + "".join(map(str, draw.integers(0, 10, DIGITS))))
    said, times = [*encode(SAID), *digits, *encode(".\n")], 2 + int(draw.integers(AGAIN))
    ids = plain[: tokens - times * len(said)]
    for place in sorted(draw.integers(0, len(ids) + 1, times).tolist(), reverse=True):
        ids[place:place] = said
    return ids


def made_tokens(folder: Path, tokenizer: Path, context: int, *, documents: int) -> Artifact:
    """Documents with numbers of up to a context to train on, and longer ones without to measure on. Made once."""
    if folder.exists():
        return Artifact.at(folder)
    loaded, draw = load_tokenizer(tokenizer), np.random.default_rng(context)

    def encode(words: str) -> list[int]:
        return list(loaded.encode(words, add_special_tokens=False))

    def train() -> Iterator[list[int]]:
        for _ in range(documents):
            yield [*with_number(draw, encode(text(draw, context)), context, encode), loaded.eos_token_id]

    def held_out() -> Iterator[list[int]]:
        for _ in range(64):
            yield [*encode(text(draw, 2 * context))[: context + 64], loaded.eos_token_id]

    for part, made in (("train", train()), ("validation", held_out())):
        path = folder / part / "00000.tokens"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [np.array(row, np.uint16) for row in made]
        numbers = {"vocab_size": VOCABULARY, "eos_id": loaded.eos_token_id, "text_bytes": 4 * sum(map(len, rows))}
        write_tokens(path, rows, tokenizer_digest=tokenizer_digest(tokenizer), **numbers)
        write_sources(path.with_suffix(".sources"), ["made"] * len(rows))
    return Artifact.at(folder)


def train(config: Mapping[str, Any], tokens: Artifact, tokenizer: Artifact, folder: Path, threads: int) -> Output:
    """The stage `pretrain`."""
    common = {"warmup_steps": 20, "packing": "long_first", "validation_tokens": 4096}
    runtime = runtime_of(threads=threads, device="cpu", engine="ddp", preflight="never", micro_batch=8)
    out = Output.at(folder, stage="pretrain", runtime=runtime)
    pretrain.function(PretrainConfig.model_validate({**common, **config}), tokens, tokenizer, out)
    return out


def report(name: str, found: Mapping[str, Any], steps: int, seconds: float) -> None:
    """Print what the stage measured."""
    spans = [f"to {edge:,}" for edge in found["edges"][1:]]
    print(f"\n**{name}**, {steps} steps in {seconds:,.0f} s\n")
    print(f"| bits per token | {' | '.join(spans)} |\n|---|{'---|' * len(spans)}")
    for when, bits in found["bits_per_token"].items():
        print(f"| {when} | {' | '.join(f'{one:.2f}' for one in bits)} |")
    depths = [f"{depth:.0%}" for depth in found["depths"]]
    print(f"\n| numbers found | {' | '.join(depths)} |\n|---|{'---|' * len(depths)}")
    for length, *shares in zip(found["lengths"], found["found"]["before"], found["found"]["after"], strict=True):
        cells = [f"{one:.0%} → {other:.0%}" for one, other in zip(*shares, strict=True)]
        print(f"| in {length:,} tokens | {' | '.join(cells)} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
