"""C4's line rules as a transformation of a text (Raffel et al. 2020, section 2.2).

The order of the tests, the citations and the phrases follow the authors' code (`c4_utils.py` in tensorflow_datasets),
as does datatrove. The kernels count what these functions would leave.
"""

from __future__ import annotations

import re

from tasks.filter.form.config import C4LineRules
from tasks.filter.form.phrases import JAVASCRIPT, PHRASES, POLICY
from tasks.filter.form.words.plain import ends_sentence, has_unspaced, words_of

CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
END_MARKS = (".", "?", "!", '"', "'")
ELLIPSIS = "..."


def keep_c4_lines(text: str, rules: C4LineRules, part_unspaced: bool) -> str:
    """The lines of a text that C4 keeps, stripped and without citations, joined by newlines. Words, here and below, are
    as in `words/plain.py`."""
    return "\n".join(c4_lines(text, rules, part_unspaced)).strip()


def c4_lines(text: str, rules: C4LineRules, part_unspaced: bool) -> list[str]:
    """The lines of `keep_c4_lines` as a list."""
    return [line for whole in text.splitlines() if (line := _cut(whole, rules, part_unspaced)) is not None]


def count_sentences(line: str, part_unspaced: bool) -> int:
    """Count the sentences of a line. A sentence ends with a word that ends in terminal punctuation, ignoring closing
    quotation marks and brackets. Words after the last such word are a sentence, too."""
    ends = [ends_sentence(word, part_unspaced) for word in words_of(line, part_unspaced)]
    return sum(ends) + (bool(ends) and not ends[-1])


def ends_line(line: str, part_unspaced: bool) -> bool:
    """Whether a stripped line ends as C4 requires or, in scripts without spaces, with their terminal punctuation."""
    if line.endswith(END_MARKS):
        return not line.endswith(ELLIPSIS)
    return part_unspaced and has_unspaced(line) and ends_sentence(line, part_unspaced)


def _cut(line: str, rules: C4LineRules, part_unspaced: bool) -> str | None:
    line = line.strip()
    words = words_of(line, part_unspaced)
    if any(len(word) > rules.max_word_length for word in words):
        return None
    if rules.citations:
        line = CITATION.sub("", line)
    if rules.terminal_punctuation and not ends_line(line, part_unspaced):
        return None
    if len(words) < rules.min_words:
        return None
    lowered = line.lower()
    unwanted = rules.javascript * JAVASCRIPT | rules.policy * POLICY
    return None if any(kind & unwanted and phrase in lowered for phrase, kind in PHRASES.items()) else line
