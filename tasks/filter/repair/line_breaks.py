"""Unwraps paragraphs that were wrapped at a fixed width, by a conservative rule.

Candidates are blocks of at least two lines between blank lines, outside code fences. A block is joined if all of these
hold (in brackets, what each condition excludes):

- only the first line may be indented (lists, code)
- no line has a tab or, except after a full stop, two spaces in a row (tables, code, a Markdown line break)
- no line starts as prose doesn't: with a bullet, a number, a quotation or comment sign, or markup
- at most one in thirty characters is not a letter, a digit, white space or punctuation of prose (code)
- the longest line, which is the width, has 50 to 120 characters, and every break was forced, because the first word of
  the next line would not have fitted (headings, lists, addresses, letters with short lines)
- every line that a break ends has five words or more (lists of names and paths)
- at least half of the breaks are within a sentence: no full stop before, a lower-case letter after (verse)

So nothing is joined in scripts without lower case or without spaces. A hyphen at a line end is removed if the text also
has the word without it, and a soft hyphen always. After a hyphen that stays, no space is added.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

# In RE2's syntax: texts without a match need no repair
WRAPPED = r"\n\p{Ll}"

WIDTHS = range(50, 121)
MIN_WORDS = 5  # of a line that a break ends
PROSE = 30  # characters per character that is not part of prose
_STARTS_OTHERWISE = re.compile(r"[^\w\"'(“‘«¿¡…]|_|\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{2,5})[.)]\s|\w+://")
_INDENT = re.compile(r"\A {1,4}(?=\S)")
_GAP = re.compile(r"\t|[^.!?:\"”)]\s\s|\s\s\s")
_SYMBOL = re.compile(r"[^\w\s.,;:!?'\"()/%&“”‘’«»„–—…¿¡\xad-]|_|(?<=\w)[.:](?=[^\W\d])")
_FENCES = ("```", "~~~")
_INSIDE_SENTENCE = re.compile(r"(?:[^\W_]|[,;\"'’”»)\xad-])\n[^\W\d_]")
_HYPHEN = re.compile(r"\w[-\xad]\n\w")
_CUT_WORD = re.compile(r"(\w+)([-\xad])\n(\w+)")
_SUSPENDED = {"and", "or", "to", "und", "oder"}  # pre- and postwar
_WORD = re.compile(r"[^\W\d_]+")


def repair_line_breaks(text: str) -> tuple[str, int]:
    """The text with its wrapped paragraphs joined, and the number of line breaks and hyphens removed."""
    words = frozenset(_WORD.findall(text.lower())) if _HYPHEN.search(text) else frozenset()
    lines: list[str] = []
    changed = 0
    for block in _blocks(text):
        if _is_wrapped(block):
            joined, hyphens = _join(block, words)
            changed += len(block) - 1 + hyphens
            lines.append(joined)
        else:
            lines += block
    return ("\n".join(lines), changed) if changed else (text, 0)


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield all lines: those of a block together, blank and fenced lines one by one."""
    block: list[str] = []
    fenced = False
    for line in text.split("\n"):
        is_fence = line.lstrip().startswith(_FENCES)
        if fenced or is_fence or not line.strip():
            if block:
                yield block
                block = []
            yield [line]
            fenced ^= is_fence
        else:
            block.append(line)
    if block:
        yield block


def _is_wrapped(block: list[str]) -> bool:
    width = max(map(len, block))
    if len(block) < 2 or width not in WIDTHS:
        return False
    for line, following in itertools.pairwise(block):
        if len(line.rstrip()) + 1 + len(following.split(None, 1)[0]) <= width or len(line.split()) < MIN_WORDS:
            return False
    # The first line of a paragraph may be indented
    if any(_STARTS_OTHERWISE.match(line) or _GAP.search(line) for line in [_INDENT.sub("", block[0]), *block[1:]]):
        return False
    text = "\n".join(block)
    inside = sum(match[0][-1].islower() for match in _INSIDE_SENTENCE.finditer(text))
    return 2 * inside >= len(block) - 1 and PROSE * len(_SYMBOL.findall(text)) <= len(text)


def _join(block: list[str], words: frozenset[str]) -> tuple[str, int]:
    parts: list[str] = []
    hyphens = 0
    for line, following in itertools.pairwise(map(str.rstrip, block)):
        cut = _CUT_WORD.search(f"{line}\n{following}") if _HYPHEN.search(f"{line[-2:]}\n{following[:1]}") else None
        if cut is None or cut[3] in _SUSPENDED:
            parts += [line, " "]
        elif cut[2] == "\xad" or (cut[1] + cut[3]).lower() in words:
            parts.append(line[:-1])
            hyphens += 1
        else:
            parts.append(line)
    return "".join([*parts, block[-1]]), hyphens
