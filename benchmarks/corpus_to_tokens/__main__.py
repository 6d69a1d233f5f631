"""`python -m benchmarks.corpus_to_tokens`: JSONL in, token shards out, by CPU seconds of the whole command.

Ours is `gristmill run --to tokenize` with an empty store: start-up, hashing and the vocabulary, which
it learns, are all in. datatrove's is its near-duplicate removal, then language, Gopher, C4, FineWeb, personal data and
tokenizer in one pass, in one process without an executor's helpers; the vocabulary is ours, finished. Its word
tokenizer is spaCy's, as it comes; with `--plain`, a split at white space, which changes its verdicts. Both sides get
the same text, one worker and one thread. A run of ours before the first is not counted: it compiles the hot loops,
which happens once an installation, as spaCy's and datatrove's wheels were compiled before they came.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Corpus, Run, corpus, corpus_parser, environment, measure, median
from benchmarks.peer_environment import PEERS
from storage.shards.documents import read_documents

HERE = Path(__file__).parent
VOCABULARY = 32_000

PROFILE = f"""
extends: tiny
name: measured
download:
  sources: [{{kind: files, name: text, paths: [PATH]}}]
dedup: {{max_removed_share_per_source: 1.0}}
filter:
  gopher_quality: {{min_words: 50}}
  c4: {{min_c4_sentences: 5}}
  toxicity: null
tokenizer: {{vocab_size: {VOCABULARY}, sample_bytes_per_source: 1000000000}}
runtime: {{data: {{workers: 1}}}}
"""


def lines(text: Corpus) -> Path:
    """The corpus as one JSONL file beside its shards, as both sides read it."""
    path = text.folder / "documents.jsonl"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        with unfinished.open("w", encoding="utf-8") as file:
            for shard in sorted(text.folder.glob("*.parquet")):
                file.writelines(
                    json.dumps({"text": document.text}, ensure_ascii=False) + "\n" for document in read_documents(shard)
                )
        unfinished.rename(path)
    return path


def written_profile(text: Path, folder: Path, *, small: bool = False) -> Path:
    """The profile in a file of `folder`. Of a `small` corpus more is held out, as few documents are left."""
    profile = folder / "measured.yaml"
    more = "tokenize: {validation_share: 0.3}\n" if small else ""
    profile.write_text(PROFILE.replace("PATH", json.dumps(str(text))) + more)
    return profile


def to_tokens(profile: Path, store: Path, *, workers: int = 1, to: str = "tokenize") -> list[str]:
    """The command over a profile's text."""
    command = [sys.executable, "-m", "flows.cli", "run", str(profile), "--to", to, "--store", str(store)]
    return [*command, f"--set=runtime.data.workers={workers}"]


def ours(text: Path, tokenizer: Path) -> Run:
    """One run of ours with an empty store; its vocabulary is copied to `tokenizer`."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        profile = written_profile(text, Path(folder))
        command = [sys.executable, str(HERE / "ours.py"), str(profile), f"{folder}/store", str(tokenizer)]
        return measure(command, environment(1))


def theirs(text: Path, tokenizer: Path, *arguments: str) -> Run:
    """One run of datatrove's."""
    from tasks.filter.language.config import PACKAGE
    from tasks.filter.language.identify import MODEL
    from tasks.text.packages import package_file

    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        model = package_file(PACKAGE, MODEL)
        places = [str(text), folder, str(tokenizer), str(model)]
        command = [str(PEERS.python), str(HERE / "datatrove_pipeline.py"), *places, *arguments]
        return measure(command, environment(1))


def main() -> None:
    """Read the options, make what is missing, measure in turns, print the table."""
    parser = corpus_parser(__doc__, megabytes=100)
    parser.add_argument("--plain", action="store_true", help="datatrove with words cut at white space, too")
    options = parser.parse_args()
    installed = PEERS.ensure()
    text = corpus(options.data.resolve(), options.megabytes)
    path = lines(text)
    tokenizer = text.folder / "tokenizer.json"
    contenders: dict[str, Callable[[], Run]] = {
        "gristmill": lambda: ours(path, tokenizer),
        "datatrove": lambda: theirs(path, tokenizer),
    }
    if options.plain:
        contenders["datatrove, plain words"] = lambda: theirs(path, tokenizer, "--plain")
    print("compiling, not counted", file=sys.stderr)
    ours(path, tokenizer)
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(options.runs):
        for name, start in contenders.items():
            print(f"run {number + 1}/{options.runs}: {name}, {text.megabytes:.1f} MB", file=sys.stderr)
            runs[name].append(start())
    figures = {name: median(taken) for name, taken in runs.items()}
    print(f"{text.megabytes:.1f} MB, {text.documents:,} documents, medians of {options.runs}; ")
    print(f"datatrove {installed['datatrove']}\n")
    print("| pipeline | CPU s | ours / it | wall s | peak memory, largest process (MB) | kept | tokens |")
    print("|---|---|---|---|---|---|---|")
    for name, run in figures.items():
        ratio = run.cpu / figures["gristmill"].cpu
        print(
            f"| {name} | {run.cpu:.1f} | {ratio:.1f} × | {run.wall:.1f} | {run.peak / 1e6:,.0f} "
            f"| {run.result['kept']:,} of {text.documents:,} | {run.result['tokens']:,} |"
        )


if __name__ == "__main__":
    main()
