"""`python -m benchmarks.all`: the benchmarks of RESULTS.md again, in one sitting on one commit.

Each command is run by itself, one after the other, in the order of RESULTS.md, and ended when it takes longer than its
minutes. What it printed stands in `--out`, a file for each, below a line with the date, the commit, the machine and how
busy that was before. Commands that need data, a model or a GPU of yours run only with the option that names it. To be
asked while nothing else runs: `--list` shows the commands and their minutes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import DATA, ROOT, end_as_interrupted, ended
from tasks.stage import machine
from tasks.stage.environment import environment


class Command(NamedTuple):
    """What to run after `python -m`, and the minutes that it may take. `{name}` is the option of that name."""

    words: str
    minutes: float


COMMANDS = (
    Command("benchmarks.pretrain 1.3M 5M 16M --families llama --runs 3", 40),
    Command("benchmarks.pretrain.engines", 20),
    Command("benchmarks.pretrain.continued --runs 1", 60),
    Command("benchmarks.gpu --device {gpu}", 10),
    Command("benchmarks.posttrain.packing", 30),
    Command("benchmarks.long_context", 40),
    Command("benchmarks.download {pages}", 20),
    Command("benchmarks.dedup", 40),
    Command("benchmarks.dedup --megabytes 100 --tools gristmill,rensa-prehashed", 10),
    Command("benchmarks.dedup --scaling", 10),
    Command("benchmarks.dedup.exact", 5),
    Command("benchmarks.filter.form", 30),
    Command("benchmarks.filter.language --labelled {labelled}", 20),
    Command("benchmarks.filter.toxicity --labelled {labelled}", 20),
    Command("benchmarks.filter.contamination", 20),
    Command("benchmarks.filter.perplexity", 20),
    Command("benchmarks.filter.pii --labelled {labelled}", 40),
    Command("benchmarks.filter.threshold", 10),
    Command("benchmarks.budget --sizes 7 100 1000", 30),
    Command("benchmarks.corpus_to_tokens", 90),
    Command("benchmarks.corpus_to_tokens.growing", 20),
    Command("benchmarks.corpus_to_tokens.workers", 20),
    Command("benchmarks.corpus_to_tokens.hosts", 20),
    Command("benchmarks.memory --sizes 100 2000", 20),
    Command("benchmarks.scale --sizes 10 100 1000", 20),
    Command("benchmarks.start", 10),
    Command("benchmarks.kernels", 10),
    Command("benchmarks.shards thread process dask --shards 1000", 10),
    Command("benchmarks.tokens encode", 30),
    Command("benchmarks.tokens train", 15),
    Command("benchmarks.tokens loader", 10),
    Command("benchmarks.evaluate.peers {model} --items 20", 60),
)


def main() -> int:
    """Run the commands that the options allow. Returns 1 if one failed or was ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="benchmarks to run, such as dedup or filter.form (default all)")
    parser.add_argument("--labelled", type=Path, help="folder of labelled texts, for the filter's benchmarks")
    parser.add_argument("--model", type=Path, help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--pages", type=Path, help="folder of web pages with their main text")
    parser.add_argument("--gpu", choices=("cuda",), help="this machine has one")
    parser.add_argument("--out", type=Path, default=DATA / "all", help="folder of what they print")
    parser.add_argument("--list", action="store_true", help="show the commands instead")
    options = parser.parse_args()
    given = {name: str(value) for name, value in vars(options).items() if value and name != "only"}
    chosen = [each for each in COMMANDS if not options.only or _name(each) in options.only]
    able = [each for each in chosen if all(f"{{{name}}}" not in each.words or name in given for name in _options())]
    for each in chosen:
        if options.list or each not in able:
            print(f"{'' if each in able else 'left out: '}python -m {each.words} ({each.minutes:g} min)")
    if options.list:
        return 0
    end_as_interrupted()
    options.out.mkdir(parents=True, exist_ok=True)
    return max((run(each.words.format(**given), each.minutes, options.out) for each in able), default=0)


def run(words: str, minutes: float, folder: Path) -> int:
    """Run a command, and keep what it prints. Returns 0 if it ended well in time."""
    here, load = environment(), os.getloadavg()[0]
    commit = here["commit"][:12] + ("" if here["changes"] == "none" else ", changed")
    what = f"{commit}, {here['cpu']}, {machine.cores()} cores, load {load:.1f}"
    path = folder / f"{words.removeprefix('benchmarks.').replace('/', '_').replace(' ', '_')}.md"
    began = time.monotonic()
    with path.open("w") as file:
        print(f"`python -m {words}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {what}\n", file=file, flush=True)
        process = subprocess.Popen([sys.executable, "-m", *shlex.split(words)], cwd=ROOT.parent, stdout=file)
        with ended(process, 60 * minutes):
            code = process.wait()
    late = time.monotonic() - began >= 60 * minutes
    how = f"ended after {minutes:g} min" if late else f"exit {code}" if code else f"{time.monotonic() - began:.0f} s"
    print(f"{words}: {how}, {path}", flush=True)
    return int(late or code != 0)


def _name(command: Command) -> str:
    return command.words.split()[0].removeprefix("benchmarks.")


def _options() -> tuple[str, ...]:
    return ("labelled", "model", "pages", "gpu")


if __name__ == "__main__":
    sys.exit(main())
