"""`python -m benchmarks.filter.templates DATA`: how much of real text is its host's template, what a threshold removes.

DATA is the folder with `pretrain/` and `sft/`; each set in it is a host, and so are each installed package's
docstrings, its source files, and the METADATA of all packages. Hosts are dealt into two halves by the hash of their
name: the first is for choosing a threshold, the second is reported. `--look SIGNAL` prints a sample of documents by
ranges of its value, by half, to be judged by eye.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import itertools
import json
import site
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash

from storage.artifact import Artifact
from storage.shards.documents import Document, shard_name, write_documents
from tasks.filter.side_files import read_signals
from tasks.filter.templates.config import TemplatesConfig
from tasks.filter.templates.measure import template_counts, template_signals
from tasks.stage.output import Output

FILES = 150  # of a package
DOCUMENTS = 2000  # of a host
LEAST_WORDS = 10
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BINS = (0.2, 0.4, 0.6, 0.8, 1.0)  # of which a sample is shown
SIGNALS = ("template_share", "boilerplate", "host_templates")


def sets(data: Path) -> Iterator[tuple[str, str]]:
    """(host, text) of the sets in the folder."""
    for path in sorted(data.glob("pretrain/*/docs.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield path.parent.name, json.loads(line)["text"]
    for path in sorted(data.glob("sft/*/data.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield path.parent.name, "\n".join(_texts(json.loads(line)))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def packages(folder: Path) -> Iterator[tuple[str, str]]:
    """(host, text) of the installed packages: docstrings, source files, METADATA."""
    for path in sorted(folder.glob("*.dist-info/METADATA")):
        yield "metadata", path.read_text(encoding="utf-8")
    for package in sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file()):
        files = sorted(
            package.rglob("*.py"), key=lambda path: xxhash.xxh3_64_intdigest(str(path.relative_to(folder)).encode())
        )
        for path in files[:FILES]:
            try:
                text = path.read_text(encoding="utf-8")
                with warnings.catch_warnings(action="ignore"):
                    tree = ast.parse(text)
            except (SyntaxError, UnicodeDecodeError, ValueError):
                continue
            yield f"{package.name}-files", text
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    yield f"{package.name}-docstrings", ast.get_docstring(node) or ""


def gather(options: argparse.Namespace) -> list[Document]:
    """Documents without copies, their host in their address."""
    by_host: dict[str, dict[str, Document]] = defaultdict(dict)
    for pairs in (sets(options.data), packages(options.packages)):
        for host, text in pairs:
            if len(by_host[host]) < DOCUMENTS and len(text.split()) >= LEAST_WORDS:
                document = Document.new(text, host, url=f"https://{host}/")
                by_host[host][document.id] = document
    return [document for documents in by_host.values() if len(documents) >= 10 for document in documents.values()]


def half(host: str) -> int:
    """0: to choose on, 1: to report."""
    return xxhash.xxh3_64_intdigest(host.removesuffix("-files").removesuffix("-docstrings").encode()) % 2


def kind(host: str) -> str:
    """What hosts have in common."""
    return next((end for end in ("-files", "-docstrings") if host.endswith(end)), host).removeprefix("-")


def measure(folder: Path, documents: list[Document]) -> dict[str, np.ndarray]:
    """The signals of each document."""
    write_documents(folder / "in" / shard_name(0), documents)
    given, config = Artifact.at(folder / "in"), TemplatesConfig()
    counts, signals = Output.at(folder / "counts"), Output.at(folder / "signals")
    started = time.process_time()
    template_counts.function(config.model, given, counts)
    template_signals.function(config, given, Artifact.at(counts.path), signals)
    seconds, size = time.process_time() - started, sum(len(document.text.encode()) for document in documents) / 1e6
    print(f"{len(documents):,} documents, {size:.1f} MB, {size / seconds:.1f} MB per CPU second for both stages\n")
    for title, rows in counts.counts["tables"].items():
        print(f"{title}\n" + "\n".join(f"  {row}" for row in rows) + "\n")
    batches = list(read_signals(signals.path / shard_name(0)))
    return {name: np.concatenate([batch[name].to_numpy(zero_copy_only=False) for batch in batches]) for name in SIGNALS}


def report(documents: list[Document], values: dict[str, np.ndarray]) -> None:
    """The share of documents above each threshold, by half and kind of host."""
    hosts = [document.source for document in documents]
    for signal in SIGNALS:
        print(f"{signal}: share of documents above\n{'half, hosts':<34}{'documents':>10}", end="")
        print("".join(f"{threshold:>8}" for threshold in THRESHOLDS))
        for number in (0, 1):
            for name, count in sorted(Counter(kind(host) for host in hosts if half(host) == number).items()):
                mine = np.array([half(host) == number and kind(host) == name for host in hosts])
                shares = "".join(f"{(values[signal][mine] > threshold).mean():8.3f}" for threshold in THRESHOLDS)
                print(f"{number} {name:<32}{count:>10}{shares}")
        print()


def look(documents: list[Document], values: np.ndarray, count: int) -> None:
    """A sample of the documents in each of BINS, by half, at most two of a host and a third of a kind of hosts."""
    order = sorted(range(len(documents)), key=lambda place: documents[place].id)
    for number in (0, 1):
        for low, high in itertools.pairwise(BINS):
            print(f"## half {number}, {low} to {high}\n")
            seen: Counter[str] = Counter()
            shown = 0
            for place in order:
                host, id_, text = documents[place].source, documents[place].id, documents[place].text
                if not low < values[place] <= high or half(host) != number:
                    continue
                if shown == count or seen[host] == 2 or seen[kind(host)] == max(2, count // 3):
                    continue
                seen.update({host, kind(host)})
                shown += 1
                print(f"{values[place]:.3f} {host} {id_[:8]}, {len(text)} characters: {text[:500]!r}\n")


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--packages", type=Path, default=Path(site.getsitepackages()[0]), help="site-packages")
    parser.add_argument("--look", choices=SIGNALS)
    parser.add_argument("--documents", type=int, default=9, help="how many to print of each range of values, by half")
    options = parser.parse_args()
    documents = gather(options)
    with tempfile.TemporaryDirectory() as folder:
        values = measure(Path(folder), documents)
    report(documents, values)
    if options.look:
        look(documents, values[options.look], options.documents)


if __name__ == "__main__":
    main()
