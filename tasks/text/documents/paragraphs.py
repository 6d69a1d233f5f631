"""Lines of a document as paragraphs.

A line break is kept where it was meant: where the next word would still have fitted on the line, before an indented
line or an item of a list, between rows of a table, and in text of a fixed pitch. All others become a space, and a
hyphen at such a break goes, unless the document has the word with the hyphen elsewhere.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable

from tasks.text.documents.layout import Line

# As shares of the height of a line
INDENT = 0.7
SPACE = 0.3
LEADING = 1.35  # times the usual distance of lines, from which on there is a paragraph between them
FIXED_LEADING = 1.8  # of a fixed pitch, whose lines may be further apart than those of the text
OTHER_SIZE = 0.12  # difference of heights between a heading and the text
ENDS = re.compile(r"[.!?:;…。！？]['\"”’»)\]]*$")
ITEM = re.compile(r"(?:[•‣◦▪●○∙*·–-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,4})[.)]|\d{1,3}(?:\.\d{1,3})+)\s")
MARKED = re.compile(rf"^({ITEM.pattern[:-2]})\t+")
LEADERS = re.compile(r"(?:\. ){3,}|\.{4,}")  # in a table of contents
BROKEN = re.compile(r"(\w[\w'’-]*)[-\u00ad\u2010]$")
BEGINS = re.compile(r"\w[\w'’]*")
WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
DENSE = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")  # written without spaces


def to_text(lines: list[Line]) -> str:
    """The text of a document from its lines in reading order."""
    lines = [line._replace(text=MARKED.sub(r"\1 ", line.text)) for line in lines if line.text]
    words = Counter(word.lower() for line in lines for word in WORDS.findall(line.text))
    leading = _leadings(lines)
    rights = _rights(lines, leading)
    parts: list[str] = []
    for at, line in enumerate(lines):
        text = _indented(line)
        if not at:
            parts.append(text)
            continue
        before, after = lines[at - 1], lines[at + 1] if at + 1 < len(lines) else None
        between = _between(before, line, after, leading.get(line.column, 0.0), rights[at - 1])
        if between:
            parts += [between, text]
        else:
            parts[-1], text = _joined(parts[-1], line.text, words)
            parts.append(text)
    return "".join(parts).strip()


def _leadings(lines: Iterable[Line]) -> dict[int, float]:
    """The usual distance of lines in each column."""
    distances: dict[int, list[float]] = {}
    last = None
    for line in lines:
        if last and last.column == line.column and line.y > last.y:
            distances.setdefault(line.column, []).append(line.y - last.y)
        last = line
    return {column: statistics.median_low(found) for column, found in distances.items()}


def _rights(lines: list[Line], leading: dict[int, float]) -> list[float]:
    """Where each line should end: where two of its neighbours do, at least, as in a quotation with margins of its own.
    Otherwise at the bound of its column."""
    rights = [line.right for line in lines]
    first = 0
    for at in range(1, len(lines) + 1):
        before, line = lines[at - 1], lines[at] if at < len(lines) else None
        same = line is not None and before.column == line.column and _same_size(before, line)
        if line and same and line.y - before.y <= LEADING * max(line.size, leading.get(line.column, 0.0)):
            continue
        run = lines[first:at]
        right = max(each.x1 for each in run)
        full = sum(each.x1 > right - each.size / 2 for each in run)
        if full >= 2 and 2 * full >= len(run) - 1:
            rights[first:at] = [right] * len(run)
        first = at
    return rights


def _same_size(before: Line, line: Line) -> bool:
    return abs(before.size - line.size) <= OTHER_SIZE * max(before.size, line.size)


def _indented(line: Line) -> str:
    """A line of a fixed pitch with the spaces before it."""
    if not line.fixed or not line.text:
        return line.text
    pitch = (line.x1 - line.x0) / len(line.text)
    return " " * min(80, round((line.x0 - line.left) / pitch)) + line.text if pitch > 0 else line.text


def _between(before: Line, line: Line, after: Line | None, leading: float, right: float) -> str:
    """The separator of two lines, which is empty within a paragraph. `right` bounds the first."""
    same_size = _same_size(before, line)
    word = line.text.split(maxsplit=1)[0] if line.text.strip() else ""
    need = (line.x1 - line.x0) * len(word) / max(1, len(line.text)) + SPACE * line.size
    fits = right - before.x1 >= need
    if before.column != line.column:  # in the next column or on the next page
        table = "\t" in before.text or LEADERS.search(before.text)
        whole = fits or not same_size or line.fixed or before.fixed or table or ENDS.search(before.text)
        return "\n\n" if whole or ITEM.match(line.text) else ""
    fixed = line.fixed and before.fixed
    usual = max(leading, line.size)  # a heading's lines are further apart
    if not same_size or line.y - before.y > (FIXED_LEADING if fixed else LEADING) * usual:
        return "\n\n"
    if fixed:
        return "\n"
    if BROKEN.search(before.text) and line.text[0].islower():
        return ""
    if "\t" in line.text or "\t" in before.text or LEADERS.search(before.text) or ITEM.match(line.text):
        return "\n"
    shift = 0.0 if ITEM.match(before.text) else line.x0 - before.x0
    alone = after is None or after.column != line.column or after.x0 < line.x0 - 1
    if shift > INDENT * line.size and alone and ENDS.search(before.text):
        return "\n\n"
    if fits:
        return "\n\n" if ENDS.search(before.text) else "\n"
    return ""


def _joined(before: str, line: str, words: Counter[str]) -> tuple[str, str]:
    """The end of a paragraph so far, and how the next line goes on."""
    broken, begins = BROKEN.search(before), BEGINS.match(line)
    if broken and begins:
        first, second = broken.group(1), begins.group()
        end = before[: broken.end(1)]
        if not second[0].islower():
            return f"{end}-", line
        whole, parted = f"{first}{second}".lower(), f"{first}-{second}".lower()
        last = first.rpartition("-")[2]
        known = words[parted] or words[f"{last}-{second}".lower()]
        return (f"{end}-" if known > words[whole] or "-" in first else end), line
    if before and line and DENSE.match(before[-1]) and DENSE.match(line):
        return before, line
    return before, f" {line}"
