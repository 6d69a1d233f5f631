"""The texts that stand for a benchmark question in the search: its query, its answer, and common combinations of both.

Copies of a question rarely follow a particular prompt. The search is therefore for the query by itself, also without
its introduction ("Question:", an activity, a passage) and without the options below it, and for the right answer by
itself. Wrong answers by themselves are left out: they give nothing away, and are often true sentences about something
else. A query that is too short is searched for as the usual prompts continue it: with the answer after "Answer:", with
all options plain, lettered or numbered (in lm-evaluation-harness, MMLU and PIQA among others), and with the options as
the rows of data sets name them. A document with other words between query and answer matches either of them. A text
that hides words (`plain.py`) is searched for as written and as it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tasks.filter.contamination.config import ContaminationConfig
from tasks.filter.contamination.plain import plain

LABEL = re.compile(r"^\s*(?:Question|Q|Problem|Goal):\s*", re.IGNORECASE)
PROMPT_END = re.compile(r"\s*\b(?:Answer|A):\s*$", re.IGNORECASE)
BEFORE = re.compile(r"^[^:?!.\n]{1,60}:\s+(?=\S)")  # a title or an activity
OPTION = re.compile(r"^\s*\(?(?:[A-Za-z]|\d{1,2})[.):]\s")
WORD = re.compile(r"\w+")
MAY_HIDE = re.compile(r"[^\x00-\x7f]|[\\&%_\[<\n-]")


class Part(NamedTuple):
    """A text to search for. `asks` says whether it contains the query: a document with all of it has the question."""

    name: str
    text: str
    asks: bool


def parts_of(row: Mapping[str, Any], config: ContaminationConfig) -> list[Part]:
    """The parts of a question {"query", "choices", "gold"} that are long enough to search for.

    A part of fewer than `ngram` words is matched whole, so a part within another one helps only if it is that short.
    """
    query = PROMPT_END.sub("", LABEL.sub("", row["query"])).strip()
    choices = [choice.strip() for choice in row["choices"]]
    answer = choices[row["gold"]]
    parts = [
        Part("query", query, asks=True),
        Part("query and answer", f"{query} {answer}", asks=True),
        Part("answer", answer, asks=False),
        *(Part("query", text, asks=True) for text in _within(query) if count_words(text) < config.ngram),
    ]
    if not _long_enough(query, config):
        parts += _written_out(query, choices, answer)
    parts += [part._replace(text=plain(part.text)) for part in parts if MAY_HIDE.search(part.text)]
    distinct: dict[tuple[str, ...], Part] = {}
    for part in parts:
        distinct.setdefault(tuple(WORD.findall(part.text.casefold())), part)
    least = {True: config.min_words, False: config.min_answer_words}
    return [
        part
        for words, part in distinct.items()
        if len(words) >= least[part.asks] and sum(map(len, words)) >= config.min_characters
    ]


def _within(query: str) -> Iterator[str]:
    """Yield the query without its introduction, and its lines that are questions."""
    yield BEFORE.sub("", query)
    lines = [line for line in query.split("\n") if line.strip()]
    for line in lines if len(lines) > 1 else ():
        line = LABEL.sub("", line)
        if line.rstrip().endswith("?") and not OPTION.match(line):
            yield line


def _written_out(query: str, choices: Sequence[str], answer: str) -> Iterator[Part]:
    for between in ("Answer", "A", "The answer is"):
        yield Part("query and answer", f"{query} {between}: {answer}", asks=True)
    for text in (f"{answer} Question: {query}", f"Answer: {answer} {query}", f"{answer} {query}"):
        yield Part("answer and query", text, asks=True)
    if len(choices) > 1:
        letters = [chr(ord("A") + number % 26) for number in range(len(choices))]
        numbers = [str(number) for number in range(1, len(choices) + 1)]
        keys = [f"sol{number}" for number in numbers]  # PIQA's
        for labels in (letters, numbers, keys):
            listed = " ".join(f"{label}. {choice}" for label, choice in zip(labels, choices, strict=True))
            yield Part("query and options", f"{query} {listed}", asks=True)
        for between in ("", "choices", "choices text"):
            yield Part("query and options", " ".join((query, between, *choices)), asks=True)


def _long_enough(query: str, config: ContaminationConfig) -> bool:
    words = WORD.findall(query)
    return len(words) >= config.min_words and sum(map(len, words)) >= config.min_characters


def count_words(text: str) -> int:
    """The number of words, as the scanner cuts them."""
    return len(WORD.findall(text))
