"""`gristmill explain DOC`: the story of a document, or of an instruction or preference pair, through the stages of a
profile's newest artifacts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape

from flows.session import session_of
from flows.tables import harmless
from profiles.load import load
from storage import refs
from storage.errors import ConfigError
from storage.shards.documents import Document, Verdict, read_batches, read_documents, read_ledger
from storage.shards.lines import read_json_lines
from tasks.download.config import PAIR_ROLES
from tasks.filter.pairs.contents import texts_of

DOCUMENT_STAGES = ("download", "dedup", "filter", "pairs")
LEAST = 4  # characters of an id
PREVIEW = 300  # characters of the text shown


def explain_document(console: Console, start: str, profile_name: str, overrides: list[str]) -> None:
    """Print what each document stage did with the document whose id starts with `start`. Raises ConfigError."""
    if len(start) < LEAST:
        raise ConfigError(
            f"{start!r} is too short for an id.", f"Give the first {LEAST} characters of a document's id or more."
        )
    profile = load(profile_name, overrides)
    store = session_of(profile).store
    met = False
    for stage in DOCUMENT_STAGES:
        entries = refs.history(store, f"{profile.name}/{stage}")
        if not entries:
            continue
        artifact = store.get(entries[-1].location)
        document = find_document(artifact.path, start) or find_pair(artifact.path, start)
        if document and not met:
            console.print(f"[bold]{document.id}[/] from {document.source} {escape(harmless(document.metadata))}")
            console.print(f"  [dim]{escape(harmless(document.text[:PREVIEW]))}[/]")
        for line in story(find_verdicts(artifact.path, start), document):
            met = True
            console.print(f"  [bold]{stage:<10}[/] {escape(harmless(line))}")
    if not met:
        raise ConfigError(
            f"No document or pair of {profile.name} has an id that starts with {start}.",
            "Ids stand in the shards' id column and in the ledgers.",
        )


def story(verdicts: list[Verdict], kept: Document | None) -> list[str]:
    """What a stage did, a line each. Documents of equal text have one id: all but one of them are removed as duplicates
    of their own id, so that these verdicts are counted and not repeated."""
    removed = Counter(verdict.id for verdict in verdicts if _copies(verdict))
    lines = [tell(verdict) for verdict in verdicts if not _copies(verdict)]
    copies = removed.pop(kept.id, 0) if kept else 0
    lines += [f"{count} of {count + 1} documents of this text removed: exact copies" for count in removed.values()]
    if kept:
        lines.append(f"kept, as one of {copies + 1} copies of this text" if copies else "kept")
    return lines


def _copies(verdict: Verdict) -> bool:
    return verdict.verdict == "removed" and verdict.detail.startswith(f"duplicate_of {verdict.id}")


def tell(verdict: Verdict) -> str:
    """A verdict as a sentence."""
    text = f"{verdict.verdict}: {verdict.reason}"
    if verdict.value is not None:
        text += f" {verdict.value:.4g}"
    if verdict.threshold is not None:
        text += f" (threshold {verdict.threshold:.4g})"
    return text + (f", {verdict.detail}" if verdict.detail else "")


def find_document(folder: Path, start: str) -> Document | None:
    """The kept document whose id starts with `start`: only id columns are read until it is found."""
    for path in sorted((folder / "documents").glob("*.parquet")):
        if any(pc.any(pc.starts_with(batch["id"], start)).as_py() for _, batch in read_batches(path, ["id"])):
            return next(document for document in read_documents(path) if document.id.startswith(start))
    return None


def find_pair(folder: Path, start: str) -> Document | None:
    """The pair or labelled row whose id starts with `start`, with its messages as one text."""
    for role in PAIR_ROLES:
        for path in sorted((folder / role).glob("*.jsonl")):
            for pair in read_json_lines(path):
                if str(pair["id"]).startswith(start):
                    return Document(pair["id"], "\n".join(texts_of(pair)), pair["source"], f'{{"role": "{role}"}}')
    return None


def find_verdicts(folder: Path, start: str) -> list[Verdict]:
    """Every ledger row of the document."""
    paths = sorted((folder / "ledger").glob("*.parquet"))
    return [verdict for path in paths for verdict in read_ledger(path) if verdict.id.startswith(start)]
