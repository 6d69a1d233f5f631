"""`python -m benchmarks.filter.contamination`: decontamination beside sets of tuples in Python, and beside datatrove.

All questions of ARC-Easy, HellaSwag, PIQA and basic_skills are looked for in real text; every `PLANTED`th document has
one of them at its end. Each side runs in a process of its own, in turns, over texts that lie in memory; the index is
made and everything compiled before the clock starts, figures are medians. The baseline is what most scripts do: words
by `\\w+`, 13-grams as tuples, a set. datatrove is its `NGramsDecontFilter` with n-grams of 13, which stops at a
document's first match. Both look for 13-grams only; ours also finds shorter queries and answers whole. The peers get a
part of the text, and ours is measured on that part too.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Corpus, Failed, Run, corpus, corpus_parser, environment, measure, median
from benchmarks.peer_environment import PEERS

OURS, SETS, DATATROVE = "gristmill", "sets of tuples", "datatrove"
NGRAM = 13
PLANTED = 50
BENCHMARKS = "benchmarks"
PROMPT = re.compile(r"^\s*Question:|\bAnswer:\s*$")


@dataclass(frozen=True)
class Contender:
    """A side and the text that it gets."""

    side: str
    corpus: Corpus

    def run(self) -> Run:
        """One measured run."""
        script = Path(__file__).with_name("datatrove_decont.py")
        places = [str(self.corpus.folder), str(self.corpus.folder.parent / BENCHMARKS)]
        if self.side == DATATROVE:
            return measure([str(PEERS.python), str(script), *places], environment(1))
        module = ["-m", "benchmarks.filter.contamination", "--measure", self.side]
        return measure([sys.executable, *module, *places], environment(1))


def write_questions(folder: Path) -> int:
    """All questions of the packaged benchmarks as the download stage writes them; how many."""
    from tasks.download.benchmarks import READERS, questions

    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for name in READERS:
        found = questions(name, 1 << 20)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(question) + "\n" for question in found))
        written += len(found)
    return written


def asked_of(benchmarks: Path) -> list[str]:
    """Every question with its right answer, without the words of the prompt."""
    rows = (json.loads(line) for path in sorted(benchmarks.glob("*.jsonl")) for line in path.read_text().splitlines())
    return [f"{PROMPT.sub('', row['query'])} {row['choices'][row['gold']]}" for row in rows]


def texts_of(folder: Path, asked: list[str]) -> Iterator[list[str]]:
    """The texts of each row group, every `PLANTED`th document with a question at its end."""
    from storage.shards.documents import read_batches

    seen = 0
    for path in sorted(folder.glob("*.parquet")):
        for _, batch in read_batches(path, ["text"]):
            texts = batch["text"].to_pylist()
            for number in range(-seen % PLANTED, len(texts), PLANTED):
                texts[number] += f" {asked[(seen + number) * 7919 % len(asked)]}"
            seen += len(texts)
            yield texts


def ours(batches: list[list[str]], questions: list[Any]) -> tuple[float, list[int]]:
    """CPU seconds of the stage's first pass, and the documents with a match."""
    import pyarrow as pa

    from tasks.filter.contamination.config import ContaminationConfig
    from tasks.filter.contamination.measure import Matcher
    from tasks.filter.contamination.questions import index_questions

    index = index_questions(ContaminationConfig(), questions)
    columns = [pa.array(texts) for texts in batches]
    Matcher(index).match(columns[0])
    matcher = Matcher(index)
    started = time.process_time()
    rows = [matcher.match(column)[0] for column in columns]
    seconds = time.process_time() - started
    starts = [sum(map(len, batches[:number])) for number in range(len(batches))]
    return seconds, sorted({start + row for start, found in zip(starts, rows, strict=True) for row in found.tolist()})


def sets(batches: list[list[str]], questions: list[Any]) -> tuple[float, list[int]]:
    """CPU seconds of the baseline, and the documents with a match."""
    word = re.compile(r"\w+")

    def ngrams(text: str) -> Iterator[tuple[str, ...]]:
        words = word.findall(text.lower())
        return zip(*(words[start:] for start in range(NGRAM)), strict=False)

    wanted = {ngram for question in questions for part in question.parts for ngram in ngrams(part.text)}
    texts = [text for batch in batches for text in batch]
    started = time.process_time()
    found = [number for number, text in enumerate(texts) if not wanted.isdisjoint(ngrams(text))]
    return time.process_time() - started, found


def child(side: str, folder: Path, benchmarks: Path) -> None:
    """In a process of its own: CPU seconds of one side and what it found, as JSON."""
    from tasks.filter.contamination.config import ContaminationConfig
    from tasks.filter.contamination.questions import read_questions

    questions = read_questions(ContaminationConfig(), sorted(benchmarks.glob("*.jsonl")))
    batches = list(texts_of(folder, asked_of(benchmarks)))
    seconds, found = (ours if side == OURS else sets)(batches, questions)
    print(json.dumps({"seconds": seconds, "found": found}))


def main() -> None:
    """Run the sides in turns and print the table."""
    parser = corpus_parser(__doc__, megabytes=120)
    parser.add_argument("--part", type=float, default=2, help="of it, that the peers get (default 2)")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        child(options.measure[0], *map(Path, options.measure[1:]))
        return
    data = options.data.resolve()
    whole = corpus(data, options.megabytes)
    part = corpus(data, options.part, whole)
    questions = write_questions(data / BENCHMARKS)
    versions = PEERS.ensure()
    contenders = [Contender(OURS, whole), *(Contender(side, part) for side in (OURS, SETS, DATATROVE))]
    found: dict[Contender, list[Run]] = {contender: [] for contender in contenders}
    for _ in range(options.runs):
        for contender in list(found):
            try:
                found[contender].append(contender.run())
            except Failed as error:
                print(f"{contender.side}: {error}")
                del found[contender]
    print(f"{platform.machine()}, 1 thread, {questions:,} questions, medians of {options.runs}\n")
    report({contender: median(runs) for contender, runs in found.items()}, part, versions.get(DATATROVE, "?"))


def report(figures: dict[Contender, Run], part: Corpus, version: str) -> None:
    """The table: speeds, ratios on the same text, memory, and whose documents are found."""
    mine = figures[Contender(OURS, part)]
    print(
        "| side | MB | MB a core-second | ours / side | peak memory (MB) | documents found |\n|---|---|---|---|---|---|"
    )
    for contender, run in figures.items():
        side = f"{DATATROVE} {version}" if contender.side == DATATROVE else contender.side
        megabytes, seconds = contender.corpus.megabytes, run.result["seconds"]
        ratio = "–" if contender.side == OURS else f"{seconds / mine.result['seconds']:,.0f}"
        documents = f"{len(run.result['found']):,} of {contender.corpus.documents:,}"
        print(
            f"| {side} | {megabytes:.1f} | {megabytes / seconds:.2f} | {ratio} | {run.peak / 1e6:,.0f} | {documents} |"
        )
    for contender, run in figures.items():
        if contender.side != OURS:
            theirs = set(run.result["found"])
            missed = len(theirs - set(mine.result["found"]))
            print(f"\nOf the {len(theirs):,} documents that {contender.side} finds, ours misses {missed}.")


if __name__ == "__main__":
    main()
