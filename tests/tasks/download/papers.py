"""Documents made byte by byte, as no library writes broken ones."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence

SIZE = 10  # points, of the font
LEADING = 12
WIDTH, HEIGHT = 612, 792
IMAGE = (
    b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 /Length 1 >>\n"
    b"stream\n\x80\nendstream"
)
SCAN = b"q 600 0 0 780 0 0 cm /I1 Do Q"
LOCKED = b"<< /Filter /Standard /V 1 /R 2 /O <" + b"41" * 32 + b"> /U <" + b"42" * 32 + b"> /P -4 >>"
NAMESPACES = (
    'xmlns:w="urn:w" xmlns:mc="urn:mc" xmlns:wps="urn:wps" xmlns:m="urn:m" xmlns:a="urn:a" xmlns:p="urn:p" '
    'xmlns:r="http://r" xmlns:text="urn:text" xmlns:table="urn:table" xmlns:office="urn:office" xmlns:dc="urn:dc" '
    'xmlns:dcterms="urn:dcterms" xmlns:draw="urn:draw"'
)


def reader() -> Callable[[int], dict[str, str]]:
    """A reader of documents that takes as many bytes of memory as it is asked for."""
    return lambda size: {"text": f"{len(bytes(size))} bytes"}


def shown(text: str, x: float, y: float, size: float = SIZE, font: str = "F1") -> bytes:
    """A line of text whose left end is at a place, counted from the page's lower left corner."""
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return b"BT /%s %g Tf 1 0 0 1 %g %g Tm (%s) Tj ET" % (font.encode(), size, x, y, escaped.encode("cp1252"))


def column(lines: Sequence[str], x: float = 72, top: float = 700, size: float = SIZE) -> list[bytes]:
    """Lines below each other."""
    return [shown(line, x, top - LEADING * at, size) for at, line in enumerate(lines)]


def pdf(*pages: Sequence[bytes], title: str = "", locked: bool = False, rotate: int = 0, language: str = "") -> bytes:
    """A PDF whose pages are painted by these operators, in the fonts F1 (Helvetica), F2 (Courier), F3 (ornaments)."""
    objects = [b"", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"]
    objects += [objects[2].replace(b"Helvetica", b"Courier"), IMAGE]
    objects += [b"<< /Type /Font /Subtype /Type1 /BaseFont /ZapfDingbats >>"]
    kids = []
    for operators in pages:
        content = b"\n".join(operators)
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Rotate %d /Contents %d 0 R /Resources << "
            b"/Font << /F1 3 0 R /F2 4 0 R /F3 6 0 R >> /XObject << /I1 5 0 R >> >> >>"
            % (WIDTH, HEIGHT, rotate, len(objects))
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[0] = b"<< /Type /Catalog /Pages 2 0 R /Lang (%s) >>" % language.encode()
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    objects.append(b"<< /Title (%s) /Author (A. Miller) /CreationDate (D:20240501120000Z) >>" % title.encode())
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    lock = b" /Encrypt %s /ID [<00> <00>]" % LOCKED if locked else b""
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return (
        bytes(out)
        + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R /Info %d 0 R%s >>\n"
        % (len(objects) + 1, table, len(objects) + 1, len(objects), lock)
        + b"startxref\n%d\n%%%%EOF\n" % len(out)
    )


def zipped(parts: dict[str, str | bytes]) -> bytes:
    """A ZIP file of these parts."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for name, part in parts.items():
            package.writestr(zipfile.ZipInfo(name, (2024, 5, 1, 0, 0, 0)), part, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def relations(**targets: str) -> str:
    """A part of relations: ids to kinds and targets, such as `r1="slide slides/1.xml"`."""
    each = (
        f'<Relationship Id="{name}" Type="http://x/{kind}" Target="{target}"/>' for name, kind, target in split(targets)
    )
    return f"<Relationships>{''.join(each)}</Relationships>"


def split(targets: dict[str, str]) -> list[tuple[str, str, str]]:
    return [(name, *both.split()) for name, both in targets.items()]  # type: ignore[misc]


CORE = (
    f"<cp {NAMESPACES}><dc:title>The mill</dc:title><dc:creator>A. Miller</dc:creator>"
    "<dcterms:created>2024-05-01</dcterms:created><dc:language>en</dc:language></cp>"
)


def docx(body: str, more: dict[str, str] | None = None, **parts: str | bytes) -> bytes:
    """A document of Word with this body. `parts` are those beside it, such as footnotes, `more` others by name."""
    return zipped(
        {
            "_rels/.rels": relations(a="officeDocument word/document.xml", b="core-properties docProps/core.xml"),
            "docProps/core.xml": CORE,
            "word/_rels/document.xml.rels": relations(**{name: f"{name} {name}.xml" for name in parts}),
            "word/document.xml": f"<w:document {NAMESPACES}><w:body>{body}</w:body></w:document>",
            **{f"word/{name}.xml": part for name, part in parts.items()},
            **(more or {}),
        }
    )


def paragraph(text: str, properties: str = "") -> str:
    """A paragraph of Word."""
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def odt(body: str, **parts: str | bytes) -> bytes:
    """A document of OpenDocument with this body."""
    content = f"<office:document-content {NAMESPACES}><office:body><office:text>{body}</office:text></office:body>"
    meta = f"<office:document-meta {NAMESPACES}><office:meta><dc:title>The mill</dc:title></office:meta>"
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"{content}</office:document-content>",
            "meta.xml": f"{meta}</office:document-meta>",
            **parts,
        }
    )


def pptx(*slides: str) -> bytes:
    """A presentation whose slides have these shapes. The first has notes."""
    ids = "".join(f'<p:sldId id="{256 + at}" r:id="s{at}"/>' for at in range(len(slides)))
    return zipped(
        {
            "_rels/.rels": relations(a="officeDocument ppt/presentation.xml", b="core-properties docProps/core.xml"),
            "docProps/core.xml": CORE,
            "ppt/presentation.xml": f"<p:x {NAMESPACES}><p:sldIdLst>{ids}</p:sldIdLst></p:x>",
            "ppt/_rels/presentation.xml.rels": relations(
                **{f"s{at}": f"slide slides/{9 - at}.xml" for at in range(len(slides))}
            ),
            "ppt/slides/_rels/9.xml.rels": relations(n="notesSlide ../notes/1.xml"),
            "ppt/notes/1.xml": f"<p:x {NAMESPACES}>{shape('sldNum', '7')}{shape('body', 'Say it slowly.')}</p:x>",
            **{f"ppt/slides/{9 - at}.xml": f"<p:x {NAMESPACES}>{each}</p:x>" for at, each in enumerate(slides)},
        }
    )


def shape(place: str, *texts: str) -> str:
    """A placeholder of a slide."""
    inner = "".join(f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>" for text in texts)
    return f'<p:sp><p:nvSpPr><p:nvPr><p:ph type="{place}"/></p:nvPr></p:nvSpPr><p:txBody>{inner}</p:txBody></p:sp>'


def epub(*chapters: str, **parts: str | bytes) -> bytes:
    """A book with these bodies of chapters."""
    names = [f"c{at}.xhtml" for at in range(len(chapters))]
    listed = "".join(f'<item id="{name}" href="{name}" media-type="application/xhtml+xml"/>' for name in names)
    spine = "".join(f'<itemref idref="{name}"/>' for name in names)
    opf = f"<package {NAMESPACES}><metadata><dc:title>The mill</dc:title><dc:language>en</dc:language></metadata>"
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<c><rootfiles><rootfile full-path="OEBPS/b.opf"/></rootfiles></c>',
            "OEBPS/b.opf": f"{opf}<manifest>{listed}</manifest><spine>{spine}</spine></package>",
            **{
                f"OEBPS/{name}": f"<html><body>{body}</body></html>" for name, body in zip(names, chapters, strict=True)
            },
            **parts,
        }
    )


def mail(body: bytes, *headers: str) -> bytes:
    """A message with a subject, a sender and a date."""
    usual = ("Subject: The mill", "From: A. Miller <a@example.org>", "Date: Wed, 1 May 2024 12:00:00 +0200")
    return "\r\n".join([*usual, *headers, "", ""]).encode("utf-8", "surrogateescape") + body
