"""Documents: the text of every format in its order, what comes of every one, and that none can hold a run up."""

from __future__ import annotations

import gzip
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.estimates.sources import Rows, rows_of
from storage.errors import SourceError
from tasks.download import DownloadConfig
from tasks.download.config import DocumentSource
from tasks.download.documents.licences import recognised
from tasks.download.documents.read import READER, fingerprint
from tasks.download.portions import portion_keys, spans
from tasks.download.sources.remote import Politeness
from tasks.stage.output import Output
from tasks.text.documents.pdf import letter_of
from tasks.text.process import MEMORY, ExtractorProcess, Failed
from tests.tasks.download.papers import (
    SCAN,
    column,
    docx,
    epub,
    mail,
    odt,
    paragraph,
    pdf,
    pptx,
    relations,
    shape,
    shown,
    zipped,
)
from tests.tasks.download.runs import documents_of, run, verdicts_of

LIMIT = 3_000_000  # bytes
SENTENCE = "the mill of the valley turned for two hundred years before anyone thought of writing its story down"
WORDS = SENTENCE.split()


@pytest.fixture(scope="module")
def process() -> Iterator[ExtractorProcess]:
    """One process for all documents that don't end it."""
    made = ExtractorProcess(READER, ("resiliparse", str(LIMIT)), 20)
    yield made
    made.close()


def text_of(process: ExtractorProcess, content: bytes, form: str) -> str:
    found = process.read((content, form))
    assert not isinstance(found, Failed), found
    return str(found["text"])


def source(*paths: Path, **more: Any) -> DocumentSource:
    values = {"name": "papers", "paths": list(map(str, paths)), "extractor": "resiliparse", **more}
    return DocumentSource.model_validate(values)


def made(out: Output) -> dict[str, tuple[str, dict[str, Any]]]:
    """Text and metadata by path."""
    return {f"{fields['path']}{fields.get('message', '')}": (text, fields) for text, fields in documents_of(out)}


def fates(out: Output) -> dict[str, tuple[str, str]]:
    """(verdict, reason) by file."""
    return {Path(one.detail.partition(": ")[0]).name: (one.verdict, one.reason) for one in verdicts_of(out)}


def lines(words: int, width: int = 8, start: int = 0) -> list[str]:
    """Lines of different words, `words` in all."""
    made_ = [f"{WORDS[at % len(WORDS)]}{at}" for at in range(start, start + words)]
    return [" ".join(made_[at : at + width]) for at in range(0, words, width)]


def test_a_paragraph_of_pdf_is_one_line_and_its_hyphens_are_mended(process: ExtractorProcess) -> None:
    page = column(
        [
            "The wheel of the mill was turned by the river for as long as any-",
            "one could remember, and its well-known sound was heard from the",
            "bridge. A state-of-the-art turbine replaced it in 1932, when the well-",
            "known miller had left.",
        ]
    )
    page += column(["It made electricity."], top=630)
    assert text_of(process, pdf(page), "pdf") == (
        "The wheel of the mill was turned by the river for as long as anyone could remember, and its well-known sound "
        "was heard from the bridge. A state-of-the-art turbine replaced it in 1932, when the well-known miller had "
        "left.\n\nIt made electricity."
    )


def test_columns_of_pdf_are_read_one_after_the_other_however_they_are_painted(process: ExtractorProcess) -> None:
    left, right = lines(120, 4), lines(120, 4, 120)
    title, end = (
        "A title above both columns that is wider than either",
        "A sentence below both columns, as wide as them",
    )
    head, foot = shown(title, 150, 740), shown(end, 150, 60)
    one, two = column(left, 72, 700, 9), column(right, 320, 694, 9)
    rows = [line for both in zip(one, two, strict=True) for line in both]
    expected = " ".join([*left, *right]).split()
    for painted in ([head, *one, *two, foot], [foot, *rows, head], [*two, head, *one, foot]):
        text = text_of(process, pdf(painted), "pdf")
        assert text.startswith(title)
        assert text.endswith(end)
        assert text.removeprefix(title).removesuffix(end).split() == expected


def test_a_table_of_pdf_stays_in_rows(process: ExtractorProcess) -> None:
    rows = [("Year", "Flour", "Wheat"), ("1901", "12 t", "15 t"), ("1902", "13 t", "17 t"), ("1903", "11 t", "16 t")]
    cells = [
        shown(cell, 72 + 120 * at, 700 - 12 * row) for row, line in enumerate(rows) for at, cell in enumerate(line)
    ]
    assert text_of(process, pdf(cells), "pdf") == "\n".join("\t".join(row) for row in rows)


def test_heads_feet_and_page_numbers_go_and_what_merely_looks_like_one_stays(process: ExtractorProcess) -> None:
    pages = []
    for number in range(8):
        head = ("The Story of the Mill", f"Chapter {number // 4 + 1}")[number % 2]
        body = [f"In {1900 + number} the mill had {number + 3} wheels.", "They turned.", *lines(16, 8, 100 * number)]
        place = (72, 520)[number % 2]
        edges = [shown(head, 250, 760), shown(str(number + 5), place, 760), shown(f"Page {number + 1} of 8", 280, 30)]
        pages.append([*edges, *column(body), *column([str(1776 + 7 * number)], top=600)])
    text = text_of(process, pdf(*pages), "pdf")
    assert "Story" not in text
    assert "Chapter" not in text
    assert "Page" not in text
    assert text.count("They turned.") == 8  # at the same place of each page, but not at its edge
    for number in range(8):
        assert f"In {1900 + number} the mill had {number + 3} wheels." in text
        assert str(1776 + 7 * number) in text


def test_a_sentence_goes_on_over_pages_and_a_list_and_code_keep_their_lines(process: ExtractorProcess) -> None:
    first = column(
        [
            "It was said that the wheel of the old mill would only turn",
            "for the brave who grind the corn of the whole valley all",
        ]
    )
    listed = ["night long.", "1. Wheat from the upper fields", "2. Rye", "- Oats"]
    code = [shown(text, 72 + 6 * indent, 500 - 12 * at, 10, "F2") for at, (indent, text) in enumerate(CODE)]
    text = text_of(process, pdf(first, [*column(listed), *code]), "pdf")
    assert "the corn of the whole valley all night long.\n1. Wheat from the upper fields\n2. Rye\n- Oats" in text
    assert text.endswith("def grind(corn):\n    return flour\ngrind(wheat)")


CODE = [(0, "def grind(corn):"), (4, "return flour"), (0, "grind(wheat)")]


def test_pages_without_a_text_layer_are_counted_as_scans(process: ExtractorProcess) -> None:
    found = process.read(
        (pdf([SCAN], column(["One page has text."]), [SCAN], [], title="Mills", language="en-GB"), "pdf")
    )
    assert found == {
        "text": "One page has text.",
        "title": "Mills",
        "author": "A. Miller",
        "date": "2024-05-01",
        "language": "en-GB",
        "pages": 4,
        "scanned_pages": 2,
    }
    assert process.read((pdf([SCAN], [SCAN]), "pdf")) == Failed("scanned", "2 of 2 pages")
    ornaments = [shown("the mill", 72, 700, font="F3"), shown("turns", 72, 680)]
    assert process.read((pdf(ornaments), "pdf")) == Failed("scanned", "1 of 1 pages")
    assert process.read((pdf([], []), "pdf")) == Failed("no_text")


def hebrew(*operators: bytes) -> bytes:
    """A PDF whose letters from A on are Hebrew ones."""
    map_ = b"begincmap 1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfrange <41> <5A> <05D0> endbfrange"
    content = pdf(operators).replace(b"/WinAnsiEncoding", b"/WinAnsiEncoding /ToUnicode 40 0 R")
    stream = b"40 0 obj\n<< /Length %d >>\nstream\n%s\nendstream\nendobj\nxref\n" % (len(map_), map_)
    return content.replace(b"xref\n", stream, 1)


def leftwards(text: str, x: float, y: float = 700) -> list[bytes]:
    """A text whose letters are painted in the order in which they are read, each to the left of the one before."""
    return [shown(letter, x - 6 * at, y, font="F2") for at, letter in enumerate(text) if letter != " "]


def test_what_is_written_leftwards_is_read_in_its_order_however_it_is_painted(process: ExtractorProcess) -> None:
    as_read = [*leftwards("ABC DEF, GHIJ", 300), shown("old mill 3", 160, 700, font="F2"), *leftwards("KLM", 148)]
    mirrored = [shown("CBA", 288, 700, font="F2")]
    within = [
        shown("the", 100, 700, font="F2"),
        *leftwards("ABC DEF", 160),
        shown("turns all day", 172, 700, font="F2"),
    ]
    assert text_of(process, hebrew(*as_read), "pdf") == "אבג דהו, זחטי old mill 3 ךכל"
    assert text_of(process, hebrew(*mirrored), "pdf") == "אבג"
    assert text_of(process, hebrew(*within), "pdf") == "the אבג דהו turns all day"


def test_figures_small_capitals_and_thai_tones_of_private_codes_are_text(process: ExtractorProcess) -> None:
    names = b"<< /Differences [48 /zerooldstyle 50 /twooldstyle 65 /Asmall /Eacutesmall /esuperior] >>"
    content = pdf(column(["2002 AB and 1C"])).replace(b"/WinAnsiEncoding", names, 1)
    assert text_of(process, content, "pdf") == "2002 aé and 1e"
    assert "".join(map(letter_of, (0xE01, 0xF70A, 0xF88B, 0xF8FF))) == "ก่่"


def test_a_page_that_is_turned_is_read_upright_and_a_stamp_along_its_margin_is_not(process: ExtractorProcess) -> None:
    up = b"BT /F1 10 Tf 0 1 -1 0 %d 100 Tm (%s) Tj ET"
    turned = [up % (100 + 12 * at, line.encode()) for at, line in enumerate(["The wheel of the mill", "is turning."])]
    assert text_of(process, pdf(turned, rotate=90), "pdf") == "The wheel of the mill is turning."
    text = text_of(
        process, pdf([up % (20, b"Downloaded by A. Reader"), *column(["The wheel is turning today."])]), "pdf"
    )
    assert text == "The wheel is turning today."


def listed(number: int, level: int = 0) -> str:
    return f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>'


STYLES = (
    '<w:styles xmlns:w="urn:w"><w:style w:styleId="H2"><w:name w:val="heading 2"/></w:style>'
    '<w:style w:styleId="Own"><w:basedOn w:val="H2"/></w:style></w:styles>'
)
NUMBERING = (
    '<w:numbering xmlns:w="urn:w"><w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/>'
    '</w:lvl><w:lvl w:ilvl="1"><w:numFmt w:val="bullet"/></w:lvl></w:abstractNum><w:num w:numId="1">'
    '<w:abstractNumId w:val="0"/></w:num></w:numbering>'
)
NOTES = f'<w:footnotes xmlns:w="urn:w"><w:footnote w:id="7">{paragraph("Of oak.")}</w:footnote></w:footnotes>'
COMMENTS = f'<w:comments xmlns:w="urn:w"><w:comment>{paragraph("A remark.")}</w:comment></w:comments>'
WORD = (
    paragraph("The mill", '<w:pStyle w:val="Own"/>')
    + "<w:p><w:r><w:t>Its wheel</w:t><w:footnoteReference w:id='7'/></w:r><w:ins><w:r><w:t> still</w:t></w:r></w:ins>"
    "<w:del><w:r><w:delText> never</w:delText></w:r></w:del><w:moveFrom><w:r><w:t> moved</w:t></w:r></w:moveFrom>"
    "<w:r><w:rPr><w:vanish/></w:rPr><w:t> hidden</w:t></w:r><w:hyperlink><w:r><w:t> turns</w:t></w:r></w:hyperlink>"
    "<w:r><w:instrText>PAGE</w:instrText><w:tab/><w:t>daily</w:t></w:r></w:p>"
    + f"<w:sdt><w:sdtContent>{paragraph('In a control.')}</w:sdtContent></w:sdt>"
    + paragraph("Corn", listed(1))
    + paragraph("Wheat", listed(1, 1))
    + paragraph("Water", listed(1))
    + "<w:tbl><w:tr>"
    + "".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in ("Year", "Flour"))
    + "</w:tr><w:tr><w:tc>"
    + paragraph("1901")
    + "</w:tc><w:tc><w:tbl><w:tr><w:tc>"
    + paragraph("12 t")
    + "</w:tc></w:tr></w:tbl></w:tc></w:tr><w:tr><w:trPr><w:del/></w:trPr><w:tc>"
    + paragraph("1902")
    + "</w:tc></w:tr></w:tbl>"
    + "<w:p><w:r><mc:AlternateContent><mc:Choice><w:drawing><wps:txbx><w:txbxContent>"
    + paragraph("In a box.")
    + "</w:txbxContent></wps:txbx></w:drawing></mc:Choice><mc:Fallback><w:t>twice</w:t></mc:Fallback>"
    "</mc:AlternateContent></w:r></w:p>"
    "<w:p><m:oMath><m:f><m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>b</m:t></m:r></m:den></m:f><m:sSup><m:e>"
    "<m:r><m:t>x</m:t></m:r></m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup></m:oMath></w:p>"
)


def test_word_gives_what_a_reader_sees_in_its_order(process: ExtractorProcess) -> None:
    content = docx(WORD, styles=STYLES, numbering=NUMBERING, footnotes=NOTES, comments=COMMENTS)
    assert process.read((content, "docx")) == {
        "text": "## The mill\n\nIts wheel[^1] still turns\tdaily\n\nIn a control.\n\n1. Corn\n  - Wheat\n2. Water\n\n"
        "Year | Flour\n1901 | 12 t\n\nIn a box.\n\na/bx^2\n\n[^1]: Of oak.",
        "title": "The mill",
        "author": "A. Miller",
        "date": "2024-05-01",
        "language": "en",
    }


def test_pages_within_a_document_of_word_are_text(process: ExtractorProcess) -> None:
    page = "<html><body><h1>The mill</h1><p>It <b>turns</b>.</p></body></html>"
    saved = (
        "MIME-Version: 1.0\nContent-Type: multipart/related; boundary=x\n\n--x\nContent-Type: text/html\n\n{}\n--x--"
    )
    for ending, content in (("html", page), ("mht", saved.format(page)), ("rtf", r"{\rtf It turns.}")):
        more = {"word/_rels/document.xml.rels": relations(c=f"aFChunk /word/c.{ending}"), f"word/c.{ending}": content}
        whole = docx(f'{paragraph("First.")}<w:altChunk r:id="c"/>{paragraph("Last.")}', more)
        shown = "# The mill\n\nIt turns.\n\n" if ending != "rtf" else ""
        assert text_of(process, whole, "docx") == f"First.\n\n{shown}Last."


def test_opendocument_gives_what_a_reader_sees_in_its_order(process: ExtractorProcess) -> None:
    item = "<text:list-item><text:p>{}</text:p></text:list-item>"
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    styles = (
        '<x xmlns:text="urn:text" xmlns:style="urn:s"><text:list-style style:name="L1">'
        '<text:list-level-style-number text:level="1"/></text:list-style></x>'
    )
    body = (
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes><text:h text:outline-level='2'>The mill"
        "</text:h><text:p>Its wheel<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Of oak."
        "</text:p></text:note-body></text:note> <text:span>turns</text:span><text:s text:c='2'/>daily"
        "<office:annotation><text:p>remark</text:p></office:annotation>.</text:p>"
        f"<text:list text:style-name='L1'>{item.format('Corn')}<text:list-item><text:p>Water</text:p><text:list>"
        f"{item.format('River')}</text:list></text:list-item></text:list><table:table><table:table-row>"
        f"{cell.format('Year')}{cell.format('Flour')}</table:table-row><table:table-row>{cell.format('1901')}"
        f"{cell.format('12 t')}</table:table-row></table:table>"
    )
    content = odt(body, **{"styles.xml": styles})
    assert process.read((content, "odt")) == {
        "text": "## The mill\n\nIts wheel[^1] turns  daily.\n\n1. Corn\n2. Water\n  - River\n\nYear | Flour\n"
        "1901 | 12 t\n\n[^1]: Of oak.",
        "title": "The mill",
    }


def test_formulas_of_opendocument_are_read_where_they_stand(process: ExtractorProcess) -> None:
    written = "<math><semantics><mi>E</mi><annotation encoding='StarMath 5.0'>E = m c^2</annotation></semantics></math>"
    refers = '<draw:frame><draw:object draw:href="./{}"/></draw:frame>'
    body = (
        f"<text:p>It is {refers.format('Object 1')}, {refers.format('Chart')}or {refers.format('Object 2')}.</text:p>"
    )
    parts = {
        "Object 1": written,
        "Object 2": "<math><mi>x</mi><mo>=</mo><mn>2</mn></math>",
        "Chart": "<chart>7</chart>",
    }
    content = odt(body, **{f"{name}/content.xml": part for name, part in parts.items()})
    assert text_of(process, content, "odt") == "It is E = m c^2, or x=2."


def test_slides_are_read_in_their_order_with_titles_first_and_notes(process: ExtractorProcess) -> None:
    cells = "".join(f"<a:tc><a:p><a:r><a:t>{cell}</a:t></a:r></a:p></a:tc>" for cell in ("Year", "Flour"))
    table = f"<p:graphicFrame><a:tbl><a:tr>{cells}</a:tr></a:tbl></p:graphicFrame>"
    first = shape("body", "It turns", "every day") + shape("title", "The wheel") + shape("sldNum", "1") + table
    found = process.read((pptx(first, f"<p:grpSp>{shape('body', 'The end.')}</p:grpSp>"), "pptx"))
    assert not isinstance(found, Failed)
    assert found["text"] == "## The wheel\n\nIt turns\nevery day\n\nYear | Flour\n\nSay it slowly.\n\nThe end."
    assert (found["title"], found["slides"]) == ("The mill", 2)


@pytest.mark.parametrize(
    ("encoding", "text"), [("windows-1251", "Мельница"), ("iso-8859-1", "Àñè"), ("utf-16", "Mühle")]
)
def test_a_chapter_is_read_in_the_encoding_that_it_declares(
    encoding: str, text: str, process: ExtractorProcess
) -> None:
    chapter = f"<?xml version='1.0' encoding='{encoding}'?><html><body><p>{text}</p></body></html>".encode(encoding)
    assert text_of(process, epub("x", **{"OEBPS/c0.xhtml": chapter}), "epub") == text


def test_a_book_is_read_by_its_spine_with_lists_tables_and_formulas(process: ExtractorProcess) -> None:
    first = (
        "<h1>The <em>mill</em></h1><p>Its&nbsp;wheel<br/>turns<script>x</script> daily.</p>text <p>beside</p><ol><li>"
        "Corn<ul><li>Wheat</li></ul></li><li><p>Water</p></li></ol><table><tr><th>Year</th><th>Flour</th></tr></table>"
        "<p>It is <math><mi>x</mi><mo>=</mo><mn>2</mn><annotation encoding='application/x-tex'>x=2</annotation></math>."
        "</p><ruby>\u6c34<rt>mizu</rt></ruby><pre>a\n  b</pre>"
    )
    found = process.read((epub(first, "<p>The end.</p>"), "epub"))
    assert found == {
        "text": "# The mill\n\nIts\u00a0wheel\nturns daily.\n\ntext\n\nbeside\n\n1. Corn\n  - Wheat\n2. Water\n\n"
        "Year | Flour\n\nIt is $x=2$.\n\n\u6c34\n\na\n  b\n\nThe end.",
        "title": "The mill",
        "language": "en",
    }


RUN = "<w:r><w:rPr><w:vertAlign w:val='{}'/></w:rPr><w:t>{}</w:t></w:r>"
SLIDE_RUN = '<a:r><a:rPr baseline="{}"/><a:t>{}</a:t></a:r>'
SHIFTED = {
    "docx": docx(
        f"<w:p><w:r><w:t>10</w:t></w:r>{RUN.format('superscript', '-6')}<w:r><w:t> H</w:t></w:r>"
        f"{RUN.format('subscript', '2')}<w:r><w:t>O 1</w:t></w:r>{RUN.format('superscript', 'st')}</w:p>"
    ),
    "odt": odt(
        '<office:automatic-styles><office:style office:name="a">'
        '<office:text-properties office:text-position="super 58%"/>'
        '</office:style><office:style office:name="b">'
        '<office:text-properties office:text-position="-33% 58%"/></office:style>'
        '</office:automatic-styles><text:p>10<text:span text:style-name="a">-6</text:span> H<text:span '
        'text:style-name="b">2</text:span>O 1<text:span text:style-name="a">st</text:span></text:p>'
    ),
    "pptx": pptx(
        "<p:sp><p:txBody><a:p><a:r><a:t>10</a:t></a:r>"
        f"{SLIDE_RUN.format('30000', '-6')}{SLIDE_RUN.format('0', ' H')}{SLIDE_RUN.format('-25000', '2')}"
        f"<a:r><a:t>O 1</a:t></a:r>{SLIDE_RUN.format('30000', 'st')}</a:p></p:txBody></p:sp>"
    ),
    "epub": epub("<p>10<sup>-6</sup> H<sub><i>2</i></sub>O 1<sup>st</sup></p>"),
    "html": b"<p>10<sup class='a'>-6</sup> H<SUB>2</SUB>O 1<sup>st</sup></p>",
}


@pytest.mark.parametrize("form", SHIFTED)
def test_digits_above_and_below_the_line_are_no_other_number(form: str, process: ExtractorProcess) -> None:
    assert text_of(process, SHIFTED[form], form).startswith("10⁻⁶ H₂O 1st")


PLAIN = b"--x\r\nContent-Type: text/plain; charset=latin1\r\n\r\nIts wheel at M\xfcn.\r\n> Does it?\r\n-- \r\nA.\r\n"
HTML = b"--x\r\nContent-Type: text/html\r\n\r\n<p>Its <b>wheel</b> turns.</p>\r\n"
FILE = b'--x\r\nContent-Type: application/pdf; name="plan.pdf"\r\nContent-Disposition: attachment\r\n\r\n%PDF\r\n'
MESSAGES = {  # the message, and its text
    "plain": (mail(b"Its wheel turns.\r\n"), "Its wheel turns."),
    "alternatives": (mail(PLAIN + HTML + b"--x--", "Content-Type: multipart/alternative; boundary=x"), "Its wheel at"),
    "alternatives of several parts": (
        mail(
            b"--y\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n" + PLAIN + b"--x--\r\n--y\r\n"
            b"Content-Type: multipart/related; boundary=z\r\n\r\n" + HTML.replace(b"--x", b"--z") + b"--z--\r\n--y--",
            "Content-Type: multipart/alternative; boundary=y",
        ),
        "Its wheel at",
    ),
    "digest": (
        mail(b"--x\r\n\r\nSubject: a\r\n\r\nIts wheel at noon.\r\n--x--", "Content-Type: multipart/digest; boundary=x"),
        "Its wheel at noon.",
    ),
    "html": (mail(HTML + b"--x--", "Content-Type: multipart/alternative; boundary=x"), "Its wheel turns."),
    "attachment": (
        mail(PLAIN + FILE + b"--x--", "Content-Type: multipart/mixed; boundary=x"),
        "Its wheel at M\u00fcn.",
    ),
    "base64": (mail(b"SXRzIHdoZWVsIHR1cm5zLg==", "Content-Transfer-Encoding: base64"), "Its wheel turns."),
    "bad base64": (mail(b"Its wheel turns!", "Content-Transfer-Encoding: base64"), ""),
    "quoted": (
        mail(b"Its wheel=20=\r\nturns=C3=A9.", "Content-Transfer-Encoding: quoted-printable"),
        "Its wheel turns\u00e9.",
    ),
    "unknown charset": (mail(b"Its wheel turns.", "Content-Type: text/plain; charset=no-such"), "Its wheel turns."),
    "impossible charset": (
        mail(b"Its wheel turns.\xff", 'Content-Type: text/plain; charset="a\0b"'),
        "Its wheel turns.",
    ),
    "flowed": (
        mail(b"Its \r\nwheel turns.\r\n> yes \r\n> it does\r\n", "Content-Type: text/plain; format=flowed"),
        "Its wheel turns.\n> yes it does",
    ),
    "no boundary": (mail(b"Its wheel turns.", "Content-Type: multipart/mixed"), "Its wheel turns."),
    "bare line feeds": (mail(b"Its wheel turns.").replace(b"\r\n", b"\n"), "Its wheel turns."),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_text_of_a_message_is_found_however_it_is_packed(name: str, process: ExtractorProcess) -> None:
    content, expected = MESSAGES[name]
    found = process.read((content, "mail"))
    assert not isinstance(found, Failed), found
    assert found["text"].startswith(expected)
    assert found["text"].count("wheel") == 1
    assert (found["title"], found["from"]) == ("The mill", "A. Miller <a@example.org>")
    assert found["date"] == "2024-05-01T12:00:00+02:00"
    assert found.get("attachments") == (["plan.pdf"] if name == "attachment" else None)
    if name == "attachment":
        assert found["text"].endswith("> Does it?\n-- \nA.")


def test_broken_headers_of_a_message_are_read_as_far_as_they_go(process: ExtractorProcess) -> None:
    headers = {
        "Subject: =?utf-8?q?M=C3=BChle?= =?utf-8?b?IQ==?=": "M\u00fchle!",
        "Subject: M\u00fchle": "M\u00fchle",
        "Subject: =?no-such?q?M=C3=BChle?=": "M\u00fchle",
        "Subject: =?utf-8?b?broken": "=?utf-8?b?broken",
        "Subject: a\n =?utf-8?q?=ED=A0=80?=\0b": "a",
    }
    for header, title in headers.items():
        content = f"{header}\nDate: some day\n\nIts wheel turns.".encode()
        found = process.read((content, "mail"))
        assert not isinstance(found, Failed)
        assert found["title"].startswith(title)
        assert found["date"] == "some day"
    wrong = process.read((b"Its wheel turns.", "mail"))
    assert wrong == Failed("damaged_document", "it has no header")
    assert process.read((mail(b"x", "Content-Type: multipart/encrypted; boundary=x"), "mail")) == Failed(
        "password", "it is encrypted"
    )


def test_front_matter_is_metadata_and_the_rest_stays_as_it_is(process: ExtractorProcess) -> None:
    yaml = b"---\ntitle: The mill\nauthors: [A, B]\ndate: 2024-05-01\nnested: {a: 1}\n---\n# Wheel\n\n*turns*  \n"
    found = process.read((yaml, "markdown"))
    assert not isinstance(found, Failed)
    assert found["text"] == "# Wheel\n\n*turns*  \n"
    assert {name: str(value) for name, value in found.items() if name not in ("text", "encoding")} == {
        "title": "The mill",
        "author": "['A', 'B']",
        "date": "2024-05-01",
    }
    toml = process.read((b'+++\ntitle = "The mill"\n+++\nIts wheel', "markdown"))
    assert toml == {"text": "Its wheel", "title": "The mill", "encoding": "utf-8"}
    for kept in (b"---\n\nA line above.\n", b"---\n[broken: yaml\n---\nIts wheel", b"---\n- a\n- list\n---\nIts wheel"):
        assert text_of(process, kept, "markdown") == kept.decode()
    bomb = "---\na: &a [x, x, x]\n" + "".join(f"b{at}: &b{at} [*a, *a, *a]\n" for at in range(40)) + "---\nIts wheel"
    assert text_of(process, bomb.encode(), "markdown") == "Its wheel"


def test_source_code_has_its_language_and_the_nearest_licence(tmp_path: Path) -> None:
    code = tmp_path / "code"
    files = {
        "LICENSE": "Permission is hereby granted, free of charge, to any person\nobtaining a copy of this software and",
        "a.py": "print('mill')\n",
        "lib/b.rs": "// SPDX-License-Identifier: MIT OR Apache-2.0\nfn main() {}\n",
        "lib/vendor/COPYING.txt": "GNU GENERAL PUBLIC LICENSE\n   Version 3, 29 June 2007",
        "lib/vendor/deep/c.C": "int main() { return 0; }\n",
        "own/LICENSE": "All rights reserved.",
        "own/d.js": "grind();\n",
        "e.ts": "\0\1video",
        "empty.go": "",
    }
    for name, text in files.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(text)
    (tmp_path / "LICENSE").write_text(files["lib/vendor/COPYING.txt"])  # above what the source names
    patterns = [code / "**" / f"*.{ending}" for ending in ("py", "rs", "C", "js", "ts", "go")]
    found = run(tmp_path, wanted := source(*patterns))
    fields = {name: fields for name, (_, fields) in made(found).items()}
    assert {name: (one["programming_language"], one.get("license")) for name, one in fields.items()} == {
        "a.py": ("Python", "MIT"),
        "lib/b.rs": ("Rust", "MIT OR Apache-2.0"),
        "lib/vendor/deep/c.C": ("C", "GPL-3.0"),
        "own/d.js": ("JavaScript", None),
    }
    assert fields["own/d.js"]["license_file"] == "own/LICENSE"
    assert made(found)["lib/b.rs"][0] == files["lib/b.rs"]
    assert fates(found) == {"e.ts": ("removed", "not_text"), "empty.go": ("removed", "no_text")}
    before = fingerprint(wanted), portion_keys(wanted, [(span,) for span in spans(wanted, Politeness())])
    (code / "LICENSE").write_text("Apache License\nVersion 2.0")
    assert fingerprint(wanted) != before[0]
    after = portion_keys(wanted, [(span,) for span in spans(wanted, Politeness())])
    assert [old != new for old, new in zip(before[1], after, strict=True)] == [True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("text", "identifier"),
    [
        ("                  Apache License\n            Version 2.0, January 2004", "Apache-2.0"),
        ("GNU LESSER GENERAL PUBLIC LICENSE\nVersion 3 ... GNU General Public License version 3", "LGPL-3.0"),
        ("Mozilla Public License Version 2.0" + " words" * 500 + " GNU General Public License version 2", "MPL-2.0"),
        ("Redistribution and use in source and binary forms, with or without\nNeither the name of", "BSD-3-Clause"),
        ("Redistribution and use in source and binary forms, with or without", "BSD-2-Clause"),
        ("This is free and unencumbered software released into the public domain.", "Unlicense"),
        ("Attribution-ShareAlike 4.0 International", "CC-BY-SA-4.0"),
        ("You may read this.", ""),
    ],
)
def test_licences_are_recognised_by_their_beginnings(text: str, identifier: str) -> None:
    assert recognised(text) == identifier


def test_messages_of_a_mailbox_are_documents_of_their_own(tmp_path: Path) -> None:
    long = mail(b"x" * 5000)
    box = b"".join(
        b"From a@example.org Wed May  1 12:00:00 2024\r\n" + each + b"\r\n\r\n"
        for each in (
            mail(b">From here it turns.\r\n\r\nFrom there too."),
            long,
            mail(b""),
            mail(b"From the mill.").replace(b"\nFrom ", b"\n>From "),
        )
    )
    path = tmp_path / "all.mbox"
    path.write_bytes(box)
    out = run(tmp_path, source(path), max_document_bytes=4000)
    assert {name: text for name, (text, _) in made(out).items()} == {
        "all.mbox1": "From here it turns.\n\nFrom there too.",
        "all.mbox4": "From the mill.",
    }
    assert made(out)["all.mbox4"][1]["title"] == "The mill"
    assert fates(out) == {
        "all.mbox message 2": ("quarantined", "too_long"),
        "all.mbox message 3": ("removed", "no_text"),
    }
    (tmp_path / "bad.mbox").write_bytes(b"no mailbox")
    found = fates(run(tmp_path / "b", source(tmp_path / "*.mbox")))
    assert found["bad.mbox"] == ("quarantined", "damaged_document")


def everything(folder: Path) -> Path:
    """A folder with a document of each format, each fate, and what it comes to."""
    folder.mkdir()
    for name, content in {
        "a/paper.PDF": pdf(column(["The mill in PDF."])),
        "a/word.docx": docx(paragraph("The mill in Word.")),
        "b/open.odt": odt("<text:p>The mill in OpenDocument.</text:p>"),
        "b/slides.pptx": pptx(shape("body", "The mill on slides.")),
        "book.epub": epub("<p>The mill in a book.</p>"),
        "page.html": b"<html lang='en'><title>Mill</title><body><nav>Menu</nav><article><p>The mill on a page.</p>",
        "message.eml": mail(b"The mill in a message."),
        "notes.md": b"The *mill* in Markdown.",
        "notes.txt": "Die M\u00fchle in Text.".encode("cp1252"),
        "mill.py": b"grind()",
        "scan.pdf": pdf([SCAN]),
        "half.pdf": pdf(column(["The mill before a picture."]), [SCAN], [SCAN]),
        "locked.pdf": pdf(column(["secret"]), locked=True),
        "cut.docx": docx(paragraph("cut"))[:300],
        "empty.pptx": b"",
        "empty.html": b"",
        "word.pdf": docx(paragraph("misnamed")),
        "bomb.docx": docx("<w:p>" + " " * 2_500_000 + "</w:p>"),
        "long.txt": b"x" * (LIMIT + 1),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "**" / "*.*"


FATES = {
    "scan.pdf": ("removed", "scanned"),
    "locked.pdf": ("quarantined", "password"),
    "cut.docx": ("quarantined", "damaged_document"),
    "empty.pptx": ("quarantined", "damaged_document"),
    "empty.html": ("removed", "no_text"),
    "word.pdf": ("quarantined", "damaged_document"),
    "bomb.docx": ("quarantined", "zip_bomb"),
    "long.txt": ("quarantined", "too_long"),
}


def test_every_document_has_a_row_or_a_fate_for_any_number_of_workers(tmp_path: Path) -> None:
    pattern = everything(tmp_path / "all")
    shards = []
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        out = run(tmp_path / str(workers), source(pattern), workers=workers, max_document_bytes=LIMIT, shard_bytes=500)
        shards.append({path.name: path.read_bytes() for path in out.path.rglob("*.parquet")})
    assert shards[0] == shards[1]
    found = made(out)
    assert {name: fields["format"] for name, (_, fields) in found.items()} == {
        "a/paper.PDF": "pdf",
        "half.pdf": "pdf",
        "a/word.docx": "docx",
        "b/open.odt": "odt",
        "b/slides.pptx": "pptx",
        "book.epub": "epub",
        "page.html": "html",
        "message.eml": "mail",
        "notes.md": "markdown",
        "notes.txt": "text",
        "mill.py": "code",
    }
    assert {text.split()[0] for text, _ in found.values()} == {"The", "Die", "grind()"}
    assert found["notes.txt"][0] == "Die M\u00fchle in Text."
    assert found["page.html"][1]["title"] == "Mill"
    assert found["a/word.docx"][1]["file"] == "word.docx"
    assert fates(out) == FATES
    assert out.counts["documents"]["removed"] == {"no_text": 1, "scanned": 1}
    table = {row["fate"]: row["documents"] for row in out.counts["tables"]["Documents by fate"]}
    assert out.counts["scanned_pages"] == 2
    assert table == {
        "text": 11,
        "damaged_document": 3,
        "no_text": 1,
        "password": 1,
        "scanned": 1,
        "too_long": 1,
        "zip_bomb": 1,
    }


def test_a_source_of_scans_only_ends_the_run_with_what_would_help(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf([SCAN]))
    with pytest.raises(SourceError, match=r"none of its 1 documents has text \(1 scanned\)") as raised:
        run(tmp_path, source(tmp_path / "a.pdf"))
    assert "OCR" in raised.value.remedy


def lies(name: str) -> bytes:
    """A ZIP file whose directory says that a part is small."""
    data = bytearray(docx("<w:p>" + " " * 2_500_000 + "</w:p>"))
    at = data.rindex(b"PK\1\2")
    while b"word/document.xml" not in data[at : at + 80]:
        at = data.rindex(b"PK\1\2", 0, at)
    data[at + 24 : at + 28] = struct.pack("<I", 1000)
    return bytes(data)


def deep(opening: str, closing: str, depth: int = 5000) -> str:
    return opening * depth + closing * depth


CELL = ("<w:tbl><w:tr><w:tc>", "</w:tc></w:tr></w:tbl>")
MALFORMED: dict[str, tuple[bytes, str, set[str]]] = {  # the content, its format, and what may come of it
    "a directory that lies": (lies("docx"), "docx", {"damaged_document"}),
    "a zip in a zip": (zipped({"word/document.xml": docx(paragraph("a"))}), "docx", {"damaged_document"}),
    "a zip of nothing": (zipped({}), "epub", {"damaged_document"}),
    "an old document": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(999), "docx", {"damaged_document"}),
    "an encrypted document": (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
        "docx",
        {"password"},
    ),
    "an encrypted odt": (
        odt("", **{"META-INF/manifest.xml": "<m><file-entry><encryption-data/></file-entry></m>"}),
        "odt",
        {"password"},
    ),
    "an encrypted book": (
        epub("<p>a</p>", **{"META-INF/encryption.xml": "<e><CipherReference URI='OEBPS/c0.xhtml'/></e>"}),
        "epub",
        {"password"},
    ),
    "deep tables of word": (docx(deep(*CELL)), "docx", {"nested_too_deep"}),
    "deep tables of odt": (odt(deep("<table:table>", "</table:table>")), "odt", {"nested_too_deep"}),
    "deep tables of a book": (
        epub(deep("<table><tr><td>", "</td></tr></table>")),
        "epub",
        {"nested_too_deep", "no_text"},
    ),
    "deep tables of html": (deep("<table><tr><td>x", "</td></tr></table>").encode(), "html", {"text", "no_text"}),
    "deep parts of mail": (
        b"".join(b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (at, at) for at in range(1000)),
        "mail",
        {"nested_too_deep", "no_text"},
    ),
    "entities that grow": (
        docx("").replace(b"", b"", 0)
        and zipped({"word/document.xml": '<!DOCTYPE a [<!ENTITY b "bb">]><a><body>&b;</body></a>'}),
        "docx",
        {"no_text"},
    ),
    "a million objects": (
        pdf(*[[b"q Q"] for _ in range(1000)], [b"0 0 m 9 9 l S\n" * 200_000]),
        "pdf",
        {"no_text", "scanned", "time_over"},
    ),
    "a stream that bursts": (
        pdf([b"x"]).replace(
            b"/Length 1 >>\nstream\nx", b"/Filter /FlateDecode /Length 9 >>\nstream\n" + zlib.compress(bytes(2_000_000))
        ),
        "pdf",
        {"no_text", "damaged_document", "scanned"},
    ),
    "pages in a circle": (
        pdf([b""]).replace(b"/Kids [8 0 R]", b"/Kids [2 0 R]"),
        "pdf",
        {"damaged_document", "no_text"},
    ),
    "text beyond Unicode": (pdf([shown("mill", 1e30, 1e30), shown("wheel", -9e9, 5, 1e9)]), "pdf", {"text", "no_text"}),
    "a long line": (b"mill " * 500_000, "text", {"text"}),
    "half a pair": ("The mill".encode("utf-16") + b"\x00\xd8", "text", {"text"}),
    "gzip": (gzip.compress(b"mill"), "text", {"damaged_document"}),
    "a key of a dictionary": (b"---\n? [a, b]\n: c\n---\nIts wheel", "markdown", {"text"}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_has_a_fate(name: str, process: ExtractorProcess) -> None:
    content, form, fates_ = MALFORMED[name]
    found = process.read((content, form))
    assert (found.reason if isinstance(found, Failed) else "text") in fates_, found
    if not isinstance(found, Failed):
        found["text"].encode()


SAMPLES = {
    "pdf": pdf(column(lines(80)), column(lines(80, 8, 80)), [SCAN]),
    "docx": docx(WORD, styles=STYLES, numbering=NUMBERING, footnotes=NOTES),
    "odt": odt("<text:h>a</text:h><text:list><text:list-item><text:p>b</text:p></text:list-item></text:list>" * 20),
    "pptx": pptx(shape("title", "a"), shape("body", "b", "c")),
    "epub": epub("<h1>a</h1><table><tr><td>b</td></tr></table>" * 20),
    "mail": MESSAGES["attachment"][0],
    "html": b"<html><body><article><p>" + b" ".join(word.encode() for word in WORDS) + b"</p></article>",
    "markdown": b"---\ntitle: a\n---\n# b\n",
    "code": b"# SPDX-License-Identifier: MIT\nprint('mill')\n",
}
KNOWN = {"no_text", "scanned", "not_text", "password", "damaged_document", "nested_too_deep", "zip_bomb", "too_long"}


@pytest.mark.parametrize("form", SAMPLES)
def test_a_document_that_is_cut_or_changed_has_a_fate_and_ends_no_process(form: str, process: ExtractorProcess) -> None:
    whole = SAMPLES[form]
    number = random.Random(form)
    broken = [whole[: len(whole) * tenth // 10] for tenth in range(10)]
    for _ in range(20):
        data = bytearray(whole)
        for _ in range(3):
            data[number.randrange(len(data))] = number.randrange(256)
        broken.append(bytes(data))
    for content in broken:
        found = process.read((content, form))
        if isinstance(found, Failed):
            assert found.reason in KNOWN, found
        else:
            assert found["text"].strip()
            json.dumps(found, ensure_ascii=False, default=str).encode()


def test_what_takes_too_long_or_too_much_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"before")
    (tmp_path / "b.pdf").write_bytes(pdf(*[column([SENTENCE] * 50) for _ in range(20)]))
    (tmp_path / "c.txt").write_bytes(b"after")
    out = run(tmp_path, source(tmp_path / "*.*", seconds=0.1))
    assert set(made(out)) == {"a.txt", "c.txt"}
    assert fates(out) == {"b.pdf": ("quarantined", "time_over")}
    greedy = ExtractorProcess("tests.tasks.download.papers", (), 20)
    try:
        assert greedy.read((MEMORY,)) == Failed("memory_over")
        assert greedy.read((1000,)) == {"text": "1000 bytes"}
    finally:
        greedy.close()


def test_a_plan_expects_documents_by_the_sizes_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(bytes(100_000))
    (tmp_path / "b.mbox").write_bytes(bytes(60_000))
    (tmp_path / "c.py").write_bytes(bytes(500))

    def expected(**more: Any) -> Rows:
        return rows_of(DownloadConfig(sources=[source(tmp_path / "*.*", **more)]))["documents"]

    found = expected()
    assert (found.number, found.files) == (12, 3)
    assert found.text == pytest.approx(50_500)
    assert found.pages == pytest.approx(4 + 1)
    assert expected(limit=6).text == pytest.approx(25_250)


def test_settings_that_cannot_apply_are_refused(tmp_path: Path) -> None:
    for wrong in ({"text_column": "body"}, {"role": "instructions"}, {"seconds": 0}):
        with pytest.raises(ValidationError):
            source(tmp_path, **wrong)
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    (tmp_path / "b.xlsx").write_bytes(b"")
    with pytest.raises(SourceError, match="unknown extension") as raised:
        run(tmp_path, source(tmp_path / "a.jsonl"))
    assert "kind: files" in raised.value.remedy
    with pytest.raises(SourceError, match="unknown extension") as raised:
        run(tmp_path, source(tmp_path / "b.xlsx"))
    assert ".docx" in raised.value.remedy
    assert "source code" in raised.value.remedy
    for name in ("c.xlsx", "d.gif", "Makefile~"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(
        SourceError, match=r"/Makefile~ has an unknown.* So have 4 more files: .gif, .jsonl, .xlsx. Supp"
    ) as raised:
        run(tmp_path, source(tmp_path / "*"))


def test_a_package_is_read_where_a_library_reads_it(tmp_path: Path) -> None:
    """The directory of the packages that these tests make is one that `zipfile` tests as whole."""
    (tmp_path / "a.docx").write_bytes(SAMPLES["docx"])
    assert zipfile.ZipFile(tmp_path / "a.docx").testzip() is None
