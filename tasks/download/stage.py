"""The `download` stage: reads sources and writes document shards, post-training pairs and benchmarks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from storage.artifact import Artifact
from storage.digest_cache import remembered_digest
from storage.errors import BadDocument, SourceError
from storage.shards.documents import Document, Verdict
from storage.shards.lines import write_json_lines
from tasks.checks.extras import need
from tasks.download import benchmarks, exclude
from tasks.download.account import Account
from tasks.download.config import (
    DESCRIPTIONS,
    DocumentSource,
    DownloadConfig,
    DumpSource,
    EmbeddedSource,
    ExtractedSource,
    FileSource,
    HubSource,
    LocalSource,
    Source,
    WebSource,
)
from tasks.download.documents import read as documents
from tasks.download.dumps import read as dumps
from tasks.download.earlier import taken_before, write_record
from tasks.download.exclude import Exclusion
from tasks.download.pairs import instruction, labelled, preference
from tasks.download.pairs.choose import forms_of, role_of
from tasks.download.portions import (
    OTHER,
    InPortions,
    any_input,
    portion_keys,
    portions,
    read_document,
    read_portions,
    spans,
    spans_of_hub,
)
from tasks.download.sources import embedded, files, hub
from tasks.download.sources.metadata import to_json
from tasks.download.sources.remote import Politeness
from tasks.download.sources.rows import Refused, Row, describe_columns, nearest
from tasks.download.sources.streams import unreadable
from tasks.download.web import pages
from tasks.download.writers import PairWriter, ShardWriter, pair_writer
from tasks.harness import fingerprint as harness
from tasks.shards.adopted import check_documents, check_rows
from tasks.stage import stage
from tasks.stage.output import FindEarlier, Output
from tasks.stage.runtime import Runtime

Values = dict[str, Any]
PROGRESS_EVERY = 500
FIRST = 2000  # maximum rows of a source that a plan reads until one can be used
SIGNS = re.compile(r"\\t|[;|,]")  # between the fields of a header that was read as one column
NONE = "none.json"  # in the folder of benchmarks if there are none
CONVERTERS = {"instructions": instruction, "preferences": preference, "labelled": labelled}
PARTS = {  # besides documents/, with the keys of each row
    "instructions": ("messages",),
    "preferences": ("prompt", "chosen", "rejected"),
    "labelled": ("prompt", "completion", "label"),
    "benchmarks": ("id", "query", "choices", "gold"),
}


def fingerprints(config: DownloadConfig) -> dict[str, str]:
    """The identity of the external data: package versions, file digests, revisions."""
    found: dict[str, str] = {}
    for source in config.sources:
        if isinstance(source, EmbeddedSource):
            found |= embedded.fingerprint(source)
        elif isinstance(source, LocalSource):
            found |= files.fingerprint(source)
            if isinstance(source, WebSource):
                found |= pages.fingerprint(source)
            elif isinstance(source, DocumentSource):
                found |= documents.fingerprint(source)
            elif isinstance(source, DumpSource):
                found |= dumps.fingerprint(source)
        else:
            found[source.name] = source.revision
    for file in config.exclude_files:
        try:
            found[f"exclude {file}"] = remembered_digest(Path(file).expanduser())
        except OSError as error:
            raise unreadable(file, error) from error
    for task in config.harness:
        found |= harness.fingerprint(task)
    return found


def portions_known(config: DownloadConfig, artifacts: FindEarlier) -> Known:
    """How many portions of the sources of files earlier artifacts have, for a plan. Raises SourceError."""
    keys = [
        key
        for source in config.sources
        if isinstance(source, LocalSource) and source.role == "documents"
        for key in portion_keys(source, portions(source, spans(source, Politeness()), config.shard_bytes))
    ]
    found = artifacts(any_input, OTHER)
    taken = taken_before(keys, found, _exclusion(config), lambda _: None, bring=False)
    return Known(sum(each is not None for each in taken), len(keys))


def _exclusion(config: DownloadConfig) -> Exclusion:
    """What a config excludes, in itself and in files. Raises SourceError."""
    in_files = (item for file in config.exclude_files for item in exclude.read_items(Path(file)))
    return Exclusion(chain(config.exclude, in_files))


def check_adopted(config: DownloadConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that a folder made elsewhere has documents, pairs and benchmarks as this stage writes them. Raises
    DamagedArtifact, EmptyOutput."""
    check_documents(folder)
    for part in (*config.roles, *(["benchmarks"] if config.benchmark_names else [])):
        check_rows(folder, part, PARTS[part])


def check_here(config: DownloadConfig, runtime: Runtime) -> None:
    """Raises ConfigError if the config names tasks of the harness, web archives or documents, and what reads them
    isn't installed."""
    if config.harness:
        need("eval", "download.harness")
    for source in config.sources:
        if isinstance(source, ExtractedSource):
            need(source.extra, f"a source of kind {source.kind}")


class Known(NamedTuple):
    """Portions of files that earlier artifacts have, and all."""

    known: int
    total: int


@stage(version=13, runtime=("data",), sources=fingerprints, check_here=check_here, adopted=check_adopted)
def download(config: DownloadConfig, out: Output) -> None:
    """Read every source: documents to Parquet shards, pairs and benchmarks to JSON lines.

    A row that can't be used is quarantined with its reason and location. A pair that was cut is in the ledger too.
    Raises SourceError for a source that loses more than `max_quarantined_share` or is empty.
    """
    check_first_rows(config, HubSource, out)
    polite = _politeness(out)
    in_files = {each.name: spans(each, polite) for each in config.sources if isinstance(each, LocalSource)}
    out.fact(source_bytes={name: sum(span.size for span in found) for name, found in in_files.items()})
    out.fact(files=sum(map(len, in_files.values())))
    of_hub = [each for each in config.sources if isinstance(each, HubSource) and each.role == "documents"]
    in_files |= {each.name: found for each in of_hub if (found := spans_of_hub(each, polite)) is not None}
    in_portions = {each.name for each in config.sources if each.kind != "embedded" and each.role == "documents"}
    in_portions &= in_files.keys()
    writer = ShardWriter(config, out.path / "documents", _exclusion(config))
    account = Account()
    with pair_writer(config.roles, out) as written:
        for source in config.sources:
            if isinstance(source, InPortions) and source.name in in_portions:
                account.take(source.name, read_portions(source, in_files[source.name], config, out, writer))
            else:
                _read_rows(source, config, out, writer, written, account)
            _check_source(source, config, account, writer, written)
    writer.close()
    of_rows = ((name, row) for name, rows in account.refused.items() if name not in in_portions for row in rows)
    writer.judge(chain(account.verdicts, (row.verdict(name) for name, row in of_rows)))
    if account.records:
        write_record(out.path, account.records, writer.exclusion)
    _write_benchmarks(config, out)
    account.tell(config, out, writer, written)


def _read_rows(
    source: Source, config: DownloadConfig, out: Output, writer: ShardWriter, written: PairWriter, account: Account
) -> None:
    """Read a source row by row: the embedded corpora, pairs, and data sets of the hub that aren't Parquet."""
    assert not isinstance(source, ExtractedSource)
    for role, source_name, item in _items(source, config, out, account):
        if not isinstance(item, Document):
            written.add(role, item)
        elif not writer.add(item):
            account.exclude(item)
        if (writer.seen + written.by_role.total()) % PROGRESS_EVERY == 0:
            out.progress(writer.seen, 0, "documents", source_name)


def _politeness(out: Output) -> Politeness:
    return Politeness(out.runtime.data.connections, out.runtime.data.patience_minutes)


def check_first_rows(
    config: DownloadConfig, kind: type[FileSource] | type[HubSource] = FileSource, out: Output | None = None
) -> None:
    """Raises SourceError for sources of a kind that have no row, or whose first rows can't be used. Called before any
    source is processed, for files already by a plan. The hub's are read with the patience of `out`."""
    for source in config.sources:
        if not isinstance(source, kind):
            continue
        bad = list[Refused]()
        removed: Counter[str] = Counter()
        for row in islice(_rows(source, config, out), FIRST):
            found = _item(source, row, config, Account())
            if not isinstance(found, Refused):
                break
            if found.removed:
                removed[found.reason] += 1
            else:
                bad.append(found)
        else:
            if not removed or removed.total() + len(bad) < FIRST:
                _check_rows(source, bad, 0, config.max_quarantined_share, removed)


def _rows(source: FileSource | HubSource, config: DownloadConfig, out: Output | None) -> Iterator[Row | Refused]:
    if isinstance(source, FileSource):
        return files.read_rows(source, config.max_document_bytes)
    assert out is not None
    out.scratch.mkdir(parents=True, exist_ok=True)
    return hub.read_rows(source, _politeness(out), out.scratch)


def _items(
    source: EmbeddedSource | FileSource | HubSource, config: DownloadConfig, out: Output, account: Account
) -> Iterator[tuple[str, str, Document | Values]]:
    """(role, source name, document or pair) of every usable row of a source. Adds to `account` what became of
    others."""
    if isinstance(source, EmbeddedSource):
        for document in embedded.documents(source):
            yield "documents", document.source, document
        for pair in embedded.instructions(source):
            yield "instructions", "embedded", pair
        for pair in embedded.preferences(source):
            yield "preferences", "embedded", pair
        return
    for row in _rows(source, config, out):
        found = _item(source, row, config, account)
        if isinstance(found, Refused) and found.removed:
            account.verdicts.append(found.verdict(source.name))
        elif isinstance(found, Refused):
            account.refused.setdefault(source.name, []).append(found)
        else:
            yield source.role, source.name, found


def _item(
    source: FileSource | HubSource, row: Row | Refused, config: DownloadConfig, account: Account
) -> Document | Values | Refused:
    """The document or pair of a row, by the role of its source."""
    if isinstance(row, Refused):
        return row
    if source.role == "documents":
        return read_document(source, row, config, account.dropped)
    return _pair(source, row, config, account)


def _pair(source: FileSource | HubSource, row: Row, config: DownloadConfig, account: Account) -> Values | Refused:
    """The pair of a row. `account` gets what was cut from it."""
    try:
        pair, cut = CONVERTERS[source.role](row.values, source.name, source.form)
    except BadDocument as error:
        return Refused.by(error, row.place)
    if cut:
        account.verdicts.append(Verdict(pair["id"], source.name, "changed", cut, detail=row.place))
    fields = {name: value for name in source.fields if (value := row.values.get(name)) is not None}
    return {**pair, **to_json(fields, config.max_metadata_bytes, source.name, account.dropped)}


def _check_source(
    source: Source, config: DownloadConfig, account: Account, writer: ShardWriter, written: PairWriter
) -> None:
    """Check that a source isn't empty (law 3), and that no more rows than allowed were rejected (law 8). Raises
    SourceError."""
    if not isinstance(source, EmbeddedSource):
        good = (writer.documents if source.role == "documents" else written.by_source)[source.name]
        refused, removed = account.refused.get(source.name, []), account.removed.get(source.name, Counter())
        _check_rows(source, refused, good, config.max_quarantined_share, removed)


def _check_rows(
    source: LocalSource | HubSource, bad: list[Refused], good: int, most: float, removed: Counter[str]
) -> None:
    """Raises SourceError for a source without a row, or with a share of bad rows above `most`. Removed rows, by reason,
    count as read."""
    read = good + removed.total() + len(bad)
    if bad and len(bad) > most * read:
        lacking = [row for row in bad if row.columns is not None]
        if 2 * len(lacking) > len(bad):
            raise _without_columns(source, lacking, read)
        first = "; ".join(f"{row.place}: {row.reason}" + (f", {row.why}" if row.why else "") for row in bad[:3])
        settled = any(row.reason in ("ambiguous_form", "no_method") for row in bad)
        raise SourceError(
            f"Source {source.name}: {len(bad):,} of {read:,} rows can't be used ({first}).",
            ("Set `form` of the source to say how to read them, correct them" if settled else "Correct them")
            + ", or raise download.max_quarantined_share.",
        )
    if not good and removed:
        why = ", ".join(f"{number:,} {reason}" for reason, number in removed.most_common())
        unit = "rows" if isinstance(source, HubSource) else source.unit
        check = "them: scans need OCR first" if unit == "documents" else "its paths and settings"
        raise SourceError(
            f"Source {source.name}: none of its {removed.total():,} {unit} has text ({why}).",
            f"Check {check}, or remove it from download.sources.",
        )
    if not good and bad:
        raise SourceError(
            f"Source {source.name}: none of its {len(bad):,} rows can be used ({bad[0].place}: {bad[0].reason}).",
            "Correct them, or remove it from download.sources.",
        )
    if not good:
        raise SourceError(f"Source {source.name} is empty.", "Check its paths, or remove it from download.sources.")


def _without_columns(source: LocalSource | HubSource, lacking: list[Refused], rows: int) -> SourceError:
    if source.role == "documents":
        lacks = f"lack the column {source.text_column}"
        meant = nearest(source.text_column, lacking)
        remedy = f"Set text_column of the source to the column of the text{f', perhaps {meant}' if meant else ''}."
        only = lacking[0].columns or ()
        if len(only) == 1 and (sign := SIGNS.search(only[0])):
            remedy = f"Set delimiter of the source, perhaps to {sign.group()!r}."
        if role := role_of(only):
            remedy = f"They look like {role}: write `role: {role}` for the source."
    else:
        lacks = f"lack the keys of {source.role}"
        remedy = f"Rename them, or give the source another role. Forms of {source.role}: {forms_of(source.role)}."
    return SourceError(
        f"Source {source.name}: {len(lacking):,} of {rows:,} rows {lacks} (first {lacking[0].place}). "
        f"The columns of the first ones are: {describe_columns(lacking)}.",
        remedy,
    )


def _write_benchmarks(config: DownloadConfig, out: Output) -> None:
    for name in config.benchmarks:
        write_json_lines(out.path / "benchmarks" / f"{name}.jsonl", benchmarks.questions(name, config.benchmark_items))
    for source in config.sources:
        if isinstance(source, EmbeddedSource) and source.held_out_share:
            rows = sorted(embedded.held_out_questions(source), key=lambda row: str(row["id"]))[: config.benchmark_items]
            write_json_lines(out.path / "benchmarks" / f"{DESCRIPTIONS}.jsonl", rows)
    for number, task in enumerate(config.harness):
        from tasks.harness.prepare import prepare

        out.progress(number, len(config.harness), "benchmarks", task.name)
        prepare(task, out.path / "benchmarks" / task.name, out.scratch / "harness")
    if not config.benchmark_names:  # so that the folder exists even in stores that know only files
        write_json_lines(out.path / "benchmarks" / NONE, [])
