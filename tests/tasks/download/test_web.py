"""Web archives: what comes of every page, whole or broken, and that a page can't hold a run up."""

from __future__ import annotations

import gzip
import random
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from flows.estimates.sources import Rows, rows_of
from storage.errors import SourceError
from tasks.download import DownloadConfig
from tasks.download.config import WebSource
from tasks.download.portions import Span, _misread
from tasks.download.sources.rows import Refused
from tasks.download.web.addresses import why_excluded
from tasks.download.web.pages import fingerprint
from tasks.download.web.records import Record, read_records
from tasks.download.web.sections import Reach
from tasks.shards import ShardResult
from tasks.stage.output import Output
from tasks.text.process import ExtractorProcess, Failed
from tasks.text.web.encoding import decode
from tasks.text.web.extract import EXTRACTORS, Extractor, Page, read_page
from tests.tasks.download.archives import arc, html, http, packed, page, warc
from tests.tasks.download.runs import documents_of, run, verdicts_of

INFO = warc("", b"software: none\r\n", "warcinfo")
NOISE = random.Random(1).randbytes(60_000).hex().encode()  # which gzip keeps long
LONG = warc("https://example.org/long", http(b"<html><body><p>" + NOISE))
GZIPPED = gzip.compress(html("packed", times=40))


def source(*paths: Path, **more: Any) -> WebSource:
    return WebSource.model_validate({"name": "web", "paths": list(map(str, paths)), "extractor": "resiliparse", **more})


def made(out: Output) -> dict[str, tuple[str, dict[str, Any]]]:
    """Text and metadata by the end of the address."""
    return {fields["url"].rpartition("/")[2]: (text, fields) for text, fields in documents_of(out)}


def fates(out: Output) -> list[tuple[str, str, str]]:
    """(verdict, reason, detail after the file's name) of the ledger, in its order."""
    return [(one.verdict, one.reason, one.detail.rpartition("/web.")[2].partition(" ")[2]) for one in verdicts_of(out)]


def stored(record: bytes) -> bytes:
    """A member of gzip that isn't compressed, so that what it holds lies in the file as it is."""
    return gzip.compress(record, 0, mtime=0)


def records_of(path: Path, reach: Reach) -> list[Record | Refused]:
    with path.open("rb") as file:
        return list(read_records(file, "", 10**6, reach))


def archive(folder: Path, data: bytes, ending: str = "warc.gz") -> Path:
    path = folder / f"web.{ending}"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_the_article_of_a_page_is_its_text_and_the_rest_its_metadata(extractor: str, tmp_path: Path) -> None:
    head = (
        "<meta property='article:published_time' content='2023-01-02'>"
        "<link rel='license' href='https://creativecommons.org/licenses/by/4.0/'>"
    )
    path = archive(tmp_path, packed(INFO, page("mill", head=head), page("moulin", language="fr")))
    found = made(run(tmp_path, source(path, extractor=extractor)))
    text, fields = found["mill"]
    assert "The mill 3 of the valley turned" in text
    assert "Contact" not in text
    assert fields == {
        "url": "https://example.org/mill",
        "title": "About mill",
        "language": "en",
        "date": "2023-01-02",
        "license": "https://creativecommons.org/licenses/by/4.0/",
        "crawled": "2024-05-01T00:00:00Z",
        "encoding": "utf-8",
    }
    assert found["moulin"][1]["language"] == "fr"


def test_every_container_gives_the_same_pages(tmp_path: Path) -> None:
    records = [INFO, page("a"), LONG, page("b")]
    whole = b"".join(records)
    blocks = [whole[at : at + 5000] for at in range(0, len(whole), 5000)]
    with pa.output_stream(str(tmp_path / "web.warc.zst"), compression="zstd") as stream:
        stream.write(whole)
    archive(tmp_path, whole, "warc")
    for name, data in {"each": packed(*records), "one": packed(whole), "blocks": packed(*blocks)}.items():
        archive(tmp_path, data, f"{name}.warc.gz")
    read = {
        path.name: [record.block for record in records_of(path, Reach()) if isinstance(record, Record)]
        for path in tmp_path.glob("web.*")
    }
    assert len(read) == 5
    assert all(blocks == read["web.warc"] for blocks in read.values())
    assert len(read["web.warc"]) == 4


def test_text_of_wet_and_pages_of_arc_are_read(tmp_path: Path) -> None:
    language = "WARC-Identified-Content-Language: deu"
    wet = warc("https://example.org/wet", "Die Mühle am Bach".encode(), "conversion", None, language)
    first = arc(
        "filedesc://web.arc", b"1 0 Internet Archive\nURL IP-address Archive-date Content-type Archive-length\n"
    )
    archive(tmp_path, packed(INFO, wet), "warc.wet.gz")
    old = (first, arc("dns:example.org", b"1"), arc("https://example.org/arc", http(html("arc"))))
    archive(tmp_path, b"".join(old), "arc")
    archive(tmp_path, packed(*old), "arc.gz")
    found = made(run(tmp_path, source(tmp_path / "*")))
    assert found["wet"][0] == "Die Mühle am Bach"
    assert found["wet"][1]["language"] == "deu"
    assert "The arc 0 of the valley" in found["arc"][0]
    assert found["arc"][1]["crawled"] == "2008-01-02T03:04:05Z"


REMOVED = {
    "image": (http(b"\x89PNG\0\0", "image/png"), "not_html"),
    "pdf-that-lies": (http(b"%PDF-1.7 " + html("pdf")), "not_html"),
    "binary-that-lies": (http(b"\0\1\2" * 100), "not_html"),
    "gone": (http(html("gone"), status="404 Not Found"), "http_status"),
    "moved": (http(b"", "text/html", "301 Moved", "Location: /"), "http_status"),
    "empty": (http(b"<html><head><title>Nothing</title></head><body></body></html>"), "no_text"),
    "no-body": (http(b""), "no_text"),
}


def test_a_page_without_text_is_removed_with_its_reason_and_address(tmp_path: Path) -> None:
    records = [warc(f"https://example.org/{name}", block) for name, (block, _) in REMOVED.items()]
    extra = [
        warc("https://example.org/again", b"", "revisit"),
        warc("https://ads.example.com/x", http(html("ad"))),
        warc("https://banned.example/x", http(html("banned"))),
        warc("https://example.org/x", b"GET / HTTP/1.1\r\n\r\n", "request"),
        warc("dns:example.org", b"192.0.2.1", "resource"),
    ]
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("# unwanted\nBANNED.example\n\n")
    path = archive(tmp_path, packed(INFO, *records, *extra, page("kept")))
    config = source(path, exclude_hosts=["example.com"], exclude_host_files=[str(hosts)])
    out = run(tmp_path, config, max_quarantined_share=0.0)
    assert [*made(out)] == ["kept"]
    expected = [("removed", reason, f"https://example.org/{name}") for name, (_, reason) in REMOVED.items()]
    others = [
        ("removed", "revisit", "https://example.org/again"),
        ("removed", "excluded_host", "https://ads.example.com/x"),
        ("removed", "excluded_host", "https://banned.example/x"),
        ("removed", "not_http", "dns:example.org"),
    ]
    assert [(verdict, reason, detail.partition(": ")[2]) for verdict, reason, detail in fates(out)] == expected + others
    assert out.counts["documents"]["removed"] == {
        "excluded_host": 2,
        "http_status": 2,
        "no_text": 2,
        "not_html": 3,
        "not_http": 1,
        "revisit": 1,
    }
    assert out.counts["tables"]["Pages by fate"][0] == {"source": "web", "fate": "text", "pages": 1}


OPT_OUTS = {
    "header": warc("https://example.org/header", http(html("a"), "text/html", "200 OK", "X-Robots-Tag: NoAI, noindex")),
    "reserved": warc("https://example.org/reserved", http(html("a"), "text/html", "200 OK", "TDM-Reservation: 1")),
    "meta": page("meta", "<meta name=Robots content='index, noai'>"),
    "meta-reserved": page("meta-reserved", "<meta name='tdm-reservation' content='1'>"),
}
OTHERS = [
    page("noindex", "<meta name=robots content=noindex>"),
    warc("https://example.org/free", http(html("a"), "text/html", "200 OK", "tdm-reservation: 0")),
]


def test_pages_that_object_to_use_for_ai_are_removed(tmp_path: Path) -> None:
    path = archive(tmp_path, packed(*OPT_OUTS.values(), *OTHERS))
    out = run(tmp_path, source(path))
    assert set(made(out)) == {"noindex", "free"}
    assert out.counts["documents"]["removed"] == {"opt_out": 4}
    (tmp_path / "all").mkdir()
    assert len(made(run(tmp_path / "all", source(path, opt_outs="ignore")))) == 6


def test_patterns_of_addresses_are_applied_before_a_page_is_read(tmp_path: Path) -> None:
    records = (page(name) for name in ("a/1?session=2", "a/2", "b/3"))
    path = archive(tmp_path, packed(*records, warc("https://example.org/a/broken", b"HTTP/1.1 x\r\n")))
    out = run(tmp_path, source(path, only_urls=[r"/a/"], exclude_urls=[r"[?&]session=", "broken$"]))
    assert set(made(out)) == {"2"}
    assert out.counts["documents"]["removed"] == {"excluded_url": 3}


LISTS = {
    "0.0.0.0 ads.example": True,
    "127.0.0.1\tads.example # all of it": True,
    "https://ads.example/": True,
    "*.ads.example": True,
    "||ads.example^": True,
    "ADS.example.": True,
    "! ads.example": False,
    "bücher.example": False,
}


def test_lists_of_hosts_may_have_the_usual_forms(tmp_path: Path) -> None:
    for line, excluded in LISTS.items():
        hosts = tmp_path / f"{len(list(tmp_path.iterdir()))}.txt"
        hosts.write_text(line)
        one = source(tmp_path, exclude_host_files=[str(hosts)])
        assert why_excluded("http://www.ads.example/x", one) == ("excluded_host" if excluded else "")
        assert not why_excluded("http://other.example/", one)
    one = source(tmp_path, exclude_hosts=["bücher.example"])
    assert why_excluded("http://xn--bcher-kva.example/", one)
    hosts.write_text("fine.example\nads.example some words\n")
    with pytest.raises(SourceError, match=r"txt:2 isn't a host: 'ads\.example some words'"):
        why_excluded("http://x.org", source(tmp_path, exclude_host_files=[str(hosts)]))


def test_a_pattern_that_explodes_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="takes more than 1 s"):
        why_excluded(f"http://x.org/{'a' * 5000}!", source(tmp_path, exclude_urls=["/(a|a)+$"]))


FORMULAS = {  # HTML of a formula, and what is left of it
    "KaTeX": (
        "<span class=katex><span class=katex-mathml><math><semantics><msup><mi>x</mi><mn>2</mn></msup>"
        "<annotation encoding='application/x-tex'>x^2</annotation></semantics></math></span>"
        "<span class=katex-html aria-hidden=true>x2</span></span>",
        "$x^2$",
    ),
    "Wikipedia": (
        "<span class='mwe-math-element'><span style='display: none'><math alttext='{\\displaystyle y_1}'><mi>y</mi>"
        "</math></span><img alt='y'></span>",
        "$y_1$",
    ),
    "displayed": ("<math display=block alttext='E=mc^2'><mi>E</mi></math>", "$$E=mc^2$$"),
    "a script": ("<script type='math/tex'>\\frac{a<b}{2}</script>", "$\\frac{a<b}{2}$"),
    "MathJax 2": (
        "<span class=MathJax_Preview>E=mc2</span><div class=MathJax_Display><span class=MathJax>E=mc2</span></div>"
        "<script type='math/tex; mode=display'>E=mc^2</script>",
        "$$E=mc^2$$",
    ),
    "MathJax 3": ("<mjx-container><mjx-math>q</mjx-math><math><mi>q</mi></math></mjx-container>", "q"),
    "words": ("<math alttext='E equals m c squared'><mi>E</mi></math>", "E"),
    "an image": ("<img class=latex alt='\\alpha_1' src=x.png>", "$\\alpha_1$"),
    "without TeX": ("<math><mi>q</mi><mo>+</mo><mn>1</mn></math>", "q+1"),
}


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_formulas_are_kept_as_tex(extractor: Extractor, tmp_path: Path) -> None:
    extract = EXTRACTORS[extractor]()
    for name, (formula, kept) in FORMULAS.items():
        body = html("formula").replace(b"<p>", f"<p>By the formula {formula} the mill turns. ".encode(), 1)
        text = read_page(Page(body, "utf-8", True), extract)["text"]
        assert f"By the formula {kept} the mill turns." in " ".join(text.split()), (name, text)


def offset(*records: bytes) -> str:
    return f"offset {len(packed(*records))}"


def spoilt(record: bytes, at: int) -> bytes:
    data = bytearray(gzip.compress(record))
    data[at : at + 8] = bytes(8) if at < 0 else b"\xff" * 8
    return bytes(data)


A, B, C = page("a"), page("b"), page("c")
CUT = "it ends after"
DAMAGED = {  # the archive, and the damage: where, and the beginning of why
    "the file ends in a member": (packed(A, B, C, LONG)[:-9000], offset(A, B, C), "the file ends within gzip data"),
    "a member is cut": (packed(A, B) + packed(LONG)[:-9000] + packed(C), offset(A, B), "Error"),
    "bytes are wrong": (packed(A, B) + spoilt(LONG, 20_000) + packed(C), offset(A, B), "Error"),
    "a checksum is wrong": (packed(A, B) + spoilt(LONG, -8) + packed(C), offset(A, B), "Error -3"),
    "noise between members": (packed(A, B) + b"noise" * 50 + packed(C), offset(A, B), "no gzip data"),
    "noise after the last": (packed(A, B, C) + b"noise", offset(A, B, C), "no gzip data"),
    "its length is too large": (packed(A, B, warc("https://x.org", b"x" * 99, length=5000), C), offset(A, B), CUT),
    "its length is too small": (packed(A, B, warc("https://x.org", b"x" * 99, length=9), C), offset(A, B), "its len"),
    "its length is huge": (packed(A, B, warc("https://x.org", b"x", length=10**17), C), offset(A, B), CUT),
    "its length is negative": (packed(A, B, warc("https://x.org", b"x", length=-1), C), offset(A, B), "it has no"),
    "it has no length": (packed(A, B, warc("https://x.org", b"x", length=""), C), offset(A, B), "it has no"),
    "a member begins without a record": (packed(A, B, b"x" * 999, C), offset(A), "its length isn't"),
}
PLAIN = {
    "too large": (warc("https://x.org", b"x" * 99, length=500), "its length isn't 500"),
    "too small": (warc("https://x.org", b"x" * 99, length=9), "its length isn't 9"),
    "huge": (warc("https://x.org", b"x", length=10**17), "it ends after"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_costs_its_record_and_is_named_with_its_offset(name: str, tmp_path: Path) -> None:
    data, where, why = DAMAGED[name]
    out = run(tmp_path, source(archive(tmp_path, data)))
    kept = {"a", "b", "c"} - ({"b"} if name == "a member begins without a record" else set())
    assert set(made(out)) == kept
    ((verdict, reason, detail),) = fates(out)
    assert (verdict, reason) == ("quarantined", "damaged_record")
    assert detail.startswith(f"{where}: {why}"), detail


@pytest.mark.parametrize("name", PLAIN)
def test_a_wrong_length_costs_no_other_record_where_nothing_is_packed(name: str, tmp_path: Path) -> None:
    record, why = PLAIN[name]
    out = run(tmp_path, source(archive(tmp_path, A + record + B + C, "warc")))
    lost = {"b", "c"} if name == "huge" else set[str]()
    assert set(made(out)) == {"a", "b", "c"} - lost
    ((_, reason, detail),) = fates(out)
    assert reason == "damaged_record"
    assert detail.startswith(f"offset {len(A)}: {why}"), detail


def test_padding_between_members_is_no_damage(tmp_path: Path) -> None:
    out = run(tmp_path, source(archive(tmp_path, packed(A) + bytes(100_000) + packed(B) + bytes(300))))
    assert set(made(out)) == {"a", "b"}
    assert fates(out) == []


@pytest.mark.parametrize(
    ("data", "ending", "says"),
    [
        (b"", "warc.gz", "it is empty"),
        (b"", "warc", "is empty"),
        (gzip.compress(b""), "warc.gz", "is empty"),
        (b"<html>not an archive</html>" * 100, "warc", "doesn't begin with a record"),
        (gzip.compress(b'{"text": "a"}\n' * 100), "warc.gz", "doesn't begin with a record"),
        (packed(INFO), "warc.gz", "is empty"),
        (
            packed(warc("https://x.org", http(b"", status="500 No"))),
            "warc.gz",
            r"none of its 1 pages has text \(1 http",
        ),
    ],
)
def test_what_is_no_archive_of_pages_ends_the_run(data: bytes, ending: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=says):
        run(tmp_path, source(archive(tmp_path, data, ending)))


def test_a_damaged_frame_of_zstandard_is_named(tmp_path: Path) -> None:
    long = warc("https://example.org/b", http(html("b", times=100)))
    data = b"".join(pa.compress(record, codec="zstd", asbytes=True) for record in (A, long, LONG))[:-500]
    out = run(tmp_path, source(archive(tmp_path, data, "warc.zst")))
    assert set(made(out)) == {"a"}
    ((_, reason, detail),) = fates(out)
    assert (reason, detail) == ("damaged_record", f"offset 0 byte {len(A)}: incomplete frame")


CHUNKS = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (html("x")[:50], html("x")[50:], b""))
BODIES = {
    "chunked": http(CHUNKS, "text/html", "200 OK", "Transfer-Encoding: chunked"),
    "gzip": http(GZIPPED, "text/html", "200 OK", "Content-Encoding: gzip"),
    "as it is": http(html("x"), ""),
    "x-gzip": http(GZIPPED, "text/html", "200 OK", "Content-Encoding: x-gzip"),
    "zlib": http(zlib.compress(html("x")), "text/html", "200 OK", "Content-Encoding: deflate"),
    "deflate": http(zlib.compress(html("x"), wbits=-15), "text/html", "200 OK", "Content-Encoding: deflate"),
    "gzip in chunks": http(
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(GZIPPED), GZIPPED),
        "text/html",
        "200 OK",
        "Transfer-Encoding: chunked",
        "Content-Encoding: gzip",
    ),
    "unpacked by the crawler": http(
        html("x"), "text/html", "200 OK", "Transfer-Encoding: chunked", "Content-Encoding: gzip"
    ),
    "an unknown packing": http(html("x"), "text/html", "200 OK", "Content-Encoding: utf-8"),
    "a NUL": http(html("x").replace(b"<title>", b"<title>\0"), "text/html"),
    "UTF-16": http(html("x").decode().encode("utf-16-le"), "text/html; charset=utf-16le"),
    "by a server without a type": http(html("x"), "application/xhtml+xml"),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_http_packed_is_unpacked(name: str, tmp_path: Path) -> None:
    out = run(tmp_path, source(archive(tmp_path, packed(warc("https://example.org/x", BODIES[name])))))
    assert " 0 of the valley turned" in made(out)["x"][0]


def test_a_body_that_ends_too_early_is_marked(tmp_path: Path) -> None:
    cut = {
        "gzip": http(GZIPPED[:-60], "text/html", "200 OK", "Content-Encoding: gzip"),
        "chunks": http(CHUNKS[:-200], "text/html", "200 OK", "Transfer-Encoding: chunked"),
        "whole": BODIES["chunked"],
    }
    records = (warc(f"https://example.org/{name}", body) for name, body in cut.items())
    found = made(run(tmp_path, source(archive(tmp_path, packed(*records)))))
    assert {name: fields.get("truncated") for name, (_, fields) in found.items()} == {
        "gzip": "body",
        "chunks": "body",
        "whole": None,
    }


def test_bodies_that_lie_or_burst_are_quarantined(tmp_path: Path) -> None:
    bodies = {
        "lie": http(NOISE, "text/html", "200 OK", "Content-Encoding: gzip"),
        "bomb": http(gzip.compress(b" " * 3_000_000), "text/html", "200 OK", "Content-Encoding: gzip"),
        "long": http(b"x" * 2_000_000),
    }
    records = [warc(f"https://example.org/{name}", body) for name, body in bodies.items()]
    out = run(tmp_path, source(archive(tmp_path, packed(*records, A))), max_document_bytes=1_000_000)
    assert [(verdict, reason) for verdict, reason, _ in fates(out)] == [
        ("quarantined", "broken_http"),
        ("quarantined", "too_long"),
        ("quarantined", "too_long"),
    ]


@pytest.mark.parametrize(
    ("data", "declared", "text"),
    [
        ("Mühle".encode(), "iso-8859-1", "Mühle"),
        ("Mühle".encode("cp1252"), "utf-8", "Mühle"),
        ("„Mühle“".encode("cp1252"), "iso-8859-1", "„Mühle“"),
        ("<meta charset=windows-1251>мельница".encode("cp1251"), None, "мельница"),
        ("<meta charset=shift_jis>水車小屋".encode("shift_jis"), "no-such-charset", "水車小屋"),
        ("水車小屋".encode("iso-2022-jp"), "ISO-2022-JP", "水車小屋"),
        ("<meta charset=iso-2022-jp>水車小屋".encode("iso-2022-jp"), None, "水車小屋"),
        ("мельница".encode("utf-16"), "utf-8", "мельница"),
        (b"\xef\xbb\xbfmill", None, "mill"),
        ("<?xml version='1.0' encoding='iso-8859-1'?>àèñ".encode("latin-1"), None, "àèñ"),
        ("<p>물레방아가 돌아간다".encode("euc-kr"), None, "물레방아가 돌아간다"),
        ("<meta charset=windows-1251>\xff мельница".encode().replace(b"\xc3\xbf", b"\xff"), None, "\ufffd мельница"),
        ("水車小屋と川".encode()[:-1], "shift_jis", "水車小屋と\ufffd"),
        (b"", None, ""),
    ],
)
def test_encodings_are_found_whatever_is_declared(data: bytes, declared: str | None, text: str) -> None:
    assert decode(data, declared)[0].endswith(text)


NESTED = b"<table><tr><td>" * 5000 + b"deep within the mill" + b"</td></tr></table>" * 5000


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_strange_pages_are_answered(extractor: str) -> None:
    process = ExtractorProcess("tasks.text.web.extract", (extractor,), 20)
    try:
        for content in (NESTED, b"<p>" * 10_000, b"x" * 1_000_000, b"<html", b"\xff" * 1000, b"<!--" * 1000):
            assert not isinstance(process.read(Page(content, "utf-8", True)), Failed)
    finally:
        process.close()


def test_a_page_that_takes_too_long_ends_and_the_next_one_is_read(tmp_path: Path) -> None:
    slow = warc("https://example.org/slow", http(html("slow", times=10_000)))
    path = archive(tmp_path, packed(A, slow, B))
    out = run(tmp_path, source(path, extractor="trafilatura", page_seconds=0.3))
    assert set(made(out)) == {"a", "b"}
    ((verdict, reason, detail),) = fates(out)
    assert (verdict, reason) == ("quarantined", "time_over")
    assert detail == f"{offset(A)}: https://example.org/slow"


def test_a_process_that_dies_costs_its_page(tmp_path: Path) -> None:
    process = ExtractorProcess("tasks.text.web.extract", ("resiliparse",), 20)
    page_ = Page(html("mill"), "utf-8", True)
    try:
        assert not isinstance(process.read(page_), Failed)
        assert process._process is not None
        process._process.terminate()
        assert process.read(page_) == Failed("extractor_died", "it ended with -15")
        assert not isinstance(process.read(page_), Failed)
        process._process.kill()  # as a machine without memory does to any process
        assert not isinstance(process.read(page_), Failed)
    finally:
        process.close()


def test_two_workers_write_the_same_shards(tmp_path: Path) -> None:
    for number in range(4):
        data = packed(*(page(f"{number}-{one}") for one in range(30)), warc("https://x.org/n", http(b"", "image/png")))
        (tmp_path / f"web.{number}.warc.gz").write_bytes(data)
    made_by = []
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        out = run(tmp_path / str(workers), source(tmp_path / "*.gz"), workers=workers, shard_bytes=1000)
        made_by.append({path.name: path.read_bytes() for path in out.path.rglob("*.parquet")})
    assert made_by[0] == made_by[1]
    assert len(made_by[0]) > 2


MISREAD = {"a record in a record", "an archive in a record", "plain, huge"}
DIVIDED = {
    "sound": packed(INFO, A, B, C, LONG, A, B),
    "whole": b"".join([INFO, A, B, LONG, C, LONG, A]),
    "a record in a record": A + warc("https://x.org/in", http(b"<html>\r\n\r\n" + A * 3)) + B + LONG + C,
    "an archive in a record": packed(A) + stored(warc("https://x.org/in", http(packed(B, C, B)))) + packed(C, LONG),
    "one member": packed(b"".join([A, B, C, LONG, A, B])),
    "records in several members": packed(A[:500], A[500:] + B, C[:9], C[9:700], C[700:], LONG, A),
    **{name: data for name, (data, _, _) in DAMAGED.items()},
    **{f"plain, {name}": A + record + B + C + LONG for name, (record, _) in PLAIN.items()},
}


@pytest.mark.parametrize("name", DIVIDED)
def test_an_archive_that_workers_divide_is_read_as_if_by_one(name: str, tmp_path: Path) -> None:
    """Each range gives what the whole has there, or it shows that it began within a record."""
    path = archive(tmp_path, DIVIDED[name], "warc")
    size = path.stat().st_size
    whole = records_of(path, Reach())
    for step in (size // 2 + 1, size // 3 + 1, size // 7 + 1, 997):
        jobs = [(Span(path, "w", size, 0, at, at + step),) for at in range(0, size, step)]
        found, results = [], []
        for (span,) in jobs:
            reach = Reach(span.start, span.end)
            found += records_of(path, reach)
            results.append(ShardResult(tmp_path, {"first": reach.first, "after": reach.after}))
        misread = _misread(jobs, results)
        assert bool(misread) == (found != whole), (step, [result.counts for result in results])
        assert not misread or name in MISREAD


def test_what_finds_the_text_and_lists_of_hosts_enter_the_key(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("example.com\n")
    path = archive(tmp_path, packed(A))
    first = fingerprint(source(path, exclude_host_files=[str(hosts)]))
    assert {"fastwarc", "resiliparse"} < set(first)
    assert "trafilatura" in fingerprint(source(path, extractor="trafilatura"))
    hosts.write_text("example.org\n")
    assert fingerprint(source(path, exclude_host_files=[str(hosts)])) != first
    with pytest.raises(SourceError, match="can't be read"):
        fingerprint(source(path, exclude_host_files=[str(tmp_path / "none")]))


def test_a_plan_expects_pages_by_the_size_of_archives(tmp_path: Path) -> None:
    path = archive(tmp_path, bytes(1_000_000))

    def expected(**more: Any) -> Rows:
        return rows_of(DownloadConfig(sources=[source(path, **more)]))["documents"]

    slow, fast, few = expected(extractor="trafilatura"), expected(), expected(extractor="trafilatura", limit=10)
    assert slow.number == fast.number == 50
    assert slow.pages == 50
    assert fast.pages == pytest.approx(5)
    assert few.pages == few.number == 10


def test_settings_that_cannot_apply_are_refused(tmp_path: Path) -> None:
    for wrong in (
        {"text_column": "body"},
        {"role": "instructions"},
        {"exclude_hosts": ["https://x.org/a"]},
        {"only_urls": ["("]},
    ):
        with pytest.raises(ValidationError):
            source(tmp_path, **wrong)
    with pytest.raises(SourceError, match="unknown extension") as raised:
        run(tmp_path, source(archive(tmp_path, b"", "jsonl")))
    assert "kind: files" in raised.value.remedy
