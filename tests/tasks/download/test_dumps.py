"""Dumps: what comes of every page, question and book, whole or broken."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import random
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.estimates.sources import rows_of
from storage.errors import SourceError
from storage.shards.documents import read_documents
from tasks.download import DownloadConfig
from tasks.download.config import DumpSource
from tasks.download.dumps.read import fingerprint
from tasks.download.dumps.wikipedia import cut_pages
from tasks.download.portions import portions, spans
from tasks.download.sources.remote import Politeness
from tasks.stage.output import Output
from tasks.text.dumps.latex import read_paper
from tasks.text.dumps.posts import text_of
from tasks.text.dumps.wikitext import read_article
from tasks.text.process import ExtractorProcess, Failed
from tests.tasks.download.articles import ARTICLES
from tests.tasks.download.made import HEAD, TAIL, page
from tests.tasks.download.runs import documents_of, run, verdicts_of
from tests.tasks.download.test_containers import tarred
from tests.tasks.download.test_formats import zstd


def source(path: Path, format: str = "wikipedia", **more: Any) -> DumpSource:
    return DumpSource.model_validate({"name": "dump", "paths": [str(path)], "format": format, **more})


def made(out: Output) -> dict[str, tuple[str, dict[str, Any]]]:
    """Text and metadata by title."""
    return {fields["title"]: (text, fields) for text, fields in documents_of(out)}


def fates(out: Output) -> list[tuple[str, str, str]]:
    """(verdict, reason, detail after the file's name) of the ledger, in its order."""
    return [(one.verdict, one.reason, one.detail.rpartition("/")[2].partition(" ")[2]) for one in verdicts_of(out)]


@pytest.mark.parametrize("article", ARTICLES, ids=lambda article: article.title)
def test_the_text_of_an_article_is_what_a_reader_sees(article: Any) -> None:
    found = read_article(article.markup, article.title, "en", ("Datei", "Kategorie"), False)
    assert found["text"] == article.text
    assert found["lost"] == Counter(article.lost)


@pytest.mark.parametrize(
    ("language", "markup", "text"),
    [
        ("en", "{{sic}} {{sic|teh}} {{sic|teh|hide=y}} {{As of|2012|alt=Then}}", "[sic] teh [sic] teh Then"),
        ("en", "{{ordinal|3}} {{ordinal|12}} {{linktext|東|京}} {{lc:ABC}} {{uc|aBc}}", "3rd 12th 東京 abc ABC"),
        (
            "zh",
            "-{zh-hans:计算机; zh-hant:電腦;}-是-{A|zh-cn:软件;zh-tw:軟體}-。-{H|zh-cn:博;zh-tw:部}-文",
            "计算机是软件。文",
        ),
        ("zh", "-{原|文}- -{zh-hans|x}- [[a|-{zh:硬;}-]] -{zh-cn:-{内}-;zh-tw:外}- -{T|zh:题}-", "原|文 x 硬 内"),
        ("zh", "-{甲&nbsp;乙}- -{R|zh:a}- -{X=>zh-cn:Y;}- -{open", "甲 乙 zh:a Y -{open"),
        ("en", "-{zh:a}-", "-{zh:a}-"),
    ],
)
def test_what_a_reader_of_this_wiki_sees(language: str, markup: str, text: str) -> None:
    assert read_article(markup, "", language, (), False)["text"] == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("''Hamlet'''s end, '''bold''' and '''''both'''''", "Hamlet's end, bold and both"),
        ("In l'''eau'' and ''''quoted'''' words", "In l'eau and 'quoted' words"),
        ("''left open\nand ''closed''", "left open\nand closed"),
        ("{{Citation\n|title=Perspectiva''\n|year=1996\n}}\n<math>x</math> ''stays''", "$x$ stays"),
        ("<nowiki>''</nowiki> and x<sup>''n''</sup>", "'' and xⁿ"),
        ("Rain of {{convert|126|mm|0|abbr=on}} over {{convert|5|ft|9|in|m}}", "Rain of 126 mm over 5 ft 9 in"),
        ('A\n:{|class="wikitable"\n|-\n! a || b\n|}\nB', "A\nB"),
        ("A\n{{s-start}}\n{{s-bef|before=B}}\n|-\n{{s-end}}\nC", "A\nC"),
        ("* {{Citation|title=A}}.\n* B.", "- B."),
        ("A\n <!-- one -->B\n\nC\n<!-- two -->\nD", "A\nB\nC\nD"),
    ],
)
def test_marks_are_read_as_mediawiki_does(markup: str, text: str) -> None:
    found = read_article(markup, "Title", "en", ("file", "category"), False)["text"]
    assert [line for line in found.split("\n") if line] == text.split("\n")


def test_tables_may_be_kept_as_lines() -> None:
    (markup,) = (article.markup for article in ARTICLES if article.title == "Harvest by year")
    found = read_article(markup, "", "en", (), True)
    assert found["text"] == "Before.\n\nHarvests of the valley\nYear | Tons\n1900 | 12\n1901 | 13\n\nAfter."


PACKED = {
    ".xml": lambda parts: "".join(parts).encode(),
    ".xml.gz": lambda parts: gzip.compress("".join(parts).encode(), mtime=0),
    ".xml.zst": lambda parts: zstd("".join(parts).encode()),
    ".xml.bz2": lambda parts: bz2.compress("".join(parts).encode()),
    ".multistream.xml.bz2": lambda parts: b"".join(bz2.compress(part.encode()) for part in parts),
}


@pytest.mark.parametrize("ending", PACKED)
def test_every_page_of_a_dump_has_a_fate(ending: str, tmp_path: Path) -> None:
    pages = [
        page(ARTICLES[0].title, ARTICLES[0].markup, number=12),
        page("Mill", "#REDIRECT [[Aldbrook]]", more='    <redirect title="Aldbrook" />\n'),
        page("Template:Mill", "{{{1}}}", 10),
        page("Mill.css", "a {}", model="css"),
        page("Nothing", ARTICLES[16].markup),
        page("Lost words & more", ARTICLES[6].markup),
    ]
    path = tmp_path / f"enwiki-pages-articles{ending}"
    path.write_bytes(PACKED[ending]([HEAD, *pages, TAIL]))
    out = run(tmp_path, source(path), max_quarantined_share=0.0)
    found = made(out)
    text, fields = found["Aldbrook"]
    assert text == ARTICLES[0].text
    assert fields == {
        "title": "Aldbrook",
        "page_id": 12,
        "revision": 1200,
        "timestamp": "2024-05-01T00:00:00Z",
        "url": "https://en.wikipedia.org/wiki/Aldbrook",
        "language": "en",
        "license": "CC-BY-SA-4.0",
    }
    assert found["Lost words & more"][1]["url"] == "https://en.wikipedia.org/wiki/Lost_words_%26_more"
    assert [(reason, detail.partition(": ")[2]) for _, reason, detail in fates(out)] == [
        ("redirect", "Mill"),
        ("not_an_article", "Template:Mill"),
        ("not_wikitext", "Mill.css"),
        ("no_text", "Nothing"),
    ]
    assert out.counts["documents"]["removed"] == dict.fromkeys(
        ("no_text", "not_an_article", "not_wikitext", "redirect"), 1
    )
    assert out.counts["tables"]["Templates without text"] == [
        {"source": "dump", "name": "strange template", "times": 2},
        {"source": "dump", "name": "#if", "times": 1},
        {"source": "dump", "name": "unknown", "times": 1},
    ]


LONG = random.Random(1).randbytes(150_000).hex()
GOOD = [page(f"Page {number}", f"Words of page {number}. {LONG[number * 9000 :][:9000]}") for number in range(9)]


def test_a_page_of_broken_xml_costs_itself(tmp_path: Path) -> None:
    broken = [
        page("Bad", "x").replace("</title>", "</titel>"),
        page("Cut", "x")[:150] + "\n",
        page("Control", "x").replace(">x<", ">\x01<"),
        page("Bomb", "x").replace("<title>", '<!DOCTYPE a [<!ENTITY b "b">]><title>'),
        page("Entity", "x").replace(">x<", ">&nbsp;<"),
        page("Long", "x" * 200_000),
    ]
    parts = [HEAD, *(part for pair in zip(GOOD, broken, strict=False) for part in pair), *GOOD[6:], TAIL]
    for ending in (".xml", ".multistream.xml.bz2"):
        path = tmp_path / f"d{ending}"
        path.write_bytes(PACKED[ending](parts))
        out = run(tmp_path / ending, source(path), max_document_bytes=100_000)
        assert [*made(out)] == [f"Page {number}" for number in range(9)]
        assert [reason for _, reason, _ in fates(out)] == [*["damaged_page"] * 5, "too_long"]
    places = [int(detail.split()[1].rstrip(":")) for _, _, detail in fates(out)]
    assert all(path.read_bytes()[place:].startswith(b"BZh9") for place in places)


def test_a_damaged_stream_of_bzip2_costs_its_pages_and_is_named(tmp_path: Path) -> None:
    streams = [bz2.compress(part.encode()) for part in (HEAD, *GOOD, TAIL)]
    data = bytearray(b"".join(streams))
    at = sum(map(len, streams[:4]))
    data[at + 500 : at + 510] = bytes(10)
    path = tmp_path / "d.xml.bz2"
    path.write_bytes(data)
    out = run(tmp_path, source(path))
    assert [*made(out)] == [f"Page {number}" for number in range(9) if number != 3]
    ((verdict, reason, detail),) = fates(out)
    assert (verdict, reason) == ("quarantined", "damaged_data")
    assert detail.startswith(f"offset {at}: Invalid data")


@pytest.mark.parametrize("ending", PACKED)
def test_a_dump_that_is_cut_keeps_what_came_before(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"d{ending}"
    data = PACKED[ending]([HEAD, *GOOD, TAIL])
    most = 0
    for tenth in range(1, 10):
        path.write_bytes(data[: len(data) * tenth // 10])
        found = [*cut_pages(path, "d", 10**6)]
        most = max(most, sum(bool(cut.data) for cut in found) - 1)
        assert {cut.reason for cut in found if cut.reason} <= {"damaged_page", "damaged_data"}
        assert any(cut.reason for cut in found)
        if tenth == 9:
            path.write_bytes(PACKED[ending]([HEAD, *GOOD]))
            assert [*cut_pages(path, "d", 10**6)][-1].why == "the file ends without its last tag"
    assert most >= (0 if ending in (".xml.bz2", ".xml.zst") else 7)  # which have one block here


@pytest.mark.parametrize(
    ("name", "format_", "data", "says"),
    [
        ("a.xml", "wikipedia", b"", "doesn't begin as a dump of MediaWiki"),
        ("a.xml.bz2", "wikipedia", b"no bzip2" * 99, "doesn't begin as a dump"),
        ("a.xml.bz2", "wikipedia", bz2.compress(b"<html/>"), "doesn't begin as a dump"),
        ("a.xml", "wikipedia", (HEAD + TAIL).encode(), "is empty"),
        ("a.xml", "wikipedia", b"x" * 2_000_000, "doesn't begin as a dump"),
        ("Posts.xml", "stackexchange", b"<posts>\n</posts>", "has no posts"),
        ("Posts.xml", "stackexchange", b"", "has no posts"),
        ("a.7z", "stackexchange", b"", "is not a 7z archive"),
        ("a.7z", "stackexchange", b"7z\xbc\xaf\x27\x1c" + bytes(99), "is not a 7z archive|has no Posts.xml"),
        ("a.txt", "gutenberg", b"", "none of its 1 pages has text"),
    ],
)
def test_what_is_no_dump_ends_the_run(name: str, format_: str, data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=says):
        run(tmp_path, source(tmp_path / name, format_))


def test_an_article_that_takes_too_long_or_nests_too_deep_costs_itself(tmp_path: Path) -> None:
    parts = [
        HEAD,
        page("A", "One."),
        page("Slow", "{{a|" * 30_000 + "[[x|" * 30_000),
        page("Deep", "<div>" * 5000 + "deep" + "</div>" * 5000),
        page("Tables", "{|\n|" * 5000),
        page("B", "Two."),
        TAIL,
    ]
    path = tmp_path / "d.xml"
    path.write_text("".join(parts))
    out = run(tmp_path, source(path, seconds=1))
    assert {"A", "B"} <= set(made(out))
    assert {reason for _, reason, _ in fates(out)} <= {"time_over", "nested_too_deep", "memory_over", "no_text"}
    assert len(made(out)) + len(fates(out)) == 5


def post(number: int, kind: int, body: str, **fields: Any) -> str:
    values = {"Id": number, "PostTypeId": kind, "Body": body, "ContentLicense": "CC BY-SA 4.0", **fields}
    attributes = " ".join(f'{name}="{escape(str(value)).replace(chr(10), "&#xA;")}"' for name, value in values.items())
    return f"  <row {attributes} />\n"


POSTS = [
    post(1, 1, "<p>How do I <em>set</em> a wheel?</p>", Title="Wheel & axle", Tags="<wheel><axle>", AcceptedAnswerId=4),
    post(2, 2, "<p>Slowly.</p>", ParentId=1, Score=1),
    post(3, 1, "<p>Why?</p>", Title="Reasons", Tags="|why|", Score=-1, ContentLicense="CC BY-SA 3.0"),
    post(4, 2, "<p>With <code>a &lt; b</code>:</p>\n<pre><code>if a:\n    turn()\n</code></pre>", ParentId=1, Score=9),
    post(5, 2, "<p>Gone.</p>", ParentId=99),
    post(6, 5, "<p>About the tag.</p>"),
    post(7, 1, "", Title="Empty"),
    post(8, 2, "<p>Also slowly.</p>", ParentId=1, Score=1),
]
SITE = '<?xml version="1.0" encoding="utf-8"?>\n<posts>\n'


def seven_zip(path: Path, data: bytes, name: str = "Posts.xml") -> Path:
    from py7zr import SevenZipFile

    with SevenZipFile(path, "w") as archive:
        archive.writestr(b"<users/>", "Users.xml")
        archive.writestr(data, name)
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_a_question_is_a_document_with_its_answers_by_score(packed: bool, tmp_path: Path) -> None:
    data = (SITE + "".join(POSTS) + "</posts>").encode()
    folder = tmp_path / "mills.stackexchange.com"
    folder.mkdir()
    path = folder / "Posts.xml"
    path.write_bytes(data)
    path = seven_zip(tmp_path / "mills.stackexchange.com.7z", data) if packed else path
    out = run(tmp_path, source(path, "stackexchange"), max_quarantined_share=0.0)
    found = made(out)
    text, fields = found["Wheel & axle"]
    assert text == (
        "Wheel & axle\n\nHow do I set a wheel?\n\n"
        "Answer:\n\nWith `a < b`:\n\n```\nif a:\n    turn()\n```\n\nAnswer:\n\nSlowly.\n\nAnswer:\n\nAlso slowly."
    )
    assert fields == {
        "title": "Wheel & axle",
        "tags": ["wheel", "axle"],
        "score": 0,
        "answer_scores": [9, 1, 1],
        "accepted_answer": 1,
        "question_id": 1,
        "url": "https://mills.stackexchange.com/questions/1",
        "license": "CC-BY-SA-4.0",
    }
    assert found["Reasons"][1]["license"] == "CC-BY-SA-3.0"
    assert found["Reasons"][1]["tags"] == ["why"]
    assert Counter(reason for _, reason, _ in fates(out)) == {"no_question": 1, "not_a_question": 1, "no_text": 1}
    assert not [*tmp_path.rglob("*.sqlite")]


def test_a_broken_post_costs_itself_and_a_cut_file_its_end(tmp_path: Path) -> None:
    bad = ['  <row Id="x" />\n', "  <row Id=\n", '  <row Id="12" Body="\x01" />\n', post(11, 1, "y" * 5000)]
    path = tmp_path / "Posts.xml"
    path.write_text(SITE + POSTS[0] + "".join(bad) + POSTS[1] + POSTS[2][:40])
    out = run(tmp_path, source(path, "stackexchange"), max_document_bytes=3000)
    assert made(out)["Wheel & axle"][0].endswith("Answer:\n\nSlowly.")
    reasons = ["damaged_post"] * 3 + ["too_long", "damaged_post", "damaged_data"]
    assert [reason for _, reason, _ in fates(out)] == reasons
    data = (
        SITE + "".join(post(number, 1, LONG[number * 200 :][:9000], Title=number) for number in range(1, 99))
    ).encode()
    whole = seven_zip(tmp_path / "a.7z", data + b"</posts>").read_bytes()
    for tenth in range(10):  # the list of what is in a .7z is at its end
        for wrong in (whole[: len(whole) * tenth // 10], spoilt(whole, len(whole) * tenth // 10)):
            (tmp_path / "a.7z").write_bytes(wrong)
            try:
                out = run(tmp_path / "again", source(tmp_path / "a.7z", "stackexchange"))
            except SourceError as error:
                said = error.message
            else:
                whole_or_named = "damaged_data" in {reason for _, reason, _ in fates(out)} or len(made(out)) == 98
                said = "a.7z" if whole_or_named else ""
            assert "a.7z" in said


def spoilt(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>One</p><p>two<br>three</p>", "One\n\ntwo\nthree"),
        ("<ul><li>a</li><li>b<ol><li>c</li><li>d</li></ol></li></ul><p>e</p>", "- a\n- b\n  1. c\n  2. d\n\ne"),
        ("<blockquote>\n<p>said</p>\n<p>so</p></blockquote>\n<p>x</p>", "> said\n\n> so\n\nx"),
        ("<pre><code>a\n\n\n\nb</code></pre>", "```\na\n\n\n\nb\n```"),
        ("<p>a <a href='x'>link</a>, <kbd>Ctrl</kbd> &amp; <img src=x></p>", "a link, Ctrl &"),
        ("<p>open <b>never closed", "open never closed"),
        ("<p>10<sup>6</sup> H<sub>2</sub>O 1<sup>st</sup></p>", "10⁶ H₂O 1st"),
        ("</li></ul></pre></code></blockquote>x", "x"),
        ("<table><tr><td>a</td><td>b</td></tr></table>", "a | b |"),
        ("", ""),
        ("<" * 1000, "<" * 1000),
    ],
)
def test_html_of_posts_becomes_text(html: str, text: str) -> None:
    assert text_of(html) == text


BODY = "It was a mill.\n\nIt turned."
FIELDS = """Title: The Mill
       and the Brook

Author: Edda Marsh

Release date: June 1, 2008 [eBook #1342]
                Most recently updated: May 2, 2020

Language: English

"""
BOOKS = {
    "today": f"""The Project Gutenberg eBook of The Mill

This ebook is for the use of anyone anywhere.

{FIELDS}Credits: A. Volunteer


*** START OF THE PROJECT GUTENBERG EBOOK THE MILL ***

Produced by A. Volunteer and
the Online Proofreading Team

{BODY}

*** END OF THE PROJECT GUTENBERG EBOOK THE MILL ***
Updated editions will replace the previous one.
""",
    "of 2008": f"{FIELDS}***START OF THIS PROJECT GUTENBERG EBOOK THE MILL***\n\n\nE-text prepared by X\n\n{BODY}\n\n"
    "End of Project Gutenberg's The Mill, by Edda Marsh\n\n*** END OF THIS PROJECT GUTENBERG EBOOK THE MILL ***\nx",
    "over two lines": f"{FIELDS}*** START OF THE PROJECT GUTENBERG EBOOK THE MILL\nAND THE BROOK ***\n{BODY}\n"
    "*** END OF THE PROJECT GUTENBERG EBOOK THE MILL\nAND THE BROOK ***\nlicence",
    "of the small print": f"{FIELDS}***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nWhy is this here?\n"
    f"*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n{BODY}\n\n"
    "End of The Project Gutenberg Etext of The Mill\n",
    "with a curly apostrophe": f"{FIELDS}*** START OF THE PROJECT GUTENBERG EBOOK THE MILL ***\n{BODY}\n"
    "End of the Project Gutenberg’s The Mill\n",
}


@pytest.mark.parametrize("name", BOOKS)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_book_is_the_text_between_its_marks(name: str, ends: str, tmp_path: Path) -> None:
    path = tmp_path / "pg1342.txt"
    path.write_bytes(BOOKS[name].replace("\n", ends).encode())
    ((text, fields),) = made(run(tmp_path, source(path, "gutenberg"))).values()
    assert text == BODY
    assert fields == {
        "file": "pg1342.txt",
        "title": "The Mill and the Brook",
        "author": "Edda Marsh",
        "date": "June 1, 2008",
        "language": "en",
        "url": "https://www.gutenberg.org/ebooks/1342",
        "license": "public domain in the USA",
    } | ({"date": "June 1, 2008"} if name else {})


def test_a_book_without_marks_is_kept_whole_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Title: Mühle\n\nEs war.".encode("cp1252"))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress((FIELDS + BOOKS["today"].partition("*** END")[0]).encode()))
    out = run(tmp_path, source(tmp_path / "*", "gutenberg"))
    assert made(out)["Mühle"][0] == "Title: Mühle\n\nEs war."
    assert out.counts["tables"]["Books without marks"] == [
        {"source": "dump", "name": "end", "times": 1},
        {"source": "dump", "name": "start and end", "times": 1},
    ]


def test_a_broken_byte_of_a_book_costs_itself(tmp_path: Path) -> None:
    text = "Title: Mühlen\n\n" + "Bäche und Mühlen. " * 3
    (tmp_path / "a.txt").write_bytes(text.encode() + b"\xff")
    assert made(run(tmp_path, source(tmp_path / "a.txt", "gutenberg")))["Mühlen"][0] == text + "\ufffd"


def test_settings_that_cannot_apply_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="tables can't be chosen for gutenberg"):
        source(tmp_path, "gutenberg", tables="keep")
    for wrong in ({"text_column": "body"}, {"role": "instructions"}, {"seconds": 0}):
        with pytest.raises(ValidationError):
            source(tmp_path, **wrong)
    (tmp_path / "a.xml.bz2").write_bytes(b"x")
    with pytest.raises(SourceError, match="unknown extension") as raised:
        run(tmp_path, source(tmp_path / "a.xml.bz2", "stackexchange"))
    assert "Supported are .7z, .xml" in raised.value.remedy


def test_two_workers_write_the_same_shards(tmp_path: Path) -> None:
    for number in range(2):
        pages = [page(f"{number} {one}", f"{number} {one} {LONG[one * 99 :][:500]}") for one in range(60)]
        (tmp_path / f"d{number}-multistream.xml.bz2").write_bytes(PACKED[".multistream.xml.bz2"]([HEAD, *pages, TAIL]))
    (tmp_path / "e.xml.bz2").write_bytes(PACKED[".xml.bz2"]([HEAD, *GOOD, TAIL]))
    made_by = []
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        out = run(tmp_path / str(workers), source(tmp_path / "*.bz2"), workers=workers, shard_bytes=1000)
        made_by.append({path.name: path.read_bytes() for path in out.path.rglob("*.parquet")})
        assert len(made(out)) == 129
        assert fates(out) == []
    assert made_by[0] == made_by[1]
    found = spans(source(tmp_path / "*.bz2"), Politeness())
    assert len(portions(source(tmp_path / "*.bz2"), found, 1000)) > 10


@pytest.mark.parametrize("size", [1, 100, 3000, 10**6])
def test_wherever_a_multistream_dump_is_divided_its_pages_are_the_same(size: int, tmp_path: Path) -> None:
    path = tmp_path / "d-multistream.xml.bz2"
    data = bytearray(PACKED[".multistream.xml.bz2"]([HEAD, *GOOD, TAIL]))
    data[8000:8010] = bytes(10)
    path.write_bytes(data)
    whole = [*cut_pages(path, "d", 10**6)][1:]
    if size == 1:
        ranges = [(at, at + 1) for at in range(len(data)) if data[at : at + 4] == b"BZh9"]
    else:
        ranges = [(at, at + size) for at in range(0, len(data), size)]
    divided = [cut for start, end in ranges for cut in cut_pages(path, "d", 10**6, start, end)][1:]
    assert divided == whole
    assert sum(bool(cut.data) for cut in whole) == 8


def test_what_reads_the_markup_enters_the_key(tmp_path: Path) -> None:
    assert [*fingerprint(source(tmp_path))] == ["mwparserfromhell"]
    assert fingerprint(source(tmp_path, "gutenberg")) == {}


PAPER = r"""\documentclass{article} % comment
\newcommand{\R}{\mathbb{R}}
\newcommand{\norm}[2][2]{\left\| #2 \right\|_{#1}}
\def\eps{\varepsilon}
\DeclareMathOperator{\argmin}{arg\,min}
\title{On \emph{Mills}\\ and Brooks}
\author{A. Marsh\thanks{x}}
\begin{document}
\maketitle

\begin{abstract}
We study mills~\cite{a,b}. 50\% of them turn.
\end{abstract}
\section{Introduction}\label{sec:i}
Let $x \in \R^n$ with $\norm{x} < \eps$ --- for ``this''.\footnote{A note.}
G\"odel, Erd\H{o}s, \v{C}apek, na\"{\i}ve, \ss{} and \aa. % hidden
\input{sub/two}
\begin{figure}\includegraphics{a.png}\caption{A mill of \emph{oak}.}\label{f}\end{figure}
\begin{itemize}
\item one
\item[(b)] two \textbf{bold \emph{deep}}
\end{itemize}
\begin{align}
a &= b \label{e}\\
c &= \argmin_x d
\end{align}
\[ E = mc^2 \]
\begin{verbatim}
if a % b:
    turn()
\end{verbatim}
Costs \$5 and \unknown{kept}.
\section{References}
\begin{thebibliography}{9}\bibitem{a} A.\end{thebibliography}
\end{document}
not this"""
PLAIN = r"""Abstract

We study mills. 50% of them turn.

## Introduction

Let $x \in \mathbb{R}^n$ with $\left\| x \right\|_{2} < \varepsilon$ — for “this”. (A note.) Gödel, Erdős, Čapek, \
naïve, ß and å. The second file.

A mill of oak.
- one
- (b) two bold deep

\begin{align}
a &= b \\
c &= \operatorname{arg\,min}_x d
\end{align}

$$E = mc^2$$

if a % b:
    turn()

Costs $5 and kept.""".replace("\\\nna", "na")


def test_a_paper_is_its_body_with_formulas_and_without_bibliography(tmp_path: Path) -> None:
    files = {"ms/main.tex": PAPER, "ms/sub/two.tex": "The second file. \\input{main}", "ms/other.tex": "\\section{x}"}
    paper = gzip.compress(tarred({name: text.encode() for name, text in files.items()}), mtime=0)
    members = {
        "2001/2001.00001.gz": paper,
        "2001/2001.00002.gz": gzip.compress(b"\\begin{document}One file, by M\xfchle.\\end{document}"),
        "2001/2001.00003.pdf": b"%PDF-1.5",
        "2001/2001.00004.gz": gzip.compress(b"%PDF-1.5\0"),
        "2001/2001.00005.gz": paper[:-30],
        "2001/2001.00006.gz": gzip.compress(b" " * 30_000_000),
        "2001/2001.00008.gz": gzip.compress(
            b"\\begin{document}\xff" + "Mühlen, Bäche, Öl, Süd.\\end{document}".encode()
        ),
        "2001/hep-th9901001.gz": gzip.compress(b"\\documentstyle{x}\\begin{document}Old.\\end{document}"),
        "../2001.00007.gz": paper,
    }
    path = tmp_path / "arXiv_src_2001_001.tar"
    path.write_bytes(tarred(members))
    out = run(tmp_path, source(path, "arxiv"))
    found = [document for shard in sorted(out.path.glob("documents/*")) for document in read_documents(shard)]
    assert [document.text for document in found] == [
        PLAIN,
        "One file, by Mühle.",
        "\ufffdMühlen, Bäche, Öl, Süd.",
        "Old.",
    ]
    assert json.loads(found[0].metadata) == {
        "title": "On Mills and Brooks",
        "paper_id": "2001.00001",
        "url": "https://arxiv.org/abs/2001.00001",
    }
    assert json.loads(found[3].metadata)["paper_id"] == "hep-th/9901001"
    reasons = Counter(reason for _, reason, _ in fates(out))
    assert reasons == {"no_source": 2, "damaged_member": 1, "bomb": 1, "unsafe_member": 1}
    assert out.counts["tables"]["Commands without text"] == [{"source": "dump", "name": "unknown", "times": 1}]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            r"\newcommand{\be}{\begin{equation}}\def\ee{\end{equation}}\be a \ee b",
            "\\begin{equation}a \\end{equation}\n\nb",
        ),
        (r"A \input{part} end.", "A Part. end."),
        (r"\newcommand{\sun}{\ensuremath{M_\odot}}5 \sun, $\sun$", r"5 $M_\odot$, $\ensuremath{M_\odot}$"),
        (r"a \iffalse b \ifx c \else d \fi e \else f \fi $g \iff h$", r"a f $g \iff h$"),
        ("Text \\(open\n\nnext $$ open \\[ open\n\nlast", "Text open\n\nnext $$ open open\n\nlast"),
        (r"\verb|50% | of it", "50% of it"),
        (r"10\textsuperscript{6} H\textsubscript{2}O 1\textsuperscript{st}", "10⁶ H₂O 1st"),
        (r"\magnification=1200 \parindent = 0pt a\vskip 10pt plus 2pt minus.5em b\hskip-1em c", "a b c"),
        (
            r"\newtheorem*{thm}[equation]{Main \emph{Theorem}}\declaretheorem[name=Fact, style=plain]{fct}"
            r"\begin{thm}[Euler]"
            "\n"
            r"\label{a}"
            "\n"
            r"It holds.\end{thm}\begin{fct}B.\end{fct}"
            r"\begin{proof}[Proof of it]C.\end{proof}\begin{lemma}D\end{lemma}\begin{proof}E\end{proof}",
            "Main Theorem (Euler). It holds.\n\nFact. B.\n\nProof of it. C.\n\nLemma. D\n\nProof. E",
        ),
        (r"\documentstyle{amsppt}\title On \endtitle\head 1. In \endhead T\Refs r \endRefs", "## 1. In\n\nT"),
    ],
)
def test_what_tex_shows_is_kept_and_what_it_skips_is_not(source: str, text: str) -> None:
    part = r"\documentclass[a]{subfiles}\begin{document}Part.\end{document} not this"
    assert read_paper({"a.tex": rf"\begin{{document}}{source}\end {{document}} x", "part.tex": part})["text"] == text


def test_macros_that_grow_without_end_cost_their_paper() -> None:
    letters = "abcdef"
    macros = "".join(f"\\def\\{one}{{{f'{chr(92)}{after}' * 60}}}" for one, after in itertools.pairwise(letters))
    process = ExtractorProcess("tasks.text.dumps.latex", (), 20)
    try:
        found = process.read(({"a.tex": f"{macros}\\begin{{document}}\\a\\end{{document}}"},))
        assert isinstance(found, Failed)
        assert found.reason == "too_long"
        for text in ("{" * 99_999, "\\emph{" * 999 + "x", "$" * 9999, "\\def\\x{\\y}\\def\\y{\\x}\\x", "\\input{a}"):
            found = process.read(({"a.tex": f"\\begin{{document}}{text}"},))
            assert not isinstance(found, Failed) or found.reason == "nested_too_deep"
    finally:
        process.close()


def test_a_plan_expects_documents_by_the_size_of_dumps(tmp_path: Path) -> None:
    sizes = {"wikipedia": "a.xml.bz2", "stackexchange": "a.7z", "gutenberg": "a.txt", "arxiv": "a.tar"}
    for format_, name in sizes.items():
        (tmp_path / name).write_bytes(bytes(10_000_000))
        config = DownloadConfig(sources=[source(tmp_path / name, format_)])
        expected = rows_of(config)["documents"]
        assert expected.number is not None
        assert expected.text is not None
        assert 1 <= expected.number <= 20_000
        assert 500_000 < expected.text <= 30_000_000
        config = DownloadConfig(sources=[source(tmp_path / name, format_, limit=1)])
        assert rows_of(config)["documents"].number == 1
