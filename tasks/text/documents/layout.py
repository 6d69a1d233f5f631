"""Words of pages as lines in reading order, without what every page repeats.

Coordinates are points, along a line and across lines. A page is divided where a vertical strip is free of words for
some rows that have text on both sides: the part above is read first, then the left side, the right one and the part
below, each divided in the same way. A side counts as a column only if its rows are as wide as a line of text, so that
the rows of a table stay rows.
"""

from __future__ import annotations

import bisect
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

# As shares of the height of a line
SAME_ROW = 0.45  # distance of baselines
SMALLER = 0.87  # height of an index or an exponent
SCRIPT = 0.7  # its distance from the line
SAME_WORD = 0.2  # gap between it and its word
MARK = 0.7  # gap between it and the text of a note
LARGEST = 30.0  # points. Larger letters have no marks of notes
GAP = 0.75  # between words, from which on it may separate columns
CELL = 1.8  # between words, from which on it separates cells
NARROW = 6.5  # mean width of a column's rows
BROKEN = 4.0  # mean width of the widest piece in each. Cells are narrower
STRIP = 0.6  # between columns
ROWS = 3  # fewest on each side of a strip
MARGIN = 0.9  # share of a column's lines that end at its right bound or before
EDGE_ROWS = 3  # at the top and bottom of a page that may be running heads
REPEATED = 3  # pages on which a head stands
SLOT = 6.0  # points within which it is at the same place
NUMBERS = re.compile(r"\b(?:\d{1,4}|[ivxlc]{1,7})\b")
MOST_NUMBERS = 3  # of a running head
TOUCH = 0.1  # gap between a word written leftwards and a sign, as a share of the height
LEFTWARDS = {*range(0x590, 0x900), *range(0xFB1D, 0xFE00), *range(0xFE70, 0xFF00)}  # Hebrew, Arabic and their kin
ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
STARTS_TRIED = 40  # places where columns may begin


class Word(NamedTuple):
    """A word: where it begins and ends along its line, the place of the line, the height of its font, the quarters of
    a circle by which it is turned, and whether its font has a fixed pitch."""

    text: str
    x0: float
    x1: float
    y: float
    size: float
    turn: int = 0
    fixed: bool = False


class Piece(NamedTuple):
    """Words of a line without a wide gap between them."""

    text: str
    x0: float
    x1: float
    y: float
    size: float
    fixed: bool


class Line(NamedTuple):
    """A line of a column. `left` and `right` are the column's bounds, `column` its number in the document."""

    text: str
    x0: float
    x1: float
    y: float
    size: float
    fixed: bool
    left: float
    right: float
    column: int


Row = list[Piece]  # side by side


def words_to_lines(pages: list[list[Word]]) -> list[Line]:
    """The lines of a document in reading order."""
    rows = [_rows(_pieces(words)) for words in pages]
    heads = _running(rows)
    lines: list[Line] = []
    for number, page in enumerate(rows):
        body = [row for at, row in enumerate(page) if (number, at) not in heads]
        for column in _columns(body):
            made = [_line(row) for row in column]
            left, ends = min(line.x0 for line in made), sorted(line.x1 for line in made)
            right = ends[int(MARGIN * (len(ends) - 1))]
            at = lines[-1].column + 1 if lines else 0
            lines += [Line(*line, left, right, at) for line in made]
    return lines


def _pieces(words: Iterable[Word]) -> Iterator[Piece]:
    """Words in the order in which they were painted, joined with their neighbours."""
    run: list[Word] = []
    for word in words:
        if run:
            last = run[-1]
            size = min(word.size, last.size)
            gap = max(word.x0 - last.x1, last.x0 - word.x1)
            if abs(word.y - last.y) > SAME_ROW * size or not -size < gap <= GAP * size:
                yield _piece(run)
                run = []
        run.append(word)
    if run:
        yield _piece(run)


def _piece(run: list[Word]) -> Piece:
    longest = max(run, key=lambda word: len(word.text))
    text = _spaced(_as_read(run))
    x0, x1 = min(word.x0 for word in run), max(word.x1 for word in run)
    return Piece(text, x0, x1, longest.y, longest.size, all(word.fixed for word in run))


def _as_read(run: list[Word]) -> list[Word]:
    """Words in reading order. Those written leftwards are read from the right, and Latin ones among them from the left,
    however they are painted."""
    if all(map(str.isascii, map(itemgetter(0), run))) and run[0].x0 <= run[-1].x0:  # most
        return run
    read: list[Word] = []
    for leftwards, group in itertools.groupby(run, lambda word: _leftwards(word.text) > 0):
        words = [*group]
        spoken = [at for at, word in enumerate(words) if any(map(str.isalnum, word.text))]
        if len(spoken) > 1 and (leftwards or any(map(str.isalpha, _all(words)))):
            first, last = spoken[0], spoken[-1]
            if (words[first].x0 < words[last].x0) == leftwards:
                words[first : last + 1] = words[first : last + 1][::-1]
        read += words
    return read


def _spaced(words: list[Word]) -> str:
    """Words with spaces between them, but for signs that touch a word written leftwards, which PDFium sets apart."""
    text = words[0].text
    for last, word in itertools.pairwise(words):
        gap = max(word.x0 - last.x1, last.x0 - word.x1)
        sign = not (last.text[-1:].isalnum() and word.text[:1].isalnum())
        touch = sign and gap < TOUCH * word.size and _leftwards(last.text) + _leftwards(word.text) > 0
        text += word.text if touch else f" {word.text}"
    return text


def _all(words: Iterable[Word | Piece]) -> str:
    return "".join(word.text for word in words)


def _leftwards(text: str) -> int:
    """The number of right-to-left letters minus that of others."""
    return 0 if text.isascii() else sum(1 if ord(sign) in LEFTWARDS else -sign.isalpha() for sign in text)


def _rows(pieces: Iterable[Piece]) -> list[Row]:
    """Pieces on the same line, from top to bottom, each row from left to right. A smaller piece above or below the line
    beside it, such as the mark of a note, belongs to it."""
    rows: list[Row] = []
    heights: list[float] = []  # of the rows' first pieces, which are their largest
    for piece in sorted(pieces, key=lambda piece: (-piece.size, piece.y, piece.x0)):
        first = bisect.bisect_left(heights, piece.y - SCRIPT * LARGEST)
        last = bisect.bisect_right(heights, piece.y + SCRIPT * LARGEST)
        near = [row for row in rows[first:last] if _beside(piece, row)]
        if near:
            min(near, key=lambda row: abs(row[0].y - piece.y)).append(piece)
        else:
            at = bisect.bisect_left(heights, piece.y)
            rows.insert(at, [piece])
            heights.insert(at, piece.y)
    return [sorted(row, key=lambda piece: piece.x0) for row in rows]


def _beside(piece: Piece, row: Row) -> bool:
    """Whether a piece is on a row, whose pieces are as large or larger."""
    distance, size = abs(piece.y - row[0].y), row[0].size
    if distance <= SAME_ROW * piece.size:
        return True
    smaller = piece.size < SMALLER * size and distance <= SCRIPT * min(size, LARGEST)
    return smaller and any(max(piece.x0 - each.x1, each.x0 - piece.x1) < MARK * size for each in row)


def _line(row: Row) -> Piece:
    """A row as a piece, with tabs between cells."""
    longest = max(row, key=lambda piece: len(piece.text))
    leftwards = _leftwards(_all(row)) > 0
    ordered = row[::-1] if leftwards else row
    text = ordered[0].text
    for last, piece in itertools.pairwise(ordered):
        gap = last.x0 - piece.x1 if leftwards else piece.x0 - last.x1
        sizes = sorted((piece.size, last.size))
        script = sizes[0] < SMALLER * sizes[1] and gap < SAME_WORD * sizes[1]
        text += ("\t" if gap > CELL * piece.size else "" if script else " ") + piece.text
    return Piece(text, row[0].x0, max(p.x1 for p in row), longest.y, longest.size, all(p.fixed for p in row))


def _columns(rows: list[Row]) -> Iterator[list[Row]]:
    """The rows of a page as columns, in reading order."""
    if not rows:
        return
    strip = _strip(rows)
    if strip is None:
        yield rows
        return
    x, first, last = strip
    yield from _columns(rows[:first])
    leftwards = sum(_leftwards(_all(row)) for row in rows[first:last]) > 0
    for side in (1, 0) if leftwards else (0, 1):
        part = [[piece for piece in row if (piece.x0 >= x) == side] for row in rows[first:last]]
        yield from _columns([row for row in part if row])
    yield from _columns(rows[last:])


def _strip(rows: list[Row]) -> tuple[float, int, int] | None:
    """The place of the strip that divides most rows, with the first row and the one after the last."""
    starts = Counter(round(piece.x0) for row in rows for piece in row)
    best: tuple[int, float, int, int] | None = None
    for start, times in starts.most_common(STARTS_TRIED):
        if times < ROWS:
            break
        x = start - 1.0
        for first, last in _free(rows, x):
            both = _divided(rows[first:last], x)
            if both and (best is None or both > best[0]):
                best = both, x, first, last
    return best[1:] if best else None


def _free(rows: list[Row], x: float) -> Iterator[tuple[int, int]]:
    """The runs of rows that have no piece across x."""
    first = 0
    for at, row in enumerate([*rows, []]):
        if not row or any(piece.x0 < x < piece.x1 for piece in row):
            if at > first:
                yield first, at
            first = at + 1


def _divided(rows: list[Row], x: float) -> int:
    """The number of rows on the side with fewer, or 0 if the sides aren't two columns of text."""
    sides = [[[piece for piece in row if (piece.x0 >= x) == side] for row in rows] for side in (0, 1)]
    left, right = ([row for row in side if row] for side in sides)
    if min(len(left), len(right)) < ROWS:
        return 0
    size = statistics.median(piece.size for row in rows for piece in row)
    widths = [statistics.fmean(row[-1].x1 - row[0].x0 for row in side) for side in (left, right)]
    widest = [statistics.fmean(max(piece.x1 - piece.x0 for piece in row) for row in side) for side in (left, right)]
    free = min(row[0].x0 for row in right) - max(row[-1].x1 for row in left)
    text = min(widths) >= NARROW * size and min(widest) >= BROKEN * size
    return min(len(left), len(right)) if text and free >= STRIP * size else 0


def _running(pages: list[list[Row]]) -> set[tuple[int, int]]:
    """(page, row) of running heads and page numbers: the outer rows of a page that come again and again at the same
    place, with numbers that count as the pages do."""
    keys: dict[tuple[int, int], set[tuple[object, ...]]] = {}
    deep = EDGE_ROWS if len(pages) > REPEATED else 1
    for number, rows in enumerate(pages):
        edges = {*range(len(rows))[:deep], *range(len(rows))[-deep:]}
        for at in edges:
            keys[number, at] = {*_keys(rows[at], number)}
    times: defaultdict[tuple[object, ...], set[int]] = defaultdict(set)
    for (number, _), found in keys.items():
        for key in found:
            times[key].add(number)
    fewest = REPEATED if len(pages) > REPEATED else 2
    heads = {place for place, found in keys.items() if any(len(times[key]) >= fewest for key in found)}
    offsets = Counter(offset for page, at in heads for offset in _offsets(pages[page][at], page))
    usual = {offset for offset, pages_with in offsets.items() if pages_with >= REPEATED}
    for page, rows in enumerate(pages):  # pages whose number stands elsewhere, such as the first of a chapter
        ends = {0, len(rows) - 1} if rows else ()
        heads |= {(page, at) for at in ends if usual & {*_offsets(rows[at], page)}}
    outer = set()
    for page, rows in enumerate(pages):
        for inwards in (range(len(rows)), reversed(range(len(rows)))):
            for at in inwards:
                if (page, at) not in heads:
                    break
                outer.add((page, at))
    return outer


def _keys(row: Row, page: int) -> Iterator[tuple[object, ...]]:
    """What a row has in common with those that repeat it: its place and text, with a number less that of the page."""
    text = " ".join(piece.text for piece in row)
    for slot in (int(row[0].y // SLOT), -int((row[0].y + SLOT / 2) // SLOT) - 1):
        yield slot, text
        for found in list(NUMBERS.finditer(text))[:MOST_NUMBERS]:
            if (number := _number(found.group())) is not None:
                yield slot, text[: found.start()], number - page, text[found.end() :]
        if len(row) > 1:  # beside the title of a chapter
            yield from ((slot, offset) for offset in _offsets(row, page))


def _offsets(row: Row, page: int) -> Iterator[int]:
    """By how much a number at one of a row's ends differs from that of the page."""
    for piece in {row[0], row[-1]}:
        if (number := _number(piece.text)) is not None:
            yield number - page


def _number(text: str) -> int | None:
    if text.isdecimal():
        return int(text)
    if not text or set(text) - set(ROMAN):
        return None
    values = [ROMAN[letter] for letter in text]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))
