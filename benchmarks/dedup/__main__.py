"""`python -m benchmarks.dedup`: near-duplicate removal beside its peers, in MB of text per core-second.

Each run is a process of its own, start included, from Parquet shards to Parquet shards, in one process with one thread.
The tools take turns, so that a noisy moment hits all alike; figures are medians. The corpus and the peers' environment
are made on the first call. A ratio is always of speeds on the same text: datatrove is so slow that it gets a part of
the corpus, and so do we for that ratio. `gristmill-command` is `gristmill run --to dedup`, where the others are the
bare work: with start-up, hashing, reading as a source, the store and the report. `--scaling` measures ours alone: on 4
times the text, and with 2 workers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import DATA, Corpus, Failed, Run, corpus, count, environment, measure, median, positive
from benchmarks.peer_environment import PEERS

OURS = "gristmill"
COMMAND = "gristmill-command"
SLOW = ("datatrove", "datatrove-plain")
INSTALLED = 360  # MB of text. A larger corpus repeats it with other words (`benchmarks.corpus`)
VARIANTS = ("-prehashed", "-plain", "-command")
TOOLS = (
    OURS,
    COMMAND,
    "rensa-prehashed",
    "rensa",
    "fastsketchlsh",
    "gaoya",
    "datasketch-prehashed",
    "datasketch",
    *SLOW,
)


@dataclass(frozen=True)
class Contender:
    """A tool, the text that it gets, and its number of workers."""

    tool: str
    corpus: Corpus
    workers: int = 1

    def run(self) -> Run:
        """One measured run; its output is thrown away."""
        with tempfile.TemporaryDirectory(dir=self.corpus.folder.parent) as out:
            if self.tool in (OURS, COMMAND):
                name = "ours.py" if self.tool == OURS else "command.py"
                command = [sys.executable, str(Path(__file__).with_name(name))]
                places = [str(self.corpus.folder), out, "--workers", str(self.workers)]
            else:
                command = [str(PEERS.python), str(Path(__file__).with_name("peers.py")), self.tool]
                places = [str(self.corpus.folder), out]
            return measure([*command, *places], environment(self.workers))


def medians(contenders: Sequence[Contender], runs: int) -> tuple[dict[Contender, Run], list[str]]:
    """Run all in turns; a tool that fails leaves the round with a line that says why."""
    found: dict[Contender, list[Run]] = {contender: [] for contender in contenders}
    failures: list[str] = []
    for number in range(runs):
        for contender in [contender for contender in contenders if contender in found]:
            print(f"run {number + 1}/{runs}: {contender.tool}, {contender.corpus.megabytes:.1f} MB", file=sys.stderr)
            try:
                found[contender].append(contender.run())
            except Failed as error:
                del found[contender]
                failures.append(f"{contender.tool}: {error}")
    return {contender: median(taken) for contender, taken in found.items()}, failures


def speed(contender: Contender, run: Run) -> float:
    """MB of UTF-8 text per core-second."""
    return contender.corpus.megabytes / run.cpu


def _package(tool: str) -> str:
    for suffix in VARIANTS:
        tool = tool.removesuffix(suffix)
    return tool


def compare(tools: Sequence[str], whole: Corpus, part: Corpus, runs: int) -> None:
    """The table of all tools."""
    installed = PEERS.ensure()
    versions = {tool: installed[name] for tool in tools if (name := _package(tool)) in installed}
    versions[OURS] = versions[COMMAND] = importlib.metadata.version(OURS)
    missing = [f"{tool}: could not be installed" for tool in tools if tool not in versions]
    contenders = [Contender(tool, part if tool in SLOW else whole) for tool in tools if tool in versions]
    if OURS in tools and any(contender.corpus == part for contender in contenders):
        contenders.append(Contender(OURS, part))
    figures, failures = medians(list(dict.fromkeys(contenders)), runs)
    settings = f"{whole.documents:,} documents, word 5-grams, Jaccard 0.8, medians of {runs}"
    print(f"{platform.machine()}, 1 process, 1 thread, {settings}\n")
    print("| tool | version | MB | CPU s | MB a core-second | ours / peer | peak memory (MB) | documents kept |")
    print("|---|---|---|---|---|---|---|---|")
    for contender, run in figures.items():
        ours = Contender(OURS, contender.corpus)
        ratio = f"{speed(ours, figures[ours]) / speed(contender, run):.2f}" if ours in figures else "–"
        kept = f"{run.result['kept']:,} of {run.result['documents']:,}"
        print(
            f"| {contender.tool} | {versions[contender.tool]} | {contender.corpus.megabytes:.1f} | {run.cpu:.2f} "
            f"| {speed(contender, run):.2f} | {ratio} | {run.peak / 1e6:,.0f} | {kept} |"
        )
    for line in [*missing, *failures]:
        print(f"\n{line}")


def scale(whole: Corpus, quarter: Corpus, runs: int) -> None:
    """Ours alone: what 4 times the text costs, and what a second worker brings."""
    one, four, two = Contender(OURS, quarter), Contender(OURS, whole), Contender(OURS, whole, workers=2)
    figures, failures = medians([one, four, two], runs)
    if failures:
        raise SystemExit("\n".join(failures))
    print(f"{platform.machine()}, {OURS}, medians of {runs}\n")
    print("| text (MB) | workers | CPU s | wall s | peak memory of the largest process (MB) |\n|---|---|---|---|---|")
    for contender, run in figures.items():
        head = f"| {contender.corpus.megabytes:.1f} | {contender.workers}"
        print(f"{head} | {run.cpu:.2f} | {run.wall:.2f} | {run.peak / 1e6:,.0f} |")
    times = whole.megabytes / quarter.megabytes
    print(f"\n{times:.2f} times the text: {figures[four].cpu / figures[one].cpu:.2f} times the CPU seconds.")
    print(f"2 workers for 1: {figures[four].wall / figures[two].wall:.2f} times as fast.")


def main() -> None:
    """Read the options, make what is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=positive, default=INSTALLED, help=f"of UTF-8 text (default {INSTALLED})")
    parser.add_argument("--runs", type=count, default=5, help="of each tool (default 5)")
    parser.add_argument("--tools", default=",".join(TOOLS), help="separated by commas (default all)")
    parser.add_argument("--datatrove-megabytes", type=positive, default=20, help="the part datatrove gets (default 20)")
    parser.add_argument("--data", type=Path, default=DATA, help="where the corpus lies")
    parser.add_argument("--scaling", action="store_true", help="measure ours on 1x and 4x the text and with 2 workers")
    options = parser.parse_args()
    tools = options.tools.split(",")
    unknown = sorted(set(tools) - set(TOOLS))
    if unknown:
        parser.error(f"unknown tools: {', '.join(unknown)}; known are {', '.join(TOOLS)}")
    data = options.data.resolve()
    whole = corpus(data, min(options.megabytes, INSTALLED))
    if options.megabytes > INSTALLED:
        whole = corpus(data, options.megabytes, whole)
    if options.scaling:
        scale(whole, corpus(data, options.megabytes / 4, whole), options.runs)
    else:
        smaller = options.datatrove_megabytes < options.megabytes
        compare(tools, whole, corpus(data, options.datatrove_megabytes, whole) if smaller else whole, options.runs)


if __name__ == "__main__":
    main()
