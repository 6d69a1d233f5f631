"""`gristmill forget DOC`: what a takedown takes, and with `--verify` the proof that it succeeded. Deletes nothing.

The document's text comes from any artifact of the store that holds it, each version of it, or from a file. Documents of
a URL or host are searched for in portions, so memory holds some of their texts at a time.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape

from flows.commands.documents.likeness import Likeness, Version
from flows.commands.documents.reads import columns_for, named_rows
from flows.commands.documents.search import EXACT, MADE, Aim, Finding, Searched, lineage_of, search, sources_of
from flows.commands.documents.trace import SHARD, Traced, exclusion_of, gaps, manifests_of, short, table_of, trace
from flows.tables import new_table
from storage import refs
from storage.errors import ConfigError
from storage.manifest import Manifest
from storage.shards.documents import document_id, read_batches
from storage.store import Store
from tasks.dedup import DedupConfig
from tasks.download.exclude import Exclusion, kind_of

PORTION = 1 << 24  # characters of documents whose texts are searched for at once
SHOWN = 20  # rows of a table
KINDS = {"near-duplicate": "Jaccard {:.2f}", "contains it": "{:.0%} of it", "quotes it": "{:.0f} words"}


class Keeper(NamedTuple):
    """The artifacts with a document that the newest version of a ref needs, and the stages that need them only because
    they once read pairs or questions there, which are the same now. Made again, these read them elsewhere."""

    locations: list[str]
    refresh: list[str]


class Wish(NamedTuple):
    """What to forget, and how like it a text must be to be found."""

    items: Sequence[str]
    text: Path | None
    words: int
    similarity: float | None
    exact: bool


@dataclass
class Subject:
    """The documents, and what is known of them: the ids of those that the store has, of those whose texts were found,
    and of those with fewer words than a quotation. `unmet` are the URLs and hosts of which nothing was found yet."""

    named: Exclusion
    ids: set[str]
    unmet: set[str]
    with_text: set[str] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    short: set[str] = field(default_factory=set)

    @property
    def without_text(self) -> list[str]:
        """The ids whose texts aren't known, and the URLs and hosts of which no document was found."""
        return sorted(((self.ids | self.met) - self.with_text) | self.unmet)


def plan_takedown(console: Console, store: Store, wish: Wish, within: str | None, as_json: bool) -> None:
    """Print the edit, the artifacts that have to do with the documents, what is like them, and the stages that would be
    made again. Raises ConfigError, StoreError, DamagedArtifact."""
    everything, damaged = manifests_of(store)
    manifests = lineage_of(store, refs.resolve(store, within)) if within else everything
    damaged += gaps(store, manifests)
    subject = _subject(store, everything, wish)
    with console.status("Reading documents …") as status:
        found = list(trace(store, manifests, subject.named))
        searched = _search(store, everything, manifests, subject, wish, status.update, _is_text_of_people)
    further: dict[str, Finding] = {}
    elsewhere = []
    for finding in searched.findings:
        if not SHARD.fullmatch(finding.file):
            elsewhere.append(finding)
        elif finding.kind != EXACT:
            further.setdefault(finding.row, finding)
    again = list(dict.fromkeys(manifests[one.location].stage for one in found))
    if as_json:
        said = {
            "exclude": sorted(subject.named.items),
            "further": [_as_json(one) for one in further.values()],
            "elsewhere": [_as_json(one) for one in elsewhere],
            "artifacts": [one.as_json() for one in found],
            "again": again,
            "without_text": subject.without_text,
            "not_searched": [*searched.unknown, *damaged],
        }
        print(json.dumps(said, indent=1))
        return
    console.print("Add to the profile:\n\ndownload:\n  exclude:")
    console.print("\n".join(f"    - {escape(item)}" for item in sorted(subject.named.items)))
    if further:
        console.print("    # and, if they are to go too:")
        for finding in further.values():
            console.print(escape(f"    - {finding.row}  # {_said(finding)}: {finding.quotation[:60]}"))
    console.print()
    if found:
        console.print(table_of(found))
    else:
        where = " that can be searched" if damaged else ""
        console.print(f"No artifact{where} holds it, and none learned from it.")
    _print_findings(console, elsewhere, "Also in texts that `exclude` doesn't reach")
    if again:
        console.print(
            f"\nThe next run makes these again: {', '.join(again)}. Those that work shard by shard take the shards "
            "without it from before."
        )
    _warn(console, subject, wish, searched, damaged)
    ref = within or "REF"
    console.print(f"After the run: gristmill forget {_arguments(wish)} --verify {ref}{_at(store)}")


def prove_takedown(console: Console, store: Store, wish: Wish, ref: str, as_json: bool) -> bool:
    """Search the lineage of an artifact, and print what is found, and what of the old is left elsewhere. Returns
    whether it is proved that nothing is left in the lineage. Raises ConfigError, StoreError, and DamagedArtifact, which
    names what can't be searched."""
    everything, damaged = manifests_of(store)
    lineage = lineage_of(store, refs.resolve(store, ref))
    subject = _subject(store, everything, wish)
    with console.status("Reading documents …") as status:
        searched = _search(store, everything, lineage, subject, wish, status.update)
        damaged += gaps(store, everything)
        others = {at: whole for at, whole in everything.items() if at not in lineage or whole != lineage[at]}
        known = {**lineage, **others}
        left = [one for one in trace(store, known, subject.named) if one.location in others]
    held = [one for one in searched.findings if not one.in_benchmark]
    questions = [one for one in searched.findings if one.in_benchmark]
    proved = not held and not searched.unknown and (wish.exact or not subject.without_text)
    remains = _remains(store, everything, left)
    folders = [*(store.local / "work").glob("*"), *(store.local / "branches").glob("*/*")]
    unfinished = sorted(path.name for path in folders)
    if as_json:
        said = {
            "proved": proved,
            "findings": [_as_json(one) for one in held],
            "benchmarks": [_as_json(one) for one in questions],
            "without_text": [] if wish.exact else subject.without_text,
            "searched": {"artifacts": len(lineage), "files": searched.files, "unread": dict(searched.unread)},
            "not_searched": searched.unknown,
            "left": [one.as_json() for one in left],
            "kept_by": {name: keeper._asdict() for name, keeper in remains.items()},
            "unfinished": unfinished,
            "not_searched_elsewhere": damaged,
        }
        print(json.dumps(said, indent=1))
        return proved
    _print_findings(console, held, "Found")
    _print_findings(console, questions, "In questions of benchmarks, from which nothing learns")
    _warn(console, subject, wish, searched, damaged)
    if proved:
        how = "of this id, URL or host" if wish.exact else "of it, like it or made from it"
        console.print(f"Nothing {how} is in the {searched.files:,} files of {len(lineage)} artifacts of {escape(ref)}.")
    elif not held:
        why = "some files can't be searched" if searched.unknown else "of some only the id, URL or host was sought"
        console.print(f"Not proved: {why}. Nothing was found.", style="bold red")
    if left:
        console.print("\nOutside this lineage the store still has:")
        console.print(table_of(left))
        for remedy in _remedies(store, remains):
            console.print(escape(remedy))
    if unfinished:
        console.print(f"Unfinished work isn't searched, and may have its text: {escape(', '.join(unfinished))}")
    if left or unfinished:
        console.print(f"Then remove what no ref needs: gristmill store gc --delete{_at(store)}")
    return proved


def _subject(store: Store, manifests: Mapping[str, Manifest], wish: Wish) -> Subject:
    """The documents with those that were made from them, directly or in several steps."""
    items = list(wish.items)
    if wish.text is not None:
        items.append(document_id(_read(wish.text)))
    named = exclusion_of(items)
    ids = {item for item in named.items if kind_of(item) == "id"}
    return Subject(named, ids, set() if wish.text else set(named.items - ids))  # a text is that of the one named


def _search(
    store: Store,
    everything: Mapping[str, Manifest],
    manifests: Mapping[str, Manifest],
    subject: Subject,
    wish: Wish,
    tell: Callable[[str], None],
    wanted: Callable[[str], bool] = lambda name: True,
) -> Searched:
    """One search for each portion of the documents' texts, and at least one."""
    sources = _family(store, everything, subject)
    total = Searched([], 0, 0, Counter(), [])
    dedup = _dedup_of(manifests)
    threshold = dedup.threshold if wish.similarity is None else wish.similarity
    seen: set[tuple[str, str, str]] = set()
    for number, versions in enumerate(_portions(store, everything, subject, wish)):
        if number and not versions:
            break
        likeness = None
        if versions and not wish.exact:
            likeness = Likeness(versions, ngram=dedup.sketch.ngram, threshold=threshold, run=wish.words)
            subject.short |= likeness.short
        searched = search(store, manifests, Aim(subject.named, sources, likeness), tell, wanted)
        new = [one for one in searched.findings if (one.location, one.file, one.row) not in seen]
        seen |= {(one.location, one.file, one.row) for one in new}
        total = searched._replace(findings=total.findings + new, dropped=total.dropped + searched.dropped)
    return total


def _family(store: Store, manifests: Mapping[str, Manifest], subject: Subject) -> frozenset[str]:
    """The ids of the documents, and of all that were made from them, in several steps too."""
    made: dict[str, set[str]] = {}
    for _, _, batch in _batches(store, manifests, ["id", "source", "metadata"]):
        here = named_rows(batch, subject.named)
        subject.met |= set(batch["id"].filter(here).to_pylist())
        for metadata in batch["metadata"].filter(here).to_pylist() if subject.unmet else ():
            subject.unmet -= set(subject.named.items_of(json.loads(metadata or "{}")))
        marked = batch.filter(pc.match_substring(batch["metadata"], f'"{MADE}"'))
        for identity, metadata in zip(marked["id"].to_pylist(), marked["metadata"].to_pylist(), strict=True):
            for source in sources_of(json.loads(metadata)):
                made.setdefault(source, set()).add(identity)
    family = subject.ids | subject.met
    new = family
    while new:
        new = {child for parent in new for child in made.get(parent, ())} - family
        family = family | new
    return frozenset(family)


def _portions(store: Store, manifests: Mapping[str, Manifest], subject: Subject, wish: Wish) -> Iterator[list[Version]]:
    """The documents' texts, each version once, some at a time. At least one portion, which may be empty."""
    portion: list[Version] = []
    size = 0
    seen: set[str] = set()
    texts = _versions(store, manifests, subject.named)
    if wish.text is not None:
        text = _read(wish.text)
        portion.append(Version(document_id(text), text))
        subject.with_text |= subject.ids  # it is the text of the one document that is named
    for version in texts if not wish.exact else ():
        subject.with_text.add(version.id)
        digest = document_id(version.text)
        if digest in seen:
            continue
        seen.add(digest)
        portion.append(version)
        size += len(version.text)
        if size >= PORTION:
            yield portion
            portion, size = [], 0
    if portion or not seen:
        yield portion


def _versions(store: Store, manifests: Mapping[str, Manifest], named: Exclusion) -> Iterator[Version]:
    for path, first, batch in _batches(store, manifests, columns_for(named)):
        rows = first + np.flatnonzero(named_rows(batch, named))
        for start, whole in read_batches(path, ["id", "text"], holding=rows.tolist()) if len(rows) else ():
            chosen = whole.take(pa.array(rows[(rows >= start) & (rows < start + len(whole))] - start))
            yield from map(Version, chosen["id"].to_pylist(), chosen["text"].to_pylist())


def _batches(
    store: Store, manifests: Mapping[str, Manifest], columns: list[str]
) -> Iterator[tuple[Path, int, pa.RecordBatch]]:
    """(shard, first row, batch) of all documents, each shard once."""
    seen = set()
    for location, manifest in manifests.items():
        names = [name for name, entry in manifest.files.items() if SHARD.fullmatch(name) and entry.sha256 not in seen]
        artifact = store.get(location, hashed=False) if names else None
        for name in names if artifact else ():
            assert artifact is not None
            seen.add(manifest.files[name].sha256)
            path = artifact.file(name)
            artifact.check_bytes(path)
            for first, batch in read_batches(path, columns):
                yield path, first, batch


def _dedup_of(manifests: Mapping[str, Manifest]) -> DedupConfig:
    """The settings of the newest dedup among artifacts, or the defaults."""
    made = [manifest for manifest in manifests.values() if manifest.stage == "dedup"]
    if not made:
        return DedupConfig()
    newest = max(made, key=lambda manifest: manifest.created)
    return DedupConfig.model_validate(newest.payload.config)


def _remains(store: Store, manifests: Mapping[str, Manifest], left: Sequence[Traced]) -> dict[str, Keeper]:
    """What the newest version of a ref needs of these artifacts, by the ref. A collection keeps those."""
    twin = functools.cache(store.twin)
    locations = {one.location for one in left}
    kept = {}
    for name in refs.names(store) if locations else ():
        needed: set[str] = set()
        refresh = set()
        waiting = {twin(refs.history(store, name)[-1].location)}
        while waiting:
            needed |= waiting
            above = {at: _above(manifests[at], twin) for at in waiting if at in manifests}
            refresh |= {manifests[at].stage for at, of in above.items() if at not in locations and of & locations}
            waiting = {at for of in above.values() for at in of} - needed
        if needed & locations:
            kept[name] = Keeper(sorted(needed & locations), sorted(refresh))
    return kept


def _above(manifest: Manifest, twin: Callable[[str], str]) -> set[str]:
    return {twin(one.location) for one in (*manifest.origins.values(), *manifest.uses.values())}


def _remedies(store: Store, remains: Mapping[str, Keeper]) -> Iterator[str]:
    """A sentence for the refs of each profile and stages to make again."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for name, keeper in remains.items():
        groups.setdefault((name.partition("/")[0], bool(keeper.refresh)), []).append(name)
    for (profile, by_pairs), names in groups.items():
        many = len(set().union(*(remains[name].locations for name in names)))
        paths = " ".join(store.address(f"refs/{name}.json") for name in names)
        stages = sorted(set().union(*(remains[name].refresh for name in names)))
        again = " ".join(f"--refresh {stage}" for stage in stages)
        remedy = f"run {profile} with the same edit" + (f" and {again}" if by_pairs else "")
        why = ", as pairs or questions were read there" if by_pairs else ""
        yield f"Kept by {', '.join(names)}: {many} of them{why}. To release them, {remedy}, or delete {paths}"


def _print_findings(console: Console, findings: Sequence[Finding], title: str) -> None:
    if not findings:
        return
    table = new_table("", "artifact", "file", "row", "quotation", title=f"{title}: {len(findings):,}")
    for one in findings[:SHOWN]:
        cells = (_said(one), short(one.location), one.file, one.row, one.quotation)
        table.add_row(*map(escape, cells))
    console.print(table)
    if len(findings) > SHOWN:
        console.print(f"and {len(findings) - SHOWN:,} more (--json lists them)")


def _warn(console: Console, subject: Subject, wish: Wish, searched: Searched, damaged: Sequence[str]) -> None:
    if lacking := [] if wish.exact else subject.without_text:
        named = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        console.print(
            f"The text of {escape(named)} is in no artifact, so near-duplicates and quotations of it can't be searched "
            "for. Give it by --text FILE.",
            style="yellow",
        )
    if subject.short:
        console.print(
            f"{len(subject.short):,} of the documents have fewer than {wish.words} words. Of those only the whole text "
            "counts as a quotation.",
            style="yellow",
        )
    if searched.dropped:
        console.print(f"{searched.dropped:,} more findings are in files that have very many.", style="yellow")
    if searched.unread:
        endings = ", ".join(f"{number:,} {ending}" for ending, number in searched.unread.most_common())
        console.print(f"Not searched, as they have no text: {escape(endings)}.", style="dim")
    for problem in [*searched.unknown, *damaged]:
        console.print(f"Not searched: {escape(problem)}", style="yellow")


def _said(finding: Finding) -> str:
    value = KINDS.get(finding.kind, "")
    return f"{finding.kind}, {value.format(finding.value)}" if value else finding.kind


def _as_json(finding: Finding) -> dict[str, Any]:
    return finding._asdict()


def _read(path: Path) -> str:
    try:
        text = path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}.", "Give --text a file in UTF-8.") from error
    if not text.strip():
        raise ConfigError(f"{path} has no text, so nothing is like it.", "Give --text the document's text.")
    return text


def _is_text_of_people(name: str) -> bool:
    """Whether a file has documents, pairs or questions: a plan is about what people wrote."""
    return name.endswith(".jsonl") or bool(SHARD.fullmatch(name))


def _arguments(wish: Wish) -> str:
    text = ["--text", f"{wish.text}"] if wish.text else []
    return shlex.join([*wish.items, *text])


def _at(store: Store) -> str:
    return f" --store {shlex.quote(store.url)}"
