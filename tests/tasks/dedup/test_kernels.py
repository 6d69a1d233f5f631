"""The compiled loops of dedup beside the same written plainly, on numbers and texts that are hard on them."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from storage.shards.arrays import Int64
from tasks.dedup import kernels
from tasks.dedup.near_duplicates import compare_kernels
from tasks.dedup.spans import word_kernels
from tasks.dedup.spans.kinds import stops
from tasks.text.characters import UNSPACED, characters
from tasks.text.scan import utf8
from tests.hard_texts import TEXTS
from tests.tasks.filter.linear import linear_time

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
UINT64 = st.one_of(st.integers(0, M64), st.sampled_from([0, 1, 1 << 31, 1 << 32, 1 << 63, M64]))
UINT32 = st.one_of(st.integers(0, M32), st.sampled_from([0, 1, 1 << 31, M32]))
WORDS = st.lists(st.lists(UINT64, min_size=1, max_size=12), max_size=6)  # of each text: the scanner gives one at least


def mix64(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & M64
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & M64
    return h ^ h >> 33


def mix32(h: int) -> int:
    h = (h ^ h >> 16) * 0x85EBCA6B & M32
    h = (h ^ h >> 13) * 0xC2B2AE35 & M32
    return h ^ h >> 16


def polynomial(words: Sequence[int], first: int) -> int:
    for word in words:
        first = (first * GOLDEN + word) & M64
    return first


def shingles(words: Sequence[int], n: int) -> list[int]:
    n = min(n, len(words))
    return [mix64(polynomial(words[at : at + n], n)) for at in range(len(words) - n + 1)]


def flat(lists: Sequence[Sequence[int]], kind: Any = np.uint64) -> tuple[Any, Int64]:
    return np.array([value for one in lists for value in one], kind), ends_of(lists)


def ends_of(lists: Sequence[Sequence[object]]) -> Int64:
    return np.cumsum([len(one) for one in lists], dtype=np.int64)


def parted(values: Any, ends: Int64) -> list[list[int]]:
    return [values[a:b].tolist() for a, b in itertools.pairwise([0, *ends.tolist()])]


@pytest.mark.shadow("tasks.dedup.kernels.sign", "tasks.dedup.kernels.shingle_sets", "tasks.dedup.kernels.simhashes")
@given(WORDS, st.integers(1, 9), st.lists(st.tuples(UINT32, UINT32), min_size=1, max_size=9))
@settings(max_examples=100)
def test_sketches_are_those_of_the_sets_of_shingles(
    texts: list[list[int]], n: int, steps: list[tuple[int, int]]
) -> None:
    words, ends = flat(texts)
    a, b = np.array(steps, np.uint32).T.copy()
    signatures = np.empty((len(texts), len(a)), np.uint32)
    kernels.sign(words, ends, n, a, b, signatures)
    sets, set_ends = np.empty(len(words), np.uint64), np.empty(len(texts), np.int64)
    kernels.shingle_sets(words, ends, n, sets, set_ends)
    hashes = np.empty(len(texts), np.uint64)
    kernels.simhashes(words, ends, n, hashes)
    grams = [shingles(text, n) for text in texts]
    assert signatures.tolist() == [
        [min((x * mix32(gram & M32) + y) & M32 for gram in one) for x, y in steps] for one in grams
    ]
    assert parted(sets, set_ends) == [sorted(set(one)) for one in grams]
    majority = [[2 * sum(gram >> bit & 1 for gram in one) > len(one) for bit in range(64)] for one in grams]
    assert hashes.tolist() == [sum(bit << place for place, bit in enumerate(bits)) for bits in majority]


def test_hashes_that_a_text_was_made_to_have_are_sorted_in_linear_time() -> None:
    """Two shingles by turns whose hashes have the same high bits."""
    hashes = np.tile(np.array([1, 0], np.uint64), 1_000_000)
    with linear_time():
        kernels.sort_hashes(hashes, np.empty(2 * len(hashes), np.int64), np.empty_like(hashes))
    assert not hashes[:1_000_000].any()
    assert hashes[1_000_000:].all()


SIGNATURES = st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=12)


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(x == y for x, y in zip(one, other, strict=True))


@pytest.mark.shadow("tasks.dedup.near_duplicates.compare_kernels.similar_pairs")
@given(SIGNATURES, st.lists(st.lists(st.integers(0, 11), max_size=6), max_size=4), st.integers(0, 5))
@settings(max_examples=100)
def test_pairs_that_agree_are_found_in_each_group(
    signatures: list[list[int]], groups: list[list[int]], least: int
) -> None:
    groups = [[member % len(signatures) for member in group] for group in groups]
    members, ends = flat(groups, np.int32)
    expected = [
        (i, j)
        for group in groups
        for i, j in itertools.combinations(group, 2)
        if agreement(signatures[i], signatures[j]) >= least
    ]
    room = sum(len(group) * (len(group) - 1) // 2 for group in groups)
    first, second = np.empty(room, np.int32), np.empty(room, np.int32)
    made = compare_kernels.similar_pairs(members, ends, np.array(signatures, np.uint32), least, first, second)
    assert list(zip(first[:made].tolist(), second[:made].tolist(), strict=True)) == expected


@pytest.mark.shadow("tasks.dedup.near_duplicates.compare_kernels.crossing_pairs")
@given(SIGNATURES, st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(1, 5), st.integers(0, 60))
@settings(max_examples=100)
def test_each_member_of_a_large_group_crosses_to_the_component_that_agrees_most(
    signatures: list[list[int]], components: list[int], least: int, budget: int
) -> None:
    labels = sorted(components[: len(signatures)])
    members = np.arange(len(signatures), dtype=np.int32)[::-1].copy()
    expected, compared, complete = [], 0, True
    for place, member in enumerate(members.tolist()):
        later = [other for at, other in enumerate(members.tolist()) if labels[at] > labels[place]]
        alike = [agreement(signatures[member], signatures[other]) for other in later]
        if later and max(alike) >= least:
            expected.append((member, later[alike.index(max(alike))]))
        compared += len(later)
        if compared > budget:
            complete = False
            break
    first, second = np.empty(len(members), np.int32), np.empty(len(members), np.int32)
    made, finished = compare_kernels.crossing_pairs(
        members, np.array(labels), np.array(signatures, np.uint32), least, budget, first, second
    )
    assert list(zip(first[:made].tolist(), second[:made].tolist(), strict=True)) == expected
    assert finished == complete


@pytest.mark.shadow("tasks.dedup.near_duplicates.compare_kernels.band_keys")
@given(st.lists(st.lists(UINT32, min_size=6, max_size=6), max_size=5), st.sampled_from([1, 2, 3, 6]))
@settings(max_examples=60)
def test_the_key_of_a_band_is_of_its_rows(signatures: list[list[int]], rows: int) -> None:
    array = np.array(signatures, np.uint32).reshape(len(signatures), 6)
    for band in range(6 // rows):
        keys = np.empty(len(signatures), np.uint64)
        compare_kernels.band_keys(array, band, rows, keys)
        expected = []
        for signature in signatures:
            h = band
            for value in signature[band * rows : (band + 1) * rows]:
                h = (h ^ value) * GOLDEN & M64
                h ^= h >> 32
            expected.append(h)
        assert keys.tolist() == expected


@pytest.mark.shadow("tasks.dedup.near_duplicates.compare_kernels.connect")
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30))
def test_components_are_those_of_scipy(edges: list[tuple[int, int]]) -> None:
    pairs, labels = np.array(edges, np.int64).reshape(-1, 2), np.arange(20)
    compare_kernels.connect(pairs, labels)
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(20, 20))
    _, theirs = connected_components(graph, directed=False)
    assert labels.tolist() == [int(np.flatnonzero(theirs == label)[0]) for label in theirs]


@pytest.mark.shadow("tasks.dedup.near_duplicates.compare_kernels.close_pairs")
@given(
    st.lists(st.lists(st.one_of(st.integers(0, 15), UINT64), max_size=7), max_size=4),
    st.integers(0, 64),
    st.integers(0, 30),
)
@settings(max_examples=100)
def test_hashes_that_differ_in_few_bits_are_counted_beyond_the_room_for_them(
    groups: list[list[int]], most: int, room: int
) -> None:
    hashes, ends = flat(groups)
    expected = [
        (start + i, start + j)
        for group, start in zip(groups, [0, *ends.tolist()], strict=False)
        for i, j in itertools.combinations(range(len(group)), 2)
        if (group[i] ^ group[j]).bit_count() <= most
    ]
    first, second = np.full(room, -1, np.int32), np.full(room, -1, np.int32)
    found = compare_kernels.close_pairs(hashes, ends, most, first, second)
    assert found == len(expected)
    written = min(found, room)
    assert list(zip(first.tolist(), second.tolist(), strict=True))[:written] == expected[:written]


def words_of(text: str, *, part: bool) -> list[tuple[int, int]]:
    """(hash, byte at which it starts) of each word; with `part`, ideographs, kana and Thai letters are words."""
    found: list[tuple[int, int]] = []
    h, place, start, inside = 0, 0, 0, False
    for character in f"{text} ":
        if part and character.isalpha() and any(ord(character) in block for block in UNSPACED):
            if inside:
                found.append((mix64(h), start))
            found.append((mix64((0xCBF29CE484222325 ^ ord(character)) * 0x100000001B3 & M64), place))
            inside = False
        elif character.isalnum() or character == "_":
            fold = character.casefold()
            code = ord(fold if len(fold) == 1 else character)
            if not inside:
                h, start = 0xCBF29CE484222325, place
            h = (h ^ code) * 0x100000001B3 & M64
            inside = True
        elif inside:
            found.append((mix64(h), start))
            inside = False
        place += len(character.encode())
    return found


@pytest.mark.shadow("tasks.dedup.spans.word_kernels.find_words", "tasks.dedup.spans.word_kernels.find_windows")
@given(st.lists(TEXTS, min_size=1, max_size=6), st.integers(1, 6), st.booleans())
@example(["a", "", "a a a a", "é a", "İ \U0001d400\U0010ffff"], 1, False)
@example(["a漢字b_カ1 ไทย", "漢", "。漢ลาว", "한글 𠀀x"], 2, True)
@settings(max_examples=200)
def test_words_start_where_they_do_and_windows_are_of_as_many(texts: list[str], size: int, part: bool) -> None:
    hashes, starts, ends = word_kernels.find_words(*utf8(pa.array(texts, pa.string())), *characters(True, True, part))
    words = [words_of(text, part=part) for text in texts]
    assert parted(hashes, ends) == [[h for h, _ in one] for one in words]
    offsets = ends + np.arange(1, len(ends) + 1)
    expected = [[*(start for _, start in one), len(text.encode())] for one, text in zip(words, texts, strict=True)]
    assert parted(starts, offsets) == expected
    keys, places, firsts = word_kernels.find_windows(hashes, ends, size)
    windows = [
        (mix64(polynomial([h for h, _ in one[at : at + size]], 0)), place, at)
        for place, one in enumerate(words)
        for at in range(len(one) - size + 1)
    ]
    assert list(zip(keys.tolist(), places.tolist(), firsts.tolist(), strict=True)) == windows


def sentences_of(text: str, *, sentences: bool) -> list[tuple[int, int]]:
    """(hash, byte at which it starts) of each sentence with a word, or of each line."""
    ends = r"\n|(?<=[.!?…؟۔।॥])[\"')\]}”’»›」』）】》〉.!?…؟۔।॥]*\s" if sentences else r"\n"
    found: list[tuple[int, int]] = []
    start = 0
    marks = [match.end() for match in re.finditer(ends, text)] if text else []
    for end in [*marks, len(text)]:
        part = text[start:end]
        words = re.findall(r"\w+", part)
        if words:
            h = 0xCBF29CE484222325
            for word in words:
                h = h * 0x100000001B3 & M64  # of a zero
                for c in word:
                    fold = c.casefold()
                    h = (h ^ ord(fold if len(fold) == 1 else c)) * 0x100000001B3 & M64
            first = len(part) - len(part.lstrip())
            found.append((mix64(h), len(text[: start + first].encode())))
        start = end
    return found


@pytest.mark.shadow("tasks.dedup.spans.word_kernels.find_sentences")
@given(
    st.lists(st.one_of(TEXTS, st.text(st.sampled_from("aB .!?…”)\n\t字,1é"), max_size=40)), min_size=1, max_size=5),
    st.booleans(),
)
@example(["One. “Two!” Three?) four... five.\n\nSix", " . \n .a. b", "3.5 e.g.x", ""], True)
@settings(max_examples=300)
def test_sentences_and_lines_start_where_they_do(texts: list[str], sentences: bool) -> None:
    texts = [
        re.sub("[。！？｡៕။\x1c-\x1f\x85\u2028]", " ", text) for text in texts
    ]  # the first need no white space after them
    hashes, starts, ends = word_kernels.find_sentences(
        *utf8(pa.array(texts, pa.string())), *characters(True, True), stops(sentences)
    )
    expected = [sentences_of(text, sentences=sentences) for text in texts]
    assert parted(hashes, ends) == [[h for h, _ in one] for one in expected]
    offsets = ends + np.arange(1, len(ends) + 1)
    firsts = [[*(start for _, start in one), len(text.encode())] for one, text in zip(expected, texts, strict=True)]
    assert parted(starts, offsets) == firsts


@pytest.mark.shadow("tasks.dedup.kernels.may_repeat")
@given(st.lists(st.one_of(st.integers(0, 40), UINT64), max_size=60))
@settings(max_examples=100)
def test_a_key_may_repeat_if_its_counter_is_shared(keys: list[int]) -> None:
    slots = 4
    while slots < kernels.SLOTS * len(keys):
        slots *= 2
    times = Counter(key % slots for key in keys)
    assert kernels.may_repeat(np.array(keys, np.uint64)).tolist() == [times[key % slots] > 1 for key in keys]
