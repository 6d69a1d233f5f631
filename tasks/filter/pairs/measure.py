"""The texts of pairs, and the findings of personal data in them, a row per message.

The texts are the messages of a conversation, or of a prompt and its two answers. A side file carries a digest of the
pairs' ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, make_again
from storage.shards.documents import Document, write_documents
from storage.shards.lines import read_json_lines
from storage.shards.parquet import open_parquet, parquet_writer
from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.findings import SCHEMA
from tasks.filter.pii.measure import measure_pii
from tasks.filter.side_files import FILE, IDS, IdDigest

Pair = dict[str, Any]
TURNS = ("messages", "prompt", "chosen", "rejected", "completion")  # the lists of messages that a pair may have
GROUP = 1024  # pairs in memory at a time, and in a row group of their signals


def by_role(instructions: Artifact, preferences: Artifact, labelled: Artifact | None) -> dict[str, Artifact]:
    """The pairs of a profile, by role."""
    inputs = {"instructions": instructions, "preferences": preferences, "labelled": labelled}
    return {role: pairs for role, pairs in inputs.items() if pairs is not None}


def groups(path: Path) -> Iterator[list[Pair]]:
    """The pairs of a file, in order, `GROUP` at a time. Raises DamagedArtifact."""
    rows = read_json_lines(path)
    try:
        while group := list(islice(rows, GROUP)):
            yield group
    except ValueError as error:
        raise DamagedArtifact(f"{path} is not JSON: {error}.", make_again("download")) from error


def texts_of(pair: Pair) -> list[str]:
    """The contents of its messages, in order."""
    return [message["content"] for turn in TURNS for message in pair.get(turn, ())]


def with_texts(pair: Pair, texts: Sequence[str]) -> Pair:
    """The pair with its messages' contents replaced by `texts`, in the order of `texts_of`."""
    left = iter(texts)
    turns = {turn: [{**message, "content": next(left)} for message in pair[turn]] for turn in TURNS if turn in pair}
    return {**pair, **turns}


def measure_pairs(config: PiiConfig, path: Path, folder: Path) -> dict[str, int]:
    """Write the signals of a file of pairs, a row group for each of its groups, and return the number of pairs."""
    digest = IdDigest()
    pairs = 0
    with parquet_writer(folder / FILE, SCHEMA, compression="zstd") as writer:
        for group in groups(path):
            texts = [text for pair in group for text in texts_of(pair)]
            writer.write_batch(measure_pii(config, pa.array(texts, pa.string())))
            digest.update(pa.array([pair["id"] for pair in group], pa.string()))
            pairs += len(group)
        writer.add_key_value_metadata({IDS: digest.hex()})
    return {"pairs": pairs}


def read_messages(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the signals of a file of pairs, a batch per group."""
    with open_parquet(path) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False).combine_chunks()
            yield pa.record_batch([column.chunk(0) for column in table.columns], SCHEMA)


def files_by_name(pairs: Mapping[str, Artifact]) -> dict[str, Path]:
    """The files of all roles, by the names of their side files, in the order of these."""
    found = {
        f"{role}-{number:05d}.parquet": file
        for role, artifact in pairs.items()
        for number, file in enumerate(artifact.files("*.jsonl"))
    }
    return dict(sorted(found.items()))


def answers_of(pair: Pair) -> list[str]:
    """The texts that a model learns to write: what the assistant says, but no rejected answer."""
    turns = [*pair.get("messages", ()), *pair.get("chosen", ())]
    if pair.get("label"):
        turns += pair["completion"]
    return [message["content"] for message in turns if message["role"] == "assistant"]


def as_documents(pairs: Mapping[str, Artifact], texts: Callable[[Pair], list[str]], folder: Path) -> Artifact:
    """Pairs as documents in `folder`, for signals that are measured on these: a row per pair, in the order of its
    file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files_by_name(pairs).items():
        rows = (pair for group in groups(path) for pair in group)
        documents = (Document(pair["id"], "\n\n".join(texts(pair)), pair["source"]) for pair in rows)
        write_documents(folder / name, documents)
    return Artifact.at(folder)
