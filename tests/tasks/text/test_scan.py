"""The byte kernels compared with plain definitions: Python's Unicode functions and datasketch's signatures."""

from __future__ import annotations

import itertools
import os
import random
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.dedup.config import SketchConfig
from tasks.dedup.near_duplicates import compare_kernels
from tasks.dedup.near_duplicates.verify import shingle_sets
from tasks.dedup.sketch import permutations, scanner_of, sketch_texts
from tasks.filter.pii.patterns import kernels
from tasks.text import scan
from tasks.text.characters import HARD, SIZE, SPACE, UNSPACED, WORD, characters

SAMPLES = [
    "",
    " ",
    "\n\t ",
    "!!!",
    "one",
    "One  two\tTHREE\r\nfour",
    "  leading and trailing  ",
    "snake_case 42 x",
    "Straße und STRASSE",
    "Ærøskøbing, naïve café — “quoted” text…",
    "e\u0301t\u00e9 e\u0301te\u0301",
    "İstanbul ISTANBUL",
    "日本語 の テキスト",
    "한국어 \u1112\u1161\u11ab",
    "नमस्ते दुनिया",
    "ελληνικά ΣΊΣΥΦΟΣ ς",
    "emoji 👩‍👩‍👧 🇫🇷 x",
    "a\u00a0b\u2003c\u3000d",
    "ﬁne ﬂour",
    "\u212b \u00c5 A\u030a",
    "NUL \x00 inside",
    "ǅungla Ⱥ ⱥ",
    "\U0001d400\U0001d41a 𐐀𐐨",
    "\ufeffin\u00advi\u200bsi\u200cb\u200dle\u2060 \u200b x\u200b",
    "e\u200b\u0301 \u00ad\u200b",
]


UNSPACED_LETTERS = {chr(code) for block in UNSPACED for code in block if chr(code).isalpha()}


def words_of(text: str) -> list[str]:
    """Runs of `\\w`, in which each letter of a script without spaces is a run of its own."""
    parted = "".join(f" {character} " if character in UNSPACED_LETTERS else character for character in text)
    return re.findall(r"\w+", parted)


def hashed(word: bytes) -> int:
    """FNV-1a, and MurmurHash3's finalizer, by their definitions."""
    h = 0xCBF29CE484222325
    for byte in word:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ h >> 33) * factor % 2**64
    return h ^ h >> 33


def normal(text: str, *, case: bool = True, space: bool = True) -> str:
    text = re.sub("[\u00ad\u200b\u200c\u200d\u2060\ufeff]", "", text)
    text = unicodedata.normalize("NFC", text)
    text = text.casefold() if case else text
    return " ".join(text.split()) if space else text


def scanned(texts: list[str], config: SketchConfig) -> tuple[list[str], list[int]]:
    """Normalised texts and their numbers of words, by the kernel."""
    found, words = [""] * len(texts), [0] * len(texts)
    for part in scanner_of(config).scan(pa.array(texts, pa.string())):
        starts = [0, *part.text_ends[:-1]]
        counts = np.diff(part.word_ends, prepend=0)
        for row, start, end, count in zip(part.rows, starts, part.text_ends, counts, strict=True):
            found[row], words[row] = bytes(part.text[start:end]).decode(), int(count)
    return found, words


def test_the_tables_say_of_every_character_what_python_says() -> None:
    kinds, folded = characters(True, True)
    for code in range(0x110000):
        text = chr(code)
        kind, fold = (int(kinds[code]), int(folded[code])) if code < SIZE else (0, code)
        assert bool(kind & WORD) == (text.isalnum() or text == "_")
        assert bool(kind & SPACE) == text.isspace()
        if not kind & HARD:
            assert chr(fold) == (" " if text.isspace() else text.casefold())
            assert unicodedata.is_normalized("NFC", text)
            assert not unicodedata.combining(text)


@pytest.mark.parametrize("case", [True, False])
@pytest.mark.parametrize("space", [True, False])
def test_texts_are_normalised_as_python_would(case: bool, space: bool) -> None:
    texts, words = scanned(SAMPLES, SketchConfig(ignore_case=case, ignore_white_space=space))
    assert texts == [normal(text, case=case, space=space) for text in SAMPLES]
    assert words == [max(1, len(words_of(text))) for text in texts]


# Characters of all kinds, and runs of one kind that end before, in and after a block of 64
KINDS = ["a", "Word ", " ", "\n\t", "_-", "é", "字", "\u200b"]
RUNS = st.builds(str.__mul__, st.sampled_from(KINDS), st.integers(0, 140))
LONG = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | RUNS, max_size=5).map("".join)


@pytest.mark.shadow("tasks.text.kernels.scan")
@given(st.lists(LONG, max_size=12))
@settings(max_examples=300)
def test_any_text_is_normalised_as_python_would(drawn: list[str]) -> None:
    texts, words = scanned(drawn, SketchConfig())
    assert texts == [normal(text) for text in drawn]
    assert words == [max(1, len(words_of(text))) for text in texts]


@given(LONG)
@settings(max_examples=100)
def test_words_are_hashed_byte_by_byte(drawn: str) -> None:
    *_, part = scanner_of(SketchConfig()).scan(pa.array([drawn], pa.string()))
    found = part.words[: part.word_ends[0]].tolist()
    assert found == [hashed(word.encode()) for word in words_of(normal(drawn)) or [normal(drawn)]]


def test_only_scripts_without_spaces_are_parted_and_only_on_request() -> None:
    texts = pa.array(["Ein Wort, zwei", "漢字とカナ", "ภาษาไทย 12", "ភាសាខ្មែរ", "ພາສາລາວ", "한국어 단어", "हिन्दी"])
    counts = [
        [
            int(np.diff(part.word_ends, prepend=0)[row])
            for part in scan.Scanner(part_unspaced=on).scan(texts)
            for row in range(3)
            if len(part.rows) == 7
        ]
        for on in (False, True)
    ]
    assert counts == [[3, 1, 2], [3, 5, 8]]


def test_a_pile_of_combining_marks_is_parted_and_nothing_else_is() -> None:
    few, many = "e\u0301" + "\u0327" * 29, "e" + "\u0301\u0327" * 1000
    assert scan.longest_run_of_marks(f"x{few}y") == 30
    assert scan.stream_safe(few) == few
    parted = scan.stream_safe(many)
    assert scan.longest_run_of_marks(parted) == 30
    assert parted.replace("\u034f", "") == many
    assert scanned([few, many], SketchConfig())[0] == [normal(few), normal(parted)]


def test_portions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sketch_texts(scanner_of(SketchConfig()), 5, pa.array(SAMPLES), *permutations(SketchConfig()))
    monkeypatch.setattr(scan, "PORTION", 16)
    parts = sketch_texts(scanner_of(SketchConfig()), 5, pa.array(SAMPLES).slice(0), *permutations(SketchConfig()))
    assert (parts.exact == whole.exact).all()
    assert parts.lengths.tolist() == whole.lengths.tolist()
    assert parts.words.tolist() == whole.words.tolist()
    assert (parts.signatures == whole.signatures).all()


def test_hashes_and_lengths_are_of_the_normalised_text() -> None:
    exact, lengths, words, _ = sketch_texts(
        scanner_of(SketchConfig()), 5, pa.array(SAMPLES), *permutations(SketchConfig())
    )
    assert list(map(bytes, exact)) == [xxhash.xxh3_128_digest(normal(text).encode()) for text in SAMPLES]
    assert lengths.tolist() == [len(normal(text).encode()) for text in SAMPLES]
    assert words.tolist() == [max(1, len(words_of(normal(text)))) for text in SAMPLES]


def test_punctuation_does_not_part_two_editions() -> None:
    first, second = shingle_sets(
        scanner_of(SketchConfig()), 5, pa.array(["“Go, now!” he said; go.", '"Go now", he said: go'])
    )
    assert (first == second).all()


def test_shingles_are_as_many_as_the_distinct_word_n_grams() -> None:
    texts = [" ".join(random.Random(seed).choices("abcd", k=seed)) for seed in range(1, 60)]
    for text, shingles in zip(texts, shingle_sets(scanner_of(SketchConfig()), 3, pa.array(texts)), strict=True):
        words = text.split()
        grams = {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))}
        assert len(shingles) == len(grams)
        assert (np.diff(shingles.astype(object)) > 0).all()


@pytest.mark.parametrize("seed", [1, 7])
def test_signatures_are_datasketchs(seed: int) -> None:
    config = SketchConfig(seed=seed, permutations=112)
    texts = [" ".join(random.Random(row).choices(SAMPLES, k=30)) for row in range(20)]
    scanner = scanner_of(config)
    *_, signatures = sketch_texts(scanner, config.ngram, pa.array(texts), *permutations(config))
    for signature, shingles in zip(signatures, shingle_sets(scanner, config.ngram, pa.array(texts)), strict=True):
        reference = MinHash(num_perm=112, seed=seed, hashfunc=lambda value: int(value) & 0xFFFFFFFF, scheme="affine32")
        reference.update_batch(shingles.tolist())
        assert (reference.hashvalues == signature).all()


@pytest.mark.shadow("tasks.dedup.near_duplicates.compare_kernels.jaccards")
@given(st.lists(st.frozensets(st.integers(0, 30), min_size=1), min_size=2, max_size=8))
@settings(max_examples=100)
def test_jaccard_is_exact(sets: list[frozenset[int]]) -> None:
    flat = np.array([value for one in sets for value in sorted(one)], np.uint64)
    ends = np.cumsum([len(one) for one in sets])
    pairs = [(i, j) for i in range(len(sets)) for j in range(len(sets))]
    first, second = np.array(pairs, np.int32).T
    values = np.empty(len(pairs))
    compare_kernels.jaccards(flat, ends, np.ascontiguousarray(first), np.ascontiguousarray(second), values)
    assert values.tolist() == [len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for i, j in pairs]


@given(st.lists(st.text(max_size=20), max_size=12), st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=60)
def test_a_slice_is_read_as_what_it_is(texts: list[str], before: int, after: int) -> None:
    column = pa.array(["x" * 7] * before + texts + ["y"] * after, pa.string()).slice(before, len(texts))
    data, offsets = scan.utf8(column)
    assert [bytes(data[a:b]).decode() for a, b in itertools.pairwise(offsets.tolist())] == texts


@pytest.mark.parametrize(
    ("column", "error"),
    [
        (pa.array(["one", "two"], pa.large_string()), TypeError),
        (pa.array(["one", "two"], pa.string_view()), TypeError),
        (pa.array(["one", "one"], pa.dictionary(pa.int32(), pa.string())), TypeError),
        (pa.array([b"one"], pa.binary()), TypeError),
        (pa.array(["one", None], pa.string()), ValueError),
        (pa.chunked_array([["one"], ["two"]]), AttributeError),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_no_other_layout_reaches_compiled_code(column: pa.Array, error: type[Exception]) -> None:
    with pytest.raises(error):
        scan.utf8(column)


@pytest.mark.skipif("NUMBA_BOUNDSCHECK" not in os.environ, reason="`make soak` checks the bounds of compiled code")
def test_where_bounds_are_checked_a_step_beyond_an_array_is_an_error() -> None:
    hits = np.empty((1, kernels.FIELDS), np.int64)
    with pytest.raises(IndexError):
        kernels.scan(*scan.utf8(pa.array(["1.1.1.1.1.1.1"])), kernels.CLASSES, hits)
