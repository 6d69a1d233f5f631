"""Texts in, texts out: every text is accounted for, in its order and of its type."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm

MILL = "The mill by the river grinds wheat and rye for the whole valley from August to the end of the year."
NEAR = MILL.replace("year", "term")
BREAD = "Rye bread needs a sour starter, a hot oven and some patience."


def test_of_each_cluster_one_text_is_kept_and_the_others_name_it() -> None:
    kept, removed = gm.dedup([BREAD, MILL, MILL.upper(), NEAR, BREAD], threshold=0.8)
    assert kept == [BREAD, MILL]
    assert [(one.index, one.reason, one.duplicate_of) for one in removed] == [
        (2, "exact_duplicate", 1),
        (3, "near_duplicate", 1),
        (4, "exact_duplicate", 0),
    ]
    near = removed[1]
    shingles = [{tuple(text.split()[at : at + 5]) for at in range(len(text.split()) - 4)} for text in (MILL, NEAR)]
    assert near.value == pytest.approx(len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1]))
    assert near.threshold == 0.8
    assert gm.dedup([MILL, NEAR], threshold=0.95).kept == [MILL, NEAR]
    assert len(gm.dedup([MILL] * 30).kept) == 1, "however large their share is"


def test_mappings_come_back_as_they_were_given() -> None:
    rows = [{"text": MILL, "id": "a", "n": 1}, {"text": BREAD, "id": "b"}, {"text": MILL, "id": "c"}]
    kept, removed = gm.dedup(rows)
    assert kept == rows[:2]
    assert kept[0] is rows[0]
    assert (removed[0].id, removed[0].duplicate_of) == ("c", 0)


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from([MILL, NEAR, BREAD, "", " ", "\x00", MILL.lower(), "水車" * 40]), min_size=1, max_size=40)
)
def test_every_text_is_kept_or_removed_for_one_that_is_kept(texts: list[str]) -> None:
    kept, removed = gm.dedup(texts)
    gone = {one.index for one in removed}
    assert len(gone) == len(removed)
    assert kept == [text for index, text in enumerate(texts) if index not in gone]
    assert not gone & {one.duplicate_of for one in removed}
    assert len({text.strip().casefold() for text in texts}) >= len(kept)


def test_more_texts_than_a_shard_holds_keep_their_order() -> None:
    texts = [f"{number} {number * 7} mills grind {number * 13} sacks of rye" for number in range(5000)]
    kept, removed = gm.dedup([*texts, *reversed(texts[:10])], threshold=1.0)
    assert kept == texts
    assert [one.duplicate_of for one in removed] == [*reversed(range(10))]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with a file of each kind."""
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text, "url": "x"}) + "\n" for text in (MILL, BREAD)))
    pq.write_table(pa.table({"text": [MILL, NEAR]}), folder / "deep" / "b.parquet")
    (folder / "c.txt").write_text(BREAD + " And much more salt.")
    (folder / ".hidden.txt").write_text("hidden")
    (folder / "picture.png").write_bytes(b"")
    return folder


def test_a_folder_is_read_whatever_its_files_are(corpus: Path) -> None:
    kept, removed = gm.dedup(corpus, threshold=0.8)
    assert sorted(row["text"] for row in kept) == sorted([MILL, BREAD, BREAD + " And much more salt."])
    assert [row.get("url") for row in kept if row["text"] == MILL] == ["x"]
    assert len(removed) == 2
    assert gm.dedup(corpus / "a.jsonl").kept[0]["text"] == MILL


def test_filter_writes_documents_and_a_ledger_that_account_for_all(corpus: Path, tmp_path: Path) -> None:
    rows = [
        {"text": "Die Mühle am Fluss mahlt Weizen und Roggen für das ganze Tal."},
        {"text": f"{MILL} Write to jo@mill.org."},
    ]
    (corpus / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *({"text": MILL},) * 200]))
    with (corpus / "d.jsonl").open("a") as file:
        file.write("no json\n")
    result = gm.filter(corpus, tmp_path / "clean", config={"preset": "clean", "language": {"min_score": 0}})
    assert (result.removed, result.unreadable) == ({"language": 1}, 1)
    ledger = result.ledger().to_pylist()
    assert result.kept + sum(result.removed.values()) + result.unmeasured == 5 + 202
    assert {row["reason"] for row in ledger if row["verdict"] != "changed"} == {"language", "broken_json"}
    texts = result.documents(["text"])["text"].to_pylist()
    assert len(texts) == result.kept
    assert not [text for text in texts if "jo@mill.org" in text]
    assert {path.name for path in result.path.iterdir()} >= {"documents", "ledger", "removed", "report.md"}
    assert "language" in result.report
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [], "no scratch is left"
    longer = {"preset": "clean", "language": None, "gopher_quality": {"min_words": 23}}
    again = gm.filter(result.path, tmp_path / "strict", config=longer)
    assert 0 < again.kept < result.kept


def test_a_file_that_cant_be_read_is_left_out_with_a_warning_or_in_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(f"{MILL} It grinds rye for the village.")
    (tmp_path / "in" / "b.txt").write_bytes(b"\xff\xfeno text")
    with pytest.warns(UserWarning, match=r"1 of the rows can't be read .* invalid_utf8"):
        assert len(gm.dedup(tmp_path / "in", progress=False).kept) == 1
    filtered = gm.filter(tmp_path / "in", tmp_path / "out", config={"language": None}, progress=False)
    assert (filtered.kept, filtered.unreadable) == (1, 1)
    assert "1 unreadable" in repr(filtered)


@pytest.mark.parametrize("path", ["", "a b c " * 5000, "nowhere"])
def test_a_text_in_place_of_a_path_is_refused(path: str) -> None:
    with pytest.raises(gm.GristmillError, match=r"The path is empty|is neither a file nor a folder"):
        gm.dedup(path)


def test_rules_of_a_user_have_the_last_word_over_a_preset(tmp_path: Path) -> None:
    texts = [f"{MILL} It is the {number}th mill." for number in range(4)]
    loose = {"language": None, "toxicity": None, "pii": None, "c4": None, "fineweb": None, "gopher_repetition": None}
    kept = gm.filter(texts, tmp_path / "a", preset="web", config={**loose, "gopher_quality": {"min_words": 20}}).kept
    assert kept == 4
    with pytest.raises(gm.GristmillError, match=r"kept none of 4 documents .*gopher_quality.min_words"):
        gm.filter(texts, tmp_path / "b", preset="web", config={**loose, "gopher_quality": {"min_words": 50}})
    assert not (tmp_path / "b").exists()


def test_settings_of_ones_own_change_the_rules_that_they_name_and_no_others(tmp_path: Path) -> None:
    texts = [f"This sentence about the {thing} is long enough for text of one's own." for thing in ("mill", "river")]
    assert gm.filter(texts, tmp_path / "own", config={"pii": None}, progress=False).kept == 2
    strict = {"gopher_quality": {"min_words": 100}}
    with pytest.raises(gm.GristmillError, match="min_words"):
        gm.filter(texts, tmp_path / "strict", config=strict, progress=False)
