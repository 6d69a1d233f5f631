"""The `tokenize` stage: documents become token shards, once, with training and validation apart.

A document goes to one side by the hash of its id, so the split survives new documents, other shards and other
workers, and no text can stand on both sides. Each document ends with EOS; text that looks like a special token is
encoded as text (see tasks/tokenizer.py).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from models.tokenizer import EOS, tokenizer_digest
from storage.artifact import Artifact
from storage.documents import Document, read_documents
from storage.errors import EmptyOutput
from storage.token_sources import SUFFIX, write_sources
from storage.tokens import write_tokens
from tasks.config import StageConfig
from tasks.output import Output
from tasks.shards import ShardResult, collect, map_shards
from tasks.stage import stage
from tasks.tokenizer import load_for_documents

SPLITS = ("train", "validation")
MEASURES = ("documents", "tokens", "bytes")


class TokenizeConfig(StageConfig):
    """Choices of the split."""

    validation_share: float = Field(0.01, gt=0, lt=1, description="share of documents that the model never trains on")


@stage(version=2)
def tokenize(config: TokenizeConfig, documents: Artifact, tokenizer: Artifact, out: Output) -> None:
    """Encode every document; write train/NNNNN.tokens and validation/NNNNN.tokens, numbered as the document shards.

    Beside each stands NNNNN.sources: which of its documents came from which source, so that training can weigh them.
    A shard without documents of a split has no file in it. Raises EmptyOutput when a whole split is empty.
    """
    shards = documents.files("*.parquet")
    work = partial(_tokenize, tokenizer=tokenizer.path, validation_share=config.validation_share)
    results = map_shards(work, shards, out, "shards")
    totals = _totals(results)
    for split in SPLITS:
        if not any(totals[split, source]["tokens"] for source in _sources(totals)):
            raise EmptyOutput(
                f"No document fell into {split} (validation_share {config.validation_share}).",
                "Raise tokenize.validation_share, or give more documents.",
            )
        collect(results, f"{split}.tokens", out.path / split)
        collect(results, f"{split}{SUFFIX}", out.path / split)
    _report(totals, tokenizer_digest(tokenizer.path), out)


def in_validation(document: str, share: float) -> bool:
    """Whether the document with this id is held out. Salted: the id's own digits may have decided something before."""
    drawn = hashlib.sha256(f"validation {document}".encode()).digest()
    return int.from_bytes(drawn[:8]) < share * 2.0**64


def _tokenize(shard: Path, folder: Path, *, tokenizer: Path, validation_share: float) -> dict[str, Any]:
    """One shard: at most two token files in `folder`, each with its sources; counts by split and source."""
    split: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for document in read_documents(shard):
        split["validation" if in_validation(document.id, validation_share) else "train"].append(document)
    for name, chosen in split.items():
        if chosen:
            write_sources(folder / f"{name}{SUFFIX}", (document.source for document in chosen))
    return {
        name: _write(folder / f"{name}.tokens", chosen, tokenizer) if chosen else {} for name, chosen in split.items()
    }


def _write(path: Path, documents: Iterable[Document], folder: Path) -> dict[str, dict[str, int]]:
    import numpy as np

    tokenizer = load_for_documents(folder)
    vocab_size = tokenizer.get_vocab_size()
    eos_id = tokenizer.token_to_id(EOS)
    assert eos_id is not None
    counts: dict[str, Counter[str]] = {}
    arrays = []
    for document in documents:
        ids = [*tokenizer.encode(document.text).ids, eos_id]
        arrays.append(np.array(ids, np.uint32))
        measured = {"documents": 1, "tokens": len(ids), "bytes": len(document.text.encode())}
        counts.setdefault(document.source, Counter()).update(measured)
    write_tokens(
        path,
        arrays,
        vocab_size=vocab_size,
        eos_id=eos_id,
        tokenizer_digest=tokenizer_digest(folder),
        text_bytes=sum(count["bytes"] for count in counts.values()),
    )
    return {source: dict(count) for source, count in counts.items()}


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
        {"source": source, "split": split, **{m: totals[split, source][m] for m in MEASURES},
         "bytes per token": round(totals[split, source]["bytes"] / max(1, totals[split, source]["tokens"]), 3)}
        for source in _sources(totals)
        for split in SPLITS
    ]  # fmt: skip
    rows += [
        {"source": "all", "split": split, **sums[split],
         "bytes per token": round(sums[split]["bytes"] / sums[split]["tokens"], 3)}
        for split in SPLITS
    ]  # fmt: skip
    out.table("Tokens by source and split", rows)
