"""`python -m benchmarks.filter.perplexity`: our n-gram model beside KenLM, in MB of text per core-second.

Ours is trained on one part of a real corpus and written as an ARPA file, which is possible only here, where the words
of the hashes are known. KenLM loads that file and scores another part, line by line; its lines are normalised and cut
into words beforehand, and that is not counted. Ours is given the text as it came. Then the two log-probabilities of
every line are compared. `--lmplz PATH` also trains with KenLM's own program, which no package carries, on the same
text, and compares probability and backoff of every n-gram.

Each measurement is a process of its own, one thread; reading, loading and compiling are not counted, figures are
medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Failed, Run, corpus, corpus_parser, environment, measure
from benchmarks.peer_environment import PEERS
from storage.shards.documents import read_batches
from tasks.filter.perplexity import kernels
from tasks.filter.perplexity.estimate import estimate
from tasks.filter.perplexity.model import NgramModel
from tasks.filter.perplexity.sentences import read_tokens
from tasks.text.kernels import GOLDEN
from tasks.text.scan import Scanner

ORDER = 3
MASK = (1 << 64) - 1
SPECIAL = {"<s>": kernels.START, "</s>": kernels.END, "<unk>": kernels.UNKNOWN}
KENLM = Path(__file__).with_name("kenlm_scores.py")


def texts_of(folder: Path, shards: slice) -> list[pa.Array]:
    """The texts of some shards, a row group each."""
    paths = sorted(folder.glob("*.parquet"))[shards]
    return [batch["text"] for path in paths for _, batch in read_batches(path, ["text"])]


TRAINING, SCORING = slice(0, None, 2), slice(1, None, 2)


def lines_of(texts: list[pa.Array]) -> Iterator[str]:
    """The sentences of the texts, words normalised and joined by a space: what KenLM reads."""
    word, scanner = re.compile(r"\w+"), Scanner()
    for column in texts:
        for text in column.to_pylist():
            for line in text.split("\n"):
                words = word.findall(scanner.normalise(line))
                if words:
                    yield " ".join(words)


def hashes_of(words: list[str]) -> dict[str, int]:
    """The hash of each word."""
    found = dict.fromkeys(words, 0)
    for scanned in Scanner().scan(pa.array(words)):
        for row, number in zip(scanned.rows.tolist(), scanned.words[: len(scanned.rows)].tolist(), strict=True):
            found[words[row]] = number
    return found | {name: int(value) for name, value in SPECIAL.items()}


class Lookup:
    """Probability and backoff of n-grams of words, from the model's table."""

    def __init__(self, model: NgramModel, words: list[str]) -> None:
        self.hashes = hashes_of(words)
        table = model.table[model.table[:, 0] != 0]
        logs = table.view(np.float32)[:, 2:].tolist()
        self.found: dict[int, list[float]] = dict(zip(table[:, 0].tolist(), logs, strict=True))

    def __call__(self, words: tuple[str, ...]) -> list[float]:
        """[log10 probability, log10 backoff]."""
        key = 0
        for word in words:
            key = (key * int(GOLDEN) + self.hashes[word]) & MASK
        return self.found[key]


def write_arpa(model: NgramModel, lines: list[str], path: Path) -> int:
    """The model as an ARPA file, for the n-grams of the lines that it was trained on; how many."""
    grams: list[dict[tuple[str, ...], None]] = [{} for _ in range(ORDER)]
    grams[0] = {("<unk>",): None, ("<s>",): None}
    for line in lines:
        words = ("<s>", *line.split(), "</s>")
        for n in range(1, ORDER + 1):
            grams[n - 1].update(dict.fromkeys(zip(*(words[start:] for start in range(n)), strict=False)))
    lookup = Lookup(model, [gram[0] for gram in grams[0] if gram[0] not in SPECIAL])
    with path.open("w") as file:
        file.write("\\data\\\n" + "".join(f"ngram {n + 1}={len(found)}\n" for n, found in enumerate(grams)))
        for n, found in enumerate(grams):
            file.write(f"\n\\{n + 1}-grams:\n")
            for gram in found:
                probability, backoff = lookup(gram)
                file.write(f"{probability:.7g}\t{' '.join(gram)}" + (f"\t{backoff:.7g}\n" if n + 1 < ORDER else "\n"))
        file.write("\n\\end\\\n")
    return sum(map(len, grams))


def compare_arpa(model: NgramModel, path: Path) -> tuple[int, float]:
    """How many n-grams another program's ARPA file has, and the largest difference of a number in it from ours."""
    rows = [line.rstrip("\n").split("\t") for line in path.open() if "\t" in line]
    lookup = Lookup(model, [row[1] for row in rows if " " not in row[1] and row[1] not in SPECIAL])
    pairs = []
    for row in rows:
        probability, backoff = lookup(tuple(row[1].split(" ")))
        if row[1] != "<s>":  # never asked for: lmplz writes 0
            pairs.append((float(row[0]), probability))
        if len(row) > 2:
            pairs.append((float(row[2]), backoff))
    return len(rows), float(np.abs(np.subtract(*np.array(pairs).T)).max())


def train(texts: list[pa.Array]) -> NgramModel:
    """A model of all the texts."""
    return estimate(np.concatenate([read_tokens(column) for column in texts]), ORDER)[0]


def child(folder: Path) -> None:
    """In a process of its own: CPU seconds of training and of scoring, as JSON."""
    training, scoring = texts_of(folder, TRAINING), texts_of(folder, SCORING)
    train([training[0].slice(0, 10)]).score(scoring[0].slice(0, 10))
    started = time.process_time()
    model = train(training)
    trained = time.process_time()
    for column in scoring:
        model.score(column)
    print(json.dumps({"train": trained - started, "score": time.process_time() - trained}))


def megabytes_of(texts: list[pa.Array]) -> float:
    """UTF-8 text in millions of bytes."""
    return sum(len(text.encode()) for column in texts for text in column.to_pylist()) / 1e6


def main() -> None:
    """Train, write, let KenLM score, compare, and print the tables."""
    parser = corpus_parser(__doc__, megabytes=20, text="of UTF-8 text, half to train on")
    parser.add_argument("--lmplz", type=Path, help="KenLM's program, to train with it too")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        child(options.measure)
        return
    versions = PEERS.ensure()
    text = corpus(options.data.resolve(), options.megabytes)
    training, scoring = texts_of(text.folder, TRAINING), texts_of(text.folder, SCORING)
    work = text.folder.parent / f"{text.folder.name}-arpa"
    work.mkdir(exist_ok=True)
    lines = list(lines_of(training))
    (work / "training.txt").write_text("\n".join([*lines, ""]))
    (work / "scoring.txt").write_text("\n".join([*lines_of(scoring), ""]))
    model = train(training)
    ngrams = write_arpa(model, lines, work / "ours.arpa")
    sizes = {"train": megabytes_of(training), "score": megabytes_of(scoring)}
    print(f"{platform.machine()}, 1 thread, order {ORDER}, {ngrams:,} n-grams, medians of {options.runs}\n")
    runs: dict[str, list[Run]] = {"gristmill": [], f"kenlm {versions.get('kenlm', '?')}": []}
    ours = [sys.executable, "-m", "benchmarks.filter.perplexity", "--measure", str(text.folder)]
    theirs = [str(PEERS.python), str(KENLM), str(work)]
    failures = set()
    for _ in range(options.runs):
        for side, command in zip(runs, (ours, theirs), strict=True):
            try:
                runs[side].append(measure(command, environment(1)))
            except Failed as error:
                failures.add(f"{side}: {error}")
    report(runs, sizes)
    print(*sorted(failures), sep="\n")
    if not failures:
        print(agreement(model, work))
    if options.lmplz:
        print(beside_lmplz(model, options.lmplz, work, sizes["train"]))


def report(runs: dict[str, list[Run]], sizes: dict[str, float]) -> None:
    """The table of speeds."""
    print("| side | step | MB | MB a core-second |\n|---|---|---|---|")
    for side, taken in runs.items():
        steps: dict[str, Any] = taken[-1].result if taken else {}
        for step in steps:
            seconds = statistics.median(run.result[step] for run in taken)
            print(f"| {side} | {step} | {sizes[step]:.1f} | {sizes[step] / seconds:.1f} |")


def agreement(model: NgramModel, work: Path) -> str:
    """How far the two log-probabilities of a line are apart, at most."""
    lines = (work / "scoring.txt").read_text().splitlines()
    theirs = np.load(work / "kenlm.npy")
    scores, tokens = model.score(pa.array(lines))
    off = np.abs(scores - theirs)
    mine, other = (10 ** -(found.sum() / tokens.sum()) for found in (scores, theirs))
    apart = f"{off.max():.1e} a line at most, {(off / tokens).max():.1e} a word"
    return f"\n{len(lines):,} lines: log10 p differs by {apart}; perplexity {mine:.4f} and {other:.4f}."


def beside_lmplz(model: NgramModel, program: Path, work: Path, megabytes: float) -> str:
    """What `lmplz` makes of the same sentences, and how long it takes."""
    options = ["-o", str(ORDER), "--discount_fallback", "--skip_symbols", "-S", "1G", "-T", str(work)]
    with (work / "training.txt").open() as source, (work / "lmplz.arpa").open("w") as made:
        done = subprocess.run([str(program), *options], stdin=source, stdout=made, stderr=subprocess.PIPE, check=True)
    cpu = float(re.findall(rb"CPU:([\d.]+)", done.stderr)[-1])
    ngrams, apart = compare_arpa(model, work / "lmplz.arpa")
    return (
        f"\nlmplz: {megabytes / cpu:.1f} MB a core-second, {ngrams:,} n-grams;"
        f" no probability or backoff differs from ours by more than {apart:.1e}."
    )


if __name__ == "__main__":
    main()
