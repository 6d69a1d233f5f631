"""A store and the artifacts in it, as a person at a notebook reads them: by name, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gristmill.settings import path_of
from storage import artifact as stored
from storage import refs
from storage.errors import ConfigError, StoreError, no_artifact
from storage.manifest import Manifest
from storage.store import Store as OpenStore
from storage.units import size_of

if TYPE_CHECKING:
    import pyarrow as pa

    from storage.runs.record import Score

Form = Literal["arrow", "pandas", "polars", "datasets"]
FORMS: tuple[Form, ...] = ("arrow", "pandas", "polars", "datasets")


class Artifact:
    """One artifact of a store: an immutable folder with a manifest.

    >>> clean = gm.store("store")["tiny/filter"]
    >>> clean.counts["documents"]["kept"], clean.documents().num_rows
    """

    def __init__(self, artifact: stored.Artifact) -> None:
        self._artifact = artifact

    @property
    def path(self) -> Path:
        """The folder with all its files, which are fetched first if the store is a bucket."""
        return self._artifact.path

    @property
    def manifest(self) -> Manifest:
        """The artifact's description: stage, config, inputs, files, counts, environment."""
        manifest = self._artifact.manifest
        assert manifest is not None, "the artifacts of a store have one"
        return manifest

    @property
    def location(self) -> str:
        """Its place in the store, `stage/key`."""
        return self._artifact.location

    @property
    def stage(self) -> str:
        """The stage that made it."""
        return self.manifest.stage

    @property
    def counts(self) -> Mapping[str, Any]:
        """The results of its stage: the same inputs give the same counts."""
        return self.manifest.counts

    @property
    def facts(self) -> Mapping[str, Any]:
        """The circumstances in which it was made, such as seconds and peak memory."""
        return self.manifest.facts

    @property
    def scores(self) -> Mapping[str, Score]:
        """The scores of an evaluation by `model task`, each with a value and a 95 % interval. Raises StoreError for the
        artifact of another stage."""
        if self.stage != "evaluate":
            raise StoreError(f"{self.location} lacks scores.", "The artifacts of evaluate have them.")
        from flows.records.figures import scores_of

        return scores_of(self._artifact)

    def part(self, name: str) -> stored.Artifact:
        """A subfolder as an input of a stage. Raises StoreError if it has none of that name."""
        if not self._artifact.has_folder(name):
            having = sorted({file.partition("/")[0] for file in self.manifest.files if "/" in file})
            raise StoreError(f"{self.location} lacks {name}.", f"It has {', '.join(having) or 'only files'}.")
        return self._artifact.part(name)

    def documents(self, columns: Sequence[str] | None = None, as_: Form = "arrow") -> Any:
        """Its documents as a table: an Arrow table, or what `as_` names. Raises StoreError if it has none.

        >>> gm.store("store")["tiny/filter"].documents(["id", "text"], as_="pandas")
        """
        return rows(self.part("documents"), columns, as_)

    def ledger(self, columns: Sequence[str] | None = None, as_: Form = "arrow") -> Any:
        """The verdicts of its stage, a row for each document that was removed, quarantined or changed."""
        return rows(self.part("ledger"), columns, as_)

    def __repr__(self) -> str:
        summary = self.counts.get("summary", "")
        return f"<Artifact {self.location[:24]}: {size_of(self.manifest.size)}{f', {summary}' if summary else ''}>"


def rows(folder: stored.Artifact, columns: Sequence[str] | None, as_: Form) -> Any:
    """The rows of a folder of Parquet shards, in order. Raises ConfigError for columns that it doesn't have, for an
    unknown form, and for one whose package is not installed."""
    import pyarrow as pa

    from storage.shards.parquet import open_parquet, read_columns

    if as_ not in FORMS:
        raise ConfigError(f"{as_!r} is not a form of tables.", f"Use one of {', '.join(FORMS)}.")
    if isinstance(columns, str):
        columns = [columns]
    shards = folder.files("*.parquet")
    with open_parquet(shards[0]) as file:
        known = file.schema_arrow.names
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise ConfigError(f"Unknown column: {', '.join(unknown)}.", f"The columns are {', '.join(known)}.")
    return _in_form(pa.concat_tables([read_columns(shard, columns) for shard in shards]), as_)


def _in_form(table: pa.Table, as_: Form) -> Any:
    try:
        if as_ == "pandas":
            return table.to_pandas()
        if as_ == "polars":
            from importlib import import_module

            return import_module("polars").from_arrow(table)
        if as_ == "datasets":
            from datasets import Dataset

            return Dataset(table)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{as_} is not installed.", f"Install it: pip install {as_}") from error
    return table


class Store:
    """The artifacts of a store by ref: `store["tiny/filter"]` is the latest, `store["tiny/filter@1"]` the first.

    >>> store = gm.store("store")
    >>> list(store)
    ['tiny/dedup', 'tiny/download', 'tiny/filter']
    """

    def __init__(self, url: str) -> None:
        self._store = OpenStore(url)
        self._store.check_exists()
        self.url = url

    def __getitem__(self, ref: str) -> Artifact:
        """The artifact that a ref, or `stage/key…`, names. Raises StoreError, which lists the refs."""
        if not isinstance(ref, str):
            raise ConfigError(f"A ref is a text, not {type(ref).__name__}.", "Give one such as tiny/filter.")
        location = refs.resolve(self._store, ref)
        if self._store.manifest(location) is None:
            raise no_artifact(location, self.url)
        return Artifact(self._store.get(location))

    def __iter__(self) -> Iterator[str]:
        """The names of all refs, sorted."""
        return refs.names(self._store)

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, str) and ref in set(self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def history(self, ref: str) -> list[Artifact]:
        """Every artifact that a ref has pointed to and that is still there, oldest first."""
        entries = refs.history(self._store, ref)
        return [Artifact(self._store.get(one.location)) for one in entries if self._store.manifest(one.location)]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        return f"<Store {self.url}: {len(self)} refs>"


def store(url: str | PathLike[str] = "store") -> Store:
    """Open a store, a folder or a URL such as s3://bucket/gristmill. Raises StoreError if nothing is there.

    >>> gm.store("store")["tiny/filter"].documents(as_="pandas")
    """
    return Store(str(path_of(url, "store")) if not isinstance(url, str) else url)
