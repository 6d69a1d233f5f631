"""C4's line rules as a transformation of a text (Raffel et al. 2020, section 2.2).

The order of the tests, the citations and the phrases are those of the authors' code (`c4_utils.py` in
tensorflow_datasets), which datatrove follows. The kernels count what these functions would leave.
"""

from __future__ import annotations

import re

from tasks.filter.form.characters import CLOSERS, TERMINALS
from tasks.filter.form.config import C4LineRules
from tasks.filter.form.phrases import JAVASCRIPT, PHRASES, POLICY

CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
END_MARKS = (".", "?", "!", '"', "'")
ELLIPSIS = "..."


def keep_c4_lines(text: str, rules: C4LineRules) -> str:
    """The lines of a text that C4 keeps, stripped and without citations, joined by newlines."""
    return "\n".join(c4_lines(text, rules)).strip()


def c4_lines(text: str, rules: C4LineRules) -> list[str]:
    """The lines of `keep_c4_lines` as a list."""
    return [line for whole in text.splitlines() if (line := _cut(whole, rules)) is not None]


def count_sentences(line: str) -> int:
    """Sentences of a line: one ends with a word that ends in terminal punctuation, ignoring closing quotation marks and
    brackets; words after the last such word are a sentence, too."""
    ends = [word.rstrip(CLOSERS).endswith(tuple(TERMINALS)) for word in line.split()]
    return sum(ends) + (bool(ends) and not ends[-1])


def _cut(line: str, rules: C4LineRules) -> str | None:
    line = line.strip()
    words = line.split()
    if any(len(word) > rules.max_word_length for word in words):
        return None
    if rules.citations:
        line = CITATION.sub("", line)
    if rules.terminal_punctuation and (not line.endswith(END_MARKS) or line.endswith(ELLIPSIS)):
        return None
    if len(words) < rules.min_words:
        return None
    lowered = line.lower()
    unwanted = rules.javascript * JAVASCRIPT | rules.policy * POLICY
    return None if any(kind & unwanted and phrase in lowered for phrase, kind in PHRASES.items()) else line
