"""How many near-duplicates are found: planted pairs beside the theoretical curve, and labelled real pairs."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from datasketch import MinHashLSH

from storage.artifact import Artifact
from storage.shards.arrays import Bool, Int64
from storage.shards.documents import Document, shard_name, write_documents
from tasks.dedup import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.duplicates import near_edges
from tasks.dedup.near_duplicates.candidates import MISS_WEIGHT, Candidates, bands, expected_recall
from tasks.dedup.near_duplicates.verify import Shingles
from tasks.dedup.stage import sketches
from tasks.stage.output import Output
from tests.runtimes import runtime_of

PAIRS = 300  # of each similarity
LENGTH = 404  # words: 400 shingles
STEPS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
NONE = np.empty((0, 2), np.int64)


class Compared:
    """The candidates, the verified edges and the exact similarities of pairs of texts; pair k is rows 2k and 2k + 1."""

    def __init__(self, folder: Path, texts: Sequence[str]) -> None:
        write_documents(folder / "in" / shard_name(0), (Document.new(text, "planted") for text in texts))
        out = Output.at(folder, stage="dedup", runtime=runtime_of(workers=2))
        config, documents = DedupConfig(), Artifact.at(folder / "in")
        corpus = Corpus()
        corpus.add(documents, out.obtain(sketches, config.sketch, documents))
        shingles = Shingles(config.sketch, corpus, out)
        self.candidates = Candidates(config, corpus, np.empty(0, np.int64), 1 << 30, out).pairs()[0]
        self.verified = near_edges(config, corpus, NONE, shingles, 1 << 30, out)
        self.pairs = np.arange(len(texts)).reshape(-1, 2)
        self.similarity = shingles.similarities(self.pairs)
        self.candidate_similarity = shingles.similarities(self.candidates)

    def among(self, edges: Int64) -> Bool:
        """Whether each pair is among the edges."""
        found = {tuple(edge) for edge in edges.tolist()}
        return np.array([tuple(pair) in found for pair in self.pairs.tolist()])


def pair(similarity: float, number: int) -> tuple[str, str]:
    """Two texts that share as many first words as gives the similarity asked for."""
    shared = round(2 * (LENGTH - 4) * similarity / (1 + similarity)) + 4
    words = [f"{number}w{place}" for place in range(2 * LENGTH - shared)]
    random.Random(number).shuffle(words)
    return " ".join(words[:LENGTH]), " ".join([*words[:shared], *words[LENGTH:]])


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    pairs = [pair(step, PAIRS * number + k) for number, step in enumerate(STEPS) for k in range(PAIRS)]
    return Compared(tmp_path_factory.mktemp("planted"), [text for two in pairs for text in two])


@pytest.mark.parametrize("step", STEPS)
def test_recall_before_verification_follows_the_curve(planted: Compared, step: float) -> None:
    rows = slice(PAIRS * STEPS.index(step), PAIRS * (STEPS.index(step) + 1))
    assert planted.similarity[rows] == pytest.approx(step, abs=0.005)
    recall = planted.among(planted.candidates)[rows].mean()
    count, height = bands(0.8, 128)
    curve = expected_recall(step, count, height)
    print(f"J {step:.2f}: recall {recall:.3f}, curve {curve:.3f}")
    deviation = (curve * (1 - curve) / PAIRS) ** 0.5
    assert recall <= curve + 4 * deviation
    if step >= 0.8:  # below, signatures that are too unlike are dropped
        assert recall >= max(0.99, curve - 4 * deviation)


def test_of_the_candidates_nearly_all_are_alike(planted: Compared) -> None:
    assert (planted.candidate_similarity >= 0.5).mean() >= 0.99


def test_after_verification_nothing_below_the_threshold_is_left(planted: Compared) -> None:
    verified = planted.among(planted.verified)
    assert not verified[planted.similarity < 0.8].any()
    assert verified[planted.similarity >= 0.8].mean() >= 0.99


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7, 0.8, 0.87, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("permutations", [16, 60, 128])
def test_the_bands_are_those_of_datasketch(threshold: float, permutations: int) -> None:
    try:
        index = MinHashLSH(threshold, permutations, weights=(1 - MISS_WEIGHT, MISS_WEIGHT))
    except ValueError:  # it refuses a single band
        assert bands(threshold, permutations) == (2, permutations // 2)
    else:
        assert bands(threshold, permutations) == (index.b, index.r)


def test_the_curve_is_that_of_the_bands() -> None:
    count, rows = bands(0.8, 128)
    assert count * rows <= 128
    assert expected_recall(0.8, count, rows) > 0.99
    assert expected_recall(0.9, count, rows) > 0.9999


def test_labelled_pairs_are_told_apart(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Real pairs (two editions, two revisions) with their exact Jaccard: recall 0.99 from 0.8, and none below."""
    folder = shared_data("filters/neardup_labelled")
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    with gzip.open(folder / "docs.jsonl.gz", "rt") as file:
        texts = {row["id"]: row["text"] for row in map(json.loads, file)}
    pairs = [pair for pair in pairs if pair["a"] in texts and pair["b"] in texts]
    compared = Compared(tmp_path, [texts[pair[side]] for pair in pairs for side in "ab"])
    stated = np.array([pair["jaccard5"] for pair in pairs])
    assert np.abs(compared.similarity - stated).mean() < 0.005  # they split words a little differently
    verified = compared.among(compared.verified)
    assert verified[stated >= 0.81].mean() >= 0.99
    assert not verified[stated < 0.79].any()
    assert (compared.candidate_similarity >= 0.5).mean() >= 0.99
