"""A text that is like a document is found however it was changed in form, and only if enough of it is there."""

from __future__ import annotations

import random
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from flows.commands.documents.likeness import CONTAINS, NEAR, QUOTES, Likeness, Phrases, Version, longest_run

VOCABULARY = [f"{a}{b}{c}" for a in ("wo", "ka", "zé", "Pi") for b in ("ren", "lu", "mo", "tas") for c in "abdekny"]
WORDS = random.Random(1).choices(VOCABULARY, k=240)
FILLING = random.Random(2).choices(VOCABULARY, k=300)
MAIL = "ada.king@example.org"
DOCUMENT = " ".join([*WORDS[:60], MAIL, *WORDS[60:]])


def page(*words: str) -> str:
    """The words within a longer text."""
    return " ".join([*FILLING[:150], *words, *FILLING[150:]])


def fewer(share: float) -> str:
    """The document, with words changed until about this Jaccard similarity of 5-grams is left."""
    words = DOCUMENT.split()
    step = round(10 / (1 - share))
    return " ".join("other" if place % step == 3 else word for place, word in enumerate(words))


CASES: dict[str, tuple[str, str | None]] = {
    "as it is": (DOCUMENT, NEAR),
    "other line ends": (DOCUMENT.replace(" ", "\r\n"), NEAR),
    "upper case": (DOCUMENT.upper(), NEAR),
    "NFD": (unicodedata.normalize("NFD", DOCUMENT), NEAR),
    "soft hyphens": (DOCUMENT.replace("oren", "o\u00adren"), NEAR),
    "other punctuation": (DOCUMENT.replace(" ", ", "), NEAR),
    "redacted": (DOCUMENT.replace(MAIL, "<EMAIL_ADDRESS>"), NEAR),
    "a few words changed": (fewer(0.9), NEAR),
    "within a longer text": (page(DOCUMENT), CONTAINS),
    "a redacted e-mail in a quotation": (page(*WORDS[30:60], "<EMAIL_ADDRESS>", *WORDS[60:90]), QUOTES),
    "a made-up e-mail in a quotation": (page(*WORDS[30:60], "bob@example.net", *WORDS[60:90]), QUOTES),
    "its first half": (" ".join(WORDS[:60]), QUOTES),
    "50 words": (page(*WORDS[100:150]), QUOTES),
    "45 words": (page(*WORDS[100:145]), None),
    "30 and 15, far apart": (page(*WORDS[100:130], *FILLING[:20], *WORDS[130:145]), None),
    "with markup": (page(" <b>".join(WORDS[100:170])), QUOTES),
    "in a JSON text": (page("\\n".join(WORDS[100:170])), QUOTES),
    "its words in another order": (" ".join(sorted(WORDS)), None),
    "another text": (" ".join(FILLING), None),
    "nothing": ("", None),
}


@pytest.fixture(scope="module")
def likeness() -> Likeness:
    return Likeness([Version("it", DOCUMENT)], ngram=5, threshold=0.8, run=50)


@pytest.mark.parametrize("name", CASES)
def test_a_change_of_form_hides_nothing(name: str, likeness: Likeness) -> None:
    text, kind = CASES[name]
    found = likeness.matches(pa.array([" ".join(FILLING), text], pa.string()))
    assert [(match.row, match.kind) for match in found] == ([(1, kind)] if kind else [])


def test_similarities_are_exact_and_a_quotation_is_quoted(likeness: Likeness) -> None:
    words = DOCUMENT.lower().replace("@", " ").replace(".", " ").split()

    def shingles(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[place : place + 5]) for place in range(len(words) - 4)}

    changed = fewer(0.93).lower().replace("@", " ").replace(".", " ").split()
    one, other = shingles(words), shingles(changed)
    (found,) = likeness.matches(pa.array([" ".join(changed)]))
    assert found.value == pytest.approx(len(one & other) / len(one | other))
    (quoted,) = likeness.matches(pa.array([page(*WORDS[100:160])]))
    assert (quoted.value, quoted.document) == (60, "it")
    assert quoted.quotation == " ".join(WORDS[100:160])[:160]


def test_a_short_document_is_searched_for_whole() -> None:
    short = Likeness([Version("it", "Seven words that nobody else has written")], ngram=5, threshold=0.8, run=50)
    texts = ["He said: seven words that nobody else has written!", "seven words that nobody else has seen"]
    assert [match.row for match in short.matches(pa.array(texts))] == [0]
    one = Likeness([Version("it", "abracadabra")], ngram=5, threshold=0.8, run=50)
    assert [match.row for match in one.matches(pa.array(["abracadabra", "hocus pocus"]))] == [0]


def test_unspaced_scripts_are_compared_by_letters() -> None:
    letters = random.Random(3).choices([chr(code) for code in range(0x4E00, 0x4F00)], k=120)
    likeness = Likeness([Version("it", "".join(letters))], ngram=5, threshold=0.8, run=50)
    others = "".join(reversed(letters))
    found = likeness.matches(pa.array([others + "".join(letters[20:80]), others]))
    assert [(match.row, match.kind, match.value) for match in found] == [(0, QUOTES, 60)]


def test_of_repeated_words_the_longest_run_is_taken() -> None:
    document = np.array([1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 6, 7, 8], np.uint64)
    words = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0], np.uint64)
    assert longest_run(words, Phrases.of(document, 5), 5) == (8, 2, 9)
    assert longest_run(words, Phrases.of(document, 5), 9) == (0, 0, 0)
    constant = np.full(300, 7, np.uint64)
    assert longest_run(constant[:100], Phrases.of(constant, 5), 50)[0] == 100


def test_a_short_document_hides_no_quotation_of_a_long_one() -> None:
    spelled = [f"{a}{b}{c}" for a in "bcdfgk" for b in "aeiou" for c in "lmnr"]
    words = random.Random(3).choices(spelled, k=5000)  # each about forty times
    quoted = " ".join(["They wrote:", *words[4000:4030], "<NAME>", *words[4031:4061]])
    for short in ([], [Version("short", "Hello")], [Version("short", "Hello you")]):
        sought = Likeness([Version("long", " ".join(words)), *short], ngram=5, threshold=0.8, run=50)
        (match,) = sought.matches(pa.array([quoted]))
        assert (match.document, match.kind, match.value) == ("long", QUOTES, 60)
