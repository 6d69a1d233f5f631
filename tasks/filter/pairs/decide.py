"""Decides on a file of pairs, with the rules and the changes for documents.

A pair is judged as a whole, as if its messages were one text, and changed message by message. A file without findings
is copied byte for byte.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from storage.shards.arrays import Bool, Int64
from storage.shards.documents import LEDGER_SCHEMA, BatchWriter, Verdict, ledger_batches
from storage.shards.lines import write_json_lines
from tasks.filter.contamination.family import FAMILY as CONTAMINATION
from tasks.filter.decide import decide, ledger
from tasks.filter.pairs.config import PairRules
from tasks.filter.pairs.measure import Pair, files_by_name, groups, read_messages, texts_of, with_texts
from tasks.filter.pii.family import FAMILY as PII
from tasks.filter.pii.family import PiiMender, describe
from tasks.filter.pii.findings import SCHEMA, Finding
from tasks.filter.pii.salt import read_salt
from tasks.filter.rules import Rule, Where, reason
from tasks.filter.side_files import IdDigest, check_aligned, read_signals
from tasks.filter.toxicity.family import FAMILY as TOXICITY

PAIRS, LEDGER = "pairs.jsonl", "ledger.parquet"


class Job(NamedTuple):
    """A file of pairs and its side files by family. That of `pii` has a row per message, the others one per pair."""

    pairs: Path
    signals: Mapping[str, Path]


def jobs_of(pairs: Mapping[str, Artifact], signals: Mapping[str, Artifact]) -> dict[str, list[Job]]:
    """The files of each role with their side files. Raises DamagedArtifact if there are more or fewer of these."""
    files = files_by_name(pairs)
    side_files: dict[str, dict[str, Path]] = {}
    for family, artifact in signals.items():
        folders = [artifact.part(role) for role in sorted(pairs)] if family == "pii" else [artifact]
        found = [path for folder in folders for path in folder.files("*.parquet")]
        if len(found) != len(files):
            raise DamagedArtifact(
                f"The signals of {family} cover {len(found)} files, but there are {len(files)} files of pairs.",
                f"Measure again: --refresh {family}_pairs.",
            )
        side_files[family] = dict(zip(files, found, strict=True))
    jobs: dict[str, list[Job]] = {role: [] for role in pairs}
    for name, path in files.items():
        measured = {family: by_name[name] for family, by_name in side_files.items()}
        jobs[name.partition("-")[0]].append(Job(path, measured))
    return jobs


def decide_pairs(config: PairRules, job: Job, folder: Path) -> dict[str, Any]:
    """Write the kept pairs and a ledger, and return counts by source, reason and kind of finding."""
    deciding = _Deciding(config)
    signals = _Signals(job)
    kept: list[Pair] = []
    with BatchWriter(folder / LEDGER, LEDGER_SCHEMA) as verdicts:
        for group in groups(job.pairs):
            kept += deciding.group(group, signals.of(group), verdicts)
    signals.check()
    if deciding.untouched:
        shutil.copyfile(job.pairs, folder / PAIRS)
    else:
        write_json_lines(folder / PAIRS, kept)
    return {name: dict(count) for name, count in vars(deciding.counts).items()}


class _Group(NamedTuple):
    """The signals of a group of pairs: a row for each, and the findings in each message, if they were looked for. Pair
    i has the texts from `starts[i]` up to `starts[i + 1]`."""

    texts: list[list[str]]
    starts: Int64
    by_pair: pa.RecordBatch
    messages: pa.RecordBatch | None


class _Signals:
    """Reads the side files of a file of pairs beside it. Raises DamagedArtifact for those of other pairs."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._digest = IdDigest()
        self._messages = read_messages(job.signals["pii"]) if "pii" in job.signals else None
        others = [
            pa.Table.from_batches(read_signals(path)).combine_chunks()
            for family, path in job.signals.items()
            if family != "pii"
        ]
        self._others = {name: table[name].combine_chunks() for table in others for name in table.schema.names}
        self._read = 0

    def of(self, group: Sequence[Pair]) -> _Group:
        """Those of the next pairs."""
        texts = [texts_of(pair) for pair in group]
        starts = np.concatenate([[0], np.cumsum([len(each) for each in texts])])
        messages = None
        columns = {name: column.slice(self._read, len(group)) for name, column in self._others.items()}
        if self._messages is not None:
            messages = next(self._messages, None)
            if messages is None or messages.num_rows != starts[-1]:
                raise self._mismatch("pii")
            found = by_pair(messages, starts)
            columns |= dict(zip(found.schema.names, found.columns, strict=True))
        if any(len(column) != len(group) for column in columns.values()):
            raise self._mismatch(next(family for family in self._job.signals if family != "pii"))
        self._digest.update(pa.array([pair["id"] for pair in group], pa.string()))
        self._read += len(group)
        return _Group(texts, starts, pa.record_batch(columns), messages)

    def check(self) -> None:
        """Once all pairs are read: whether the signals were of these."""
        if self._messages is not None and next(self._messages, None) is not None:
            raise self._mismatch("pii")
        for path in self._job.signals.values():
            check_aligned(path, self._digest)

    def _mismatch(self, family: str) -> DamagedArtifact:
        path = self._job.signals[family]
        return DamagedArtifact(
            f"The signals {path.parent.name}/{path.name} don't belong to {self._job.pairs.name}.",
            f"Measure again: --refresh {family}_pairs.",
        )


class _Counts:
    """Numbers of pairs by source, of removed pairs by reason, and of findings by kind."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.removed: Counter[str] = Counter()
        self.found: Counter[str] = Counter()


def rules_of(config: PairRules) -> list[Rule]:
    """The rules in the order in which they are tried. Answers without words, or without any, have no toxicity."""
    toxicity = [Where(rule, _is_scored) for rule in TOXICITY.rules(config.toxicity)]
    rules = [*toxicity, *PII.rules(config.pii), *CONTAMINATION.rules(config.contamination)]
    return sorted(rules, key=lambda rule: rule.turn)


def _is_scored(signals: pa.RecordBatch) -> Bool:
    scored: Bool = signals["toxicity_score"].is_valid().to_numpy(zero_copy_only=False)
    return scored


class _Deciding:
    def __init__(self, config: PairRules) -> None:
        self.rules = rules_of(config)
        self.mender = PiiMender(config.pii, read_salt(config.pii.salt)) if config.pii else None
        self.counts = _Counts()

    @property
    def untouched(self) -> bool:
        """Whether every pair so far is unchanged."""
        return not self.counts.changed and not self.counts.removed

    def group(self, group: list[Pair], signals: _Group, verdicts: BatchWriter) -> list[Pair]:
        """The pairs of a group to keep, with findings replaced."""
        columns = {name: pa.array([pair[name] for pair in group], pa.string()) for name in ("id", "source")}
        decisions = decide(signals.by_pair, self.rules)
        for rows in ledger(pa.record_batch(columns), signals.by_pair, decisions, self.rules):
            verdicts.add(rows)
        for number, unmeasured, rows in decisions.stopped():
            self.counts.removed[reason(self.rules[number], unmeasured)] += len(rows)
        self.counts.seen.update(pair["source"] for pair in group)
        kept: list[Pair] = [group[row] for row in np.flatnonzero(decisions.kept).tolist()]
        if self.mender is not None and signals.messages is not None:
            changes: list[Verdict] = []
            kept = self._changed(self.mender, group, signals, signals.messages, decisions.kept, changes)
            for batch in ledger_batches(changes):
                verdicts.add(batch)
            self.counts.changed.update(verdict.source for verdict in changes)
            parts = pc.list_flatten(signals.messages["pii"])
            sure = pc.greater_equal(parts.field("score"), self.mender.rules.confidence)
            self.counts.found.update(parts.field("entity").filter(sure).to_pylist())
        self.counts.kept.update(pair["source"] for pair in kept)
        return kept

    def _changed(
        self,
        mender: PiiMender,
        group: list[Pair],
        signals: _Group,
        messages: pa.RecordBatch,
        kept: Bool,
        changes: list[Verdict],
    ) -> list[Pair]:
        touched = mender.touches(messages)
        pairs: list[Pair] = []
        for row in np.flatnonzero(kept).tolist():
            start, end = int(signals.starts[row]), int(signals.starts[row + 1])
            if touched[start:end].any():
                findings = messages["pii"][start:end].to_pylist()
                pairs.append(_change(mender, group[row], signals.texts[row], findings, changes))
            else:
                pairs.append(group[row])
        return pairs


def _change(
    mender: PiiMender, pair: Pair, texts: Sequence[str], by_text: Sequence[list[dict[str, Any]]], changes: list[Verdict]
) -> Pair:
    new: list[str] = []
    kinds: Counter[str] = Counter()
    for text, findings in zip(texts, by_text, strict=True):
        replaced, done = mender.replace(text, (Finding(**finding) for finding in findings))
        new.append(replaced)
        kinds += done
    changes.append(Verdict(pair["id"], pair["source"], "changed", "pii", kinds.total(), None, describe(kinds)))
    return with_texts(pair, new)


def by_pair(messages: pa.RecordBatch, starts: Int64) -> pa.RecordBatch:
    """The signals of pairs: the findings of all their messages. Pair i has the messages from `starts[i]` up to
    `starts[i + 1]`."""
    offsets = messages["pii"].offsets.take(pa.array(starts))
    findings = pa.ListArray.from_arrays(offsets.cast(pa.int32()), messages["pii"].values)
    return pa.record_batch(
        [findings.cast(SCHEMA.field("pii").type), pc.list_value_length(findings).cast(pa.int64())], SCHEMA
    )
