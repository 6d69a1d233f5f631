"""Duplicates: which are found, and which one is kept, independently of order, workers and memory."""

from __future__ import annotations

import hashlib
import random
import unicodedata
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.artifact import Artifact
from storage.errors import AccountingError, ConfigError
from storage.shards.documents import Document, Verdict, read_documents, read_ledger, shard_name, write_documents
from storage.store import Store
from tasks.dedup import DedupConfig, dedup
from tasks.dedup.corpus import Corpus
from tasks.dedup.forecast import forecast_dedup
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, open_session
from tests.conftest import DATA
from tests.runtimes import runtime_of

WORDS = [f"word{number}" for number in range(400)]
ANY_SHARE: dict[str, Any] = {"max_removed_share_per_source": 1.0}


def text_of(seed: int, length: int = 120) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def changed(text: str, *places: int) -> str:
    words = text.split()
    for place in places:
        words[place] = "changed"
    return " ".join(words)


def write(folder: Path, documents: Sequence[Document], shards: int = 3) -> Artifact:
    for number in range(shards):
        write_documents(folder / shard_name(number), documents[number::shards])
    return Artifact.at(folder)


def run(
    folder: Path, documents: Sequence[Document], *, shards: int = 3, runtime: Runtime | None = None, **config: object
) -> Output:
    out = Output.at(folder, stage="dedup", runtime=runtime or runtime_of(workers=1))
    dedup.function(DedupConfig.model_validate(config), write(folder / "in", documents, shards), out)
    return out


def kept(out: Output) -> set[str]:
    return {document.text for path in out.path.glob("documents/*") for document in read_documents(path)}


def ledger(out: Output) -> dict[str, Verdict]:
    return {verdict.id: verdict for path in out.path.glob("ledger/*") for verdict in read_ledger(path)}


def digests(out: Output) -> dict[str, str]:
    files = sorted(path for path in out.path.rglob("*") if path.is_file())
    return {str(path.relative_to(out.path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def jaccard(first: str, second: str, n: int = 5) -> float:
    sets = [{tuple(words[i : i + n]) for i in range(len(words) - n + 1)} for words in (first.split(), second.split())]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def corpus(families: int = 40, seed: int = 0) -> list[Document]:
    """Families of near-duplicates of varying similarity, exact copies, and unique texts."""
    chance = random.Random(seed)
    documents = []
    for family in range(families):
        text = text_of(family)
        documents.append(Document.new(text, chance.choice("ab")))
        for _ in range(chance.randrange(4)):
            places = chance.sample(range(120), chance.randrange(12))
            documents.append(Document.new(changed(text, *places), chance.choice("ab")))
    return documents


def test_near_duplicates_go_and_the_ledger_names_the_one_that_is_kept(tmp_path: Path) -> None:
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
    for place in (0, 1, 3):
        verdict = verdicts[documents[place].id]
        assert (verdict.verdict, verdict.reason, verdict.threshold) == ("removed", "near_duplicate", 0.8)
        assert verdict.detail == f"duplicate_of {documents[2].id}"
        assert verdict.value == pytest.approx(jaccard(documents[place].text.lower(), documents[2].text))
    assert out.counts["documents"] == {"in": 6, "kept": 3, "removed": {"near_duplicate": 3}, "quarantined": 0}


def test_exact_copies_are_named_so(tmp_path: Path) -> None:
    text = text_of(1)
    documents = [Document.new(text, "a"), Document.new(text.replace(" ", "  "), "a"), Document.new(text.title(), "b")]
    out = run(tmp_path, documents, **ANY_SHARE)
    assert kept(out) == {documents[0].text}  # without double spaces; of equal ones the first source
    assert {(verdict.reason, verdict.value) for verdict in ledger(out).values()} == {("exact_duplicate", 1.0)}


def test_what_is_ignored_is_the_profiles_choice(tmp_path: Path) -> None:
    documents = [Document.new(text, "a") for text in (text_of(1), text_of(1).upper())]
    assert len(kept(run(tmp_path / "case", documents, sketch={"ignore_case": False}))) == 2
    assert len(kept(run(tmp_path / "no-case", documents))) == 1


def test_a_corpus_without_duplicates_passes_whole(tmp_path: Path) -> None:
    documents = [Document.new(text_of(seed), "a") for seed in range(9)]
    out = run(tmp_path, documents)
    assert kept(out) == {document.text for document in documents}
    assert ledger(out) == {}


def test_a_link_through_others_is_told(tmp_path: Path) -> None:
    first = text_of(1) + " end"
    documents = [first, changed(first, 20), changed(first, 20, 60), changed(first, 20, 60, 100)]
    assert jaccard(first, documents[3]) < 0.8 <= jaccard(documents[2], documents[3])
    out = run(tmp_path, [Document.new(text, "a") for text in documents])
    assert len(kept(out)) == 1
    for verdict in ledger(out).values():
        assert verdict.value is not None
        assert verdict.detail.endswith(", through documents between them") == (verdict.value < 0.8)


def test_neither_workers_nor_memory_nor_a_buckets_size_change_a_byte(tmp_path: Path) -> None:
    documents = corpus()
    runtimes = [runtime_of(workers=workers) for workers in (1, 2, 8)]
    runtimes.append(runtime_of(workers=1).with_changes("data", memory_limit=2_000))  # less than a profile may say
    results = [
        digests(run(tmp_path / f"runtime{number}", documents, shards=5, runtime=runtime))
        for number, runtime in enumerate(runtimes)
    ]
    results.append(digests(run(tmp_path / "large", documents, shards=5, bucket_pairs=2)))
    assert all(result == results[0] for result in results)


def test_permuted_shards_give_the_same_bytes(tmp_path: Path) -> None:
    documents = corpus() + corpus()[:30]  # equal documents in several shards, too
    first = run(tmp_path / "first", documents, shards=4)
    order = [2, 0, 3, 1]
    permuted = tmp_path / "permuted"
    permuted.mkdir()
    for number, old in enumerate(order):
        (permuted / shard_name(number)).write_bytes((tmp_path / "first/in" / shard_name(old)).read_bytes())
    second = Output.at(tmp_path / "second", stage="dedup", runtime=runtime_of(workers=1))
    dedup.function(DedupConfig(), Artifact.at(permuted), second)
    renamed = {
        f"{folder}/{shard_name(number)}": digests(first)[f"{folder}/{shard_name(old)}"]
        for folder in ("documents", "ledger", "copies")
        for number, old in enumerate(order)
    }
    assert digests(second) == renamed


def test_order_decides_nothing(tmp_path: Path) -> None:
    documents = corpus()
    results = set()
    for shards, seed in ((1, 0), (2, 1), (5, 2)):
        shuffled = documents.copy()
        random.Random(seed).shuffle(shuffled)
        results.add(frozenset(kept(run(tmp_path / str(shards), shuffled, shards=shards))))
    assert len(results) == 1


@pytest.mark.parametrize("bucket_pairs", [2, 64])
def test_two_pairs_that_share_a_bucket_stay_two(tmp_path: Path, bucket_pairs: int) -> None:
    """(a, b) and (c, d) are duplicates; a and c are similar enough to share a bucket, but are not duplicates."""
    shared = text_of(0, 300)
    first, second = shared + " " + text_of(1, 60), shared + " " + text_of(2, 60)
    documents = [first, changed(first, 350), second, changed(second, 350)]
    assert jaccard(first, second) < 0.8 <= jaccard(first, documents[1])
    out = run(tmp_path, [Document.new(text, "a") for text in documents], bucket_pairs=bucket_pairs)
    assert out.counts["candidates"] > 2  # they did meet
    assert len(kept(out)) == 2
    texts = {Document.new(text, "a").id: text for text in documents}
    for identity, verdict in ledger(out).items():
        keeper = verdict.detail.removeprefix("duplicate_of ")
        assert jaccard(texts[identity], texts[keeper]) >= 0.8


@pytest.mark.soak
def test_a_bucket_of_50000_near_identical_documents_is_one_cluster(tmp_path: Path) -> None:
    words = text_of(1, 40).split()
    texts = [" ".join([*words[:20], f"number{row}", *words[20:]]) for row in range(49_990)] + [" ".join(words)] * 10
    documents = [Document.new(text, "boilerplate") for text in texts]
    out = run(tmp_path, [*documents, Document.new(text_of(2), "boilerplate")], threshold=0.7, **ANY_SHARE)
    assert len(kept(out)) == 2
    assert out.counts["candidates"] < 4 * len(documents)  # not the 1.25 billion pairs of a self-join


def test_a_trusted_source_is_kept_before_another_of_the_same_length(tmp_path: Path) -> None:
    documents = [Document.new(text_of(1), "web"), Document.new(text_of(1), "book"), Document.new(text_of(3), "web")]
    out = run(tmp_path, documents, source_order=["book"], **ANY_SHARE)
    assert {
        d.source for path in out.path.glob("documents/*") for d in read_documents(path) if d.text == text_of(1)
    } == {"book"}


STORY = "\n\n".join(
    f"Chapter {number}\n\nThe {text_of(number, 30)} café, naïve and “quoted”. "
    + f"So {text_of(number + 9, 25)}, it ended."
    for number in range(4)
)
MENU = "Home\nNews\nSport\nSign in\nAbout us | Contact | Careers | Privacy policy | Terms of use\nShare on Facebook\n"


@pytest.mark.parametrize(
    "copy",
    [
        MENU + STORY + "\nWe use cookies.\nFollow us\nSubscribe\nMost read today\nNewsletter\n",
        STORY.replace(" ", "  "),
        STORY.replace(" the", "\u00a0the").replace("\n\n", " \n\n\n\n"),
        STORY.replace("\n", "\r\n"),
        " ".join(STORY.split()),
        "\n".join(STORY.split()),
        unicodedata.normalize("NFD", STORY),
        STORY.encode().decode("cp1252", "replace"),
        STORY.replace("a", "\ufffd", 2),
        STORY.replace("Chapter", "\x00Chapter"),
        "\ufeff" + STORY,
        STORY[: len(STORY) * 9 // 10],
        STORY[len(STORY) // 10 :],
    ],
)
def test_the_copy_that_needs_no_repair_and_lacks_no_text_is_kept(tmp_path: Path, copy: str) -> None:
    documents = [Document.new(STORY, "a"), Document.new(copy, "a")]
    for number, order in enumerate((documents, documents[::-1])):
        assert kept(run(tmp_path / str(number), order, threshold=0.6, **ANY_SHARE)) == {STORY}
    trusted = [documents[0], Document.new(copy, "book")]
    out = run(tmp_path / "trusted", trusted, threshold=0.6, source_order=["book"], **ANY_SHARE)
    assert kept(out) == {copy}, "a trusted source comes before all"


@pytest.mark.parametrize(("text", "differs"), [(STORY, False), (STORY, True), (STORY[:600], False)])
def test_a_text_in_lines_is_kept_before_one_that_lost_them(tmp_path: Path, text: str, differs: bool) -> None:
    """Also if the first has some doubled blanks, as one that is joined has not."""
    lines = text.replace(" word1", "  word1", 4 if len(text) > 1000 else 0)
    joined = " ".join(text.split())
    documents = [Document.new(lines, "a"), Document.new(joined.replace("it ended", "it began", differs), "a")]
    for number, order in enumerate((documents, documents[::-1])):
        assert kept(run(tmp_path / str(number), order, threshold=0.6, **ANY_SHARE)) == {lines}


@pytest.mark.parametrize("character", "\u00ad\u200b\u200c\u200d\u2060\ufeff")
def test_characters_that_are_not_seen_hide_no_copy(tmp_path: Path, character: str) -> None:
    hidden = "".join(f"{letter}{character}" for letter in text_of(1))
    out = run(tmp_path, [Document.new(text_of(1), "a"), Document.new(hidden, "a")], **ANY_SHARE)
    assert kept(out) == {text_of(1)}
    assert out.counts["documents"]["removed"] == {"exact_duplicate": 1}
    out = run(tmp_path / "near", [Document.new(text_of(1), "a"), Document.new(f"x {hidden}", "a")], **ANY_SHARE)
    assert out.counts["documents"]["removed"] == {"near_duplicate": 1}


def test_where_all_copies_came_from_is_kept(tmp_path: Path) -> None:
    text = text_of(1)
    documents = [Document.new(text, "web", url=f"https://a/{number}") for number in range(3)]
    documents += [Document.new(text.upper(), "books", page=1), Document.new(changed(text, 60), "web", url="https://b")]
    documents.append(Document.new(text_of(2), "web"))
    out = run(tmp_path, documents, source_order=["books"], **ANY_SHARE)
    copies = pa.concat_tables(pq.read_table(path) for path in sorted(out.path.glob("copies/*"))).to_pylist()
    assert {(row["kept"], row["kept_source"]) for row in copies} == {(documents[3].id, "books")}
    assert sorted((row["id"], row["metadata"], row["reason"]) for row in copies) == sorted(
        (d.id, d.metadata, "near_duplicate" if "https://b" in d.metadata else "exact_duplicate")
        for d in (*documents[:3], documents[4])
    )
    assert out.counts["tables"]["Copies by source"] == [
        {"kept of": "books", "copy of": "web", "reason": "exact_duplicate", "documents": 3},
        {"kept of": "books", "copy of": "web", "reason": "near_duplicate", "documents": 1},
    ]


def test_of_verse_the_whole_is_kept(tmp_path: Path) -> None:
    verse = "\n".join(text_of(number, 4) for number in range(40))
    documents = [Document.new(verse, "a"), Document.new(verse.rsplit("\n", 3)[0], "a")]
    assert kept(run(tmp_path, documents)) == {verse}


def test_a_source_that_would_lose_nearly_all_ends_the_run_with_the_table(tmp_path: Path) -> None:
    with pytest.raises(AccountingError, match=r"boiler lost 19 of 20(?s:.*)\| boiler \| 20 \| 19 \| 1 \| 5.0 \|"):
        run(tmp_path, [Document.new(text_of(1), "boiler")] * 20, max_removed_share_per_source=0.9)


def test_empty_and_short_documents_are_compared_too(tmp_path: Path) -> None:
    out = run(tmp_path, [Document.new(text, "a") for text in ("", "one", "one", "two", "one two three four five")])
    assert kept(out) == {"", "one", "two", "one two three four five"}


@pytest.mark.parametrize("alphabet", ["\u4e00\u9fff", "\u0e01\u0e2e", "\u1780\u17a2", "\u0e94\u0e95"])
def test_copies_with_three_changed_characters_are_found_in_scripts_without_spaces(
    tmp_path: Path, alphabet: str
) -> None:
    draw = random.Random(1)
    letters = [chr(code) for code in range(ord(alphabet[0]), ord(alphabet[1]) + 1) if chr(code).isalpha()] * 9
    texts = ["".join(draw.choices(letters, k=400)) for _ in range(2)]
    copy = "".join("x" if place in (50, 200, 333) else letter for place, letter in enumerate(texts[0]))
    out = run(tmp_path, [Document.new(text, "a") for text in (*texts, copy)])
    assert len(kept(out)) == 2
    (verdict,) = ledger(out).values()
    assert verdict.reason == "near_duplicate"
    assert verdict.value is not None
    assert verdict.value > 0.9


@pytest.mark.skipif(not DATA.exists(), reason="the texts lie beside the repository")
@pytest.mark.parametrize("language", ["cmn_hans", "jpn", "tha", "khm", "lao", "mya"])
def test_real_copies_with_three_changed_characters_are_found(tmp_path: Path, language: str) -> None:
    with zipfile.ZipFile(DATA / "filters/langid_udhr/udhr2.zip") as archive:
        text = archive.read(f"udhr2/{language}.txt").decode()
    documents = []
    for start in range(0, len(text) - 500, 500):
        part = list(text[start : start + 500])
        documents.append(Document.new("".join(part), "a"))
        for place in random.Random(start).sample([p for p, letter in enumerate(part) if letter.isalpha()], 3):
            part[place] = "X"
        documents.append(Document.new("".join(part), "a"))
    out = run(tmp_path, documents)
    assert out.counts["documents"]["removed"] == {"near_duplicate": len(documents) / 2}


@pytest.mark.parametrize("permutations", [16, 17, 128])
@pytest.mark.parametrize("threshold", [1e-9, 0.5, 0.97, 0.9999, 1.0])
def test_any_threshold_that_is_allowed_works(tmp_path: Path, threshold: float, permutations: int) -> None:
    first, second = text_of(1), text_of(2)
    texts = [first, first.replace(" ", ", "), changed(first, 60), second]  # equal shingles, 0.92, none in common
    sketch = {"permutations": permutations}
    out = run(tmp_path, [Document.new(text, "a") for text in texts], threshold=threshold, sketch=sketch)
    gone = {verdict.value for verdict in ledger(out).values()}
    assert len(kept(out)) == (2 if threshold < 0.9 else 3)
    assert 1.0 in gone or len(gone) == 2


def test_simhash_finds_what_differs_in_few_bits(tmp_path: Path) -> None:
    text = text_of(1, 1000)
    documents = [Document.new(one, "a") for one in (text, changed(text, 500), text_of(2, 1000), text_of(3, 1000))]
    high = {"threshold": 0.999} | ANY_SHARE
    assert len(kept(run(tmp_path / "without", documents, **high))) == 4
    out = run(tmp_path / "with", documents, simhash={"max_distance": 3}, **high)
    assert len(kept(out)) == 3
    (verdict,) = ledger(out).values()
    assert verdict.reason == "simhash_duplicate"
    assert verdict.detail.removeprefix("duplicate_of ") in {document.id for document in documents[:2]}
    assert verdict.value is not None
    assert verdict.value <= 3 == verdict.threshold


def test_repeated_spans_go_after_duplicates_and_are_accounted_for(tmp_path: Path) -> None:
    notice = text_of(9, 60)
    texts = [f"{text_of(seed)} {notice} {text_of(seed + 50)}" for seed in range(4)] + [notice.upper()]
    out = run(tmp_path, [Document.new(text, "a") for text in texts], spans={"min_words": 50}, **ANY_SHARE)
    assert sum(notice in text.lower() for text in kept(out)) == 1
    assert out.counts["documents"] == {"in": 5, "kept": 4, "removed": {"repeated_span": 1}, "quarantined": 0}
    assert sorted(verdict.verdict for verdict in ledger(out).values()) == ["changed"] * 3 + ["removed"]
    assert out.counts["tables"]["Removed by source"][0]["repeated_span"] == 1


def test_repeated_sentences_and_lines_are_accounted_for_as_well(tmp_path: Path) -> None:
    shared = "The river rose. Was it high? It was."
    foot = "Follow us on every page"
    texts = [shared, f"{foot}\n", *(f"{text_of(seed)}. {shared} {text_of(seed + 9)}\n{foot}" for seed in range(3))]
    asked: dict[str, Any] = {"sentences": {"count": 3}, "lines": {"documents": 3}}
    out = run(tmp_path, [Document.new(text, "a") for text in texts], **asked, **ANY_SHARE)
    assert sum(shared in text for text in kept(out)) == 1
    assert sum(foot in text for text in kept(out)) == 1
    counts = out.counts["documents"]
    assert counts["in"] == counts["kept"] + sum(counts["removed"].values()) == 5
    assert {verdict.reason for verdict in ledger(out).values()} <= {"repeated_sentences", "repeated_line"}
    assert out.counts["sentences_cut"] == 9
    assert out.counts["lines_cut"] == 3


@pytest.mark.parametrize("asked", [{}, {"sentences": {}}, {"lines": {}}, {"spans": {}}, {"simhash": {}}])
def test_odd_documents_are_all_accounted_for(tmp_path: Path, asked: dict[str, Any]) -> None:
    odd = [
        "",
        " ",
        "\n\r\n",
        "one",
        "!",
        "\u200b",
        "\u0301",
        "e\u0301" * 40,
        "a\u0301\u0327" * 99,
        "漢",
        "漢字 mixed ภาษา. Text.",
        "\ufeff",
        "\x00",
        "a\r\nb\r\n" * 30,
        "😀" * 50,
        "same. same.",
    ]
    documents = [Document.new(text, "a", url="http://[") for text in odd for _ in range(3)]
    out = run(tmp_path, documents, **asked, **ANY_SHARE)
    counts = out.counts["documents"]
    assert counts["in"] == 48
    assert counts["in"] == counts["kept"] + sum(counts["removed"].values())
    assert sum(len(pq.read_table(path)) for path in out.path.glob("documents/*")) == counts["kept"]


def test_a_new_crawl_is_compared_with_what_was_kept_before(tmp_path: Path) -> None:
    old = [Document.new(text_of(seed), "old") for seed in range(6)] + [Document.new(changed(text_of(0), 9), "old")]
    new = [Document.new(changed(text_of(2), 50) + " which is longer", "new"), Document.new(text_of(3), "new")]
    new += [Document.new(text_of(seed), "new") for seed in range(20, 24)]
    store = Store(str(tmp_path / "store"))
    with open_session(Session(store, runtime_of(workers=1), "tiny")):
        first, _ = dedup.materialize(DedupConfig(), [write(tmp_path / "old", old)])
        config = DedupConfig(against=["tiny/dedup@1"])
        second, cached = dedup.materialize(config, [write(tmp_path / "new", new, shards=2)])
        assert not cached
        assert second.manifest is not None
        assert second.manifest.uses["against tiny/dedup@1"].location == first.location
        verdicts = {v.id: v for path in second.files("ledger/*") for v in read_ledger(path)}
        assert {i: v.reason for i, v in verdicts.items()} == {new[0].id: "near_duplicate", new[1].id: "exact_duplicate"}
        assert verdicts[new[0].id].detail == f"duplicate_of {old[2].id}"  # though the new one is longer
        texts = {document.text for path in second.files("documents/*") for document in read_documents(path)}
        assert texts == {document.text for document in new[2:]}
        with pytest.raises(ConfigError, match="moves"):
            dedup.materialize(DedupConfig(against=["tiny/dedup"]), [Artifact.at(tmp_path / "new")])
        other = DedupConfig.model_validate({"against": ["tiny/dedup@1"], "sketch": {"ngram": 4}})
        with pytest.raises(ConfigError, match="measured with other settings"):
            dedup.materialize(other, [Artifact.at(tmp_path / "new")])


def test_sketches_of_another_version_are_refused(tmp_path: Path) -> None:
    out = run(tmp_path, [Document.new(text_of(1), "a")], shards=1)
    sketched = Artifact(tmp_path / "scratch/sketches/out", "")
    rows = tmp_path / "scratch/sketches/out/rows/00000.parquet"
    table = pq.read_table(rows)
    rows.unlink()
    pq.write_table(table.drop_columns(["longest"]), rows)
    with pytest.raises(ConfigError, match="another version"):
        Corpus().add_earlier(Artifact(out.path, ""), sketched)


def test_a_changed_threshold_measures_nothing_again(tmp_path: Path) -> None:
    documents = write(tmp_path / "in", corpus())
    with open_session(Session(Store(str(tmp_path / "store")), runtime_of(workers=1), "tiny")) as session:
        for threshold in (0.8, 0.7):
            dedup.materialize(DedupConfig(threshold=threshold), [documents])
        assert len(list(session.store.locations("sketches"))) == 1
        assert len(list(session.store.locations("dedup"))) == 2


def test_the_forecast_splits_the_work_to_stay_within_the_limit() -> None:
    small = forecast_dedup(DedupConfig(), 100_000_000, runtime_of(workers=2, memory_limit="128MB"))
    large = forecast_dedup(DedupConfig(), 100_000_000, runtime_of(workers=2, memory_limit="8GB"))
    assert "128 pieces" in small.note
    assert "16 pieces" in large.note  # more of them for a piece to be small would take long to read
    assert small.memory < 330e6 + 128e6 < large.memory
    assert small.disk == large.disk > 100_000_000 * 512


def test_a_larger_corpus_is_forecast_more_pieces_and_no_more_memory() -> None:
    few, many = (forecast_dedup(DedupConfig(), count, runtime_of(workers=2)) for count in (600_000, 9_600_000))
    assert "one piece" in few.note
    assert "16 pieces" in many.note
    assert few.memory == many.memory
    known = forecast_dedup(DedupConfig(), 9_600_000, runtime_of(workers=2), duplicates=100_000)
    assert 10e6 < known.memory - many.memory < 100e6
