"""Sentences of a host that differ only in names and numbers count as one, and documents made of them are removed."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.shards.documents import Document, shard_name, write_documents
from storage.shards.lines import read_json_lines
from tasks.dedup import buckets
from tasks.filter.side_files import read_signals
from tasks.filter.templates import kernels
from tasks.filter.templates.characters import BREAK, JOINER, MARK, QUOTES, template_characters
from tasks.filter.templates.config import TemplateCountsConfig, TemplatesConfig
from tasks.filter.templates.measure import template_counts, template_signals
from tasks.filter.templates.sentences import OPENINGS, SENTENCES, TEMPLATES, Sentences, find_sentences
from tasks.stage.output import Output
from tasks.text.characters import ALONE, SPACE, WORD
from tests.runtimes import runtime_of
from tests.tasks.filter.code.test_code import run
from tests.tasks.filter.linear import linear_time
from tests.tasks.filter.test_filter import GOOD

NAMES = ["Ada", "Bob", "Cleo", "Dora", "Emil", "Fritz", "Gina", "Hugo", "Ida", "Jens", "Kurt", "Lena", "Max", "Nora"]
CONFIG = TemplateCountsConfig()


def sentences_of(*texts: str, **config: Any) -> Sentences:
    chosen = TemplateCountsConfig.model_validate(config)
    return find_sentences(chosen, pa.array(texts, pa.string()), np.zeros(len(texts), np.uint64), mark=True)


def shown(text: str) -> str:
    """The text with … for each run of bytes that is left out."""
    data = text.encode()
    marks = sentences_of(text).marks[: len(data)].tobytes()
    parts = itertools.groupby(zip(data, marks, strict=True), lambda pair: pair[1])
    return "".join("…" if left_out else bytes(byte for byte, _ in part).decode() for left_out, part in parts)


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("Showing 1–10 of 200 results", "Showing …–… of … results"),
        ("the capital of New Zealand is Wellington.", "the capital of … … is …."),
        ("Paris is a city", "Paris is a city"),
        ("New York is a city", "… … is a city"),
        ("Release Date: 5 May 2020", "Release Date: … … …"),
        ("the numpy.ndarray of `foo bar` values", "the … of … values"),
        ('he said "I know" to her', "he said … to her"),
        ("it's a well-known and/or don't", "it's a well-known … don't"),
        ("a getValue call of snake_case", "a … call of …"),
        ("mail to ada@b.org or 5 times", "mail to … or … times"),
        ("共123条结果", "共…条结果"),
        ("किताबें पढ़ना अच्छा है", "किताबें पढ़ना अच्छा है"),
    ],
)
def test_names_numbers_identifiers_and_quotations_are_left_out(text: str, template: str) -> None:
    assert shown(text) == template


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Showing 1–10 of 200 results", "Showing 11-20 of 1,300 results", True),
        ("the weather in New York today", "the weather in Rome today", True),
        ("the weather in Rome today", "the weather in Rome tomorrow", False),
        ("sold on 5 May by Ada", "sold on 6 June by Bob Hope", True),
    ],
)
def test_templates_are_equal_whatever_fills_their_gaps(one: str, other: str, same: bool) -> None:
    first, second = (sentences_of(text).counted[TEMPLATES].keys.tolist() for text in (one, other))
    assert len(first) == len(second) == 1 or not same
    assert (first == second) is same


def test_short_sentences_and_templates_of_too_few_words_do_not_count() -> None:
    counted = sentences_of("Yes, sir.\nAda met Bob 5 times\nPrice: 5\nmet by Ada", words=4).counted
    assert counted[SENTENCES].places.tolist() == [1]
    assert counted[TEMPLATES].places.tolist() == []
    assert sentences_of("Price: 5").counted[TEMPLATES].places.tolist() == [0], "a label counts as three words"
    assert len(sentences_of("Ada Bob. 5 6 7.").counted[OPENINGS].keys) == 0


def test_an_opening_is_as_many_sentences_as_have_enough_words() -> None:
    first, second, third, fourth = (
        sentences_of(text, opening_words=5).counted[OPENINGS].keys.tolist()
        for text in (
            "the tale of Ada. she was old and grey. the end of it.",
            "the tale of Bob Hope. she was old and grey. and then some more.",
            "the tale of Bob Hope. he was old and grey. and then some more.",
            "the tale of Bob.",
        )
    )
    assert first == second
    assert len({*first, *third, *fourth}) == 3


def plain_template(text: str) -> tuple[tuple[str, ...], list[int], str]:
    """The words that the kernel hashes of a sentence, with "" for a gap, its counts, and the text with gaps. Written
    for one sentence, over characters."""
    kinds = template_characters().kinds
    folded = template_characters().folded

    def kind(place: int) -> int:
        return int(kinds[ord(text[place])]) if place < len(text) else SPACE

    units: list[str] = []  # words, "" for a gap
    places: list[tuple[int, int, bool]] = []
    capitals: list[tuple[bool, bool]] = []  # of each unit: a name, closed by a sign
    label = plain_label(text)
    at = words = 0
    while at < len(text):
        if not kind(at) & WORD:
            end = plain_quotation(text, at) if at == 0 or not kind(at - 1) & WORD else 0
            if end:
                units.append("")
                places.append((at, end, False))
                capitals.append((False, False))
            at = end or at + 1
            continue
        end = at + 1
        if not kind(at) & ALONE:
            while end < len(text) and not kind(end) & (SPACE | BREAK | ALONE):
                end += 1
        last = max(place for place in range(at, end) if kind(place) & WORD) + 1
        token = text[at:last]
        signs = [place for place in range(at, last) if not kind(place) & (WORD | JOINER)]
        camel = any(
            kind(place) & kind(place - 1) & WORD
            and folded[ord(text[place])] != ord(text[place])
            and folded[ord(text[place - 1])] == ord(text[place - 1])
            for place in range(at + 1, last)
        )
        marked = any(kind(place) & MARK for place in range(at, last))
        identifier = bool(signs or camel or marked)
        name = not identifier and folded[ord(token[0])] != ord(token[0]) and at >= label and not kind(at) & ALONE
        closed = any(not kind(place) & (WORD | JOINER) for place in range(last, end))
        letters = [place for place in range(at, last) if kind(place) & WORD]
        units.append("" if identifier or name else "".join(chr(folded[ord(text[place])]) for place in letters))
        places.append((at, last, not (identifier or name)))
        capitals.append((name, closed))
        words += 1
        at = last
    if units and capitals[0][0] and (capitals[0][1] or len(units) == 1 or not capitals[1][0]):
        begin, end, _ = places[0]
        letters = [place for place in range(begin, end) if kind(place) & WORD]
        units[0], places[0] = "".join(chr(folded[ord(text[place])]) for place in letters), (begin, end, True)
    hashed = tuple(unit for unit, _ in itertools.groupby(units, key=lambda unit: unit or None) for unit in [unit or ""])
    hashed = tuple(unit for number, unit in enumerate(units) if unit or number == 0 or units[number - 1])
    left = "".join(" " if any(b <= n < e and not kept for b, e, kept in places) else c for n, c in enumerate(text))
    kept = sum(map(bool, units)) + kernels.LABEL * (label > 0)
    size = sum(not kind(place) & SPACE for place in range(len(text)))
    return hashed, [words, kept, sum(not unit for unit in hashed), size], left


def plain_label(text: str) -> int:
    kinds = template_characters().kinds
    colon = text.find(":")
    if colon < 0 or not (colon + 1 == len(text) or kinds[ord(text[colon + 1])] & SPACE):
        return 0
    before = [int(kinds[ord(character)]) for character in text[:colon]]
    first = next((place for place, kind in enumerate(before) if kind & WORD), None)
    if first is None or any(kind & MARK for kind in before):
        return 0
    if any(not kind & (WORD | SPACE | JOINER) for kind in before[first:]):
        return 0
    words = "".join("w" if kind & WORD else " " if kind & SPACE else "-" for kind in before).split(" ")
    return colon if sum("w" in word for word in words) <= kernels.LABEL_WORDS else 0


def plain_quotation(text: str, at: int) -> int:
    closer = QUOTES.get(text[at])
    place = at + 1
    while closer and (place := text.find(closer, place)) >= 0:
        if len(text[at + 1 : place + 1].encode()) > kernels.LONGEST_QUOTED:
            return 0
        after = text[place + 1 : place + 2]
        if place > at + 1 and not (after and template_characters().kinds[ord(after)] & WORD):
            return place + 1
        place += 1
    return 0


PIECES = [
    "the", "of", "Ada", "Bob Hope", "NATO", " ", "  ", "5", "1.5", "a_b", "aB", "x.y", "don't", "co-op", '"', "“", "”",
    "'", "`", ":", ": ", ",", "-", "–", "É", "é", "汉", "字", "e\u0301", "(", ")", "Title: ", "۳",
]  # fmt: skip


@pytest.mark.shadow("tasks.filter.templates.kernels.find_templates")
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example("Ada: Bob is")
@example("'' a'b 'c'")
@settings(max_examples=500, deadline=None)
def test_templates_are_those_of_plain_python(text: str) -> None:
    wanted, counts, left = plain_template(text)
    data = np.frombuffer(text.encode(), np.uint8)
    hashes, rows, marks = (
        np.zeros(1, np.uint64),
        np.zeros((1, kernels.COLUMNS), np.int64),
        np.zeros(len(data), np.uint8),
    )
    bounds = np.array([0, len(data)], np.int64)
    kernels.find_templates(data, bounds, bounds, np.array([1]), *template_characters(), hashes, rows, marks)
    assert rows[0].tolist() == counts
    blanked = bytes(byte for byte, mark in zip(text.encode(), marks, strict=True) if not mark).decode()
    assert blanked.split() == left.split() or blanked.replace(" ", "") == left.replace(" ", "")
    same = KNOWN.setdefault(int(hashes[0]), wanted)
    assert same == wanted, "two templates have one hash"
    assert HASHES.setdefault(wanted, int(hashes[0])) == int(hashes[0]), "one template has two hashes"


KNOWN: dict[int, tuple[str, ...]] = {}
HASHES: dict[tuple[str, ...], int] = {}


@pytest.mark.shadow("tasks.filter.templates.kernels.find_openings")
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=5), max_size=6), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_openings_are_prefixes_of_enough_words(documents: list[list[tuple[int, int]]], least: int) -> None:
    flat = [sentence for document in documents for sentence in document]
    rows = np.zeros((len(flat), kernels.COLUMNS), np.int64)
    rows[:, kernels.KEPT] = [words for _, words in flat]
    hashes, openings = np.array([name for name, _ in flat], np.uint64), np.zeros(len(documents), np.uint64)
    ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
    stops = np.zeros(len(documents), np.int64)
    kept = kernels.find_openings(hashes, rows, ends, least, openings, stops)
    wanted = []
    for document in documents:
        sums = list(itertools.accumulate(words for _, words in document))
        taken = next((number + 1 for number, words in enumerate(sums) if words >= least), len(document))
        wanted.append((tuple(name for name, _ in document[:taken]), sums[taken - 1] if taken else 0))
    assert kept.tolist() == [words for _, words in wanted]
    assert (stops - np.concatenate(([0], ends))[:-1]).tolist() == [len(taken) for taken, _ in wanted]
    names = [name for name, _ in wanted]
    for one, other in itertools.combinations(range(len(documents)), 2):
        assert (openings[one] == openings[other]) == (names[one] == names[other])


def pages(host: str, number: int) -> list[Document]:
    return [
        Document.new(
            f"Weather in {name} today.\nThe temperature is {n} degrees and the wind comes from {name}.\n"
            f"All rights reserved by the weather service.\n",
            "web",
            url=f"https://www.{host}/{name}",
        )
        for n, name in enumerate(NAMES[:number])
    ]


def prose(host: str, number: int) -> list[Document]:
    draw = random.Random(host)
    words = GOOD.lower().replace(".", "").split()
    return [
        Document.new(
            " ".join(" ".join(draw.choices(words, k=9)) + "." for _ in range(6)) + " All rights reserved by us.\n",
            "web",
            url=f"http://{host}/{n}",
        )
        for n in range(number)
    ]


def measured(folder: Path, shards: list[list[Document]], *, workers: int = 1, **config: Any) -> tuple[Output, Output]:
    for number, documents in enumerate(shards):
        write_documents(folder / "in" / shard_name(number), documents)
    chosen = TemplatesConfig.model_validate({"model": config})
    runtime = runtime_of(workers=workers)
    given = Artifact.at(folder / "in")
    counts, out = Output.at(folder / "counts", runtime=runtime), Output.at(folder / "signals", runtime=runtime)
    template_counts.function(chosen.model, given, counts)
    template_signals.function(chosen, given, Artifact.at(counts.path), out)
    return counts, out


def rows_of(out: Output) -> list[dict[str, Any]]:
    return [
        row for path in sorted(out.path.glob("*.parquet")) for batch in read_signals(path) for row in batch.to_pylist()
    ]


def test_a_host_counts_its_own_documents_and_small_hosts_have_none(tmp_path: Path) -> None:
    shards = [
        [*pages("weather.org", 12), *pages("small.org", 9)],
        [*prose("prose.org", 12), Document.new("?! …", "web")],
    ]
    counts, out = measured(tmp_path, shards)
    rows = rows_of(out)
    for row in rows[:12]:
        assert row["template_share"] == row["host_templates"] == 1
        assert row["boilerplate"] == pytest.approx(38 / (38 + 16 + 48), abs=0.08)
    assert all(row == {"template_share": 0, "host_templates": 0, "boilerplate": 0} for row in rows[12:21])
    for row in rows[21:33]:
        assert row["host_templates"] == 0
        assert 0 < row["template_share"] == row["boilerplate"] < 0.2
    assert set(rows[33].values()) == {None}
    assert counts.counts["hosts"] == 2
    listed = list(read_json_lines(counts.path / "templates.jsonl"))
    assert {
        "kind": "templates",
        "host": "host weather.org",
        "documents": 12,
        "share of the host": 1.0,
        "text": "Weather in … today.",
    } in listed
    assert not [row for row in listed if any(name in row["text"] for name in NAMES)], "the table names nobody"
    assert counts.counts["tables"]["Openings"][0]["text"].startswith("Weather in … today. The temperature is …")


def test_large_hosts_need_more_documents(tmp_path: Path) -> None:
    documents = [*pages("a.org", 12), *prose("a.org", 108)]
    _, out = measured(tmp_path / "some", [documents], share=0.1)
    assert rows_of(out)[0]["template_share"] == 1
    _, out = measured(tmp_path / "more", [documents], share=0.11)
    assert rows_of(out)[0]["template_share"] == 0


def test_workers_memory_and_the_order_of_shards_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [
        [*pages("a.org", 7), *prose("b.org", 9)],
        pages("a.org", 14)[7:],
        prose("b.org", 12)[9:] + pages("c.org", 14),
    ]
    counts, out = measured(tmp_path / "one", shards)
    wanted = {path.name: path.read_bytes() for path in counts.path.iterdir()}
    signals = [path.read_bytes() for path in sorted(out.path.glob("*.parquet"))]
    for name, workers, room, order in (("two", 2, 48, 1), ("little", 1, 1 << 29, 1), ("order", 8, 1 << 28, -1)):
        monkeypatch.setattr(buckets, "BYTES_A_KEY", room)  # as if there were less memory: more ranges
        counts, out = measured(tmp_path / name, shards[::order], workers=workers)
        assert {path.name: path.read_bytes() for path in counts.path.iterdir()} == wanted
        assert [path.read_bytes() for path in sorted(out.path.glob("*.parquet"))][::order] == signals


def test_the_filter_removes_what_is_nothing_but_templates(tmp_path: Path) -> None:
    weather, others = pages("weather.org", 14), prose("prose.org", 12)
    off = {"gopher_quality": None, "gopher_repetition": None, "c4": None, "fineweb": None, "language": None}
    kept, verdicts, _ = run(tmp_path, [*weather, *others], templates={}, **off, pii={"action": "keep"})
    assert {verdict.reason for verdict in verdicts.values()} == {"templates.max_template_share"}
    assert set(kept) == {document.id for document in others}


def test_time_is_linear() -> None:
    with linear_time():
        for piece in ('"a ', "'a ", "A", "a.", "1,", "a: ", "“", "汉", "\u0301", "a\n"):
            sentences_of(piece * 200_000)
