"""Exact similarities: of many pairs as of few, whoever computes them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from storage.shards.documents import Document, shard_name, write_documents
from tasks.dedup import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.near_duplicates.verify import EDGES_AT_ONCE, SETS, Shingles
from tasks.dedup.stage import sketches
from tasks.stage.output import Output
from tests.runtimes import runtime_of

WORDS = [f"word{number}" for number in range(100)]


def texts(count: int) -> list[str]:
    """Beginnings of a text, with some words of their own."""
    draw = random.Random(1)
    whole = draw.choices(WORDS, k=200)
    return [" ".join([*whole[: 20 + number], f"own{number}", f"own{number}"]) for number in range(count)]


def shingles_of(folder: Path, found: list[str]) -> Shingles:
    for number in range(3):
        documents = (Document.new(text, "texts") for text in found[number * 50 : (number + 1) * 50])
        write_documents(folder / "in" / shard_name(number), documents)
    out = Output.at(folder, stage="dedup", runtime=runtime_of(workers=2))
    config, documents_read = DedupConfig(), Artifact.at(folder / "in")
    corpus = Corpus()
    corpus.add(documents_read, out.obtain(sketches, config.sketch, documents_read))
    return Shingles(config.sketch, corpus, out)


def jaccard(first: str, second: str, n: int = 5) -> float:
    sets = [{tuple(words[i : i + n]) for i in range(len(words) - n + 1)} for words in (first.split(), second.split())]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_many_pairs_are_divided_and_come_back_in_order(tmp_path: Path) -> None:
    found = texts(150)
    pairs = np.array([*itertools.combinations(range(150), 2)])
    assert len(pairs) > EDGES_AT_ONCE
    shingles = shingles_of(tmp_path, found)
    # What was taken before lies in other files, between whose rows those of later ones are
    few = shingles.similarities(pairs[::1000])
    many = shingles.similarities(pairs)
    assert many[::1000].tolist() == few.tolist()
    assert many.tolist() == [jaccard(found[one], found[two]) for one, two in pairs.tolist()]


def test_a_file_of_shingles_that_was_cut_is_damaged(tmp_path: Path) -> None:
    shingles = shingles_of(tmp_path, texts(150))
    pairs = np.array([[0, 1], [60, 149]])
    shingles.similarities(pairs)
    last = max(tmp_path.glob(f"scratch/shingles-*/*/{SETS}"))
    last.write_bytes(last.read_bytes()[:-8])
    with pytest.raises(DamagedArtifact, match="ends too early"):
        shingles.similarities(pairs)
