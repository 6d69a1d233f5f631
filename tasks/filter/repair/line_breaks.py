"""Paragraphs that were wrapped at a fixed width, joined to one line each. A conservative rule: when in doubt, not.

Looked at are blocks of at least two lines between blank lines. A block is joined when all of this holds:

- no line but the first is indented, none holds a tab or, other than after a full stop, two blanks in a row (tables,
  code, a Markdown line break), and none starts as prose doesn't: with a bullet, a number, a quotation or comment sign,
  markup; nothing within a code fence is looked at;
- of its characters, at most one in thirty is other than a letter, a digit, a blank or punctuation of prose (code);
- its longest line, the width, has 50 to 120 characters, and every break was forced: the next line's first word would
  not have fitted (headings, lists, addresses, letters with short lines);
- every line that a break ends has five words or more (lists of names and paths), and at least half of the breaks stand
  in the middle of a sentence: no full stop before, a small letter after (verse starts its lines with capitals).

So nothing is joined in scripts without small letters or without blanks. A hyphen at a line's end goes when the word
stands in the text without it too, a soft hyphen always; a hyphen that stays is followed by no blank.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

# In RE2's dialect: what a text must hold to be looked at
WRAPPED = r"\n\p{Ll}"

WIDTHS = range(50, 121)
MIN_WORDS = 5  # of a line that a break ends
PROSE = 30  # characters for each one that is no part of prose
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
    """The text with its wrapped paragraphs joined, and how many line breaks and hyphens went."""
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
    """All lines: those of a block together, blank and fenced ones each by itself."""
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
