"""`python -m benchmarks.tokens encode`: documents to token shards, in MB of text per core-second, beside peers.

Each run is a process of its own with one thread, over Parquet shards, by a vocabulary that our own stage trained on
the same text. Ours is the stage as it stands: it reads shards, encodes, checks a sample by `tokenizers`, counts by
source and writes token shards with checksums. Peers only encode and write (peers.py): `tokenizers` a document at a
time and by `encode_batch_fast`, tiktoken, and datatrove's DocumentTokenizer. CPU seconds are those of the work, with
everything loaded; what the whole process took, start included, stands beside them.

Tools take turns on a part of the text, of which figures are medians. Then each encodes the whole once, and the ids of
all documents are compared; ours also encodes the whole over and over, to show that its memory does not grow with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import DATA, ROOT, Corpus, Failed, Run, corpus, count, environment, measure, median, positive
from benchmarks.peer_environment import PEERS

OURS = "gristmill"
BATCHED = "tokenizers, encode_batch_fast"
TOOLS = ("tokenizers", BATCHED, "tiktoken", "datatrove", OURS)
OTHER_IDS = "datatrove"  # parses special tokens in texts, and has no split
CHILD = (sys.executable, "-m", "benchmarks.tokens.encode")
VARIABLES = environment(1) | {"PYTHONPATH": str(ROOT.parent)}
PEER = Path(__file__).with_name("peers.py")


def measured(tool: str, text: Corpus, tokenizer: Path) -> Run:
    """One tool over a corpus, in a new process; the digest of all ids is added to its result."""
    with tempfile.TemporaryDirectory(dir=text.folder.parent) as folder:
        given = [str(text.folder), str(tokenizer), folder]
        if tool == OURS:
            command = [*CHILD, OURS, *given]
        else:
            command = [str(PEERS.python), str(PEER), tool, *given]
        found = measure(command, VARIABLES)
        # In a process of its own: what this one holds would count as its children's memory
        found.result.update(measure([*CHILD, "digest", folder], VARIABLES).result)
    return found


def digest(folder: Path) -> dict[str, str]:
    """Of the ids of all shards: of token shards, or of bare arrays of 16 bits."""
    from storage.shards.tokens import open_tokens

    found = hashlib.sha256()
    for split in ("train", "validation"):
        for path in sorted(folder.glob(f"{split}-*.ids")):
            found.update(path.read_bytes())
        for path in sorted(folder.glob(f"out/{split}/*.tokens")):
            found.update(open_tokens(path).ids.tobytes())
    return {"digest": found.hexdigest()}


def ours(shards: Path, tokenizer: Path, folder: Path) -> dict[str, Any]:
    """The stage over a folder of shards: CPU seconds with the kernels loaded, tokens, and who encoded."""
    import pyarrow as pa

    from storage.artifact import Artifact
    from tasks.stage.output import Output
    from tasks.stage.runtime import DataRuntime, Runtime
    from tasks.tokenize import TokenizeConfig, tokenize
    from tasks.tokenizer.encoder.encode import KernelEncoder
    from tasks.tokenizer.encoder.tables import make_tables, read_settings

    KernelEncoder(make_tables(read_settings(tokenizer))).encode(pa.array(["It loads its kernels now."]))
    started = time.process_time()
    out = Output.at(folder, stage="tokenize", runtime=Runtime(data=DataRuntime(workers=1)))
    # Without a digest: hashing the shards is the store's work, and no peer does it
    inputs = (Artifact(folder=shards, digest=""), Artifact(folder=tokenizer, digest=""))
    tokenize.function(TokenizeConfig(), *inputs, out)
    seconds = time.process_time() - started
    tokens = sum(out.counts[split]["tokens"] for split in ("train", "validation"))
    return {"seconds": seconds, "tokens": tokens, "encoder": out.counts["encoder"]}


def learn(shards: Path, folder: Path, vocab_size: int) -> dict[str, int]:
    """A tokenizer of that size from the corpus."""
    from storage.artifact import Artifact
    from tasks.stage.output import Output
    from tasks.stage.runtime import DataRuntime, Runtime
    from tasks.tokenizer import TokenizerConfig, train_tokenizer

    config = TokenizerConfig(vocab_size=vocab_size, sample_bytes_per_source=10_000_000)
    out = Output.at(folder, runtime=Runtime(data=DataRuntime(workers=1)))
    train_tokenizer.function(config, Artifact(folder=shards, digest=""), out)
    return {"vocab_size": out.counts["vocab_size"]}


def tokenizer_of(text: Corpus, vocab_size: int) -> Path:
    """The folder of a tokenizer of that size, which is made if it isn't there."""
    folder = text.folder.with_name(f"{text.folder.name}-tokenizer-{vocab_size}")
    if not (folder / "out" / "tokenizer_config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        measure([*CHILD, "learn", str(text.folder), str(folder), str(vocab_size)], VARIABLES)
    return folder / "out"


def repeated(whole: Corpus, times: int) -> Corpus:
    """The same shards so many times, under other names."""
    folder = whole.folder.with_name(f"{whole.folder.name}-times-{times}")
    folder.mkdir(exist_ok=True)
    for shard in whole.folder.glob("*.parquet"):
        for turn in range(times):
            link = folder / f"{turn}-{shard.name}"
            if not link.exists():
                link.symlink_to(shard)
    return Corpus(folder, times * whole.documents, times * whole.megabytes)


def by_turns(part: Corpus, tokenizer: Path, runs: int) -> dict[str, list[Run]]:
    """All tools on a part of the text; one that fails is left out, saying why."""
    taken: dict[str, list[Run]] = {}
    measured(OURS, part, tokenizer)  # compiles the kernels if need be
    for number in range(runs):
        for tool in TOOLS:
            print(f"run {number + 1}/{runs}: {tool}, {part.megabytes:.1f} MB", file=sys.stderr)
            try:
                taken.setdefault(tool, []).append(measured(tool, part, tokenizer))
            except Failed as error:
                print(f"{tool}: {error}", file=sys.stderr)
    return {tool: found for tool, found in taken.items() if found}


def print_table(taken: dict[str, list[Run]], text: Corpus) -> None:
    """A row a tool; `ids` are the digests compared with ours."""
    seconds = {tool: statistics.median(run.result["seconds"] for run in found) for tool, found in taken.items()}
    figures = {tool: median(found) for tool, found in taken.items()}
    mine = figures[OURS]
    print(f"\n{text.documents:,} documents, {text.megabytes:.1f} MB, runs of each: {len(taken[OURS])}\n")
    print(
        "| tool | tokens | CPU s | MB a core-second | ours / it | process CPU s | ours / it | peak memory (MB) "
        "| ids as ours |\n|---|---|---|---|---|---|---|---|---|"
    )
    for tool, took in seconds.items():
        figure = figures[tool]
        same = "yes" if figure.result["digest"] == mine.result["digest"] else "NO"
        print(
            f"| {tool} | {figure.result['tokens']:,} | {took:.3f} | {text.megabytes / took:.2f} "
            f"| {took / seconds[OURS]:.1f} | {figure.cpu:.2f} | {figure.cpu / mine.cpu:.1f} | {figure.peak / 1e6:,.0f} "
            f"| {'–' if tool in (OURS, OTHER_IDS) else same} |"
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument(
        "--megabytes", type=positive, default=100, help="of UTF-8 text, as far as there is (default 100)"
    )
    parser.add_argument("--part", type=float, default=12, help="megabytes for the runs by turns (default 12)")
    parser.add_argument("--times", type=int, default=3, help="how often ours encodes the whole for memory (default 3)")
    parser.add_argument("--vocab-size", type=int, default=32_768, help="of the tokenizer (default 32768)")
    parser.add_argument("--runs", type=count, default=5, help="of each tool on the part (default 5)")
    parser.add_argument("--data", type=Path, default=DATA, help="where the corpus lies")


def run(options: argparse.Namespace) -> None:
    """Make what is missing, measure, print."""
    data = options.data.resolve()
    whole = corpus(data, options.megabytes)
    part = corpus(data, options.part, whole)
    tokenizer = tokenizer_of(whole, options.vocab_size)
    installed = PEERS.ensure()
    versions = (f"{name} {installed.get(name, '–')}" for name in ("tokenizers", "tiktoken", "datatrove"))
    print(f"{platform.machine()}, 1 process, 1 thread, {', '.join(versions)}")
    taken = by_turns(part, tokenizer, options.runs)
    print_table(taken, part)
    for tool in taken:
        print(f"once: {tool}, {whole.megabytes:.1f} MB", file=sys.stderr)
        taken[tool] = [measured(tool, whole, tokenizer)]
    print_table(taken, whole)
    long = repeated(whole, options.times)
    print_table({OURS: [measured(OURS, long, tokenizer)]}, long)


if __name__ == "__main__":
    child, *given = sys.argv[1:]
    if child == "learn":
        print(json.dumps(learn(Path(given[0]), Path(given[1]), int(given[2]))))
    else:
        print(json.dumps(ours(*map(Path, given)) if child == OURS else digest(Path(given[0]))))
