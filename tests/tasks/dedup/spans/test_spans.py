"""Repeated spans: what is cut, to the byte, and which copy is kept, independently of order and workers."""

from __future__ import annotations

import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.shards.documents import Document, Verdict, read_batches, shard_name, write_documents
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.spans import find, word_kernels
from tasks.dedup.spans.find import cut_spans, find_spans
from tasks.dedup.spans.kinds import kinds_of, scope_of
from tasks.dedup.stage import sketches
from tasks.stage.output import Output
from tasks.text.characters import characters
from tasks.text.scan import utf8
from tests.runtimes import runtime_of

WORDS = [f"word{number}" for number in range(4000)]


def some_words(seed: int, count: int) -> str:
    """This many words. Texts of different seeds share no two consecutive words."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


class Result(NamedTuple):
    documents: list[Document]
    verdicts: dict[str, Verdict]
    spans: list[pa.Table]

    def text(self, document: Document) -> str:
        """What is left of a document."""
        (found,) = (left for left in self.documents if left.id == document.id)
        assert (found.source, found.metadata) == (document.source, document.metadata)
        return found.text


def run(
    folder: Path,
    documents: Sequence[Document],
    *,
    min_words: int = 10,
    asked: dict[str, object] | None = None,
    shards: int = 3,
    workers: int = 1,
    memory: int = 1 << 30,
    removed: Sequence[int] = (),
    earlier: Sequence[Document] = (),
    source_order: Sequence[str] = (),
) -> Result:
    for number in range(shards):
        write_documents(folder / "in" / shard_name(number), documents[number::shards])
    config = DedupConfig.model_validate(asked or {"spans": {"min_words": min_words}})
    config = config.model_copy(update={"source_order": list(source_order)})
    kinds = kinds_of(config)
    out = Output.at(folder, runtime=runtime_of(workers=workers))
    corpus = Corpus()
    corpus.add(Artifact.at(folder / "in"), out.obtain(sketches, config.sketch, Artifact.at(folder / "in")))
    if earlier:
        write_documents(folder / "earlier" / "documents" / shard_name(0), earlier)
        beside = Output.at(folder / "beside")
        sketches.function(config.sketch, Artifact.at(folder / "earlier" / "documents"), beside)
        corpus.add_earlier(Artifact.at(folder / "earlier"), Artifact.at(beside.path))
    gone = np.array(removed, np.int64)
    found = [list(map(pq.read_table, find_spans(config, kind, corpus, gone, memory, out))) for kind in kinds]
    tables = [table for of_kind in found for table in of_kind]
    result = Result([], {}, tables)
    for table in tables:
        rows = table.to_pylist()
        for span, after in pairwise(rows):
            assert (span["place"], span["end"]) <= (after["place"], after["start"])
    for number, shard in enumerate(corpus.own):
        spans = [(kind, of_kind[number]) for kind, of_kind in zip(kinds, found, strict=True)]
        for first, batch in read_batches(shard.documents):
            left, verdicts = cut_spans(batch, first, spans)
            assert left.schema == batch.schema
            result.documents.extend(Document(**row) for row in left.to_pylist())
            result.verdicts.update((verdict.id, verdict) for verdict in verdicts)
    return result


def test_a_paragraph_in_five_documents_stays_in_one_and_all_five_documents_remain(tmp_path: Path) -> None:
    boilerplate = some_words(0, 60)
    ends = [(some_words(seed, 30) + ".\n\n", "\n\n“" + some_words(100 + seed, 20) + "”\n") for seed in range(1, 6)]
    documents = [Document.new(f"{before}{boilerplate}.{after}", "web", page=7) for before, after in ends]
    result = run(tmp_path, documents, min_words=50)
    assert len(result.documents) == 5
    keeper = min(documents, key=lambda document: document.id)
    for document, (before, after) in zip(documents, ends, strict=True):
        if document == keeper:
            assert result.text(document) == document.text
            assert document.id not in result.verdicts
        else:
            assert result.text(document) == before + after.removeprefix("\n\n“")  # up to the next word
            detail = f"words that stand in {keeper.id}"
            assert result.verdicts[document.id] == Verdict(
                document.id, "web", "changed", "repeated_span", 60.0, 50.0, detail
            )


def test_a_span_of_one_word_less_stays_everywhere(tmp_path: Path) -> None:
    documents = [Document.new(f"{some_words(seed, 9)} {some_words(0, 49)} {seed}", "a") for seed in range(1, 5)]
    result = run(tmp_path, documents, min_words=50)
    assert {document.text for document in result.documents} == {document.text for document in documents}
    assert not result.verdicts


def test_punctuation_case_and_white_space_are_no_difference_and_the_bytes_are_right(tmp_path: Path) -> None:
    shared = ["Éclair", "über", "漢字", "naïve", "snake_case", "ΣΊΣΥΦΟΣ", "x2", "Привет", "end", "here"]
    mine = "Cafe\u0301 𝔘nique 漢。字 —\u3000“" + ", ".join(shared).lower() + "”…\u0301 e\u0301te\u0301"
    other = "Déjà (" + "\n\t".join(shared).upper() + ")?! 終わり 🎉"
    documents = [Document.new(mine, "good"), Document.new(other, "bad")]
    assert run(tmp_path / "1", documents, source_order=["good"]).text(documents[1]) == "Déjà (終わり 🎉"
    left = run(tmp_path / "2", documents, source_order=["bad"]).text(documents[0])
    assert left == "Cafe\u0301 𝔘nique 漢。字 —\u3000“e\u0301te\u0301"


def test_a_character_that_folds_to_two_is_itself_and_offsets_are_those_of_the_text(tmp_path: Path) -> None:
    shared = some_words(1, 10)
    documents = [Document.new(f"ŉ ß ﬁ İ {shared} ß", "a"), Document.new(f"ss {shared} straße", "b")]
    assert run(tmp_path, documents, source_order=["b"]).text(documents[0]) == "ŉ ß ﬁ İ ß"
    many = " ".join(["ß"] * 10), " ".join(["ss"] * 10)
    assert not run(tmp_path / "2", [Document.new(text, "a") for text in many]).verdicts


def test_a_span_that_stands_twice_in_one_document_goes_once(tmp_path: Path) -> None:
    shared, between = some_words(0, 12), some_words(1, 15)
    document = Document.new(f"{shared}; {between}: {shared}!", "a")
    result = run(tmp_path, [document])
    assert result.text(document) == f"{shared}; {between}: "
    assert result.verdicts[document.id].detail == f"words that stand in {document.id}"


def test_of_a_repetition_without_end_one_span_stays_whole(tmp_path: Path) -> None:
    documents = [Document.new("no " * 100, "a"), Document.new("No, " * 200 + "yes", "b")]
    result = run(tmp_path, documents, source_order=["a"])
    assert [result.text(document) for document in documents] == ["no " * 10, "yes"]


def test_overlapping_spans_are_joined_and_each_part_names_its_owner(tmp_path: Path) -> None:
    first, middle, last = some_words(1, 12), some_words(2, 12), some_words(3, 12)
    trusted = Document.new(f"{first} {middle} one", "best")
    better = Document.new(f"two {middle} {last}", "better")
    worse = Document.new(f"three {first} {middle} {last} four", "worse")
    result = run(tmp_path, [worse, better, trusted], source_order=["best", "better"])
    assert result.text(trusted) == trusted.text
    assert result.text(better) == f"two {last}"
    assert result.text(worse) == "three four"
    assert result.verdicts[worse.id].value == 36
    assert result.verdicts[worse.id].detail == f"words that stand in {trusted.id}, {better.id}"
    found = pa.concat_tables(result.spans).to_pylist()
    assert [span["units"] for span in found if span["owner"] == better.id] == [12]


def test_a_document_with_nothing_left_is_removed(tmp_path: Path) -> None:
    shared = some_words(0, 30)
    documents = [Document.new(f" \n{shared}. ", "a"), Document.new(f"{shared} and more", "b")]
    result = run(tmp_path, documents, source_order=["b"])
    assert [document.text for document in result.documents] == [documents[1].text]
    verdict = result.verdicts[documents[0].id]
    assert (verdict.verdict, verdict.reason, verdict.value) == ("removed", "repeated_span", 30.0)


def test_a_verdict_names_three_owners_and_counts_the_rest(tmp_path: Path) -> None:
    parts = [some_words(seed, 10) for seed in range(5)]
    owners = [Document.new(f"{part} {seed}", "good") for seed, part in enumerate(parts)]
    everything = Document.new(" stop. ".join(parts), "bad")
    verdict = run(tmp_path, [everything, *owners], source_order=["good"]).verdicts[everything.id]
    assert verdict.detail == f"words that stand in {', '.join(owner.id for owner in owners[:3])} and 2 more"


def test_what_an_earlier_artifact_holds_is_kept_there_whatever_its_source(tmp_path: Path) -> None:
    shared = some_words(0, 20)
    earlier = [Document.new(f"{shared} {seed}", "bad") for seed in range(2)]
    document = Document.new(f"new {shared} end", "good")
    result = run(tmp_path, [document], earlier=earlier, source_order=["good"])
    assert result.text(document) == "new end"
    assert result.verdicts[document.id].detail == f"words that stand in {min(old.id for old in earlier)}"


def test_removed_documents_take_no_part(tmp_path: Path) -> None:
    shared = some_words(0, 20)
    documents = [Document.new(f"{shared} {source}", source) for source in "abcd"]
    rows = [documents[0], documents[2], documents[1], documents[3]]  # of two shards
    result = run(tmp_path, documents, removed=[1, 2], source_order=list("abcd"), shards=2)
    assert [result.text(document) for document in rows] == [document.text for document in rows[:3]] + ["d"]
    assert result.verdicts[documents[3].id].detail == f"words that stand in {documents[0].id}"


def test_what_dedup_removed_is_left_out_with_the_spans(tmp_path: Path) -> None:
    documents = [Document.new(text, "a") for text in ("one", "two", "three")]
    write_documents(tmp_path / shard_name(0), documents)
    ((first, batch),) = read_batches(tmp_path / shard_name(0))
    (kind,) = kinds_of(DedupConfig.model_validate({"spans": {"min_words": 8}}))
    table = {"place": [1], "start": [0], "end": [2], "units": [1], "owner": ["x"]}
    left, verdicts = cut_spans(batch, first, [(kind, pa.table(table))], keep=np.array([True, True, False]))
    assert left["text"].to_pylist() == ["one", "o"]
    assert [verdict.id for verdict in verdicts] == [documents[1].id]


STORIES: dict[str, object] = {"sentences": {"count": 3}}


def test_three_sentences_that_occurred_before_go_and_the_documents_stay(tmp_path: Path) -> None:
    shared = "The river rose. “Was it high?” It was!"
    first = Document.new(f"One began so. {shared} Then it fell.", "good")
    second = Document.new(f"Another\nTHE RIVER rose.\n\nWas it high? (It was.) No more.\n{shared}", "bad")
    two = Document.new("The river rose. Was it high? Nobody knew. It was!", "bad")
    result = run(tmp_path, [two, second, first], asked=STORIES, source_order=["good"])
    assert result.text(first) == first.text
    assert result.text(second) == "Another\nNo more.\n"
    assert result.text(two) == two.text
    verdict = Verdict(
        second.id, "bad", "changed", "repeated_sentences", 6.0, 3.0, f"sentences that stand in {first.id}"
    )
    assert result.verdicts == {second.id: verdict}


def test_chinese_sentences_end_without_a_blank(tmp_path: Path) -> None:
    shared = "河水上涨了。“水位高吗？”很高！"
    documents = [Document.new(f"开始。{shared}后来退了。", "a"), Document.new(f"另一个。{shared}没有了。", "b")]
    result = run(tmp_path, documents, asked=STORIES, source_order=["a"])
    assert [result.text(document) for document in documents] == [documents[0].text, "另一个。没有了。"]


def test_of_one_sentence_without_end_some_stay(tmp_path: Path) -> None:
    result = run(tmp_path, [Document.new("No. " * 100, "a"), Document.new("..! 3.5 x.y ***\n\n", "a")], asked=STORIES)
    assert sorted(document.text for document in result.documents) == ["..! 3.5 x.y ***\n\n", "No. No. No. "]


def test_a_line_that_a_host_repeats_stays_once_and_other_hosts_keep_theirs(tmp_path: Path) -> None:
    def page(host: str, number: int, foot: str) -> Document:
        return Document.new(f"Page {number} of {host}\n  {foot}\n***\n", "web", url=f"https://www.{host}:80/{number}")

    many = [page("a.org", number, "Follow us - now!") for number in range(4)]
    few = [page("b.org", number, "FOLLOW us, now") for number in range(2)]
    bare = [Document.new(f"Note {number}\nFollow us now", "web") for number in range(3)]
    documents = [*many, *few, *bare]
    result = run(tmp_path, documents, asked={"lines": {"documents": 3}})
    changed = {document.id for document in documents if result.text(document) != document.text}
    keepers = {min(document.id for document in some) for some in (many, bare)}
    assert changed == {document.id for document in (*many, *bare)} - keepers
    assert result.text(max(many, key=lambda document: document.id)).endswith(" of a.org\n  ")
    assert {v.reason for v in result.verdicts.values()} == {"repeated_line"}
    told = {(v.value, v.threshold, v.detail) for v in result.verdicts.values()}
    assert told == {(1.0, 1.0, f"lines of 3 documents or more that stand in {keeper}") for keeper in keepers}
    by_source = run(tmp_path / "2", documents, asked={"lines": {"documents": 9, "by": "source"}})
    assert len(by_source.verdicts) == 8
    assert not run(tmp_path / "3", documents, asked={"lines": {"documents": 10, "by": "source"}}).verdicts


def test_a_line_that_one_document_repeats_is_no_hosts(tmp_path: Path) -> None:
    documents = [Document.new("la la la\n" * 9 + str(number), "a") for number in range(2)]
    assert not run(tmp_path, documents, asked={"lines": {"documents": 3}}).verdicts


@pytest.mark.parametrize(
    ("metadata", "scope"),
    [
        ('{"url": "https://www.Example.org/a?b"}', "host example.org"),
        ('{"meta": {"uri": "example.org:8/x"}}', "host example.org"),
        ('{"url": 3, "link": "http://[::1/"}', "source s"),
        ("{}", "source s"),
        ("[1", "source s"),
        ("[1]", "source s"),
        ('{"url": ""}', "source s"),
    ],
)
def test_the_host_is_that_of_the_address(metadata: str, scope: str) -> None:
    assert scope_of("s", metadata, "host") == scope
    assert scope_of("s", metadata, "source") == "source s"


def test_what_several_kinds_find_is_cut_once_and_told_by_each(tmp_path: Path) -> None:
    shared = "The river rose here. Was it so high? It was, and more than that."
    documents = [Document.new(f"{number}\n{shared}\n", "a") for number in range(3)]
    asked: dict[str, object] = {
        "sentences": {"count": 2},
        "lines": {"documents": 2, "by": "source"},
        "spans": {"min_words": 8},
    }
    result = run(tmp_path, documents, asked=asked)
    last = max(documents, key=lambda document: document.id)
    assert result.text(last) == last.text.split("\n")[0] + "\n"
    assert result.text(min(documents, key=lambda document: document.id)).endswith(f"{shared}\n")


@pytest.mark.parametrize("asked", [None, {"sentences": {"count": 1}}, {"lines": {"documents": 2, "by": "source"}}])
@pytest.mark.parametrize("seed", [1, 2])
def test_order_shards_workers_and_memory_decide_nothing(
    tmp_path: Path, seed: int, asked: dict[str, object] | None
) -> None:
    draw = random.Random(seed)
    passages = [some_words(number, draw.randrange(8, 40)) for number in range(12)]
    texts = ["\n".join([*draw.sample(passages, 4), f"{number}."]) for number in range(60)]
    documents = [Document.new(text, draw.choice("abc")) for text in texts]
    results = set()
    for shards, workers, memory in ((1, 1, 1 << 30), (4, 2, 1 << 30), (7, 8, 1 << 18), (3, 2, 1 << 15)):
        draw.shuffle(documents)
        folder = tmp_path / f"{shards}-{workers}"
        result = run(folder, documents, shards=shards, workers=workers, memory=memory, source_order=["b"], asked=asked)
        results.add((frozenset(result.documents), frozenset(result.verdicts.values())))
    assert len(results) == 1
    ((left, verdicts),) = results
    assert len(left) == len(documents)
    assert len(verdicts) > 40


@given(
    st.lists(
        st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("a _é字\u0301ßǅ"))), min_size=1
    )
)
def test_words_start_where_python_finds_them(texts: list[str]) -> None:
    hashes, starts, ends = word_kernels.find_words(*utf8(pa.array(texts, pa.string())), *characters(True, True))
    begins = np.concatenate(([0], ends[:-1]))
    seen: dict[int, str] = {}
    for number, text in enumerate(texts):
        found = list(re.finditer(r"\w+", text))
        wanted = [len(text[: word.start()].encode()) for word in found]
        begin, end = begins[number] + number, ends[number] + number
        assert starts[begin : end + 1].tolist() == [*wanted, len(text.encode())]
        for key, word in zip(hashes[begins[number] : ends[number]].tolist(), found, strict=True):
            folded = "".join(c if len(c.casefold()) > 1 else c.casefold() for c in word.group())
            assert seen.setdefault(key, folded) == folded
    assert len(set(seen.values())) == len(seen)


SIZE = 8
Place = tuple[str, int]  # a document's id, and the number of a word in it


@st.composite
def small_corpora(draw: st.DrawFn) -> list[Document]:
    """Texts of a few words, combined from the same fragments."""
    word = st.sampled_from(["a", "B", "é", "字"])
    fragments = draw(st.lists(st.lists(word, min_size=1, max_size=14), min_size=1, max_size=4))
    texts = draw(st.lists(st.lists(st.sampled_from(fragments), max_size=6), min_size=1, max_size=5))
    gap = random.Random(draw(st.integers(0, 9)))
    return [
        Document.new(
            gap.choice(["", "“", " "])
            + "".join(
                gap.choice([word, word.upper()]) + gap.choice([" ", ", ", "\n\n", "—"])
                for fragment in text
                for word in fragment
            )
            + f"{number}",
            "s",
        )
        for number, text in enumerate(texts)
    ]


class Reference:
    """Owners and cuts by brute force over strings."""

    def __init__(self, documents: list[Document]) -> None:
        self.words = {d.id: [w.group().casefold() for w in re.finditer(r"\w+", d.text)] for d in documents}
        self.windows: dict[tuple[str, ...], list[Place]] = {}
        for identity, words in sorted(self.words.items()):
            for number in range(len(words) - SIZE + 1):
                self.windows.setdefault(tuple(words[number : number + SIZE]), []).append((identity, number))
        self.marked: dict[Place, Place] = {}  # windows that are to go, and their owners
        for owner, *others in self.windows.values():
            self.marked.update((o, owner) for o in others if o[0] != owner[0] or o[1] >= owner[1] + SIZE)
        self.cut = {(identity, first + k) for identity, first in self.marked for k in range(SIZE)}

    def text(self, document: Document) -> str:
        """What is left of a document."""
        places = [word.start() for word in re.finditer(r"\w+", document.text)]
        pieces = [document.text[: places[0]]]
        for number, (start, end) in enumerate(zip(places, [*places[1:], len(document.text)], strict=True)):
            if (document.id, number) not in self.cut:
                pieces.append(document.text[start:end])
        return "".join(pieces)

    def followed(self, place: Place) -> Iterator[Place]:
        """Follow a word to the same word in the window that owns one of its windows, until there is none."""
        yield place
        while place in self.cut:
            identity, word = place
            first = next(n for n in range(word - SIZE + 1, word + 1) if (identity, n) in self.marked)
            owner, owner_first = self.marked[identity, first]
            place = owner, owner_first + word - first
            yield place


def test_a_shard_is_worked_through_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "PORTION", 1 << 17)
    draw = random.Random(1)
    passages = [some_words(number, 12) for number in range(900)]
    texts = [f"{number} é {draw.choice(passages)} — {draw.choice(passages)}" for number in range(5000)]
    documents = [Document.new(text, "s") for text in texts]
    reference = Reference(documents)
    result = run(tmp_path, documents, min_words=SIZE, shards=1)
    assert {d.id: d.text for d in result.documents} == {d.id: reference.text(d) for d in documents}


@given(small_corpora())
@settings(max_examples=60)
def test_no_window_is_left_in_two_places_and_no_word_is_lost(documents: list[Document]) -> None:
    """Equal windows that remain overlap, and what was cut is found by following its owners.

    Windows across a cut are new: they may be equal to others, and no run of the original had them.
    """
    reference = Reference(documents)
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), documents, min_words=SIZE, shards=2)
    assert Counter(d.text for d in result.documents) == Counter(reference.text(d) for d in documents)
    assert sum(v.value or 0 for v in result.verdicts.values()) == len(reference.cut)
    for places in reference.windows.values():
        whole = [(i, n) for i, n in places if not any((i, n + k) in reference.cut for k in range(SIZE))]
        assert all(i == whole[0][0] and n < whole[0][1] + SIZE for i, n in whole)
    for place in reference.cut:
        *passed, last = reference.followed(place)
        assert last not in reference.cut
        assert len({reference.words[i][n] for i, n in [*passed, last]}) == 1
