"""The loader: each sample in its place for any reader, sources in their shares, documents isolated."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import mmap
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from models.kernels.cross_entropy import IGNORED
from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, EmptyOutput
from storage.shards.documents import Document, shard_name, write_documents
from storage.shards.token_sources import write_sources
from storage.shards.token_stream import Stretches, TokenStream, source_streams
from storage.shards.tokens import open_tokens, write_tokens
from tasks.pretrain import PretrainConfig
from tasks.pretrain.fim_tokens import FimTokens
from tasks.pretrain.loader import Batch, MixtureLoader, Phase, WindowLoader, compute_ahead, open_loader
from tasks.pretrain.loader.batch import isolate, shorten
from tasks.pretrain.loader.epochs import check_epochs, planned
from tasks.pretrain.loader.mixture import BLOCK, MixtureOrder, quotas
from tasks.pretrain.loader.windows import StreamWindows, Windows
from tasks.stage.output import Output
from tasks.tokenize import TokenizeConfig, tokenize
from tests.tasks.tiny_model import RUNTIME, make_tokenizer, texts

DIGEST = "ab" * 32
CONTEXT = 32
MODEL = {"depth": 2, "width": 64, "heads": 4, "context": CONTEXT}
BATCH = 16
SIZES = {"code": 700, "news": 3000, "web": 1700}  # tokens

EPOCHS_MIXED = {"mixture": {"a": 1, "b": 5}, "curriculum": [{"from_step": 60, "mixture": {"b": 1, "c": 1}}]}


def config_of(**choices: Any) -> PretrainConfig:
    return PretrainConfig.model_validate({"model": MODEL, "global_batch": BATCH, "warmup_steps": 2, **choices})


def numbered(sizes: Mapping[str, int]) -> dict[str, Windows]:
    """Windows of a stream a source, whose tokens are 0, 1, 2 … through all sources: a token tells where it stood."""
    ends = np.cumsum(list(sizes.values()))
    one = np.array([0])
    return {
        source: StreamWindows(
            Stretches([np.arange(end - size, end, dtype=np.uint32)], one, one, np.array([size])), CONTEXT
        )
        for (source, size), end in zip(sizes.items(), ends.tolist(), strict=True)
    }


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three shards of documents of random ids, their sources in turns."""
    folder = tmp_path_factory.mktemp("shards")
    generator = np.random.default_rng(5)
    paths = []
    for number in range(3):
        lengths = generator.integers(1, 90, 40)
        documents = [np.append(generator.integers(1, 600, length), 0).astype(np.uint32) for length in lengths]
        paths.append(folder / f"{number:05d}.tokens")
        write_tokens(paths[-1], documents, vocab_size=600, eos_id=0, tokenizer_digest=DIGEST, text_bytes=7)
        write_sources(folder / f"{number:05d}.sources", ("abc"[i // 3 % 3] for i in range(40)))
    return paths


def digest(batches: Sequence[Batch]) -> str:
    total = hashlib.sha256()
    for batch in batches:
        for part in batch:
            if part is not None:
                total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()


def test_without_options_the_order_is_that_of_the_first_release(shards: list[Path]) -> None:
    loader = WindowLoader(StreamWindows(TokenStream(shards, tokenizer_digest=DIGEST), CONTEXT), seed=3)
    served = [loader.batch(number * 7, 7) for number in range(60)]
    assert loader.windows == 175
    assert digest(served) == "987812f2cdb2782b35b76e65cff9397f0cc7a0d743b922db29f7eb8006971333"


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(2 * CONTEXT, 40 * CONTEXT), min_size=1, max_size=4),
    weights=st.lists(st.lists(st.floats(0.05, 10), min_size=4, max_size=4), min_size=1, max_size=3),
    lengths=st.lists(st.integers(1, 2 * BLOCK), min_size=3, max_size=3),
    seed=st.integers(0, 9),
)
def test_each_window_of_a_source_is_served_once_an_epoch_whatever_the_weights(
    sizes: list[int], weights: list[list[float]], lengths: list[int], seed: int
) -> None:
    names = [f"source{number}" for number in range(len(sizes))]
    firsts = np.cumsum([0, *lengths]).tolist()
    phases = [Phase(first, dict(zip(names, some, strict=False))) for first, some in zip(firsts, weights, strict=False)]
    loader = MixtureLoader(numbered(dict(zip(names, sizes, strict=True))), phases, seed=seed)
    total = firsts[len(phases) - 1] + BLOCK + 37
    ids = np.concatenate([loader.batch(first, 997).ids[:, 0] for first in range(0, total, 997)])[:total]
    ends = np.cumsum(sizes)
    for number, (row, size, end) in enumerate(zip(loader.report(total), sizes, ends, strict=True)):
        windows = (size - 1) // CONTEXT
        mine = (ids[np.searchsorted(ends, ids, side="right") == number] - (end - size)) // CONTEXT
        assert (row["windows"], row["served"]) == (windows, len(mine))
        whole = len(mine) // windows * windows
        assert (np.sort(mine[:whole].reshape(-1, windows)) == np.arange(windows)).all()
        assert len(set(mine[whole:].tolist())) == len(mine) - whole


@pytest.mark.parametrize("block", [0, 1, 5])
def test_over_a_block_the_shares_are_the_weights(block: int) -> None:
    phases = [Phase(0, {"code": 1, "news": 3, "web": 4}), Phase(3 * BLOCK, {"code": 3, "web": 1})]
    order = MixtureOrder(phases, list(SIZES), seed=0)
    sources, _ = order.places(block * BLOCK, BLOCK)
    expected = [512, 1536, 2048] if block < 3 else [3072, 0, 1024]
    assert np.bincount(sources, minlength=3).tolist() == expected
    assert (order.served((block + 1) * BLOCK) - order.served(block * BLOCK)).tolist() == expected


def test_an_epoch_of_a_source_has_an_order_of_its_own() -> None:
    loader = MixtureLoader(numbered({"news": 641}), [Phase(0, {"news": 1})], seed=0)
    epochs = [loader.batch(20 * epoch, 20).ids[:, 0].tolist() for epoch in range(3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("packing", ["stream", "best_fit"])
def test_and_so_has_an_epoch_of_all_text(packing: str, shards: list[Path]) -> None:
    samples = open_loader(shards, config_of(packing=packing), context=CONTEXT, tokenizer_digest=DIGEST).samples
    size = samples.windows
    epochs = [samples.batch(size * epoch, size).ids.tolist() for epoch in range(3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


@settings(max_examples=40)
@given(first=st.integers(0, 3 * BLOCK), count=st.integers(1, 60))
def test_what_a_sample_is_does_not_depend_on_what_is_read_with_it(first: int, count: int) -> None:
    phases = [Phase(0, {"code": 1, "web": 2}), Phase(BLOCK + 11, {"news": 1, "web": 1})]
    loader = MixtureLoader(numbered(SIZES), phases, seed=1)
    together = loader.batch(first, count)
    assert np.array_equal(together.ids[:, 1:], together.targets[:, :-1])
    assert np.array_equal(together.ids, np.concatenate([loader.batch(first + i, 1).ids for i in range(count)]))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {"mixture": {"a": 1, "b": 2}, "curriculum": [{"from_step": 4, "mixture": {"c": 1, "a": 1}}]},
    "apart": {"isolate_documents": True, "context_warmup_steps": 6, "context_warmup_parts": 4},
    "filled": {"fim_rate": 0.5},
    "growing": {"batch_warmup_steps": 9, "batch_warmup_parts": 4},
    "packed": {"packing": "best_fit"},
    "long first": {"packing": "long_first"},
}
OPTIONS["all"] = OPTIONS["mixed"] | OPTIONS["apart"] | OPTIONS["filled"]
OPTIONS["packed, all"] = OPTIONS["all"] | OPTIONS["packed"]
GOLDEN = {
    "plain": "6b09f828444f082d98a4db13604c98d1156b8a986a4d425a99b3a918227643c9",
    "mixed": "ac93bbce99eacb8cf816d2c4723534f1a20a1f41e2b0faa802bd771079a4d784",
    "apart": "0ce2e40e7b6fcd016ef8620c255f9d093ad638bba361ec8c16735b98ba50fede",
    "filled": "915251389b64fbf492f99fd0ed991c425d69b61a857f54b0a52d7ef10f6157f9",
    "all": "b4c698df4daa0487554230af5890937f3df86c96087a45f28637e6ca8bbc7e89",
    "growing": "403135d868fa443452a9a17854e1f80d6f8a7c80bb13ee990fd892f260a79950",
    "packed": "1f8f1b0055afde58561ac2904419a1dd94bed44284ecba246dc97670e2c7989e",
    "long first": "55ceb69407f00a4709daa462b2af35801ed3b5822ff041650d983c8f813f69c3",
    "packed, all": "2a45635fd3eff386bd17b6af20756aaf54f0497bb759b3217f87f89e0ff9c03f",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_ranks_micro_batches_and_a_kill_change_nothing_of_the_global_sequence(name: str, shards: list[Path]) -> None:
    config = config_of(**OPTIONS[name])

    def serve(steps: range, ranks: int, size: int) -> list[Batch]:
        loaders = [
            open_loader(shards, config, context=CONTEXT, tokenizer_digest=DIGEST, fim_tokens=FimTokens(6, 7, 8))
            for _ in range(ranks)
        ]
        batches = []
        for step in steps:
            shares = [loader.micro_batches(step, rank=r, ranks=ranks, size=size) for r, loader in enumerate(loaders)]
            in_turns = [batch for number in zip(*shares, strict=True) for batch in number]
            parts = [np.concatenate(part) for part in zip(*in_turns, strict=True) if part[0] is not None]
            batches.append(Batch(*parts))
        return batches

    whole = digest(serve(range(1, 41), 1, BATCH))
    for ranks, size in ((1, 4), (2, 8), (2, 2), (4, 4), (4, 1)):
        assert digest(serve(range(1, 41), ranks, size)) == whole, (ranks, size)
    killed = serve(range(1, 9), 4, 2) + serve(range(9, 18), 2, 4) + serve(range(18, 41), 1, 16)  # resumed twice
    assert digest(killed) == whole
    print(f"{name}: {config.samples(40)} samples for 1, 2 and 4 ranks and across a kill, SHA-256 {whole}")
    assert whole == GOLDEN[name]


def test_a_growing_batch_serves_the_same_samples_in_the_same_order(shards: list[Path]) -> None:
    plain, growing = (
        open_loader(shards, config_of(**OPTIONS[name]), context=CONTEXT, tokenizer_digest=DIGEST)
        for name in ("plain", "growing")
    )
    steps = [growing.micro_batches(step, rank=0, ranks=1, size=BATCH) for step in range(1, 13)]
    assert [sum(len(batch.ids) for batch in step) for step in steps] == [4] * 5 + [8] * 4 + [16] * 3
    served = np.concatenate([batch.ids for step in steps for batch in step])
    assert np.array_equal(served, plain.samples.batch(0, 100).ids)


@pytest.mark.parametrize("size", [1, 2, 4, 12])
def test_while_the_batch_grows_micro_batches_are_of_sizes_that_divide_it(size: int, shards: list[Path]) -> None:
    config = config_of(global_batch=12, batch_warmup_steps=2, batch_warmup_parts=4)
    loader = open_loader(shards, config, context=CONTEXT, tokenizer_digest=DIGEST)
    for step, batch in ((1, 3), (2, 6), (3, 12)):
        sizes = [len(part.ids) for part in loader.micro_batches(step, rank=0, ranks=1, size=size)]
        assert sum(sizes) == batch
        assert len(set(sizes)) == 1
        assert sizes[0] <= size


@pytest.mark.parametrize(("step", "ranks"), [(12, 3), (12, 32), (1, 8)])
def test_ranks_that_would_leave_samples_out_are_refused(step: int, ranks: int, shards: list[Path]) -> None:
    loader = open_loader(shards, config_of(**OPTIONS["growing"]), context=CONTEXT, tokenizer_digest=DIGEST)
    with pytest.raises(ConfigError, match=rf"Batch {step} has \d+ sequences, which {ranks} ranks can't share evenly"):
        loader.micro_batches(step, rank=0, ranks=ranks, size=4)


def test_a_mixture_changes_at_its_step_also_when_the_batch_grows(shards: list[Path]) -> None:
    config = config_of(**OPTIONS["mixed"], **OPTIONS["growing"])
    loader = open_loader(shards, config, context=CONTEXT, tokenizer_digest=DIGEST)
    first: list[Mapping[str, Any]] = [*loader.samples.report(config.samples(3))]
    later: list[Mapping[str, Any]] = [*loader.samples.report(config.samples(5))]
    assert [row["source"] for row in first if not row["served"]] == ["c"]
    assert sum(row["served"] for row in later if row["source"] == "c") > 0


@given(st.lists(st.lists(st.sampled_from([0, 5, 6]), min_size=8, max_size=8), min_size=1, max_size=4))
def test_isolated_documents_begin_anew_and_do_not_foretell_the_next(rows: list[list[int]]) -> None:
    ids = np.array(rows)
    batch = isolate(Batch(ids, ids + 1), eos_id=0)
    assert batch.positions is not None
    for row in range(len(rows)):
        position = 0
        for column in range(8):
            assert batch.positions[row, column] == position
            ends = rows[row][column] == 0
            assert batch.targets[row, column] == (IGNORED if ends else rows[row][column] + 1)
            position = 0 if ends else position + 1


def test_a_shorter_context_sees_the_same_tokens() -> None:
    ids = np.arange(64).reshape(2, 32)
    short = shorten(Batch(ids, ids + 1), 4)
    assert short.ids.shape == short.targets.shape == (8, 8)
    assert np.array_equal(short.ids.ravel(), ids.ravel())
    assert np.array_equal(short.targets, short.ids + 1)
    config = config_of(context_warmup_steps=7, context_warmup_parts=8)
    assert [config.context_parts(step) for step in range(1, 10)] == [8, 8, 8, 4, 4, 2, 2, 1, 1]
    assert {config_of().context_parts(step) for step in range(1, 10)} == {1}


def test_sources_are_read_apart_without_losing_a_token(shards: list[Path]) -> None:
    streams = source_streams(shards, tokenizer_digest=DIGEST)
    expected: dict[str, list[int]] = {source: [] for source in "abc"}
    for path in shards:
        shard = open_tokens(path)
        for number, (start, end) in enumerate(itertools.pairwise(shard.starts.astype(int))):
            expected["abc"[number // 3 % 3]] += shard.ids[start:end].tolist()
    assert list(streams) == ["a", "b", "c"]
    for source, stream in streams.items():
        assert stream.read(0, stream.tokens).tolist() == expected[source]
        assert stream.read(301, 77).tolist() == expected[source][301:378]
        assert stream.read(stream.tokens - 3, 10).tolist() == expected[source][-3:]


def test_the_tokens_of_a_source_are_its_documents(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    documents = [Document.new(text, f"source{number % 2}") for number, text in enumerate(texts())]
    for number in range(2):
        write_documents(tmp_path / "in" / shard_name(number), documents[number * 90 : (number + 1) * 90])
    out = Output.at(tmp_path, runtime=RUNTIME)
    tokenize.function(TokenizeConfig(validation_share=0.2), Artifact.at(tmp_path / "in"), Artifact.at(tokenizer), out)
    paths = sorted(out.path.glob("train/*.tokens"))
    digest_of = open_tokens(paths[0]).header.tokenizer_digest
    by_source = {source: one.tokens for source, one in source_streams(paths, tokenizer_digest=digest_of).items()}
    rows = out.counts["tables"]["Tokens by source and split"]
    table = {row["source"]: row["tokens"] for row in rows if row["split"] == "train"}
    assert by_source == {source: table[source] for source in ("source0", "source1")}


def test_shards_without_their_sources_cannot_be_mixed(shards: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "00000.tokens"
    copy.write_bytes(shards[0].read_bytes())
    with pytest.raises(DamagedArtifact, match=r"00000\.sources can't be read"):
        source_streams([copy], tokenizer_digest=DIGEST)
    write_sources(tmp_path / "00000.sources", ["a"] * 39)
    with pytest.raises(DamagedArtifact, match="does not describe the 40 documents"):
        source_streams([copy], tokenizer_digest=DIGEST)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"mixture": {"wiki": 1}}, "names wiki, but the token shards know a, b, c"),
        ({"mixture": {"a": 1, "b": 1e-5}}, r"gives b less than 1/4,096"),
    ],
)
def test_a_mixture_that_cannot_be_served_is_refused_by_name(
    choices: dict[str, Any], named: str, shards: list[Path]
) -> None:
    with pytest.raises(ConfigError, match=named):
        open_loader(shards, config_of(**choices), context=CONTEXT, tokenizer_digest=DIGEST)


@pytest.mark.parametrize(
    ("choices", "most"),
    [
        ({}, {"all": 2.0}),
        (EPOCHS_MIXED, {"a": 0.5, "b": 7.0}),
        (EPOCHS_MIXED, {"c": 3.0}),
        (EPOCHS_MIXED | {"batch_warmup_steps": 8}, {"a": 0.4, "b": 5.0, "c": 2.0}),
        (EPOCHS_MIXED | {"packing": "best_fit"}, {"b": 2.0}),
    ],
)
def test_how_often_a_source_is_read_is_counted_before_and_bounded(
    choices: dict[str, Any], most: dict[str, float], shards: list[Path]
) -> None:
    steps, config = 120, config_of(**choices)
    loader = open_loader(shards, config, context=CONTEXT, tokenizer_digest=DIGEST)
    readings = {reading.source: reading for reading in loader.readings(steps)}
    rows = {row["source"]: row for row in loader.samples.report(config.samples(steps))}
    assert {name: reading.samples for name, reading in readings.items()} == {
        name: row["served"] for name, row in rows.items() if name in readings
    }
    assert most.keys() <= readings.keys()
    for name, allowed in most.items():
        bounded = config.model_copy(update={"max_epochs": allowed if name == "all" else {name: allowed}})
        if readings[name].epochs <= allowed:
            check_epochs(bounded, readings.values())
        else:
            with pytest.raises(ConfigError, match=rf"{readings[name].epochs:.2f} times, but .* allows {allowed:g}\."):
                check_epochs(bounded, readings.values())
    if config.packing == "stream":
        tokens = {name: stream.tokens for name, stream in source_streams(shards, tokenizer_digest=DIGEST).items()}
        assert {one.source: one for one in planned(config, steps, CONTEXT, tokens)} == readings


def test_a_window_is_whole_as_soon_as_its_last_target_is_there() -> None:
    counts = {size: numbered({"web": size})["web"].count for size in (1, 32, 33, 64, 65, 96, 97)}
    assert counts == {1: 0, 32: 0, 33: 1, 64: 1, 65: 2, 96: 2, 97: 3}


def test_a_source_without_a_whole_window_is_refused_by_name(shards: list[Path]) -> None:
    with pytest.raises(EmptyOutput, match="The source b has 2,002 tokens: less than one window"):
        open_loader(shards, config_of(mixture={"b": 1}), context=4096, tokenizer_digest=DIGEST)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"mixture": {"a": 0}}, "greater than 0"),
        ({"mixture": {}}, "at least 1"),
        ({"mixture": {"a": 1}, "max_epochs": {"a": 1, "b": 2}}, "max_epochs names b, but pretrain.mixture doesn't"),
        ({"max_epochs": {"a": 1}}, "max_epochs names a, but"),
        ({"curriculum": [{"from_step": 5, "mixture": {"a": 1}}]}, "give pretrain.mixture"),
        ({"mixture": {"a": 1}, "curriculum": [{"from_step": 5, "mixture": {"a": 1}}] * 2}, "later than the one before"),
        ({"context_warmup_parts": 6}, "not a power of 2"),
        ({"context_warmup_steps": 5, "context_warmup_parts": 64}, "can't be cut into 64"),
    ],
)
def test_options_that_contradict_each_other_are_refused(choices: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        config_of(**choices)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"mixture": {"a": 1}, "curriculum": [{"from_step": 51, "mixture": {"a": 1}}]}, "changes at step 51"),
        ({"context_warmup_steps": 50}, "context_warmup_steps is 50"),
    ],
)
def test_a_change_that_never_comes_is_refused(choices: dict[str, Any], named: str) -> None:
    from models.presets import derive

    config = config_of(steps=50, **choices)
    with pytest.raises(ConfigError, match=named):
        config.total_steps(derive(config.new_model, 600))


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0.5, 100), min_size=1))
def test_quotas_fill_a_block_and_follow_the_weights(weights: dict[str, float]) -> None:
    slots = quotas(weights, "abcdef")
    assert sum(slots) == BLOCK
    for source, count in zip("abcdef", slots, strict=True):
        assert abs(count - weights.get(source, 0) / sum(weights.values()) * BLOCK) < 1


def test_work_ahead_keeps_its_order_and_hands_errors_on() -> None:
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        if item == 7:
            raise EmptyOutput("seven")
        return item * item

    results = compute_ahead(work, range(10), depth=3)
    assert next(results) == 0
    assert list(itertools.islice(results, 6)) == [number * number for number in range(1, 7)]
    with pytest.raises(EmptyOutput, match="seven"):
        next(results)
    assert started == sorted(started)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_the_next_batch_is_made_while_this_one_is_used() -> None:
    made = [threading.Event() for _ in range(6)]
    results = compute_ahead(lambda number: made[number].set(), range(6), depth=2)
    next(results)
    assert all(one.wait(5) for one in made[:3])
    assert not made[3].is_set()
    assert isinstance(results, Generator)
    results.close()
    assert not made[5].is_set()


def cached_pages(path: Path) -> int:
    """Pages of a file in the page cache, by mincore(2)."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        address = ctypes.c_char.from_buffer(mapped)
        start, size = ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(len(mapped))
        status = ctypes.CDLL(None).mincore(start, size, found)
        del address
        assert status == 0
    return sum(one & 1 for one in found)


def test_a_window_costs_no_more_pages_than_it_touches(tmp_path: Path) -> None:
    path = tmp_path / "00000.tokens"
    write_tokens(
        path, [np.full(2_000_000, 5, np.uint32)], vocab_size=600, eos_id=0, tokenizer_digest=DIGEST, text_bytes=7
    )
    loader = WindowLoader(StreamWindows(TokenStream([path], tokenizer_digest=DIGEST), 256), seed=0)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = cached_pages(path)
    if before > 20:
        pytest.skip("this file system keeps its pages")
    loader.batch(0, 8)
    assert cached_pages(path) - before <= 16  # 514 bytes lie on at most two pages
