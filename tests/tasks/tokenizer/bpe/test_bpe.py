"""BPE training: the merges of `tokenizers`, from counts that do not depend on shards, order or workers."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, WhitespaceSplit
from tokenizers.trainers import BpeTrainer

from models.tokenizer import SPECIAL_TOKENS
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.arrays import Int64, UInt8
from storage.shards.documents import Document, shard_name, write_documents
from tasks.stage.output import Output
from tasks.tokenizer import TokenizerConfig, train_tokenizer
from tasks.tokenizer.bpe.alphabet import spell, unspell
from tasks.tokenizer.bpe.pretokens import Pretokens, count_pretokens, merge_pretokens
from tasks.tokenizer.bpe.train import settled_above, to_tokenizer, train
from tasks.tokenizer.patterns import PatternName, pre_tokenizer
from tests.runtimes import runtime_of

GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)
WORDS = pre_tokenizers.Sequence([WhitespaceSplit(), ByteLevel(add_prefix_space=False, use_regex=False)])


def by_library(
    texts: Iterable[str], split: PreTokenizer, vocab_size: int, min_frequency: int, special_tokens: Sequence[str]
) -> str:
    """The tokenizer.json that the trainer of `tokenizers` makes."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=True)


def by_us(
    pretokens: Pretokens, split: PreTokenizer, vocab_size: int, min_frequency: int, special_tokens: Sequence[str]
) -> str:
    merges, vocabulary, _ = train(
        *pretokens, vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=special_tokens
    )
    return to_tokenizer(merges, vocabulary, special_tokens, split).to_str(pretty=True)


def split_by(split: PreTokenizer, texts: pa.Array) -> tuple[UInt8, Int64, Int64]:
    """A splitter by the library's own pre-tokenizer: slow, and right by definition."""
    pieces = [piece for text in texts.to_pylist() for piece, _ in split.pre_tokenize_str(text)]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return np.frombuffer(unspell("".join(pieces)) or b"", np.uint8), np.append(0, ends)[: len(ends)], ends


def counted(words: Iterable[bytes]) -> Pretokens:
    """Distinct words in order of first occurrence."""
    times = Counter(words)
    ends = np.cumsum([len(word) for word in times], dtype=np.int64)
    return Pretokens(np.frombuffer(b"".join(times), np.uint8), ends, np.array(list(times.values()), np.int64))


def real_texts(size: int) -> list[str]:
    """This many bytes of installed source files: prose, code, tables, all scripts."""
    import hypothesis
    import numpy
    import pyarrow

    texts: list[str] = []
    for package in (numpy, pyarrow, hypothesis):
        for path in sorted(Path(package.__file__ or "").parent.rglob("*.py*")):
            if path.suffix in (".py", ".pyi", ".pyx") and size > 0:
                texts.append(path.read_bytes().decode(errors="replace"))
                size -= len(texts[-1])
    return texts


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return real_texts(2_000_000)


@pytest.fixture(scope="module")
def pretokens(texts: list[str]) -> Pretokens:
    return count_pretokens(partial(split_by, GPT2), [pa.array(texts)])


@pytest.mark.parametrize(("vocab_size", "min_frequency"), [(2000, 1), (8000, 2), (4000, 5), (100_000, 20)])
def test_real_text_gives_the_file_that_the_library_would_save(
    texts: list[str], pretokens: Pretokens, vocab_size: int, min_frequency: int
) -> None:
    choices = (GPT2, vocab_size, min_frequency, SPECIAL_TOKENS)
    assert by_us(pretokens, *choices) == by_library(texts, *choices)


@pytest.mark.shadow("tasks.tokenizer.bpe.kernels.lay_out", "tasks.tokenizer.bpe.kernels.learn")
@given(
    words=st.lists(st.text("ab", min_size=1, max_size=40) | st.text("abcé", min_size=1, max_size=12), max_size=12),
    vocab_size=st.sampled_from([1, 256, 260, 270, 300, 1000]),
    min_frequency=st.sampled_from([0, 1, 2, 5]),
    special_tokens=st.sampled_from([(), SPECIAL_TOKENS]),
)
@settings(max_examples=300)
def test_ties_and_overlaps_are_decided_as_the_library_does(
    words: list[str], vocab_size: int, min_frequency: int, special_tokens: Sequence[str]
) -> None:
    choices = (WORDS, vocab_size, min_frequency, special_tokens)
    assert by_us(counted(word.encode() for word in words), *choices) == by_library(words, *choices)


@given(words=st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=12), seed=st.integers(0, 9))
@settings(max_examples=100)
def test_merges_do_not_depend_on_the_order_of_words(words: list[bytes], seed: int) -> None:
    shuffled = words.copy()
    random.Random(seed).shuffle(shuffled)
    learnt = [train(*counted(order), vocab_size=300, min_frequency=1, special_tokens=()) for order in (words, shuffled)]
    assert learnt[0][0].tolist() == learnt[1][0].tolist()
    assert learnt[0][1] == learnt[1][1]


@pytest.mark.shadow("tasks.tokenizer.bpe.count_kernels.count_words", "tasks.tokenizer.bpe.count_kernels.rehash_words")
@given(portions=st.lists(st.lists(st.binary(max_size=9), max_size=30), max_size=4))
@settings(max_examples=100)
def test_words_are_counted_as_a_counter_counts_them(portions: list[list[bytes]]) -> None:
    def splitter(words: list[bytes]) -> tuple[UInt8, Int64, Int64]:
        ends = np.cumsum([len(word) for word in words], dtype=np.int64)
        return np.frombuffer(b"".join(words), np.uint8), np.append(0, ends)[: len(ends)], ends

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.tokenizer.bpe.pretokens.ROWS", 2)
        patch.setattr("tasks.tokenizer.bpe.pretokens.LETTERS", 1)
        words, ends, counts = count_pretokens(splitter, portions)
    starts = np.append(0, ends)[: len(ends)]
    found = [words[a:b].tobytes() for a, b in zip(starts, ends, strict=True)]
    assert list(zip(found, counts.tolist(), strict=True)) == sorted(Counter(itertools.chain(*portions)).items())


def test_counts_beyond_32_bits_rank_as_they_should() -> None:
    data, ends = np.frombuffer(b"abcdef", np.uint8), np.array([2, 4, 6])
    counts = np.array([2**31 + 5, 2**33, 2**32 + 1])  # modulo 2**32 the order is another
    merges, vocabulary, times = train(data, ends, counts, vocab_size=258, min_frequency=1, special_tokens=())
    assert vocabulary[256:] == [b"cd", b"ef"]
    assert times.tolist() == [2**33, 2**32 + 1]
    assert [vocabulary[left] + vocabulary[right] for left, right in merges.tolist()] == [b"cd", b"ef"]


def test_counts_that_64_bits_cannot_add_up_are_refused() -> None:
    data, ends = np.frombuffer(b"abab", np.uint8), np.array([4])
    with pytest.raises(ConfigError, match="more than 64 bits can count"):
        train(data, ends, np.array([2**61]), vocab_size=258, min_frequency=1, special_tokens=())


@pytest.mark.parametrize(
    ("special_tokens", "problem"),
    [(("<|end|>", "abc"), "'abc' is also a token of text"), (("<|end|>", "<|end|>"), "'<|end|>' is listed twice")],
)
def test_special_tokens_that_would_share_an_id_are_refused(special_tokens: Sequence[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        train(*counted([b"abc", b"abc"]), vocab_size=300, min_frequency=1, special_tokens=special_tokens)


def test_every_byte_has_a_token_though_the_text_holds_none_of_them() -> None:
    merges, vocabulary, _ = train(*counted([]), vocab_size=300, min_frequency=1, special_tokens=SPECIAL_TOKENS)
    assert len(merges) == 0
    assert vocabulary[: len(SPECIAL_TOKENS)] == [token.encode() for token in SPECIAL_TOKENS]
    assert sorted(vocabulary[len(SPECIAL_TOKENS) :]) == [bytes([byte]) for byte in range(256)]
    assert [unspell(spell(token)) for token in vocabulary] == vocabulary
    assert {spell(bytes([byte])) for byte in range(256)} == set(ByteLevel.alphabet())


def test_a_word_of_a_megabyte_costs_what_is_merged_in_it() -> None:
    """Each of 2,000 merges over a word of this length would take minutes."""
    letters = np.random.default_rng(1).integers(97, 123, 1 << 20, dtype=np.uint8)
    ends, counts = np.array([len(letters)]), np.array([1])
    _, vocabulary, _ = train(letters, ends, counts, vocab_size=2256, min_frequency=1, special_tokens=())
    assert len(vocabulary) == 2256
    spaces = np.full(1 << 20, 32, np.uint8)
    _, vocabulary, _ = train(spaces, ends, counts, vocab_size=2256, min_frequency=1, special_tokens=())
    assert vocabulary[-1] == b" " * (1 << 20)


@given(
    documents=st.lists(st.text("ab c1'é\n", max_size=30), max_size=20),
    shards=st.integers(1, 5),
    workers=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 9),
)
@settings(max_examples=60)
def test_counts_do_not_depend_on_shards_order_or_workers(
    documents: list[str], shards: int, workers: int, seed: int
) -> None:
    shuffled = documents.copy()
    random.Random(seed).shuffle(shuffled)
    count = partial(count_pretokens, partial(split_by, GPT2))
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(count, [[pa.array(shuffled[shard::shards], pa.string())] for shard in range(shards)]))
    random.Random(seed + 1).shuffle(parts)
    words, ends, counts = merge_pretokens(parts)
    found = [words[end - length : end].tobytes() for end, length in zip(ends, np.diff(ends, prepend=0), strict=True)]
    expected = Counter(unspell(piece) for text in documents for piece, _ in GPT2.pre_tokenize_str(text))
    assert found == sorted(found)
    assert dict(zip(found, counts.tolist(), strict=True)) == dict(expected)


def test_the_table_grows_and_counts_survive_a_file(pretokens: Pretokens, tmp_path: Path) -> None:
    assert len(pretokens.counts) > 10_000
    pretokens.save(tmp_path / "counts.npz")
    twice = merge_pretokens([Pretokens.load(tmp_path / "counts.npz"), pretokens])
    assert np.array_equal(twice.words, pretokens.words)
    assert np.array_equal(twice.ends, pretokens.ends)
    assert np.array_equal(twice.counts, 2 * pretokens.counts)


def test_counts_of_shards_add_up_beyond_32_bits() -> None:
    shard = counted([b"ab", b"cd"])._replace(counts=np.array([2**32 - 1, 2**31]))
    assert merge_pretokens([shard] * 3).counts.tolist() == [3 * (2**32 - 1), 3 * 2**31]


@given(
    words=st.lists(st.text("ab", min_size=1, max_size=12) | st.text("abcd", min_size=1, max_size=5), max_size=40),
    vocab_size=st.integers(256, 280),
    min_frequency=st.sampled_from([1, 2, 5]),
)
@settings(max_examples=300)
def test_a_word_commoner_than_the_last_merge_is_one_token(
    words: list[str], vocab_size: int, min_frequency: int
) -> None:
    """The checks of every tokenizer, and that the counts of merges never rise."""
    learnt = train(
        *counted(word.encode() for word in words), vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=()
    )
    assert (np.diff(learnt.counts) <= 0).all()
    limit = settled_above(learnt, vocab_size=vocab_size, min_frequency=min_frequency)
    known = {vocabulary.decode() for vocabulary in learnt.vocabulary if vocabulary.isascii()}
    split = [count for word, count in Counter(words).items() if word not in known]
    assert limit is None or max(split, default=0) <= limit
    assert limit is not None or vocab_size == 256


@pytest.mark.soak_but("gpt4")
@pytest.mark.parametrize("pattern", get_args(PatternName))
def test_the_stage_writes_what_the_library_would(pattern: PatternName, texts: list[str], tmp_path: Path) -> None:
    for number in range(3):
        write_documents(tmp_path / "in" / shard_name(number), [Document.new(text, "test") for text in texts[number::3]])
    out = Output.at(tmp_path, runtime=runtime_of(workers=2))
    config = TokenizerConfig(vocab_size=3000, pattern=pattern)
    train_tokenizer.function(config, Artifact.at(tmp_path / "in"), out)
    theirs = by_library(texts, pre_tokenizer(pattern), 3000, 2, SPECIAL_TOKENS)
    assert (out.path / "tokenizer.json").read_text() == theirs
