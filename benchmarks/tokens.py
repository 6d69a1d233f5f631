"""`python -m benchmarks.tokens encode`: documents to token shards, in MB of text per core-second, beside peers.

Each run is a process of its own with one thread, over Parquet shards, by a vocabulary that our own stage trained on
the same text. Ours is the stage as it stands: it reads shards, encodes, checks a sample by `tokenizers`, counts by
source and writes token shards with checksums. Peers only encode and write (tokens_peers.py): `tokenizers` a document at
a time and by `encode_batch_fast`, tiktoken, and datatrove's DocumentTokenizer. Seconds are CPU seconds with everything
loaded; what the whole process took stands beside them. Tools take turns, on a part of the text; figures are medians.
Then all but `encode_batch_fast` encode the whole once, and the ids of all documents are compared.
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

from benchmarks import peer_environment
from benchmarks.measure import DATA, ROOT, Corpus, Failed, Run, corpus, environment, measure, median

OURS = "gristmill"
BATCHED = "tokenizers, encode_batch_fast"
PEERS = ("tokenizers", BATCHED, "tiktoken", "datatrove")
OTHER_IDS = "datatrove"  # parses special tokens in texts, and has no split
PEER = Path(__file__).with_name("tokens_peers.py")


def run(tool: str, text: Corpus, tokenizer: Path) -> Run:
    """One tool over a corpus, in a new process; the digest of all ids is added to its result."""
    with tempfile.TemporaryDirectory(dir=text.folder.parent) as folder:
        given = [str(text.folder), str(tokenizer), folder]
        if tool == OURS:
            command = [sys.executable, "-m", "benchmarks.tokens", "ours", *given]
        else:
            command = [str(peer_environment.PYTHON), str(PEER), tool, *given]
        found = measure(command, environment(1) | {"PYTHONPATH": str(ROOT.parent)})
        found.result["digest"] = _digest(Path(folder))
    return found


def _digest(folder: Path) -> str:
    """Of the ids of all shards: of token shards, or of bare arrays of 16 bits."""
    from storage.tokens import open_tokens

    digest = hashlib.sha256()
    for split in ("train", "validation"):
        for path in sorted(folder.glob(f"{split}-*.ids")):
            digest.update(path.read_bytes())
        for path in sorted(folder.glob(f"out/{split}/*.tokens")):
            digest.update(open_tokens(path).ids.tobytes())
    return digest.hexdigest()


def ours(shards: Path, tokenizer: Path, folder: Path) -> dict[str, Any]:
    """The stage over a folder of shards: CPU seconds with the kernels loaded, tokens, and who encoded."""
    import pyarrow as pa

    from storage.artifact import Artifact
    from tasks.config import Runtime
    from tasks.output import Output
    from tasks.tokenize import TokenizeConfig, tokenize
    from tasks.tokenizer.encode import KernelEncoder
    from tasks.tokenizer.tables import make_tables, read_settings

    KernelEncoder(make_tables(read_settings(tokenizer))).encode(pa.array(["It loads its kernels now."]))
    started = time.process_time()
    out = Output.at(folder, stage="tokenize", runtime=Runtime(workers=1))
    # Without a digest: hashing the shards is the store's work, and no peer does it
    inputs = (Artifact(path=shards, digest=""), Artifact(path=tokenizer, digest=""))
    tokenize.function(TokenizeConfig(), *inputs, out)
    seconds = time.process_time() - started
    tokens = sum(out.counts[split]["tokens"] for split in ("train", "validation"))
    return {"seconds": seconds, "tokens": tokens, "encoder": out.counts["encoder"]}


def trained(text: Corpus, vocab_size: int) -> Path:
    """A tokenizer of that size from the corpus, made if it isn't there."""
    from storage.artifact import Artifact
    from tasks.config import Runtime
    from tasks.output import Output
    from tasks.tokenizer import TokenizerConfig, train_tokenizer

    folder = text.folder.with_name(f"{text.folder.name}-tokenizer-{vocab_size}")
    if not (folder / "out" / "tokenizer_config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        config = TokenizerConfig(vocab_size=vocab_size, sample_bytes_per_source=10_000_000)
        out = Output.at(folder, runtime=Runtime(workers=1))
        train_tokenizer.function(config, Artifact(path=text.folder, digest=""), out)
    return folder / "out"


def compare(whole: Corpus, part: Corpus, tokenizer: Path, runs: int) -> None:
    """The table of speeds on a part of the text, then the ids of the whole."""
    installed = peer_environment.ensure()
    taken: dict[str, list[Run]] = {}
    run(OURS, part, tokenizer)  # compiles the kernels if need be
    for number in range(runs):
        for tool in (*PEERS, OURS):
            print(f"run {number + 1}/{runs}: {tool}, {part.megabytes:.1f} MB", file=sys.stderr)
            try:
                found = run(tool, part, tokenizer)
                taken.setdefault(tool, []).append(found)
            except Failed as error:
                print(f"{tool}: {error}", file=sys.stderr)
    seconds = {
        tool: statistics.median(run.result["seconds"] for run in found) for tool, found in taken.items() if found
    }
    versions = ", ".join(f"{name} {installed.get(name, '–')}" for name in ("tokenizers", "tiktoken"))
    print(f"{platform.machine()}, 1 process, 1 thread, {versions}, medians of {runs}\n")
    print("| tool | MB | tokens | CPU s | MB a core-second | ours / peer | process CPU s | peak memory (MB) |")
    print("|---|---|---|---|---|---|---|---|")
    for tool, took in seconds.items():
        figures = median(taken[tool])
        ratio = "–" if tool == OURS else f"{took / seconds[OURS]:.1f}"
        print(
            f"| {tool} | {part.megabytes:.1f} | {figures.result['tokens']:,} | {took:.3f} "
            f"| {part.megabytes / took:.2f} | {ratio} | {figures.cpu:.2f} | {figures.peak / 1e6:,.0f} |"
        )
    print(f"\nThe whole, {whole.documents:,} documents, {whole.megabytes:.1f} MB, once:\n")
    print("| tool | tokens | CPU s | MB a core-second | ours / peer | peak memory (MB) | ids as ours |")
    print("|---|---|---|---|---|---|---|")
    mine = run(OURS, whole, tokenizer)
    for tool in (OURS, *(peer for peer in seconds if peer not in (OURS, BATCHED))):
        found = mine if tool == OURS else run(tool, whole, tokenizer)
        same = "yes" if found.result["digest"] == mine.result["digest"] else "NO"
        took = found.result["seconds"]
        ratio = "–" if tool == OURS else f"{took / mine.result['seconds']:.1f}"
        print(
            f"| {tool} | {found.result['tokens']:,} | {took:.2f} | {whole.megabytes / took:.2f} | {ratio} "
            f"| {found.peak / 1e6:,.0f} | {'–' if tool in (OURS, OTHER_IDS) else same} |"
        )


def main() -> None:
    """Read the options, make what is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    encode = commands.add_parser("encode", help="documents to token shards")
    encode.add_argument("--megabytes", type=float, default=120, help="of UTF-8 text, as far as there is (default 120)")
    encode.add_argument("--vocab-size", type=int, default=32_768, help="of the tokenizer (default 32768)")
    encode.add_argument("--runs", type=int, default=5, help="of each tool (default 5)")
    encode.add_argument("--data", type=Path, default=DATA, help="where the corpus lies")
    child = commands.add_parser("ours", help=argparse.SUPPRESS)
    child.add_argument("folders", type=Path, nargs=3)
    options = parser.parse_args()
    if options.command == "ours":
        print(json.dumps(ours(*options.folders)))
        return
    data = options.data.resolve()
    whole = corpus(data, options.megabytes)
    part = corpus(data, options.megabytes / 10, whole)
    compare(whole, part, trained(whole, options.vocab_size), options.runs)


if __name__ == "__main__":
    main()
