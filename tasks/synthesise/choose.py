"""Which documents the model is asked about, and the requests.

Documents are chosen by hash of their id, so one that is added changes nothing about the others, except that with a
`limit` it may take the place of one. A request's key is a digest of all that it says, the model's name with it: the
same request is made once, and its answer is good for any artifact.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from models.conversation import Messages
from storage.digest_cache import remembered_digest
from storage.errors import SourceError
from storage.shards.documents import Document, read_batches
from tasks.endpoint.client import Asked, request_body
from tasks.endpoint.config import EndpointConfig
from tasks.synthesise.config import PromptConfig, SynthesiseConfig
from tasks.synthesise.prompts import OURS, PLACES, excerpt_of, filled, wrong_with

BITS = 64
MOST_BYTES = 1_000_000  # of a file with a prompt, as each request has all of it


class Wanted(NamedTuple):
    """A request about a document of a shard, and the part of its text that is sent."""

    shard: int
    document: Document
    prompt: str  # its name
    excerpt: str
    key: str
    messages: Messages
    seed: int

    @property
    def about(self) -> str:
        """For the error of a server that fails on this request and on no other."""
        return f" It was asked about {self.document.id}: if only that fails, list it in download.exclude."


def prompts_of(config: SynthesiseConfig) -> dict[str, str]:
    """The text of each prompt, by its name. Raises SourceError for a file that can't be read, or that lacks a place for
    the document."""
    return {prompt.name: _text_of(prompt) for prompt in config.prompts}


def fingerprints(config: SynthesiseConfig) -> dict[str, str]:
    """A digest of each prompt. Raises SourceError."""
    prompts_of(config)
    return {f"prompt {prompt.name}": _digest_of(prompt) for prompt in config.prompts}


def _digest_of(prompt: PromptConfig) -> str:
    if prompt.file is not None:
        return remembered_digest(Path(prompt.file).expanduser())
    return hashlib.sha256(_text_of(prompt).encode()).hexdigest()


def _text_of(prompt: PromptConfig) -> str:
    if prompt.file is None:
        return prompt.text if prompt.text is not None else OURS[prompt.name]
    where, path = f"The prompt {prompt.name}: {prompt.file}", Path(prompt.file).expanduser()
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise SourceError(
                f"{where} has {size:,} bytes, but each request has all of it.",
                f"Write at most {MOST_BYTES:,} bytes, or give the path of the prompt.",
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{where} can't be read: {error}.", "Give the path of a text file in UTF-8.") from error
    if wrong := wrong_with(text):
        what, _, remedy = wrong.partition(": ")
        raise SourceError(f"{where} {what}.", f"{remedy[0].upper()}{remedy[1:]}.")
    return text


def draw(what: str, identity: str) -> float:
    """A number from 0 to 1 that a document's id gives, another one for each `what`."""
    digest = hashlib.sha256(f"synthesise {what} {identity}".encode()).digest()
    return int.from_bytes(digest[: BITS // 8]) / (1 << BITS)


class Chosen:
    """The documents that a config chooses of those in some shards."""

    def __init__(self, config: SynthesiseConfig, paths: Sequence[Path]) -> None:
        self.config, self.paths = config, paths
        self._ids: frozenset[str] | None = None
        if config.limit is not None:
            draws = {identity: draw("document", identity) for path in self.paths for identity in self._drawn(path)}
            self._ids = frozenset(heapq.nsmallest(config.limit, draws, key=lambda identity: draws[identity]))

    def ids(self, path: Path) -> Iterator[str]:
        """The ids of the chosen documents of a shard, in order."""
        return (one for one in self._drawn(path) if self._ids is None or one in self._ids)

    def documents(self, path: Path) -> Iterator[Document]:
        """The chosen documents of a shard, in order."""
        for _, batch in read_batches(path):
            mine = pa.array([self._is_chosen(identity) for identity in batch["id"].to_pylist()], pa.bool_())
            chosen = batch.filter(pc.and_(mine, _may_be_chosen(self.config, batch)))
            yield from (Document(**row) for row in chosen.to_pylist())

    def _drawn(self, path: Path) -> Iterator[str]:
        for _, batch in read_batches(path, ["id", "source", "text"]):
            ids = batch["id"].filter(_may_be_chosen(self.config, batch)).to_pylist()
            yield from (one for one in ids if draw("document", one) < self.config.share)

    def _is_chosen(self, identity: str) -> bool:
        if self._ids is not None:
            return identity in self._ids
        return draw("document", identity) < self.config.share


def _may_be_chosen(config: SynthesiseConfig, batch: pa.RecordBatch) -> pa.Array:
    """Whether each document is of a source and of a length that may be chosen."""
    length = pc.utf8_length(batch["text"])
    may = pc.greater_equal(length, config.characters.min)
    if config.characters.max is not None:
        may = pc.and_(may, pc.less_equal(length, config.characters.max))
    if config.sources is not None:
        may = pc.and_(may, pc.is_in(batch["source"], value_set=pa.array(config.sources, pa.string())))
    return may


def prompts_for(config: SynthesiseConfig, identity: str) -> Iterator[str]:
    """The names of the prompts that a chosen document is put into."""
    return (one.name for one in config.prompts if one.share == 1 or draw(f"prompt {one.name}", identity) < one.share)


def asked_of(config: SynthesiseConfig, section: str) -> Asked:
    """The settings that all requests share."""
    return Asked(config.max_new_tokens, config.temperature, config.seed, section, config.top_p)


def requests_of(chosen: Chosen, prompts: Mapping[str, str], number: int) -> Iterator[Wanted]:
    """The requests about the documents of one shard, in order."""
    config = chosen.config
    model = EndpointConfig(url="http://any", model=config.model, fields=config.fields)
    asked = asked_of(config, "")
    for document in chosen.documents(chosen.paths[number]):
        excerpt = excerpt_of(document.text, config.excerpt)
        values = {**_stated(document), "source": document.source, "text": excerpt}
        for name in prompts_for(config, document.id):
            messages = [{"role": "user", "content": filled(prompts[name], values)}]
            seed = _seed(config.seed, messages)
            body = request_body(model, asked, messages, config.temperature, seed)
            key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
            yield Wanted(number, document, name, excerpt, key, messages, seed)


def _stated(document: Document) -> dict[str, str]:
    """The texts in a document's metadata that a prompt may have."""
    metadata = json.loads(document.metadata or "{}")
    found = {name: metadata.get(name) for name in PLACES} if isinstance(metadata, dict) else {}
    return {name: str(value) for name, value in found.items() if isinstance(value, str | int | float)}


def _seed(seed: int, messages: Messages) -> int:
    """31 bits, which every server accepts."""
    digest = hashlib.sha256(json.dumps([seed, [dict(one) for one in messages]], sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:4]) >> 1
