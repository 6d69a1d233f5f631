"""Duplicates: which are found, which one is kept, and that neither order nor workers decide it."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.documents import Document, Verdict, read_documents, read_ledger, shard_name, write_documents
from storage.errors import AccountingError
from tasks.config import Runtime
from tasks.dedup import DedupConfig, dedup
from tasks.dedup.candidates import bands, expected_recall
from tasks.dedup.clusters import Entry, keepers
from tasks.output import Output

WORDS = [f"word{number}" for number in range(400)]


def text_of(seed: int, length: int = 120) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def changed(text: str, *places: int) -> str:
    words = text.split()
    for place in places:
        words[place] = "changed"
    return " ".join(words)


def run(folder: Path, documents: Sequence[Document], *, shards: int = 3, **config: object) -> Output:
    for number in range(shards):
        write_documents(folder / "in" / shard_name(number), documents[number::shards])
    out = Output.at(folder, stage="dedup", runtime=Runtime(workers=1))
    dedup.function(DedupConfig.model_validate(config), Artifact.at(folder / "in"), out)
    return out


def kept(out: Output) -> set[str]:
    return {document.text for path in out.path.glob("documents/*") for document in read_documents(path)}


def ledger(out: Output) -> dict[str, Verdict]:
    return {verdict.id: verdict for path in out.path.glob("ledger/*") for verdict in read_ledger(path)}


def test_exact_and_near_duplicates_go_and_the_ledger_names_the_one_that_is_kept(tmp_path: Path) -> None:
    original, other = text_of(1), text_of(2)
    documents = [
        Document.new(original, "a"),
        Document.new(original.upper().replace(" ", "\n", 9), "a"),  # the same once normalised
        Document.new(original + " and a longer end", "a"),
        Document.new(changed(original, 50), "a"),
        Document.new(other, "a"),
        Document.new(changed(other, *range(0, 120, 8)), "a"),  # every shingle but a few differs
    ]
    out = run(tmp_path, documents)
    assert kept(out) == {documents[2].text, documents[4].text, documents[5].text}
    verdicts = ledger(out)
    assert verdicts[documents[3].id].reason == "near_duplicate"
    assert verdicts[documents[3].id].detail == f"duplicate_of {documents[2].id}"
    assert 0.8 <= (verdicts[documents[3].id].value or 0) < 1
    exact = [verdict for verdict in verdicts.values() if verdict.reason == "exact_duplicate"]
    assert len(exact) == 1
    assert out.counts["documents"] == {
        "in": 6,
        "kept": 3,
        "removed": {"exact_duplicate": 1, "near_duplicate": 2},
        "quarantined": 0,
    }


def test_order_and_shards_decide_nothing(tmp_path: Path) -> None:
    documents = [Document.new(changed(text_of(seed // 3), seed % 3 * 20), "a") for seed in range(60)]
    results = set()
    for shards, seed in ((1, 0), (2, 1), (5, 2)):
        shuffled = documents.copy()
        random.Random(seed).shuffle(shuffled)
        results.add(frozenset(kept(run(tmp_path / str(shards), shuffled, shards=shards))))
    (result,) = results
    assert len(result) == 20


def test_a_trusted_source_is_kept_before_another_of_the_same_length(tmp_path: Path) -> None:
    documents = [Document.new(text_of(1), "web"), Document.new(text_of(1), "book"), Document.new(text_of(3), "web")]
    out = run(tmp_path, documents, source_order=["book"])
    assert {
        d.source for path in out.path.glob("documents/*") for d in read_documents(path) if d.text == text_of(1)
    } == {"book"}


def test_a_source_that_would_lose_nearly_all_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(AccountingError, match="boiler lost 19 of 20"):
        run(tmp_path, [Document.new(text_of(1), "boiler")] * 20, max_removed_share_per_source=0.9)


def test_empty_and_short_documents_are_compared_too(tmp_path: Path) -> None:
    out = run(tmp_path, [Document.new(text, "a") for text in ("one", "one", "two", "one two three four five")])
    assert kept(out) == {"one", "two", "one two three four five"}


def test_the_bands_find_nearly_every_pair_at_the_threshold() -> None:
    count, rows = bands(DedupConfig())
    assert count * rows <= 128
    assert expected_recall(0.8, count, rows) > 0.97
    assert expected_recall(0.9, count, rows) > 0.999


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20), st.randoms())
@settings(max_examples=60, deadline=None)
def test_of_each_component_the_best_is_kept_whatever_the_order_of_edges(
    edges: list[tuple[int, int]], chance: random.Random
) -> None:
    entries = [Entry(row, row % 4, (0, "s"), str(row)) for row in range(12)]
    edges = [(a, b) for a, b in edges if a != b]
    removed = keepers(entries, edges)
    chance.shuffle(edges)
    assert keepers(entries, edges) == removed
    for row, keeper in removed.items():
        assert keeper not in removed
        assert entries[keeper].preference < entries[row].preference
    for first, second in edges:
        assert first in removed or second in removed


def test_labelled_pairs_above_the_threshold_are_found(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shared_data("filters/neardup_labelled")
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    wanted = [pair for pair in pairs if pair["jaccard5"] >= 0.85]
    named = {name for pair in wanted for name in (pair["a"], pair["b"])}
    with gzip.open(folder / "docs.jsonl.gz", "rt") as file:
        rows = [row for row in map(json.loads, file) if row["id"] in named]
    texts = {row["id"]: row["text"] for row in rows}
    documents = [Document.new(text, "labelled") for text in texts.values()]
    out = run(tmp_path, documents, max_removed_share_per_source=1.0)
    gone = set(ledger(out))
    by_name = {name: Document.new(text, "labelled").id for name, text in texts.items()}
    found = [pair for pair in wanted if by_name[pair["a"]] in gone or by_name[pair["b"]] in gone]
    assert len(found) >= 0.97 * len(wanted)
