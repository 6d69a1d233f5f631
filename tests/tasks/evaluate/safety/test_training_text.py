"""Beginnings of documents, and the longest pieces in training text, equal those of a slow search."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import TokenizerMismatch
from storage.shards.token_sources import write_sources
from storage.shards.tokens import write_tokens
from tasks.evaluate.safety.training_text.matches import build, common_piece, common_prefix, find_in, find_in_shard, join
from tasks.evaluate.safety.training_text.openings import choose

DIGEST = "ab" * 32
Ids = list[int]


def longest_plainly(text: Ids, training: Ids) -> int:
    """The length of the longest piece of `text` in `training`, by trying all."""
    pieces = {tuple(text[a:b]) for a in range(len(text)) for b in range(a + 1, len(text) + 1)}
    known = {tuple(training[a:b]) for a in range(len(training)) for b in range(a + 1, len(training) + 1)}
    return max((len(piece) for piece in pieces & known), default=0)


def longest(texts: list[Ids], *training: Ids) -> list[int]:
    automaton = build(texts)
    found = automaton.nothing_found()
    for part in training:
        find_in(automaton, np.array(part, np.uint16), found)
    return automaton.longest(found)


few = st.lists(st.integers(0, 3), max_size=14)


@pytest.mark.shadow(
    "tasks.evaluate.safety.training_text.kernels.read_through", "tasks.evaluate.safety.training_text.kernels.fill_table"
)
@given(st.lists(few, max_size=5), few, few)
def test_the_longest_piece_of_each_text_is_what_a_slow_search_finds(texts: list[Ids], first: Ids, second: Ids) -> None:
    expected = [max(longest_plainly(text, first), longest_plainly(text, second)) for text in texts]
    assert longest(texts, first, second) == expected


def test_ids_of_a_large_vocabulary_are_told_apart() -> None:
    text = [2**31, 5, 2**31 - 1, 70_000]
    automaton = build([text])
    found = automaton.nothing_found()
    find_in(automaton, np.array([5, 2**31 - 1, 70_000, 4464, 2**31, 5], np.uint32), found)
    assert automaton.longest(found) == [3]


def test_a_text_that_repeats_itself_a_thousand_times_costs_no_more() -> None:
    loop = [1] * 1000
    assert longest([loop, [1, 2] * 500], [1] * 40 + [0] + [1, 2] * 30) == [40, 60]


def test_shards_are_read_apart_and_joined(tmp_path: Path) -> None:
    texts = [[7, 8, 9, 10], [3, 4]]
    automaton = build(texts)
    paths = []
    for number, documents in enumerate(([[5, 7, 8, 0]], [[9, 10, 0], [3, 0]])):
        shard = tmp_path / f"{number}.tokens"
        write_tokens(
            shard,
            [np.array(one, np.uint16) for one in documents],
            vocab_size=16,
            eos_id=0,
            tokenizer_digest=DIGEST,
            text_bytes=1,
        )
        folder = tmp_path / str(number)
        folder.mkdir()
        find_in_shard(automaton, DIGEST, shard, folder)
        paths.append(folder / "found.npy")
    # 7 8 ends the first shard and 9 10 begins the second: no piece goes across
    assert automaton.longest(join(paths)) == [2, 1]
    with pytest.raises(TokenizerMismatch):
        find_in_shard(automaton, "cd" * 32, tmp_path / "0.tokens", tmp_path)


def test_what_two_texts_have_in_common() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 3]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_piece([9, 1, 2, 3], [1, 2, 3, 9]) == 3
    assert common_piece([1], []) == 0


@given(few, few)
def test_the_longest_common_piece_is_what_a_slow_search_finds(one: Ids, other: Ids) -> None:
    assert common_piece(one, other) == longest_plainly(one, other)


def shards(folder: Path, documents: list[tuple[str, Ids]], parts: int) -> list[Path]:
    paths = []
    for number in range(parts):
        mine = documents[number::parts]
        path = folder / f"{number:05d}.tokens"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tokens(
            path,
            [np.array([*ids, 0], np.uint16) for _, ids in mine],
            vocab_size=600,
            eos_id=0,
            tokenizer_digest=DIGEST,
            text_bytes=1,
        )
        write_sources(path.with_suffix(".sources"), [source for source, _ in mine])
        paths.append(path)
    return paths


def some_documents() -> list[tuple[str, Ids]]:
    drawn = random.Random(3)
    return [
        (f"source{number % 3}", [drawn.randrange(1, 600) for _ in range(drawn.choice((4, 20, 30)))])
        for number in range(90)
    ]


def test_the_choice_of_documents_does_not_depend_on_the_shards(tmp_path: Path) -> None:
    documents = some_documents()
    chosen = []
    for parts in (1, 4):
        paths = shards(tmp_path / str(parts), documents, parts)
        found = choose(paths, tokens=20, hashed=10, number=7, seed=5, digest=DIGEST)
        chosen.append(found)
        assert found.documents == {"source0": 30, "source1": 30, "source2": 30}
        for source in found.documents:
            texts = [ids for name, ids in documents if name == source and len(ids) >= 20]
            mine = [one for one in found.chosen if one.source == source]
            assert found.long_enough[source] == len(texts)
            assert len(mine) == min(7, len(texts))
            assert all(any(one.ids == ids[:20] for ids in texts) for one in mine)
    assert chosen[0] == chosen[1]
    other = choose(shards(tmp_path / "1", documents, 1), tokens=20, hashed=10, number=7, seed=6, digest=DIGEST)
    assert {one.id for one in other.chosen} != {one.id for one in chosen[0].chosen}


def test_documents_that_begin_alike_are_chosen_once(tmp_path: Path) -> None:
    licence = list(range(1, 11))
    documents = [("code", [*licence, 20 + number]) for number in range(50)] + [("code", list(range(30, 41)))]
    found = choose(shards(tmp_path, documents, 2), tokens=11, hashed=10, number=20, seed=0, digest=DIGEST)
    assert len(found.chosen) == 2
    assert sorted(one.ids[0] for one in found.chosen) == [1, 30]
    assert found.long_enough == {"code": 51}


def test_the_token_that_ends_a_document_is_no_part_of_it(tmp_path: Path) -> None:
    paths = shards(tmp_path, [("a", [1, 2, 3]), ("a", [])], 1)
    assert [one.ids for one in choose(paths, tokens=3, hashed=3, number=5, seed=0, digest=DIGEST).chosen] == [[1, 2, 3]]
    assert choose(paths, tokens=4, hashed=3, number=5, seed=0, digest=DIGEST).chosen == []
