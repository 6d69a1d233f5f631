"""`gristmill explain DOC`: a document, or an instruction or preference pair, through the stages of a profile's newest
artifacts. `gristmill explain --removed-by RULE`: the documents that a rule removed.

It reads the column of ids and compares it by Arrow, and reads texts only to show them.
"""

from __future__ import annotations

import difflib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape

from flows.session import session_of
from profiles.load import load
from profiles.schema import Profile
from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError, harmless
from storage.shards.by_id import documents_of, rows_at, title_of
from storage.shards.documents import DOCUMENT_SCHEMA, LEDGER_SCHEMA, Document, Verdict, read_batches
from storage.shards.lines import read_json_lines
from storage.store import Store
from tasks.dedup.duplicates import REASONS
from tasks.download.config import PAIR_ROLES
from tasks.filter.families import rules
from tasks.filter.pairs.measure import texts_of
from tasks.synthesise.judge import REASONS as ANSWERS

DOCUMENT_STAGES = ("download", "synthesise", "dedup", "filter", "pairs")
LEAST = 4  # characters of an id
PREVIEW = 300  # characters of the text shown
HEAD = 60  # characters of the text shown in a list
BEGINNING = 100  # characters of a text in the list of removals
LISTED = 10  # ids or origins of copies
AGAINST, COPY_OF = "against ", "duplicate_of "  # prefixes in the manifest of dedup, and in its ledger
COPIES = ("kept", "source", "id", "metadata", "reason")


class Found(NamedTuple):
    """An artifact's data on ids: documents, the number of equal texts by source, verdicts, and removed copies as rows
    with the columns of COPIES."""

    documents: dict[str, Document]
    sources: dict[str, Counter[str]]
    verdicts: list[Verdict]
    copies: list[dict[str, str]]

    def ids(self) -> dict[str, str]:
        """The source of each id."""
        return {verdict.id: verdict.source for verdict in self.verdicts} | {
            document.id: document.source for document in self.documents.values()
        }


def explain_document(console: Console, start: str, profile_name: str, overrides: list[str]) -> None:
    """Print what each document stage did with the document whose id starts with `start`. Raises ConfigError if none or
    several do."""
    if len(start) < LEAST:
        raise ConfigError(
            f"{start!r} is too short for an id.", f"Give the first {LEAST} characters of a document's id or more."
        )
    store, artifacts, missing = _artifacts(load(profile_name, overrides))
    found = {stage: find(artifact.path, start) for stage, artifact in artifacts}
    identity = _only_id(profile_name, start, found, missing)
    # Of several copies of a text, show the kept one: from the first stage that has the fewest copies
    having = [of_stage for of_stage in found.values() if identity in of_stage.documents]
    if having:
        document = min(having, key=lambda of_stage: of_stage.sources[identity].total()).documents[identity]
        console.print(f"[bold]{document.id}[/] from {document.source} {escape(harmless(document.metadata))}")
        console.print(f"  [dim]{escape(harmless(document.text[:PREVIEW]))}[/]")
    for stage, of_stage in found.items():
        for line in story(of_stage, identity):
            console.print(f"  [bold]{stage:<10}[/] {escape(harmless(line))}")
    for name, document, lines in _held_earlier(store, dict(artifacts), found, identity):
        console.print(f"[bold]{document.id}[/] in {name}, from {document.source} {escape(harmless(document.metadata))}")
        console.print(f"  [dim]{escape(harmless(document.text[:PREVIEW]))}[/]")
        for line in lines:
            console.print(f"  [bold]{'dedup':<10}[/] {escape(harmless(line))}")


def _held_earlier(
    store: Store, artifacts: Mapping[str, Artifact], found: Mapping[str, Found], identity: str
) -> Iterator[tuple[str, Document, list[str]]]:
    """For a copy of a document that an earlier run kept: the name of that run's artifact in `dedup.against`, the
    document, and what dedup did with it there. Empty if that artifact is gone."""
    manifest = artifacts["dedup"].manifest if "dedup" in artifacts else None
    uses = manifest.uses if manifest else {}
    earlier = {name.removeprefix(AGAINST): used.location for name, used in uses.items() if name.startswith(AGAINST)}
    for verdict in found["dedup"].verdicts if earlier else ():
        other = verdict.detail.removeprefix(COPY_OF).partition(",")[0]
        if verdict.id != identity or not verdict.detail.startswith(COPY_OF):
            continue
        for name, location in earlier.items():
            held = find(store.get(location).path, other) if store.manifest(location) is not None else None
            if held is not None and other in held.documents:
                yield name, held.documents[other], story(held, other)
                break


def _artifacts(profile: Profile) -> tuple[Store, list[tuple[str, Artifact]], list[str]]:
    """A profile's store, the newest artifact of each document stage that has one, and the other stages."""
    store = session_of(profile).store
    newest = {stage: refs.history(store, f"{profile.name}/{stage}") for stage in DOCUMENT_STAGES}
    artifacts = [(stage, store.get(entries[-1].location)) for stage, entries in newest.items() if entries]
    return store, artifacts, [stage for stage in profile.stage_names if newest.get(stage) == []]


def _to_be_made(name: str, missing: list[str]) -> str:
    """The remedy if stages without an artifact may have the missing document."""
    stages = " and ".join(missing)
    return f"No ref names an artifact of {stages}: run `gristmill run {name} --to {missing[-1]}`. " if missing else ""


def _only_id(name: str, start: str, found: dict[str, Found], missing: list[str]) -> str:
    sources = {identity: source for of_stage in found.values() for identity, source in of_stage.ids().items()}
    if not sources:
        raise ConfigError(
            f"No document or pair of {name} has an id that starts with {start}.",
            f"{_to_be_made(name, missing)}Ids are in the shards' id column and in the ledgers.",
        )
    if len(sources) > 1:
        heads = {identity: one.text for of_stage in found.values() for identity, one in of_stage.documents.items()}
        lines = [
            f"{identity}  {sources[identity]}  {harmless(' '.join(heads.get(identity, '').split())[:HEAD])}".rstrip()
            for identity in sorted(sources)[:LISTED]
        ]
        more = [f"and {len(sources) - LISTED:,} more"] if len(sources) > LISTED else []
        raise ConfigError(
            "\n  ".join([f"{len(sources):,} ids of {name} start with {start}:", *lines, *more]),
            "Give more characters of the one you mean.",
        )
    return next(iter(sources))


def story(found: Found, identity: str) -> list[str]:
    """Lines on what a stage did with an id. Documents of equal text share one id, so equal verdicts are counted, and
    the removal of a document as a duplicate of its own id shows in the number of kept copies."""
    mine = [verdict for verdict in found.verdicts if verdict.id == identity]
    own = sum(_of_itself(verdict) for verdict in mine)
    counts = Counter(in_words(verdict) for verdict in mine if not _of_itself(verdict))
    lines = [line if count == 1 else f"{count} copies {line}" for line, count in counts.items()]
    if identity in found.documents:
        sources = found.sources[identity] + Counter(
            copy["source"] for copy in found.copies if copy["kept"] == identity == copy["id"]
        )
        copies = max(own + 1, sources.total())
        if copies == 1:
            lines.append("kept")
        elif own:
            lines.append(f"{copies} copies, one kept{_by_source(sources)}")
        else:
            lines.append(f"{copies} copies, all kept{_by_source(sources)}")
        lines += _stands_for([copy for copy in found.copies if copy["kept"] == identity])
    elif own:
        lines.append(f"{own} of {own + 1} copies removed as copies of the other")
    return lines


def _stands_for(copies: list[dict[str, str]]) -> Iterator[str]:
    for reason, count in sorted(Counter(copy["reason"] for copy in copies).items()):
        mine = [copy for copy in copies if copy["reason"] == reason]
        origins = [f"{copy['id']} from {copy['source']} {copy['metadata']}" for copy in mine[:LISTED]]
        more = [f"and {count - LISTED:,} more"] if count > LISTED else []
        yield "\n    ".join([f"stands for {count:,} by {reason}:", *origins, *more])


def _by_source(sources: Counter[str]) -> str:
    return (
        f" ({', '.join(f'{count} from {name}' for name, count in sorted(sources.items()))})" if len(sources) > 1 else ""
    )


def _of_itself(verdict: Verdict) -> bool:
    return verdict.verdict == "removed" and verdict.detail.startswith(f"{COPY_OF}{verdict.id}")


def in_words(verdict: Verdict) -> str:
    """A verdict as a sentence."""
    text = f"{verdict.verdict}: {verdict.reason}"
    if verdict.value is not None:
        text += f" {verdict.value:.4g}"
    if verdict.threshold is not None:
        text += f" (threshold {verdict.threshold:.4g})"
    return text + (f", {verdict.detail}" if verdict.detail else "")


def find(folder: Path, start: str) -> Found:
    """An artifact's data on the ids that start with `start`, in any case."""
    documents: dict[str, Document] = {}
    sources: dict[str, Counter[str]] = {}
    kept = (Document(**row) for row in _rows(folder / "documents", "id", start, DOCUMENT_SCHEMA.names))
    for document in itertools.chain(kept, _pairs(folder, start)):
        documents.setdefault(document.id, document)
        sources.setdefault(document.id, Counter())[document.source] += 1
    verdicts = [Verdict(**row) for row in _rows(folder / "ledger", "id", start, LEDGER_SCHEMA.names)]
    copies = list(_rows(folder / "copies", "kept", start, list(COPIES)))
    return Found(documents, sources, verdicts, copies)


def _pairs(folder: Path, start: str) -> Iterator[Document]:
    """Matching pairs or labelled rows, with their messages as one text."""
    for role in PAIR_ROLES:
        for path in sorted((folder / role).glob("*.jsonl")):
            for pair in read_json_lines(path):
                if str(pair["id"]).lower().startswith(start.lower()):
                    yield Document(pair["id"], "\n".join(texts_of(pair)), pair["source"], f'{{"role": "{role}"}}')


def _rows(folder: Path, key: str, start: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a folder's shards whose `key` starts with `start`."""
    for path in sorted(folder.glob("*.parquet")):
        wanted: list[int] = []
        for first, batch in read_batches(path, [key]):
            wanted += (
                first
                + np.flatnonzero(pc.starts_with(batch[key], start, ignore_case=True).to_numpy(zero_copy_only=False))
            ).tolist()
        yield from rows_at(path, columns, wanted)


def list_removed(
    console: Console, rule: str, profile_name: str, overrides: list[str], stage: str | None, limit: int
) -> None:
    """Print what a rule removed or quarantined, from the ledgers: the first `limit` of each stage's newest artifact.
    The name of a family of rules stands for all of them. Raises ConfigError."""
    profile = load(profile_name, overrides)
    _, newest, missing = _artifacts(profile)
    artifacts = [(one, artifact.path) for one, artifact in newest]
    if stage is not None:
        if stage not in DOCUMENT_STAGES:
            raise ConfigError(f"{stage} has no ledger.", f"Choose one of {', '.join(DOCUMENT_STAGES)}.")
        artifacts = [(one, folder) for one, folder in artifacts if one == stage]
        missing = [one for one in missing if one == stage]
    known = _rules(profile)
    named = functools.partial(_names, rule, family=rule not in known)
    reasons: Counter[str] = Counter()
    for one, folder in artifacts:
        shown, total, seen = _removed_by(folder, named, limit)
        reasons.update(seen)
        if total:
            console.print(f"[bold]{one}[/] removed {total:,} by {escape(rule)}, of which {len(shown):,} are shown")
            texts = documents_of([verdict.id for verdict in shown], [folder, *(other for _, other in artifacts)])
            for verdict in shown:
                for line in _removal(verdict, texts.get(verdict.id)):
                    console.print(line, soft_wrap=True, highlight=False)
    if any(map(named, reasons)):
        if others := [reason for reason in sorted(reasons) if _names(rule, reason, family=True) and not named(reason)]:
            console.print(f"Not counted here: {', '.join(f'{one} ({reasons[one]:,})' for one in others)}")
        return
    listed = ", ".join(f"{reason} ({count:,})" for reason, count in sorted(reasons.items()))
    did = f"Rules that did: {listed}." if listed else "No rule removed anything."
    remedy = _to_be_made(profile_name, missing)
    if not any(map(named, known)):
        near = difflib.get_close_matches(rule, {*known, *reasons, *(one.partition(".")[0] for one in known)}, 1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(f"{rule} is not a rule of {profile_name}.", f"{meant}{remedy}{did}")
    if missing:
        raise ConfigError(f"{rule} removed nothing in {profile_name}.", f"{remedy}{did}")
    console.print(f"{escape(rule)} removed nothing in {profile_name}. {escape(did)}", soft_wrap=True, highlight=False)


def _rules(profile: Profile) -> list[str]:
    """The names of the rules by which a profile removes documents."""
    of_filter = [rule.name for rule in rules(profile.filter)] if profile.filter else []
    of_synthesise = ANSWERS if profile.synthesise else ()
    return [*of_synthesise, *(REASONS if profile.dedup else ()), *of_filter]


def _names(rule: str, reason: str, *, family: bool) -> bool:
    return reason == rule or (family and reason.startswith(f"{rule}."))


def _removal(verdict: Verdict, document: Document | None) -> Iterator[str]:
    """The document that was removed and the value, then its title and beginning."""
    why = in_words(verdict).removeprefix(f"{verdict.verdict}: ")
    yield f"[bold]{verdict.id}[/] {escape(harmless(f'{verdict.source}: {why}'))}"
    if document is not None:
        title = title_of(document.metadata)
        begins = " ".join(document.text[:PREVIEW].split())[:BEGINNING]
        yield f"  [dim]{escape(harmless(f'{title} | {begins}' if title else begins))}[/]"


def _removed_by(folder: Path, named: Callable[[str], bool], limit: int) -> tuple[list[Verdict], int, Counter[str]]:
    """(the first `limit` verdicts, the number of all, the number of removals for each reason)."""
    shown: list[Verdict] = []
    reasons: Counter[str] = Counter()
    for path in sorted((folder / "ledger").glob("*.parquet")):
        wanted: list[int] = []
        for first, batch in read_batches(path, ["verdict", "reason"]):
            removed = pc.not_equal(batch["verdict"], "changed")
            counted = batch.filter(removed)["reason"].value_counts().to_pylist()
            reasons.update({row["values"]: row["counts"] for row in counted})
            mine = pa.array([row["values"] for row in counted if named(row["values"])], pa.string())
            if len(mine) and len(shown) + len(wanted) < limit:
                here = pc.and_(removed, pc.is_in(batch["reason"], mine)).to_numpy(zero_copy_only=False)
                wanted += (first + np.flatnonzero(here)).tolist()
        shown += [Verdict(**row) for row in rows_at(path, LEDGER_SCHEMA.names, wanted[: limit - len(shown)])]
    return shown, sum(count for reason, count in reasons.items() if named(reason)), reasons
