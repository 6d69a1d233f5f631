"""Decides on a file of pairs, with the rules and the changes for documents.

A pair is judged as a whole, as if its messages were one text, and changed message by message. A file without findings
is copied byte for byte.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import DamagedArtifact
from storage.shards.documents import LEDGER_SCHEMA, BatchWriter, Verdict, ledger_batches
from storage.shards.lines import write_json_lines
from tasks.filter.decide import decide, ledger
from tasks.filter.pairs.measure import Pair, groups, read_messages, texts_of, with_texts
from tasks.filter.pii.family import FAMILY, PiiMender, PiiRules, describe
from tasks.filter.pii.findings import SCHEMA, Finding
from tasks.filter.pii.salt import read_salt
from tasks.filter.rules import Rule, reason
from tasks.filter.side_files import IdDigest, check_aligned

PAIRS, LEDGER = "pairs.jsonl", "ledger.parquet"


class Job(NamedTuple):
    """A file of pairs and its signals."""

    pairs: Path
    signals: Path


def decide_pairs(config: PiiRules, job: Job, folder: Path) -> dict[str, Any]:
    """Write the kept pairs and a ledger, and return counts by source, reason and kind of finding."""
    deciding = _Deciding(config)
    kept: list[Pair] = []
    digest = IdDigest()
    with BatchWriter(folder / LEDGER, LEDGER_SCHEMA) as verdicts:
        for group, messages in zip_longest(groups(job.pairs), read_messages(job.signals)):
            texts = [texts_of(pair) for pair in group or ()]
            if messages is None or sum(map(len, texts)) != messages.num_rows:
                raise _mismatch(job)
            digest.update(pa.array([pair["id"] for pair in group], pa.string()))
            kept += deciding.group(group, texts, messages, verdicts)
    check_aligned(job.signals, digest)
    if deciding.untouched:
        shutil.copyfile(job.pairs, folder / PAIRS)
    else:
        write_json_lines(folder / PAIRS, kept)
    return {name: dict(count) for name, count in vars(deciding.counts).items()}


class _Counts:
    """Numbers of pairs by source, of removed pairs by reason, and of findings by kind."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.removed: Counter[str] = Counter()
        self.found: Counter[str] = Counter()


class _Deciding:
    def __init__(self, config: PiiRules) -> None:
        self.confidence = config.confidence
        self.rules: list[Rule] = sorted(FAMILY.rules(config), key=lambda rule: rule.turn)
        self.mender = PiiMender(config, read_salt(config.salt))
        self.counts = _Counts()

    @property
    def untouched(self) -> bool:
        """Whether every pair so far is unchanged."""
        return not self.counts.changed and not self.counts.removed

    def group(
        self, group: list[Pair], texts: list[list[str]], messages: pa.RecordBatch, verdicts: BatchWriter
    ) -> list[Pair]:
        """The pairs of a group to keep, with findings replaced."""
        starts = np.concatenate([[0], np.cumsum([len(each) for each in texts])])
        columns = {name: pa.array([pair[name] for pair in group], pa.string()) for name in ("id", "source")}
        signals = by_pair(messages, starts)
        decisions = decide(signals, self.rules)
        for rows in ledger(pa.record_batch(columns), signals, decisions, self.rules):
            verdicts.add(rows)
        for number, unmeasured, rows in decisions.stopped():
            self.counts.removed[reason(self.rules[number], unmeasured)] += len(rows)
        self.counts.seen.update(pair["source"] for pair in group)
        touched = self.mender.touches(messages)
        kept: list[Pair] = []
        changes: list[Verdict] = []
        for row in np.flatnonzero(decisions.kept).tolist():
            start, end = int(starts[row]), int(starts[row + 1])
            if touched[start:end].any():
                kept.append(self._change(group[row], texts[row], messages["pii"][start:end].to_pylist(), changes))
            else:
                kept.append(group[row])
        for batch in ledger_batches(changes):
            verdicts.add(batch)
        self.counts.kept.update(pair["source"] for pair in kept)
        self.counts.changed.update(verdict.source for verdict in changes)
        parts = pc.list_flatten(messages["pii"])
        sure = pc.greater_equal(parts.field("score"), self.confidence)
        self.counts.found.update(parts.field("entity").filter(sure).to_pylist())
        return kept

    def _change(
        self, pair: Pair, texts: Sequence[str], by_text: Sequence[list[dict[str, Any]]], changes: list[Verdict]
    ) -> Pair:
        new: list[str] = []
        kinds: Counter[str] = Counter()
        for text, findings in zip(texts, by_text, strict=True):
            replaced, done = self.mender.replace(text, (Finding(**finding) for finding in findings))
            new.append(replaced)
            kinds += done
        changes.append(Verdict(pair["id"], pair["source"], "changed", "pii", kinds.total(), None, describe(kinds)))
        return with_texts(pair, new)


def by_pair(messages: pa.RecordBatch, starts: np.ndarray) -> pa.RecordBatch:
    """The signals of pairs: the findings of all their messages. Pair i has the messages from `starts[i]` up to
    `starts[i + 1]`."""
    offsets = messages["pii"].offsets.take(pa.array(starts))
    findings = pa.ListArray.from_arrays(offsets.cast(pa.int32()), messages["pii"].values)
    return pa.record_batch(
        [findings.cast(SCHEMA.field("pii").type), pc.list_value_length(findings).cast(pa.int64())], SCHEMA
    )


def _mismatch(job: Job) -> DamagedArtifact:
    return DamagedArtifact(
        f"The signals {job.signals.parent.name}/{job.signals.name} don't belong to {job.pairs.name}.",
        "Measure again: --refresh pii_pairs.",
    )
