"""Searching artifacts for documents: named ones, those made from them, and texts that are like them.

Every file that may have text is read once, also if several artifacts share it: documents and other tables, pairs and
benchmarks, token shards, which are decoded, cards and samples. A file whose bytes have changed ends the search, and so
does one that is missing. Files of weights and measures aren't read, and are counted. Memory holds a batch of a file for
each thread.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.commands.documents.likeness import Likeness
from flows.commands.documents.trace import WITHOUT
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, StoreError, make_again
from storage.manifest import MANIFEST, Manifest
from storage.shards.arrays import Int64, UInt8
from storage.shards.documents import Document
from storage.shards.lines import read_json_lines
from storage.shards.parquet import open_parquet
from storage.shards.tokens import open_tokens
from storage.store import Store
from tasks.download.exclude import Exclusion
from tasks.stage.machine import cores
from tasks.tokenizer.bpe.alphabet import unspell

EXACT, MADE_FROM = "the document", "made from it"
MADE = "made_from"  # in metadata: the id of the document that a model made this one from
WITH_ROWS = {".parquet", ".jsonl"}  # which may say what they are
TEXTUAL = {".tokens", "", ".md", ".txt", ".json", ".jinja", ".csv", ".html", ".yaml"}
OPAQUE = {
    *(".safetensors", ".gguf", ".onnx", ".data", ".pt", ".pt2", ".so", ".bin", ".ftz", ".model"),  # weights, code
    *(".npy", ".npz", ".png", ".sources"),  # measures, plots, the sources of tokens
}
UNREAD = ("SHA256SUMS", "exclude.txt")  # digests, and the ids that a takedown names
BATCH = 1024  # rows
TOKENS = 1 << 20  # decoded at once, or one document
MOST = 1000  # findings of a file that are kept. The rest are counted


class Finding(NamedTuple):
    """Something of a document, in a file of an artifact. `row` is an id, or a number of a line or document from 1."""

    location: str
    file: str
    row: str
    kind: str
    document: str
    value: float
    quotation: str

    @property
    def in_benchmark(self) -> bool:
        """Whether it is in a question of a benchmark, from which nothing learns."""
        return self.file.startswith("benchmarks/")


class Searched(NamedTuple):
    """What a search found, how many files it read, how many findings it only counted, the number of files without text
    by their endings, and the files of other kinds, which it can't search."""

    findings: list[Finding]
    files: int
    dropped: int
    unread: Counter[str]
    unknown: list[str]


class Rows(NamedTuple):
    """Some rows of a file: what to call them, a text of each, and the kind of each that is a named document."""

    names: list[str]
    texts: pa.Array
    exact: dict[int, tuple[str, str]]  # by place: the kind, and the id


class Aim(NamedTuple):
    """What is searched for: documents by id, URL or host, those whose metadata say that they were made from one of
    these ids, and likenesses, if the texts are known."""

    named: Exclusion
    sources: frozenset[str]
    likeness: Likeness | None


def search(
    store: Store,
    manifests: Mapping[str, Manifest],
    aim: Aim,
    tell: Callable[[str], None],
    wanted: Callable[[str], bool] = lambda name: True,
) -> Searched:
    """Search the files of artifacts whose names are `wanted`. Raises DamagedArtifact and StoreError, which name what
    can't be searched."""
    searched = WITH_ROWS if aim.likeness is None else WITH_ROWS | TEXTUAL
    unread: Counter[str] = Counter()
    unknown: list[str] = []
    places: dict[str, list[tuple[str, str]]] = {}  # by digest: a file may be in several artifacts
    for location, manifest in manifests.items():
        for name, entry in manifest.files.items():
            path = PurePosixPath(name)
            if not wanted(name) or path.name in UNREAD:
                continue
            if path.suffix in searched:
                places.setdefault(entry.sha256, []).append((location, name))
            elif path.suffix in OPAQUE | TEXTUAL:
                unread[path.suffix] += 1
            else:
                unknown.append(f"{location}/{name}")
    artifacts = {location: store.get(location, hashed=False) for location in manifests}
    decoders = {
        location: Decoder(_tokenizer_of(store, manifest))
        for location, manifest in manifests.items()
        if aim.likeness is not None and any(name.endswith(".tokens") and wanted(name) for name in manifest.files)
    }

    def one(holders: list[tuple[str, str]]) -> list[Finding]:
        location, name = holders[0]
        artifact = artifacts[location]
        path = artifact.file(name)
        artifact.check_bytes(path)
        try:
            return list(_of_file(aim, artifact, name, decoders.get(location)))
        except ValueError as error:
            problem = f"{location}/{name} can't be searched: {error}."
            raise DamagedArtifact(problem, make_again(artifact.location.partition("/")[0])) from error

    findings: list[Finding] = []
    dropped = 0
    with ThreadPoolExecutor(cores()) as pool:
        for number, (holders, found) in enumerate(zip(places.values(), pool.map(one, places.values()), strict=True), 1):
            tell(f"Searched {number:,} of {len(places):,} files, {len(findings):,} findings …")
            dropped += max(0, len(found) - MOST)
            findings += [hit._replace(location=at, file=name) for at, name in holders for hit in found[:MOST]]
    likeness = aim.likeness if wanted(MANIFEST) else None
    for location, manifest in manifests.items() if likeness is not None else ():
        assert likeness is not None
        for match in likeness.matches(pa.array([manifest.to_json()])):
            findings.append(Finding(location, MANIFEST, "1", match.kind, match.document, match.value, match.quotation))
    return Searched(findings, len(places), dropped, unread, unknown)


def _of_file(aim: Aim, artifact: Artifact, name: str, decoder: Decoder | None) -> Iterator[Finding]:
    place = artifact.location, name
    for rows in _rows(aim, artifact, name, decoder):
        for at, (kind, document) in rows.exact.items():
            yield Finding(*place, rows.names[at], kind, document, 1.0, _start(rows.texts[at].as_py()))
        if aim.likeness is not None:
            for match in aim.likeness.matches(rows.texts):
                if match.row not in rows.exact:
                    yield Finding(
                        *place, rows.names[match.row], match.kind, match.document, match.value, match.quotation
                    )


def _rows(aim: Aim, artifact: Artifact, name: str, decoder: Decoder | None) -> Iterator[Rows]:
    path = artifact.file(name)
    suffix = path.suffix
    if suffix == ".parquet":
        yield from _of_table(aim, artifact, name)
    elif suffix == ".jsonl":
        first = 1
        for group in _groups(read_json_lines(path)):
            texts = pa.array(["\n".join(_strings(row)) for row in group], pa.string())
            exact = {place: found for place, row in enumerate(group) if (found := _exact(row, aim))}
            yield Rows([_name(row, first + place) for place, row in enumerate(group)], texts, exact)
            first += len(group)
    elif suffix == ".tokens":
        assert decoder is not None
        yield from _decoded(artifact, name, decoder)
    else:
        yield Rows(["1"], pa.array([path.read_text("utf-8", "replace")], pa.string()), {})


def _of_table(aim: Aim, artifact: Artifact, name: str) -> Iterator[Rows]:
    """The rows of a table: of documents each with its text and metadata, of other tables all texts of a row."""
    with open_parquet(artifact.file(name)) as file:
        known = file.schema_arrow.names
        first = 1
        for batch in file.iter_batches(BATCH, use_threads=False):
            columns = {
                field.name: pc.fill_null(batch[field.name].cast(pa.string()), "")
                for field in batch.schema
                if _is_text(field.type)
            }
            texts = [columns[each] for each in columns if each not in ("id", "source")]
            names = [str(first + place) for place in range(len(batch))]
            exact: dict[int, tuple[str, str]] = {}
            if "id" in columns:
                names = columns["id"].to_pylist()
            if {"id", "text", "metadata"} <= set(known):
                exact = _named(aim, columns["id"], columns["metadata"])
            if texts:
                yield Rows(names, pc.binary_join_element_wise(*texts, "\n"), exact)
            first += len(batch)


def _named(aim: Aim, ids: pa.Array, metadata: pa.Array) -> dict[int, tuple[str, str]]:
    """The rows of named documents, and of those that were made from one."""
    named = pc.is_in(ids, value_set=pa.array(sorted(aim.named.items), pa.string())).to_numpy(zero_copy_only=False)
    found = {place: (EXACT, ids[place].as_py()) for place in np.flatnonzero(named).tolist()}
    keys = ([f'"{MADE}"'] if aim.sources else []) + (['"url"'] if aim.named.by_url else [])
    for key in keys:
        for place in np.flatnonzero(pc.match_substring(metadata, key).to_numpy(zero_copy_only=False)).tolist():
            document = Document(ids[place].as_py(), "", "", metadata[place].as_py())
            made = _made_from(json.loads(document.metadata), aim)
            if aim.named.names(document):
                found.setdefault(place, (EXACT, document.id))
            elif made:
                found.setdefault(place, made)
    return found


def sources_of(value: Any) -> Iterator[str]:
    """The ids that a row or metadata say it was made from, at any depth."""
    for key, below in value.items() if isinstance(value, dict) else ():
        if key != MADE:
            yield from sources_of(below)
        elif isinstance(below, str):
            yield below
        elif isinstance(below, list):
            yield from (one for one in below if isinstance(one, str))
    for below in value if isinstance(value, list) else ():
        yield from sources_of(below)


def _exact(row: Any, aim: Aim) -> tuple[str, str] | None:
    """What a row of pairs or questions says of itself: that it is of a named URL, or made from a document."""
    if aim.named.by_url and aim.named.names_url_in(row):
        return EXACT, "its URL"
    return _made_from(row, aim)


def _made_from(row: Any, aim: Aim) -> tuple[str, str] | None:
    return next(((MADE_FROM, one) for one in sources_of(row) if one in aim.sources), None)


def _decoded(artifact: Artifact, name: str, decoder: Decoder) -> Iterator[Rows]:
    shard = open_tokens(artifact.file(name), verify=True)
    starts = shard.starts.astype(np.int64)
    first = 0
    while first < shard.header.documents:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + TOKENS, side="right")) - 1)
        last = min(last, shard.header.documents)
        ids = np.asarray(shard.ids[starts[first] : starts[last]])
        lengths = np.diff(starts[first : last + 1])
        yield Rows([str(first + 1 + n) for n in range(last - first)], decoder.texts(ids, lengths), {})
        first = last


class Decoder:
    """Token ids to text: a byte-level vocabulary by a table of its bytes, others by `tokenizers`."""

    def __init__(self, folder: Artifact) -> None:
        from tasks.tokenizer import load_for_documents

        path = folder.file("tokenizer.json")
        folder.check_bytes(path)
        settings = json.loads(path.read_bytes())
        added = {token["id"]: token["content"].encode() for token in settings["added_tokens"]}
        self._library = load_for_documents(path.parent)
        known = self._library.get_vocab(with_added_tokens=True)
        spelled = {number: added.get(number) or unspell(token) for token, number in known.items()}
        plain = (settings.get("decoder") or {}).get("type") == "ByteLevel" and None not in spelled.values()
        self._bytes: UInt8 | None = None
        if plain:
            parts = [spelled.get(number) or b"" for number in range(max(spelled) + 1)]
            self._bytes = np.frombuffer(b"".join(parts), np.uint8)
            self._ends: Int64 = np.cumsum([len(part) for part in parts])
            self._sizes: Int64 = np.array([len(part) for part in parts])

    def texts(self, ids: Any, lengths: Int64) -> pa.Array:
        """The text of each document, of `lengths` tokens each."""
        if self._bytes is None:
            parts = np.split(ids, np.cumsum(lengths)[:-1])
            return pa.array(self._library.decode_batch([part.tolist() for part in parts]), pa.string())
        sizes = self._sizes[ids]
        after = np.cumsum(sizes)
        begins = self._ends[ids] - sizes
        data = self._bytes[np.repeat(begins - after + sizes, sizes) + np.arange(int(after[-1]) if len(after) else 0)]
        ends = np.concatenate(([0], after))[np.concatenate(([0], np.cumsum(lengths)))]
        try:
            texts = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data))
            texts.validate(full=True)
        except pa.ArrowInvalid:  # a tokenizer that may drop bytes
            whole = data.tobytes()
            bounds = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
            return pa.array([whole[a:b].decode("utf-8", "replace") for a, b in bounds], pa.string())
        return texts


def _tokenizer_of(store: Store, manifest: Manifest) -> Artifact:
    """The tokenizer that an artifact's tokens are of. Raises StoreError, DamagedArtifact."""
    origin = manifest.origins.get("tokenizer")
    if origin is None:
        raise StoreError(
            f"The tokenizer of {manifest.stage}/{manifest.key} isn't in the store, so its tokens can't be searched.",
            "Tokenize again with a tokenizer of the store: --refresh tokenize.",
        )
    whole = store.get(store.twin(origin.location), hashed=False)
    return whole.part(origin.part) if origin.part else whole


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def _groups(rows: Iterator[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    for row in rows:
        group.append(row)
        if len(group) == BATCH:
            yield group
            group = []
    if group:
        yield group


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value.encode("utf-8", "replace").decode()  # without lone surrogates
    elif isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _strings(below)


def _name(row: Any, number: int) -> str:
    named = row.get("id") if isinstance(row, dict) else None
    return named if isinstance(named, str) and named else str(number)


def _start(text: str) -> str:
    return " ".join(text[:320].split())[:160]


def lineage_of(store: Store, location: str) -> dict[str, Manifest]:
    """The artifact and all that it was made of, by location. One of which only pairs or benchmarks were used has only
    their files. Raises DamagedArtifact for one that is gone or can't be read: what it held can't be searched."""
    found: dict[str, Manifest] = {}
    used: dict[str, set[str]] = {}
    waiting = [(store.twin(location), "", "")]
    while waiting:
        at, part, child = waiting.pop()
        used.setdefault(at, set()).add(part)
        if at in found:
            continue
        manifest = store.manifest(at)
        if manifest is None:
            raise DamagedArtifact(
                f"{child or at} was made of {at}, which isn't in the store, so it can't be searched.",
                f"Make it again: --refresh {at.partition('/')[0]}.",
            )
        found[at] = manifest
        refs_ = (*manifest.origins.values(), *manifest.uses.values())
        waiting += [(store.twin(one.location), one.part, at) for one in refs_]
    for at, parts in used.items():
        if parts <= WITHOUT:
            folders = tuple(f"{part}/" for part in parts)
            files = {name: entry for name, entry in found[at].files.items() if name.startswith(folders)}
            found[at] = found[at].model_copy(update={"files": files})
    return found
