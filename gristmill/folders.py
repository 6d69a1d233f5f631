"""The inputs of this package's functions as shards of documents, and a stage's function run on a plain folder."""

from __future__ import annotations

import json
import os
import tempfile
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from flows.pages.progress import TerminalObserver
from flows.tables import Terminal
from gristmill.stored import Artifact
from storage import artifact as stored
from storage.errors import BadDocument, ConfigError, SourceError
from storage.files.disk import DiskFaults
from storage.shards.documents import Document, read_documents, read_ledger, shard_name, write_documents
from tasks.checks.quiet import keep_quiet
from tasks.download import DownloadConfig, download
from tasks.download.config import FileSource
from tasks.download.sources.files import ENDINGS
from tasks.stage.config import StageConfig
from tasks.stage.decorator import Stage
from tasks.stage.display.progress import Observer
from tasks.stage.output import Output
from tasks.stage.protocol import Input

ROWS = 2048  # documents of a shard
SHOWN = 200  # characters of a wrong path
DOCUMENTS = "documents"
ONE_COLUMN = "Give one column of it, such as texts['text'].to_list()."


@dataclass(frozen=True)
class Read:
    """Documents that were read: their folder, the ledger of rows that could not be read, and how many those are."""

    documents: stored.Artifact
    ledger: Path | None = None
    unreadable: int = 0

    def warned(self) -> Read:
        """Itself, after a UserWarning that names the first row that could not be read, for results without a ledger."""
        if self.ledger is not None:
            first = next(read_ledger(self.ledger))
            warnings.warn(
                f"{self.unreadable:,} of the rows can't be read and are left out, the first for {first.reason} "
                f"({first.detail}). gm.filter lists them in its ledger.",
                stacklevel=3,
            )
        return self


@contextmanager
def scratch(beside: Path | None = None) -> Iterator[Path]:
    """A folder for the block, on the disk of `beside` if that is given."""
    with tempfile.TemporaryDirectory(prefix=".gristmill-" if beside else "gristmill-", dir=beside) as folder:
        yield Path(folder)


def watcher(progress: bool) -> Observer:
    """The observer that shows how far a stage is, by a line every ten seconds, or a silent one."""
    keep_quiet()
    return TerminalObserver(Terminal()) if progress else Observer()


def made(stage: Stage, config: StageConfig, inputs: Sequence[Input], folder: Path, observer: Observer) -> Output:
    """Run a stage's checks and its function in a folder, without Prefect and without a store."""
    out = Output.at(folder, stage=stage.name)
    out.observer = observer
    stage.check_runtime(config, out.runtime)
    stage.check_here(config, out.runtime)
    with DiskFaults(folder, stage.name):
        stage.function(config, *inputs, out)
    return out


def read(source: Any, folder: Path, observer: Observer) -> Read:
    """The documents of a folder, of a file, of an artifact, or of an iterable of texts, as shards in `folder`.

    A folder with documents/, such as `filter` writes, is read as it is. Raises SourceError, BadDocument, ConfigError.
    """
    if isinstance(source, Artifact):
        return Read(source.part(DOCUMENTS))
    if isinstance(source, str | PathLike):
        if not str(source):
            raise SourceError("The path is empty.", "Name a folder, such as '.', or give a list of texts.")
        return _read_files(Path(source), folder, observer)
    texts = texts_of(items_of(source))
    write_texts(texts, folder / DOCUMENTS)
    return Read(stored.Artifact.at(folder / DOCUMENTS))


def _read_files(path: Path, folder: Path, observer: Observer) -> Read:
    if os.path.isdir(path / DOCUMENTS) and any((path / DOCUMENTS).glob("*.parquet")):
        return Read(stored.Artifact.at(path / DOCUMENTS))
    source = FileSource(name=path.resolve().name or "files", paths=[str(file) for file in files_of(path)])
    config = DownloadConfig(sources=[source], benchmarks=[], max_quarantined_share=1.0)
    out = made(download, config, (), folder / "read", observer)
    unreadable = out.counts["documents"]["quarantined"]
    ledger = out.path / "ledger" / shard_name(0) if unreadable else None
    return Read(stored.Artifact.at(out.path / DOCUMENTS), ledger, unreadable)


def files_of(path: Path) -> list[Path]:
    """A file, or all files of a folder and its subfolders that can be read, but for hidden ones. Raises
    SourceError for a path without any."""
    if os.path.isfile(path):  # unlike Path's, False for a name that is too long
        return [path]
    if not os.path.isdir(path):
        shown = textwrap.shorten(str(path), SHOWN, placeholder="…")
        raise SourceError(f"{shown} is neither a file nor a folder.", "Check the path, or give a list of texts.")
    seen = (file for file in path.rglob("*") if not any(part.startswith(".") for part in file.relative_to(path).parts))
    found = sorted(file for file in seen if file.name.endswith(ENDINGS) and file.is_file())
    if not found:
        raise SourceError(f"{path} contains no readable file.", f"Supported are {', '.join(ENDINGS)}.")
    return found


def rows_of(documents: stored.Artifact) -> list[dict[str, Any]]:
    """Documents as mappings: id, text, source, and the other columns of the row that each was read from."""
    return [
        {**json.loads(document.metadata), "id": document.id, "text": document.text, "source": document.source}
        for path in documents.files("*.parquet")
        for document in read_documents(path)
    ]


def items_of(given: Any) -> list[Any]:
    """The items of an iterable. Raises ConfigError for what is not an iterable of texts, SourceError for an empty
    one."""
    if hasattr(given, "columns"):  # iterating over a table of pandas, polars or Arrow gives the names of its columns
        raise ConfigError(f"{type(given).__name__} is a table, not a list of texts.", ONE_COLUMN)
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(
            f"The texts are of type {type(given).__name__}.",
            "Give a list of strings, a list of mappings with `text`, or a path to a folder.",
        )
    items = list(given)
    if not items:
        raise SourceError("The list of texts is empty.", "Give at least one.")
    return items


def texts_of(items: Iterable[Any]) -> list[str]:
    """The text of each item: the item itself, or the value of its key `text`. Raises BadDocument, which names the
    index, for an item without a text and for a text that UTF-8 can't encode."""
    return [_text(item, index) for index, item in enumerate(items)]


def _text(item: Any, index: int) -> str:
    if isinstance(item, Mapping) and "text" not in item:
        raise BadDocument(
            f"Text {index} lacks the key `text`.", f"Its keys are {', '.join(map(str, item))}.", index=index
        )
    text = item["text"] if isinstance(item, Mapping) else item
    if not isinstance(text, str):
        raise BadDocument(
            f"Text {index} is of type {type(text).__name__}, not str.", "Convert it, or leave it out.", index=index
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadDocument(
            f"Text {index} has a lone surrogate at character {error.start}, which UTF-8 can't encode.",
            "Decode the text correctly, or replace it: text.encode('utf-8', 'replace').decode().",
            index=index,
        ) from error
    return text


def write_texts(texts: Sequence[str], folder: Path) -> None:
    """Texts as shards of documents, each document with its index as its id."""
    for number, start in enumerate(range(0, len(texts), ROWS)):
        rows = enumerate(texts[start : start + ROWS], start)
        write_documents(folder / shard_name(number), (Document(f"{index:032x}", text, "texts") for index, text in rows))
