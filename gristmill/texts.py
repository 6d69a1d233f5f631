"""Deduplicate and filter texts on plain folders and lists: the pipeline's own stages, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gristmill.folders import DOCUMENTS, items_of, made, read, rows_of, scratch, texts_of, watcher, write_texts
from gristmill.settings import config_of, new_folder
from gristmill.stored import Artifact, Form, rows
from storage import artifact as stored
from storage.errors import ConfigError
from storage.shards.documents import read_batches, read_ledger
from tasks.dedup import DedupConfig
from tasks.dedup import dedup as dedup_stage
from tasks.filter import FilterConfig, filter_documents

Item = TypeVar("Item")
PARTLY = ("spans", "sentences", "lines", "against")  # keys of dedup that change documents, or read a store
DUPLICATE_OF = "duplicate_of "  # how a detail of dedup's ledger begins
UNREADABLE = "unreadable.parquet"  # the ledger of rows that could not be read, beside that of the filter


@dataclass(frozen=True)
class Removed:
    """A text that was removed, and why.

    `index` is its place in the input, `duplicate_of` that of the text that is kept for it. `value` is the Jaccard
    similarity of the two, 1 for exact copies. It can be below `threshold` where a third text, similar to both, joins
    them. `id` is the text's own id: that of its row, or its key `id`, if it has one, otherwise its index.
    """

    index: int
    id: str
    reason: str
    value: float
    threshold: float
    duplicate_of: int


class Deduplicated(NamedTuple, Generic[Item]):
    """The texts that are kept, in the order and of the type in which they were given, and a record of each other."""

    kept: list[Item]
    removed: list[Removed]

    def __repr__(self) -> str:
        return f"<Deduplicated: {len(self.kept):,} kept, {len(self.removed):,} removed>"


def dedup(
    texts: Iterable[Item] | str | PathLike[str],
    *,
    threshold: float | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Deduplicated[Any]:
    """Remove exact and near-duplicates. Of each cluster one text is kept.

    `texts` are strings, or mappings with a key `text`, or a path to a folder of .jsonl, .parquet or .txt files (or to
    one such file), whose rows are returned as mappings. `threshold` is the least Jaccard similarity of the word
    5-grams of near-duplicates, 0.8 by default, and `config` has further keys of `dedup:` in a profile. Of each cluster
    the text with most clean text is kept, of equals the first. Raises BadDocument for an item without a text,
    SourceError for no texts at all, ConfigError for a wrong setting.

    >>> kept, removed = gm.dedup(["The mill grinds.", "Rye bread.", "the mill  grinds."])
    >>> kept, removed[0].reason, removed[0].duplicate_of
    (['The mill grinds.', 'Rye bread.'], 'exact_duplicate', 0)
    """
    chosen = config_of(DedupConfig, "dedup", config, threshold=threshold)
    partly = [name for name in PARTLY if getattr(chosen, name)]
    if partly:
        raise ConfigError(
            f"dedup.{partly[0]} is not for a list of texts.", "Use it in a profile: gm.run keeps what it changes."
        )
    if "max_removed_share_per_source" not in chosen.model_fields_set:
        chosen = chosen.model_copy(update={"max_removed_share_per_source": 1.0})
    observer = watcher(progress)
    with scratch() as folder:
        if isinstance(texts, str | PathLike):
            items: list[Any] = rows_of(read(texts, folder, observer).warned().documents)
        else:
            items = items_of(texts)
        write_texts(texts_of(items), folder / DOCUMENTS)
        documents = stored.Artifact.at(folder / DOCUMENTS)
        out = made(dedup_stage, chosen, [documents], folder / "dedup", observer)
        kept = [index for path in _shards(out.path / DOCUMENTS) for index in _indices(path)]
        found = [verdict for path in _shards(out.path / "ledger") for verdict in read_ledger(path)]
    removed = [
        Removed(
            index := int(verdict.id, 16),
            _id(items[index], index),
            verdict.reason,
            float(verdict.value or 0),
            float(verdict.threshold or 0),
            _twin(verdict.detail),
        )
        for verdict in found
    ]
    assert len(kept) + len(removed) == len(items), "the stage accounts for every text"
    return Deduplicated([items[index] for index in sorted(kept)], sorted(removed, key=lambda one: one.index))


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _indices(shard: Path) -> list[int]:
    return [int(name, 16) for _, batch in read_batches(shard, ["id"]) for name in batch["id"].to_pylist()]


def _id(item: Any, index: int) -> str:
    return str(item.get("id", index)) if isinstance(item, Mapping) else str(index)


def _twin(detail: str) -> int:
    return int(detail.removeprefix(DUPLICATE_OF)[:32], 16)


@dataclass(frozen=True)
class Filtered:
    """What `filter` did. `removed` counts documents by the first rule that they fail, `unmeasured` those that no rule
    could judge, `unreadable` the rows that could not be read."""

    path: Path
    kept: int
    removed: Mapping[str, int]
    unmeasured: int = 0
    unreadable: int = 0

    def documents(self, columns: Sequence[str] | None = None, as_: Form = "arrow") -> Any:
        """The kept documents as a table."""
        return rows(stored.Artifact.at(self.path / DOCUMENTS), columns, as_)

    def ledger(self, columns: Sequence[str] | None = None, as_: Form = "arrow") -> Any:
        """A row for each document that was removed, changed or could not be used: reason, value and threshold."""
        return rows(stored.Artifact.at(self.path / "ledger"), columns, as_)

    @property
    def report(self) -> str:
        """The documents that each rule removed, counted and with examples, as Markdown."""
        return (self.path / "report.md").read_text(encoding="utf-8")

    def __repr__(self) -> str:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.removed.items())
        unread = f", {self.unreadable:,} unreadable" if self.unreadable else ""
        removed = f"{sum(self.removed.values()):,} removed ({reasons or '-'})"
        return f"<Filtered {self.path}: {self.kept:,} kept, {removed}{unread}>"


def filter(
    source: Any,
    target: str | PathLike[str],
    *,
    preset: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Filtered:
    """Keep the documents that pass every rule, with personal data in them replaced.

    `source` is a folder or a file of documents, an artifact, or an iterable of texts. `target` is a new or empty
    folder, which gets documents/, removed/ and ledger/ in Parquet and report.md. `preset` names rules: web, clean,
    gopher, c4, fineweb, fineweb2 or dclm. The default is clean, as for a profile of your own files. `config` has keys
    of `filter:` in a profile, with the last word over the preset. Nothing is compared with benchmarks.

    Raises ConfigError for unknown rules and for a folder that is not empty, SourceError for files that can't be read,
    EmptyOutput if nothing is kept.

    >>> gm.filter("corpus/", "clean/", preset="fineweb").removed
    >>> gm.filter("corpus/", "strict/", config={"gopher_quality": {"min_words": 100}})
    """
    if preset is None and not (isinstance(config, Mapping) and "preset" in config):
        preset = "clean"
    chosen = config_of(FilterConfig, "filter", config, preset=preset)
    if chosen.contamination is not None:
        chosen = chosen.model_copy(update={"contamination": None})
    place = _outside(new_folder(target, "target"), source)
    observer = watcher(progress)
    with scratch(place.parent) as folder:
        found = read(source, folder, observer)
        (folder / "benchmarks").mkdir()
        inputs = [found.documents, stored.Artifact.at(folder / "benchmarks")]
        out = made(filter_documents, chosen, inputs, folder / "filter", observer)
        if found.ledger is not None:
            found.ledger.rename(out.path / "ledger" / UNREADABLE)
        if place.is_dir():
            place.rmdir()
        out.path.rename(place)
    counts = out.counts["documents"]
    return Filtered(place, counts["kept"], counts["removed"], counts["quarantined"], found.unreadable)


def _outside(target: Path, source: Any) -> Path:
    """The target, outside of what is read. Raises ConfigError."""
    place = target.resolve()
    if isinstance(source, str | PathLike) and place.is_relative_to(Path(source).resolve()):
        raise ConfigError(f"{target} lies in {source}, which is read.", "Write to a folder beside it.")
    if isinstance(source, Artifact) and place.is_relative_to(source.path.resolve()):
        raise ConfigError(f"{target} lies in an artifact, which never changes.", "Write to another folder.")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
