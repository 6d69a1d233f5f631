"""PDF: the characters of the text layer and their places, as words on each page.

PDF has no words, lines or columns. It paints characters at places, in any order. `layout.py` puts them in the order in
which they are read. A page that paints something but has no readable text counts as scanned.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from storage.errors import BadDocument
from tasks.text.documents.layout import LEFTWARDS, Word, words_to_lines
from tasks.text.documents.paragraphs import to_text
from tasks.text.documents.private_use import SHOWN

SPACES, NEWLINES = {9, 32, 0xA0}, {10, 13}
HYPHEN = 2  # pdfium's sign for a hyphen at the end of a line
BULLET = 0xF0B7  # of the font Symbol
LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
NONE, PRIVATE = {0xFFFD, 0xFFFE, 0xFFFF}, range(0xE000, 0xF900)
ORNAMENTS = range(0x2701, 0x27C0)  # which some letters of bitmap fonts seem to be, others not
ORNAMENT = 3  # letters without a meaning that one counts as
RUN = re.compile(r"[^\x00-\x7f]+")  # of a word written leftwards
# As shares of a character's height: how far it may be from the one before and still be in the same word
BACK, RIGHT_TO_LEFT, FAR, RISE, SAME_WORD = 0.5, 3.0, 3.0, 0.7, 0.15
SMALLEST, USUAL_SIZE, LARGEST = 0.5, 10.0, 500.0  # points
UNREADABLE = 0.5  # share of a page's characters that have no meaning, from which on it counts as scanned
FRAME = 20  # objects
FIXED_PITCH = 1
FIXED_NAMES = re.compile(rb"mono|courier|typewriter|consolas|cmtt|inconsolata", re.IGNORECASE)
DATE = re.compile(r"D:(\d{4})(\d\d)?(\d\d)?")
FIELDS = {"title": "Title", "author": "Author"}
MOST_LANGUAGE = 64  # characters


def read_pdf(content: bytes) -> dict[str, Any]:
    """The text and metadata of a document, with its numbers of pages. Raises BadDocument."""
    import pypdfium2
    from pypdfium2 import raw

    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if error.err_code in (raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY):
            raise BadDocument("password") from error
        raise BadDocument("damaged_document", why=str(error)) from error
    pages: list[list[Word]] = []
    scanned = broken = 0
    for number in range(len(document)):
        try:
            page = document[number]
        except pypdfium2.PdfiumError:
            broken += 1
            pages.append([])
            continue
        words, readable = _words(page)
        scanned += not readable or (not words and _paints(page))
        pages.append(words if readable else [])
        page.close()
    if broken == len(pages):
        raise BadDocument("damaged_document", why="no page can be read")
    text = to_text(words_to_lines(pages))
    if not text and scanned:
        raise BadDocument("scanned", why=f"{scanned:,} of {len(pages):,} pages")
    counts = {"pages": len(pages), "scanned_pages": scanned} | ({"broken_pages": broken} if broken else {})
    return {"text": text, **_metadata(document), **counts}


def _paints(page: Any) -> bool:
    """Whether a page without text has a picture, or more than a frame."""
    from pypdfium2 import raw

    number = raw.FPDFPage_CountObjects(page.raw)
    kinds = (raw.FPDFPageObj_GetType(raw.FPDFPage_GetObject(page.raw, at)) for at in range(min(number, FRAME)))
    return number > FRAME or any(kind not in (raw.FPDF_PAGEOBJ_TEXT, raw.FPDF_PAGEOBJ_PATH) for kind in kinds)


def _metadata(document: Any) -> dict[str, str]:
    from pypdfium2 import raw

    stated = document.get_metadata_dict()
    found = {name: " ".join(stated.get(key, "").split()) for name, key in FIELDS.items()}
    if date := DATE.match(stated.get("CreationDate", "")):
        found["date"] = "-".join(part for part in date.groups() if part)
    buffer = (ctypes.c_ushort * MOST_LANGUAGE)()
    if 2 < raw.FPDFCatalog_GetLanguage(document.raw, buffer, ctypes.sizeof(buffer)) <= ctypes.sizeof(buffer):
        found["language"] = bytes(buffer).decode("utf-16-le", "replace").partition("\0")[0]
    return {name: text for name, text in found.items() if text}


def _words(page: Any) -> tuple[list[Word], bool]:
    """The words of a page in the order in which they are painted, and whether most of it has a meaning. Words that
    are turned otherwise than most, such as a stamp along the margin, are left out."""
    textpage = page.get_textpage()
    reader = _Reader(textpage.raw)
    words = [*reader.words()]
    textpage.close()
    turns = Counter(word.turn for word in words)
    turn = max(turns, key=lambda turn: turns[turn]) if turns else 0
    return [word for word in words if word.turn == turn], reader.unreadable <= UNREADABLE * reader.seen


@functools.cache
def letter_of(code: int) -> str:
    """The text of a character, empty if it has no meaning. Half of a pair of UTF-16 stays one."""
    if code == HYPHEN:
        return "-"
    if code == BULLET:
        return "•"
    if shown := SHOWN.get(code):
        return shown
    if code < 32 or code in NONE or code in PRIVATE or code > sys.maxunicode:
        return ""
    return LIGATURES.get(code) or chr(code)


def _turned(x: float, y: float, turn: int) -> tuple[float, float]:
    """A place along a direction that is turned by quarters of a circle, and across it, growing from line to line."""
    return ((x, -y), (y, x), (-x, y), (-y, -x))[turn]


class _Reader:
    """The characters of a page. PDFium is called for each by ctypes, so no more often than is needed."""

    def __init__(self, textpage: Any) -> None:
        from pypdfium2 import raw

        self._raw, self._page = raw, textpage
        self._x, self._y = ctypes.c_double(), ctypes.c_double()
        self._place = (ctypes.byref(self._x), ctypes.byref(self._y))
        self._box, self._matrix = raw.FS_RECTF(), raw.FS_MATRIX()
        self._font, self._flags = ctypes.create_string_buffer(64), ctypes.c_int()
        self.seen = self.unreadable = 0

    def words(self) -> Iterator[Word]:
        """The words, each with its place in coordinates along and across its direction."""
        unicode_of, origin_of, page = self._raw.FPDFText_GetUnicode, self._raw.FPDFText_GetCharOrigin, self._page
        x, y, place = self._x, self._y, self._place
        letters: list[str] = []
        first = last = -1
        at = before = across = size = 0.0
        turn, parted = 0, False
        lean = 0  # letters of a word written leftwards that stand to the right of the one before, less the others
        for index in range(self._raw.FPDFText_CountChars(page)):
            code = unicode_of(page, index)
            if code in NEWLINES:  # which PDFium also finds within words that are painted in parts
                parted = True
                continue
            if code in SPACES:
                if letters:
                    yield self._word(letters, first, last, turn, size, across, lean)
                    letters = []
                continue
            origin_of(page, index, *place)
            if letters:
                along, height = (x.value, -y.value) if not turn else _turned(x.value, y.value, turn)
                back = before - along > (RIGHT_TO_LEFT if code in LEFTWARDS else BACK) * size
                begun = parted and abs(along - self._extent(last, turn)[1]) > SAME_WORD * size
                if begun or back or along - before > FAR * size or abs(height - at) > RISE * size:
                    yield self._word(letters, first, last, turn, size, across, lean)
                    letters = []
                elif code in LEFTWARDS and along != before:
                    lean += 1 if along > before else -1
            if not letters:
                turn = -round(self._raw.FPDFText_GetCharAngle(page, index) / (math.pi / 2)) % 4  # it counts clockwise
                along, height = _turned(x.value, y.value, turn)
                first, across, size, lean = index, height, self._size(index), 0
            before, at, last, parted = along, height, index, False
            self.seen += 1
            if letter := letter_of(code):
                letters.append(letter)
            self.unreadable += ORNAMENT if code in ORNAMENTS else not letter
        if letters:
            yield self._word(letters, first, last, turn, size, across, lean)

    def _extent(self, index: int, turn: int) -> tuple[float, float]:
        """Where a character begins and ends along a direction."""
        box = self._box
        if not self._raw.FPDFText_GetLooseCharBox(self._page, index, box):
            along, _ = _turned(self._x.value, self._y.value, turn)
            return along, along
        sides = ((box.left, box.right), (box.bottom, box.top), (-box.right, -box.left), (-box.top, -box.bottom))[turn]
        return min(sides), max(sides)

    def _size(self, index: int) -> float:
        """The size of a character's font as it is painted. Its box says less, as some fonts have tall ones."""
        size, matrix = self._raw.FPDFText_GetFontSize(self._page, index), self._matrix
        if self._raw.FPDFText_GetMatrix(self._page, index, matrix):
            size *= math.hypot(matrix.c, matrix.d)
        return size if SMALLEST < size < LARGEST else USUAL_SIZE

    def _word(
        self, letters: list[str], first: int, last: int, turn: int, size: float, across: float, lean: int
    ) -> Word:
        begins, ends = self._extent(first, turn), self._extent(last, turn)
        font, flags = self._font, self._flags
        self._raw.FPDFText_GetFontInfo(self._page, first, font, len(font), flags)
        fixed = bool(flags.value & FIXED_PITCH or FIXED_NAMES.search(font.raw.partition(b"\0")[0]))
        text = "".join(letters)
        if not text.isascii():  # it may have pairs of UTF-16
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            if lean > 0:  # PDFium turns what it takes to be painted leftwards, also if it isn't
                text = RUN.sub(lambda run: run.group()[::-1], text)
        return Word(text, min(begins[0], ends[0]), max(begins[1], ends[1]), across, size, turn, fixed)
