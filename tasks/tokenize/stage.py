"""The `tokenize` stage: documents become token shards, once, split into training and validation.

A document is assigned to a split by the hash of its id, so the split does not depend on new documents, shards or
workers, and no text is in both. Each document ends with EOS; text that looks like a special token is encoded as text
(see tasks/tokenizer).

Ids come from our own kernels (tasks/tokenizer/encoder), in threads, and are spot-checked: the first document of every
shard, and one in CHECKED_ONE_IN by the hash of its id, is also encoded by `tokenizers`. Of a document longer than
CHECKED_CHARACTERS only the beginning is checked, since `tokenizers` needs 200 bytes of memory per byte of text. If a
single check fails, or the kernels don't support the tokenizer.json, `tokenizers` encodes every shard. A warning and the
counts say so.

A shard is processed one row group at a time: memory depends on the longest document, not on the shard or the corpus.

A document shard that was encoded before, with the same tokenizer and config, is not encoded again: its token files are
taken from the earlier artifact (see tasks/shards/incremental.py). The artifact is the same, in bytes and counts, as if
it had been made from scratch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from storage.errors import EmptyOutput
from storage.shards.arrays import Bool, Int64
from storage.shards.documents import read_batches
from storage.shards.token_sources import SUFFIX, source_runs, write_sources
from storage.shards.tokens import TokenWriter, open_tokens
from tasks.shards import ShardResult, collect_all
from tasks.shards.incremental import map_new_shards
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.tokenize.split import in_validation

if TYPE_CHECKING:
    from tasks.tokenizer.encoder.encode import Encoded, Encoder, Encoders

SPLITS = ("train", "validation")
MEASURES = ("documents", "tokens", "bytes")
FILES = {f"{split}{suffix}": split for split in SPLITS for suffix in (".tokens", SUFFIX)}  # and the folder of each
CHECKED_ONE_IN = 1000  # documents: `tokenizers` is more than ten times as slow
CHECKED_CHARACTERS = 1 << 18  # per document

Counts = dict[str, dict[str, int]]  # measures of a split, by source


class TokenizeConfig(StageConfig):
    """The split into training and validation."""

    validation_share: float = Field(0.01, gt=0, lt=1, description="share of documents held out for validation")


class Places(NamedTuple):
    """Of the wanted documents of a shard: the numbers of those in its training split, how many are in the other, and
    of how many documents the training split must be, or 0 if none is wanted."""

    train: Int64
    held_out: int
    of: int


def check_adopted(config: TokenizeConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that a folder made elsewhere has whole token shards of both splits, encoded by the input tokenizer, each
    with its sources. Raises TokenizerMismatch, DamagedArtifact."""
    digest = tokenizer_digest(inputs["tokenizer"].path)
    for split in SPLITS:
        for path in folder.files(f"{split}/*.tokens"):
            source_runs(path, open_tokens(path, tokenizer_digest=digest, verify=True))


@stage(version=3, runtime=("data",), adopted=check_adopted)
def tokenize(config: TokenizeConfig, documents: Artifact, tokenizer: Artifact, out: Output) -> None:
    """Encode every document. Writes train/NNNNN.tokens and validation/NNNNN.tokens, numbered like the document shards.

    Beside each is NNNNN.sources, the source of each document, so that training can weight sources. A shard without
    documents of a split has no file there. shards.json records what each was made from, for incremental runs. Raises
    EmptyOutput if a split is empty.
    """
    digest = tokenizer_digest(tokenizer.path)
    results = _encode(documents, config, tokenizer.path, digest, out)
    totals = _totals(results)
    for split in SPLITS:
        if not any(totals[split, source]["tokens"] for source in _sources(totals)):
            raise EmptyOutput(
                f"No document fell into {split} (validation_share {config.validation_share}).",
                "Raise tokenize.validation_share, or give more documents.",
            )
    unseen = [source for source in _sources(totals) if not totals["validation", source]["documents"]]
    if unseen:
        out.warn(f"no document of {', '.join(unseen)} is held out: the validation loss does not cover it")
    collect_all(results, FILES, out.path)
    _report(totals, digest, out)


def places_in_shard(
    shard: Path, wanted: Callable[[pa.RecordBatch], Bool], share: float, columns: Sequence[str]
) -> Places:
    """Where the token shard of a document shard has the wanted documents. `wanted` gets batches of `columns`, of which
    the first is the id."""
    asked: list[Bool] = []
    ids: list[str] = []
    for _, batch in read_batches(shard, columns):
        asked.append(wanted(batch))
        ids += batch.column("id").to_pylist()
    chosen = np.concatenate([np.zeros(0, bool), *asked])
    if not chosen.any():
        return Places(chosen.nonzero()[0], 0, 0)
    held_out = np.array([in_validation(id, share) for id in ids], bool)
    places = np.cumsum(~held_out) - 1
    return Places(places[chosen & ~held_out], int((chosen & held_out).sum()), int((~held_out).sum()))


def _encode(
    documents: Artifact, config: TokenizeConfig, tokenizer: Path, digest: str, out: Output
) -> list[ShardResult]:
    """Token files and counts of every shard, by our kernels or, if those cannot be used, by `tokenizers`.

    Shards made by one encoder are never reused for the other: a bug of the kernels that shows in this corpus may also
    be in shards of an earlier corpus in which it went unnoticed.
    """
    from tasks.tokenizer.encoder.encode import Encoders, LibraryEncoder
    from tasks.tokenizer.encoder.tables import make_tables, obstacle, read_settings

    encode = partial(map_new_shards, documents=documents, out=out, files=FILES)
    settings = read_settings(tokenizer)
    problem = obstacle(settings)
    checked: Counter[str] = Counter()
    if not problem:
        encoders = Encoders(make_tables(settings))
        library = LibraryEncoder(tokenizer)
        work = partial(_by_kernels, encoders=encoders, check=library, digest=digest, share=config.validation_share)
        results = encode(work, name="encoded", releases_gil=True)
        for result in results:
            checked.update(result.counts["checked"])
        if checked["different"]:
            shown = f"{checked['different']} of {checked['documents']}"
            problem = f"gives other ids than our kernels ({shown} documents checked)"
    if problem:
        out.warn(f"the tokenizer {problem}: all documents are encoded by `tokenizers`, which is slower")
        by_library = partial(_by_library, tokenizer=tokenizer, digest=digest, share=config.validation_share)
        results = encode(by_library, name="encoded-by-tokenizers")
    out.count(
        encoder={
            "by": "tokenizers" if problem else "gristmill",
            "checked": checked["documents"],
            "different": checked["different"],
        }
    )
    return results


def _by_kernels(
    shard: Path, folder: Path, *, encoders: Encoders, check: Encoder, digest: str, share: float
) -> dict[str, Any]:
    with encoders.lent() as encoder:
        return _tokenize(shard, folder, encoder, digest, share, check=check)


def _by_library(shard: Path, folder: Path, *, tokenizer: Path, digest: str, share: float) -> dict[str, Any]:
    from tasks.tokenizer.encoder.encode import LibraryEncoder

    return _tokenize(shard, folder, LibraryEncoder(tokenizer), digest, share, check=None)


def _tokenize(
    shard: Path, folder: Path, encoder: Encoder, digest: str, share: float, *, check: Encoder | None
) -> dict[str, Any]:
    """Encode one shard into at most two token files in `folder`. Returns counts by split and source, and of checks."""
    counts: dict[str, Counts] = {split: {} for split in SPLITS}
    sources: dict[str, list[str]] = {split: [] for split in SPLITS}
    checked: Counter[str] = Counter(documents=0, different=0)
    write = partial(TokenWriter, vocab_size=encoder.vocab_size, eos_id=encoder.eos_id, tokenizer_digest=digest)
    with ExitStack() as stack:
        writers = [stack.enter_context(write(folder / f"{split}.tokens")) for split in SPLITS]
        for first, batch in read_batches(shard, ["id", "text", "source"]):
            ids, texts = batch.column("id").to_pylist(), batch.column("text")
            encoded = encoder.encode(texts)
            held_out = np.array([in_validation(id, share) for id in ids], bool)
            for split, writer, chosen in zip(SPLITS, writers, (~held_out, held_out), strict=True):
                sources[split] += batch.column("source").filter(pa.array(chosen)).to_pylist()
                size = _count(counts[split], batch, encoded.lengths, chosen)
                writer.add(encoded.ids[np.repeat(chosen, encoded.lengths)], encoded.lengths[chosen], text_bytes=size)
            if check is not None:
                rows = [row for row, id in enumerate(ids) if first + row == 0 or _is_checked(id)]
                checked.update(documents=len(rows), different=_different(texts, encoded, rows, encoder, check))
    for split in SPLITS:
        if sources[split]:
            write_sources(folder / f"{split}{SUFFIX}", sources[split])
        else:
            (folder / f"{split}.tokens").unlink()
    return {**counts, "checked": dict(checked)}


def _different(texts: pa.Array, encoded: Encoded, rows: list[int], encoder: Encoder, check: Encoder) -> int:
    """The number of these rows that `check` encodes differently. Long texts are truncated and encoded again by both."""
    whole = texts.take(pa.array(rows, pa.int64()))
    given = pc.utf8_slice_codeunits(whole, 0, CHECKED_CHARACTERS)
    cut = pc.not_equal(pc.binary_length(given), pc.binary_length(whole)).to_pylist()
    ours, theirs = encoder.encode(given), check.encode(given)
    found = [ours.document(n) if cut[n] else encoded.document(row) for n, row in enumerate(rows)]
    return sum(not np.array_equal(theirs.document(n), ids) for n, ids in enumerate(found))


def _is_checked(document: str) -> bool:
    return crc32(document.encode()) % CHECKED_ONE_IN == 0


def _count(counts: Counts, batch: pa.RecordBatch, lengths: Int64, chosen: Bool) -> int:
    """Add the chosen documents of a batch to the measures of their sources. Returns their UTF-8 bytes."""
    sources = batch.column("source").dictionary_encode()
    codes = sources.indices.to_numpy()
    sizes = pc.binary_length(batch.column("text")).to_numpy()
    for code, source in enumerate(sources.dictionary.to_pylist()):
        rows = chosen & (codes == code)
        if rows.any():
            count = counts.setdefault(source, dict.fromkeys(MEASURES, 0))
            for measure, number in zip(MEASURES, (rows, lengths[rows], sizes[rows]), strict=True):
                count[measure] += int(number.sum())
    return int(sizes[chosen].sum())


def _totals(results: list[ShardResult]) -> dict[tuple[str, str], Counter[str]]:
    totals: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        for split in SPLITS:
            for source in {*result.counts["train"], *result.counts["validation"]}:
                counted = result.counts[split].get(source, {})
                totals.setdefault((split, source), Counter()).update(counted)
    return totals


def _sources(totals: dict[tuple[str, str], Counter[str]]) -> list[str]:
    return sorted({source for _, source in totals})


def _report(totals: dict[tuple[str, str], Counter[str]], digest: str, out: Output) -> None:
    sums = {
        split: {measure: sum(totals[split, source][measure] for source in _sources(totals)) for measure in MEASURES}
        for split in SPLITS
    }
    documents = sum(sums[split]["documents"] for split in SPLITS)
    out.account(documents_in=documents, kept=documents, removed={})
    out.count(
        **sums,
        tokenizer_digest=digest,
        summary=f"{sums['train']['tokens']:,} tokens to train on, {sums['validation']['tokens']:,} held out",
        bytes_per_token=round(sum(sums[s]["bytes"] for s in SPLITS) / sum(sums[s]["tokens"] for s in SPLITS), 4),
    )
    rows = [
        {
            "source": source,
            "split": split,
            **{m: totals[split, source][m] for m in MEASURES},
            "bytes per token": round(totals[split, source]["bytes"] / max(1, totals[split, source]["tokens"]), 3),
        }
        for source in _sources(totals)
        for split in SPLITS
    ]
    rows += [
        {
            "source": "all",
            "split": split,
            **sums[split],
            "bytes per token": round(sums[split]["bytes"] / sums[split]["tokens"], 3),
        }
        for split in SPLITS
    ]
    out.table("Tokens by source and split", rows)
