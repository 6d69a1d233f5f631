"""The steps of a pretraining that read documents.

A token shard has no ids, but its documents are those of the document shard of the same number, in order, without those
of the other split (tasks/tokenize). The loader of the pretraining says which steps read them (tasks/pretrain/loader).
Where an artifact doesn't tell enough, the answer is a sentence, never a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import GristmillError
from storage.manifest import InputRef, Manifest
from storage.shards.arrays import Bool
from storage.shards.documents import Document
from storage.shards.lines import read_json_lines
from storage.shards.token_stream import Ranges
from storage.shards.tokens import open_tokens
from storage.store import Store
from tasks.download.exclude import Exclusion

SHOWN = 5  # steps named one by one
Steps = Mapping[int, int]  # by step from 1: the documents' tokens that it learned to predict


class Reads(NamedTuple):
    """Documents of the training split and of the held-out text, the steps that read the former, the epochs in which
    they did, and the steps of the training. Or, in `unknown`, why that can't be computed."""

    documents: int = 0
    held_out: int = 0
    steps: Steps = MappingProxyType({})
    epochs: int = 0
    of: int = 0
    unknown: str = ""

    def as_json(self) -> dict[str, Any]:
        """As `--json` has it, with every step."""
        if self.unknown:
            return {"unknown": self.unknown}
        known = {name: value for name, value in self._asdict().items() if name != "unknown"}
        return {**known, "steps": dict(self.steps), "tokens": sum(self.steps.values())}

    def sentence(self) -> str:
        """For a table."""
        if self.unknown:
            return f"its steps can't be computed: {self.unknown}"
        if not self.steps:
            return "no step read it" + (": it is held out" if self.held_out and not self.documents else "")
        steps = sorted(self.steps)
        named = ", ".join(f"{step:,}" for step in steps)
        if len(steps) > SHOWN:
            named = f"the first {steps[0]:,}, the last {steps[-1]:,}"
        epochs = f" in {self.epochs} epochs" if self.epochs > 1 else ""
        return f"{sum(self.steps.values()):,} tokens in {len(steps):,} of {self.of:,} steps{epochs}: {named}"


class _UnknownError(Exception):
    """Why the steps can't be computed, as the end of a sentence."""


def reads_of(store: Store, artifact: Artifact, named: Exclusion) -> Reads:
    """The steps of a pretraining that read named documents."""
    assert artifact.manifest is not None
    try:
        return _reads(store, artifact, artifact.manifest, named)
    except _UnknownError as error:
        return Reads(unknown=str(error))
    except GristmillError as error:
        return Reads(unknown=error.message.rstrip("."))


def named_rows(batch: pa.RecordBatch, named: Exclusion) -> Bool:
    """Which rows of a batch are named documents. It has `columns_for` them."""
    if named.by_url:
        rows = zip(*(batch[name].to_pylist() for name in ("id", "source", "metadata")), strict=True)
        return np.array([named.names(Document(id, "", source, rest)) for id, source, rest in rows], bool)
    found: Bool = pc.is_in(batch["id"], value_set=pa.array(sorted(named.items), pa.string())).to_numpy(
        zero_copy_only=False
    )
    return found


def columns_for(named: Exclusion) -> list[str]:
    """The columns by which documents are named."""
    return ["id", "source", "metadata"] if named.by_url else ["id"]


def _reads(store: Store, artifact: Artifact, manifest: Manifest, named: Exclusion) -> Reads:
    from tasks.pretrain import PretrainConfig, pretrain

    if manifest.adopted:
        raise _UnknownError("it was adopted, and doesn't say how it was trained")
    if manifest.payload.version != pretrain.version:
        raise _UnknownError(f"it was made by version {manifest.payload.version} of `pretrain`, not {pretrain.version}")
    skipped = manifest.facts.get("skipped", [])
    if manifest.counts.get("skipped_batches") and not skipped:
        raise _UnknownError("it skipped batches after a divergence, and doesn't say which")
    try:
        config = PretrainConfig.model_validate(manifest.payload.config)
    except ValidationError as error:
        raise _UnknownError("its settings are those of another version") from error
    tokens = _input(store, manifest.origins.get("tokens"), "tokens")
    ranges, documents, held_out = _ranges(store, tokens, named)
    steps, epochs = _steps(store, artifact, config, tokens, ranges, skipped) if ranges else ({}, 0)
    return Reads(documents, held_out, steps, epochs, manifest.counts["steps"])


def _steps(
    store: Store,
    artifact: Artifact,
    config: Any,
    tokens: Artifact,
    ranges: dict[int, Ranges],
    skipped: list[tuple[int, int]],
) -> tuple[Steps, int]:
    from models.pretrained import context_of, load_config
    from tasks.pretrain.fim_tokens import read_fim_tokens
    from tasks.pretrain.healing.skipped_batches import BatchSchedule
    from tasks.pretrain.loader import open_loader

    assert artifact.manifest is not None
    paths = tokens.files("train/*.tokens")
    header = open_tokens(paths[0]).header
    fim_tokens = None
    if config.fim_rate:
        tokenizer = _input(store, artifact.manifest.origins.get("tokenizer"), "tokenizer")
        fim_tokens = read_fim_tokens(tokenizer.path, header.vocab_size)
    loader = open_loader(
        paths,
        config,
        context=config.sequence or context_of(load_config(artifact.part("model").path)),
        tokenizer_digest=header.tokenizer_digest,
        fim_tokens=fim_tokens,
    )
    schedule = BatchSchedule(skipped=tuple((first, last) for first, last in skipped))
    batches = np.array([schedule.batch(step) for step in range(1, artifact.manifest.counts["steps"] + 1)])
    overflowed = {row["step"] for row in read_json_lines(artifact.file("log.jsonl")) if "skipped" in row}
    steps: Counter[int] = Counter()
    epochs = set()
    for read in loader.reads(ranges, batches):
        if read.step not in overflowed:  # in float16: its gradients weren't applied
            steps[read.step] += read.predicted
            epochs.add(read.epoch)
    return dict(sorted(steps.items())), len(epochs)


def _ranges(store: Store, tokens: Artifact, named: Exclusion) -> tuple[dict[int, Ranges], int, int]:
    """Where the training shards have named documents, without EOS, by the shard's number among them; how many
    documents these are, and how many are held out."""
    from tasks.tokenize import places_in_shard

    assert tokens.manifest is not None
    if tokens.manifest.adopted:
        raise _UnknownError("its tokens were adopted, and don't say which documents they are of")
    documents = _input(store, tokens.manifest.origins.get("documents"), "documents")
    share = tokens.manifest.payload.config["validation_share"]
    numbers = {path.stem: number for number, path in enumerate(tokens.files("train/*.tokens"))}
    ranges: dict[int, Ranges] = {}
    found = held_out = 0
    for path in documents.files("*.parquet"):
        places = places_in_shard(path, lambda batch: named_rows(batch, named), share, columns_for(named))
        held_out += places.held_out
        if not len(places.train):
            continue
        found += len(places.train)
        shard = open_tokens(tokens.file(f"train/{path.stem}.tokens"))
        if shard.header.documents != places.of:
            raise _UnknownError(f"train/{path.stem}.tokens isn't of the documents of {documents.location}")
        starts = shard.starts.astype(np.int64)
        begins, ends = starts[places.train], starts[places.train + 1] - 1
        if (begins < ends).any():
            ranges[numbers[path.stem]] = Ranges(begins[begins < ends], ends[begins < ends])
    return ranges, found, held_out


def _input(store: Store, origin: InputRef | None, name: str) -> Artifact:
    if origin is None:
        raise _UnknownError(f"its {name} aren't in the store")
    whole = store.get(store.twin(origin.location), hashed=False)
    return whole.part(origin.part) if origin.part else whole
