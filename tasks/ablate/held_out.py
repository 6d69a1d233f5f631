"""The held-out documents on which all arms of an ablation can be compared.

They are those of the reference, measured by every model. A document that an arm trained on, or of which it may have
trained on a copy, would make that arm look better than it is, so it is left out. This happens where arms split, or
remove duplicates, in different ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.errors import EmptyOutput
from storage.shards.arrays import Bool
from storage.shards.documents import ID_LENGTH, read_batches
from tasks.tokenize.split import in_validation

LEAST = 5  # documents
DUPLICATE_OF = "duplicate_of "  # before the id of the kept document, in the ledger of dedup


class Fair(NamedTuple):
    """Of the reference's held-out documents, by number: those that can be compared, and of these, those that every arm
    keeps. Then how many were left out, by reason."""

    comparable: Bool
    kept_by_all: Bool
    left_out: dict[str, int]


def fair_documents(documents: Sequence[Artifact], shares: Sequence[float], ledgers: Sequence[Artifact | None]) -> Fair:
    """Choose among the held-out documents of the first arm. All have the arms' order: their documents, the shares that
    they hold out, and the ledgers of dedup, None for an arm without dedup."""
    ids = _held_out(documents[0], shares[0])
    kept, trained = np.ones(len(ids), bool), np.zeros(len(ids), bool)
    seen: dict[tuple[str, float], tuple[Bool, Bool]] = {}
    for artifact, share in zip(documents[1:], shares[1:], strict=True):
        known = artifact.digest, share
        if known not in seen:
            here = _contains(artifact, ids)
            seen[known] = here, here & ~np.array([in_validation(one, share) for one in ids.to_pylist()], bool)
        kept &= seen[known][0]
        trained |= seen[known][1]
    copied = np.zeros(len(ids), bool)
    if len({ledger.digest if ledger else "" for ledger in ledgers}) > 1:
        for ledger in {one.digest: one for one in ledgers if one}.values():
            copied |= _in_copies(ledger, ids)
    left_out = {"an arm trains on it": int(trained.sum()), "it has copies": int((copied & ~trained).sum())}
    return Fair(~trained & ~copied, kept, {why: number for why, number in left_out.items() if number})


def check_enough(fair: Fair) -> None:
    """Raises EmptyOutput for too few documents that all arms keep and that can be compared."""
    number = int((fair.comparable & fair.kept_by_all).sum())
    if number < LEAST:
        left = "".join(f", {count:,} left out as {why}" for why, count in fair.left_out.items())
        raise EmptyOutput(
            f"Only {number} held-out documents can be compared, of {len(fair.comparable):,}{left}.",
            f"Raise tokenize.validation_share or give more documents: {LEAST} are the least, hundreds are better.",
        )


def _held_out(documents: Artifact, share: float) -> pa.Array:
    """The ids of the held-out documents, in the order of the token shards."""
    ids = [
        one
        for path in documents.files("*.parquet")
        for _, batch in read_batches(path, ["id"])
        for one in batch.column("id").to_pylist()
        if in_validation(one, share)
    ]
    return pa.array(ids, pa.string())


def _contains(documents: Artifact, ids: pa.Array) -> Bool:
    found = np.zeros(len(ids), bool)
    for path in documents.files("*.parquet"):
        for _, batch in read_batches(path, ["id"]):
            found |= pc.is_in(ids, batch.column("id")).to_numpy(zero_copy_only=False)
    return found


def _in_copies(ledger: Artifact, ids: pa.Array) -> Bool:
    """Which documents dedup removed as duplicates, or kept in place of one."""
    found = np.zeros(len(ids), bool)
    for path in ledger.files("*.parquet"):
        for _, batch in read_batches(path, ["id", "detail"]):
            batch = batch.filter(pc.starts_with(batch.column("detail"), DUPLICATE_OF))
            start = len(DUPLICATE_OF)
            of = pc.utf8_slice_codeunits(batch.column("detail"), start, start + ID_LENGTH)
            for both in (batch.column("id"), of):
                found |= pc.is_in(ids, both).to_numpy(zero_copy_only=False)
    return found
