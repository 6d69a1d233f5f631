"""`python -m benchmarks.download PAGES [--copies N] [--runs N] [--datatrove]`: main text of pages, by each extractor.

PAGES is a folder of Scrapinghub's article extraction benchmark: `html/*.html.gz` and `ground-truth.json`. The score is
that benchmark's: words in shingles of four, counted as often as they occur, precision and recall as means over pages,
and F1 of these two. Speeds are pages a CPU second in one process, with encoding and metadata, and of the library's call
only. Then the stage reads WARC files that have every page `--copies` times, in a process of its own, whose start and
children count: `--files` of them, as one large one shows whether workers share it. With `--datatrove`, its reader,
extractor and writer do the same (our options of trafilatura, one task a file). It doesn't wait for its workers, so the
CPU seconds of several aren't known. Medians of `--runs`. Peak memory is that of the largest process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.measure import count, environment, measure
from benchmarks.peer_environment import PEERS
from tasks.text.web.extract import EXTRACTORS, Page, read_page

SHINGLE = 4
WARC = "\r\n".join(
    [
        "WARC/1.0",
        "WARC-Type: response",
        "WARC-Target-URI: https://example.org/{0}",
        "WARC-Record-ID: <urn:{0}>",
        "WARC-Date: 2026-01-01T00:00:00Z",
        "WARC-Identified-Payload-Type: text/html",
        "Content-Type: application/http; msgtype=response",
        "Content-Length: {1}",
        "",
        "",
    ]
)


def shingles(text: str) -> Counter[tuple[str, ...]]:
    """How often each run of four words occurs. A shorter text is one run."""
    words = re.findall(r"\w+", text)
    starts = range(max(1, len(words) - SHINGLE + 1) if words else 0)
    return Counter(tuple(words[at : at + SHINGLE]) for at in starts)


def score(found: dict[str, str], gold: dict[str, str]) -> tuple[float, float, float]:
    """Precision, recall and F1."""
    precisions, recalls = [], []
    for name, text in gold.items():
        mine, right = shingles(found[name]), shingles(text)
        both = (mine & right).total()
        if mine:
            precisions.append(both / mine.total())
        if right:
            recalls.append(both / right.total())
    precision, recall = mean(precisions), mean(recalls)
    return precision, recall, 2 * precision * recall / (precision + recall)


def of_extractor(name: str, pages: dict[str, bytes], gold: dict[str, str]) -> dict[str, Any]:
    """A row on an extractor in this process."""
    extract = EXTRACTORS[name]()
    read_page(Page(next(iter(pages.values())), None, True), extract)  # it loads what it needs
    began = time.process_time()
    found = {page: read_page(Page(content, None, True), extract)["text"] for page, content in pages.items()}
    whole = time.process_time() - began
    texts: list[Any] = [content.decode("utf-8", "replace") for content in pages.values()]
    began = time.process_time()
    for text in texts:
        extract(text, text)  # resiliparse takes a text too, and parses it
    alone = time.process_time() - began
    precision, recall, f1 = score(found, gold)
    return {
        "extractor": name,
        "precision": f"{precision:.3f}",
        "recall": f"{recall:.3f}",
        "F1": f"{f1:.3f}",
        "pages a second a core": f"{len(pages) / whole:.1f}",
        "the library's call only": f"{len(pages) / alone:.1f}",
    }


def write_archives(folder: Path, pages: dict[str, bytes], copies: int, files: int) -> None:
    """A WARC of all pages and copies, each a member of gzip, in some files."""
    for number in range(files):
        with (folder / f"{number}.warc.gz").open("wb") as file:
            for copy in range(number, copies, files):
                for name, content in pages.items():
                    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + content
                    head = WARC.format(f"{name}-{copy}", len(block)).encode()
                    file.write(gzip.compress(head + block + b"\r\n\r\n", 6))


def run_stage(folder: Path, extractor: str, workers: int) -> None:
    """Run the stage in this process, and print what it read and kept."""
    from tasks.download import DownloadConfig, download
    from tasks.download.config import WebSource
    from tasks.stage.output import Output
    from tasks.stage.runtime import DataRuntime, Runtime
    from tasks.stage.session import resources

    source = WebSource.model_validate({"name": "web", "paths": [str(folder / "*.gz")], "extractor": extractor})
    runtime = Runtime(data=DataRuntime(workers=workers))
    with tempfile.TemporaryDirectory() as made, resources():
        out = Output.at(Path(made), stage="download", runtime=runtime)
        download.function(DownloadConfig(sources=[source], benchmarks=[]), out)
    print(json.dumps(out.counts["documents"]))


def of_command(tool: str, command: list[str], folder: Path, extractor: str, workers: int, runs: int) -> dict[str, Any]:
    """A row on a whole command that reads the archives of a folder."""
    taken = [measure(command, environment(1)) for _ in range(runs)]
    cpu, wall = (median(getattr(run, name) for run in taken) for name in ("cpu", "wall"))
    size = sum(path.stat().st_size for path in folder.iterdir())
    known = tool != "datatrove" or workers == 1
    return {
        "tool": tool,
        "extractor": extractor,
        "files": len(list(folder.iterdir())),
        "workers": workers,
        "archive (MB)": f"{size / 1e6:.0f}",
        "pages": f"{taken[0].result['in']:,}",
        "with text": f"{taken[0].result['kept']:,}",
        "CPU seconds": f"{cpu:.1f}" if known else "?",
        "pages a CPU second": f"{taken[0].result['in'] / cpu:.1f}" if known else "?",
        "seconds": f"{wall:.1f}",
        "peak memory (MB)": f"{max(run.peak for run in taken) / 1e6:.0f}",
    }


def commands(folder: Path, extractor: str, workers: int, datatrove: bool) -> dict[str, list[str]]:
    """The commands to measure, by tool."""
    ours = [sys.executable, "-m", "benchmarks.download", str(folder), "--stage", extractor, "--workers", str(workers)]
    if not datatrove or extractor != "trafilatura":  # it has no resiliparse
        return {"gristmill": ours}
    theirs = [str(PEERS.python), str(Path(__file__).with_name("download_datatrove.py")), str(folder), str(workers)]
    return {"gristmill": ours, "datatrove": theirs}


def table(rows: list[dict[str, Any]]) -> None:
    """Print rows as Markdown."""
    for cells in (list(rows[0]), ["---"] * len(rows[0]), *(map(str, row.values()) for row in rows)):
        print(f"| {' | '.join(cells)} |")
    print()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", type=Path)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--files", type=int, nargs="*", default=[4, 1])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--extractors", nargs="*", choices=list(EXTRACTORS), default=list(EXTRACTORS))
    parser.add_argument("--runs", type=count, default=1)
    parser.add_argument("--datatrove", action="store_true", help="beside datatrove, in an environment of its own")
    parser.add_argument("--score", choices=list(EXTRACTORS), help="only print the row of an extractor")
    parser.add_argument("--stage", choices=list(EXTRACTORS), help="only run the stage on the archives of a folder")
    given = parser.parse_args()
    if given.stage:
        run_stage(given.pages, given.stage, *given.workers)
        return
    truth = json.loads((given.pages / "ground-truth.json").read_text())
    pages = {name: gzip.decompress((given.pages / "html" / f"{name}.html.gz").read_bytes()) for name in truth}
    gold = {name: entry["articleBody"] for name, entry in truth.items()}
    if given.score:
        print(json.dumps(of_extractor(given.score, pages, gold)))
        return
    scores = [sys.executable, "-m", "benchmarks.download", str(given.pages), "--score"]
    table([measure([*scores, name], environment(1)).result for name in given.extractors])
    if given.datatrove:
        PEERS.ensure()
    rows = []
    for files in given.files:
        with tempfile.TemporaryDirectory() as folder:
            write_archives(Path(folder), pages, given.copies, files)
            rows += [
                of_command(tool, command, Path(folder), name, workers, given.runs)
                for name in given.extractors
                for workers in given.workers
                for tool, command in commands(Path(folder), name, workers, given.datatrove).items()
            ]
    table(rows)


if __name__ == "__main__":
    main()
