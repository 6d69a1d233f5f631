"""Artifacts and outside sources as OpenLineage's datasets: a namespace, a name, and facets.

An artifact is named by its ref (`tiny/filter`) in the namespace of its store, so that a catalogue shows one dataset
with versions, not a dataset for each key. Its digest is the version. A source outside the store has the name that other
producers give it, by OpenLineage's naming conventions: https://openlineage.io/docs/spec/naming
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from storage.artifact import Artifact
from storage.manifest import Manifest
from storage.store import Store

OURS = "gristmill"  # the namespace of text that comes with packages
HUB = "hf"
PACKAGES = "pypi"
FILES = "file"
# Keys of the sections of a profile that name what lies outside the store
PATHS = {"paths", "path_list", "exclude_files", "exclude_host_files", "file", "files", "folder", "gguf", "compare"}
REFS = {"against", "keep", "artifact"}
UNSEEN = {"salt"}  # where a secret is
_WILDCARD = re.compile(r"[*?\[]")


class Named(NamedTuple):
    """A dataset's name in a namespace, with its version if that is known."""

    namespace: str
    name: str
    version: str = ""


def namespace_of(store: Store) -> str:
    """The address of a store: `file:///data/store`, or a bucket's URL."""
    return Path(os.path.abspath(store.root)).as_uri() if store.is_folder else store.url.rstrip("/")


def place_of(store: Store, location: str) -> str:
    """The address of an artifact."""
    return f"{namespace_of(store)}/artifacts/{location}"


def sources_of(manifest: Manifest, store: Store) -> list[Named]:
    """What an artifact was made from that no input is: files, URLs, repositories of the hub, packages, other refs."""
    return list(dict.fromkeys(_sources(manifest.payload.config, namespace_of(store))))


def _sources(config: Any, store: str) -> Iterator[Named]:
    if isinstance(config, Sequence) and not isinstance(config, str):
        for one in config:
            yield from _sources(one, store)
    if not isinstance(config, Mapping):
        return
    package, revision = config.get("package"), str(config.get("revision") or "")
    if package:
        yield Named(PACKAGES, str(package))
    if repository := config.get("repository"):
        yield Named(HUB, str(repository), revision)
    if dataset := config.get("dataset"):
        yield Named(HUB, f"datasets/{dataset}", revision)
    if config.get("kind") == "embedded":
        yield from (Named(OURS, f"embedded/{corpus}") for corpus in config.get("corpora", ()))
    if config.get("root") and config.get("id"):
        yield Named(str(config["root"]).rstrip("/"), str(config["id"]))  # a crawl
    for key, value in config.items():
        if key in REFS:
            yield from (Named(store, text.partition("@")[0]) for text in _texts(value))
        elif key in PATHS and not (key == "gguf" and package):
            yield from map(place, _texts(value))
        if key not in UNSEEN:
            yield from _sources(value, store)


def _texts(value: Any) -> Iterator[str]:
    """The texts of a text, a list or a mapping's values."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    yield from (text for text in values if isinstance(text, str))


def place(address: str) -> Named:
    """A file, a folder or a URL. A pattern stands for the folder that it searches, and a query is left out, as it may
    hold a signature."""
    pattern = _WILDCARD.search(address)
    if pattern and "://" not in address:
        address = os.path.dirname(address[: pattern.start()] + "x")
    parts = urlsplit(address)
    if not parts.netloc:
        return Named(FILES, os.path.abspath(os.path.expanduser(parts.path if parts.scheme == FILES else address)))
    path = os.path.dirname(parts.path[: match.start()] + "x") if (match := _WILDCARD.search(parts.path)) else parts.path
    return Named(f"{parts.scheme}://{parts.netloc}", path.lstrip("/") or "/")


def columns_of(artifact: Artifact) -> dict[str, list[tuple[str, str]]]:
    """The columns of each folder of Parquet files in an artifact, as (name, type), by the folder's name. Reads the
    footer of one file for each, and only on this machine: nothing is fetched from a bucket."""
    if artifact.manifest is None:
        return {}
    firsts: dict[str, str] = {}
    for name in sorted(artifact.manifest.files):
        if name.endswith(".parquet"):
            firsts.setdefault(name.rpartition("/")[0], name)
    here = {folder: artifact.folder / name for folder, name in firsts.items() if (artifact.folder / name).is_file()}
    if not here:
        return {}
    import pyarrow.parquet as parquet

    schemas = {}
    for folder, path in here.items():
        with suppress(OSError, ValueError):  # its reader says so
            schemas[folder] = parquet.read_schema(path)
    return {folder: [(field.name, str(field.type)) for field in schema] for folder, schema in schemas.items()}


def rows_of(manifest: Manifest) -> int | None:
    """The documents in an artifact that has them as rows."""
    documents = manifest.counts.get("documents")
    has_rows = any(name.startswith("documents/") for name in manifest.files)
    kept = documents.get("kept") if has_rows and isinstance(documents, Mapping) else None
    return kept if isinstance(kept, int) else None
