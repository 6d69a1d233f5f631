"""Token shards as streams: more shards than a process may have files open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage.errors import DamagedArtifact
from storage.shards.token_sources import write_sources
from storage.shards.token_stream import MAPPED, Stretches, TokenStream, source_streams
from storage.shards.tokens import write_tokens

DIGEST = "ab" * 32
SHARDS, TOKENS = 3 * MAPPED, 5  # tokens of a shard

Opened = Callable[[list[Path]], Stretches]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Shards of consecutive ids; every seventh is empty."""
    folder = tmp_path_factory.mktemp("shards")
    paths = []
    for number in range(SHARDS):
        path = folder / f"{number:05d}.tokens"
        ids = [] if number % 7 == 0 else [np.arange(number * TOKENS, (number + 1) * TOKENS, dtype=np.uint32)]
        write_tokens(path, ids, vocab_size=SHARDS * TOKENS, eos_id=0, tokenizer_digest=DIGEST, text_bytes=1)
        write_sources(path.with_suffix(".sources"), ["a"] * len(ids))
        paths.append(path)
    return paths


def whole(paths: list[Path]) -> Stretches:
    return TokenStream(paths, tokenizer_digest=DIGEST)


def of_a_source(paths: list[Path]) -> Stretches:
    return source_streams(paths, tokenizer_digest=DIGEST)["a"]


def open_files(paths: list[Path]) -> int:
    """How many files of the folder of these this process holds open, those of sources too; what other tests left open
    may close at any time."""
    return sum(paths[0].parent in open_.resolve().parents for open_ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("opened", [whole, of_a_source])
@pytest.mark.parametrize("random", [False, True])
def test_a_stream_of_many_shards_holds_few_files_open(opened: Opened, random: bool, paths: list[Path]) -> None:
    stream = opened(paths)
    if random:
        stream.expect_random_reads()
    expected = [id for id in range(SHARDS * TOKENS) if id // TOKENS % 7]
    assert stream.tokens == len(expected)
    assert stream.read(0, stream.tokens).tolist() == expected
    for start in np.random.default_rng(0).integers(0, stream.tokens - 12, 500).tolist():
        assert stream.read(start, 12).tolist() == expected[start : start + 12]
    assert 0 < open_files(paths) <= MAPPED
    del stream
    assert not open_files(paths)


def test_a_shard_that_is_gone_when_its_turn_comes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "00000.tokens"
    write_tokens(path, [np.ones(9, np.uint32)], vocab_size=2, eos_id=0, tokenizer_digest=DIGEST, text_bytes=1)
    stream = whole([path])
    path.unlink()
    with pytest.raises(DamagedArtifact, match=r"00000\.tokens is gone"):
        stream.read(0, 3)
