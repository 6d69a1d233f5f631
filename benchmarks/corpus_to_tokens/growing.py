"""`python -m benchmarks.corpus_to_tokens.growing`: a corpus that grows by a file, by seconds of each stage and part.

Ten files of one size. Nine are run into an empty store, then all ten into the same store, and all ten into an empty
one; artifacts of the last two must have the same digests. One worker with one thread.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.corpus_to_tokens.__main__ import lines, to_tokens, written_profile
from benchmarks.measure import corpus, corpus_parser, environment
from storage.manifest import Manifest
from storage.store import Store

FILES = 10
TOXICITY = "toxicity: null"  # of the profile: here it is measured

Seconds = dict[str, dict[str, list[float]]]  # by stage, then by what was run


def main() -> int:
    """Read the options, measure, print the table. Returns 1 where digests differ."""
    options = corpus_parser(__doc__, megabytes=100, runs="of the three").parse_args()
    text = corpus(options.data.resolve(), options.megabytes)
    path = lines(text)
    seconds: Seconds = defaultdict(lambda: defaultdict(list))
    same = True
    for number in range(options.runs):
        print(f"run {number + 1}/{options.runs}: {text.megabytes:.1f} MB", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=text.folder) as folder:
            same &= run(path, Path(folder), seconds)
    print(f"{text.megabytes:.1f} MB, {text.documents:,} documents, medians of {options.runs}\n")
    print("| stage | all files anew, s | one file more, s | share |")
    print("|---|---|---|---|")
    for stage, taken in seconds.items():
        anew, more = (statistics.median(taken[what]) for what in ("anew", "more"))
        if anew >= 0.5:
            print(f"| {stage} | {anew:.1f} | {more:.1f} | {more / anew:.0%} |")
    print(f"\nDigests: {'the same' if same else 'DIFFERENT'}.")
    return int(not same)


def run(text: Path, folder: Path, seconds: Seconds) -> bool:
    """The three runs of a copy of the text in files; whether the digests agree."""
    files = _divided(text, folder / "files")
    profile = written_profile(folder / "files" / "*.jsonl", folder)
    profile.write_text(profile.read_text().replace(TOXICITY, ""))
    last = files[-1].rename(folder / "later")
    _run(profile, folder / "grown")
    before = {manifest.key for manifest in _made(folder / "grown")}
    last.rename(files[-1])
    for store in ("grown", "anew"):
        _run(profile, folder / store)
    grown = {each.stage: each for each in _made(folder / "grown") if each.key not in before}
    anew = {each.stage: each for each in _made(folder / "anew")}
    for stage, made in anew.items():
        seconds[stage]["anew"].append(made.facts["seconds"])
        seconds[stage]["more"].append(grown[stage].facts["seconds"] if stage in grown else 0.0)
    return all(anew[stage].digest == made.digest for stage, made in grown.items())


def _divided(text: Path, folder: Path) -> list[Path]:
    folder.mkdir()
    rows = text.read_text().splitlines(keepends=True)
    paths = [folder / f"{number:02d}.jsonl" for number in range(FILES)]
    for number, path in enumerate(paths):
        path.write_text("".join(rows[number * len(rows) // FILES : (number + 1) * len(rows) // FILES]))
    return paths


def _run(profile: Path, store: Path) -> None:
    subprocess.run(to_tokens(profile, store), env=environment(1), stdout=subprocess.DEVNULL, check=True)


def _made(store: Path) -> list[Manifest]:
    return sorted((manifest for _, manifest in Store(str(store)).manifests()), key=lambda made: made.created)


if __name__ == "__main__":
    sys.exit(main())
