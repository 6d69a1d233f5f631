"""Best-fit packing: whole documents, each token once, and a loss that padding does not affect."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.kernels.cross_entropy import IGNORED
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, EmptyOutput
from storage.shards.token_sources import write_sources
from storage.shards.token_stream import TokenStream, source_streams
from storage.shards.tokens import open_tokens, write_tokens
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.fim_tokens import FimTokens
from tasks.pretrain.healing.skipped_batches import BatchSchedule, report_of_steps
from tasks.pretrain.loader import StepLoader, open_loader, packing
from tasks.pretrain.loader.batch import Batch
from tasks.pretrain.loader.packing import PackedWindows, Packing, pack
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.pretrain.one_process import micro_batches, one_process, open_ddp, weights_of
from tests.tasks.pretrain.tiny_training import CONFIG, output

__all__ = ["one_process"]  # the fixture

DIGEST, EOS, CONTEXT = "ab" * 32, 0, 32
MODEL = {"depth": 2, "width": 64, "heads": 4, "context": CONTEXT}
PADDING = ~EOS  # as samples have it, before it is masked
MARKS = FimTokens(6, 7, 8)


def pieces(length: int, context: int) -> list[tuple[int, int]]:
    """Where the pieces of a document begin in it, and their sizes: each but the last fills a window, and the last token
    of one is the first of the next."""
    return [(begin, min(context + 1, length - begin)) for begin in range(0, length - 1, context)]


def best_fit_decreasing(lengths: list[int], context: int) -> list[list[tuple[int, int]]]:
    """The windows of a plan as (start in the stream, size), by looking at every window for every piece."""
    begins = np.cumsum([0, *lengths]).tolist()
    cut = [
        (begin + offset, size)
        for begin, length in zip(begins, lengths, strict=False)
        for offset, size in pieces(length, context)
    ]
    windows: list[list[tuple[int, int]]] = []
    rooms: list[tuple[int, int]] = []  # each with the time of its last change
    for time, piece in enumerate(sorted(cut, key=lambda piece: -piece[1])):
        fitting = [(room, -since, window) for window, (room, since) in enumerate(rooms) if room >= piece[1]]
        if fitting:
            room, _, window = min(fitting)
        else:
            room, window = context + 1, len(windows)
            windows.append([])
            rooms.append((room, time))
        windows[window].append(piece)
        rooms[window] = (room - piece[1], time)
    return [sorted(window) for window in windows]


def windows_of(plan: Packing) -> list[list[tuple[int, int]]]:
    held = list(zip(plan.starts_P.tolist(), plan.sizes_P.tolist(), strict=True))
    return [held[first:last] for first, last in itertools.pairwise(plan.firsts_W.tolist())]


def plan_of(lengths: list[int], context: int) -> Packing:
    return pack(np.array(lengths, np.int64), context)


@pytest.mark.shadow(
    "tasks.pretrain.loader.packing_kernels.cut",
    "tasks.pretrain.loader.packing_kernels.longest_first",
    "tasks.pretrain.loader.packing_kernels.best_fit",
    "tasks.pretrain.loader.packing_kernels.arrange",
)
@settings(max_examples=150)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 20), st.integers(1, 150)), max_size=120),
    context=st.sampled_from([1, 2, 7, 8, 15, 16, 31, 64]),
)
def test_the_plan_is_that_of_best_fit_decreasing(lengths: list[int], context: int) -> None:
    plan = plan_of(lengths, context)
    assert windows_of(plan) == best_fit_decreasing(lengths, context)
    assert plan.documents == len(lengths)
    assert plan.too_short == lengths.count(1)
    assert plan.cut == sum(length > context + 1 for length in lengths)
    filled = [min(context, sum(size for _, size in window)) for window in windows_of(plan)]
    assert plan.padding().tolist() == [context - one for one in filled]


@settings(max_examples=100)
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=80), context=st.integers(1, 40))
def test_no_window_is_over_full_no_document_that_fits_is_cut_and_no_prediction_is_lost(
    lengths: list[int], context: int
) -> None:
    plan = plan_of(lengths, context)
    predicted: Counter[tuple[int, int]] = Counter()
    whole: set[tuple[int, int]] = set()
    for window in windows_of(plan):
        assert 2 <= sum(size for _, size in window) <= context + 1
        whole |= set(window)
        for start, size in window:
            predicted.update((token, token + 1) for token in range(start, start + size - 1))
    begins = np.cumsum([0, *lengths]).tolist()
    spans = list(itertools.pairwise(begins))
    assert predicted == Counter((token, token + 1) for begin, end in spans for token in range(begin, end - 1))
    assert all((begin, end - begin) in whole for begin, end in spans if 2 <= end - begin <= context + 1)


@pytest.mark.shadow("tasks.pretrain.loader.packing_kernels.survey")
@settings(max_examples=100)
@given(lengths=st.lists(st.integers(2, 90), min_size=1, max_size=60), context=st.integers(1, 40))
def test_what_a_stream_would_cut_is_counted(lengths: list[int], context: int) -> None:
    tokens = sum(lengths)
    rows = [range(first, first + context + 1) for first in range(0, (tokens - 1) // context * context, context)]
    cut = 0
    for begin, end in itertools.pairwise(np.cumsum([0, *lengths]).tolist()):
        whole = any(begin in row and end - 1 in row for row in rows)
        cut += not whole and any(token in row for row in rows for token in range(begin, end))
    if rows:
        assert plan_of(lengths, context).cut_by_stream == cut


def first_fit(lengths: list[int], capacity: int) -> int:
    """The number of windows if each document goes into the first with room, in order."""
    rooms: list[int] = []
    for length in lengths:
        place = next((place for place, room in enumerate(rooms) if room >= length), len(rooms))
        if place == len(rooms):
            rooms.append(capacity)
        rooms[place] -= length
    return len(rooms)


def test_lengths_that_mislead_first_fit_are_packed_without_loss() -> None:
    capacity, each = 1001, 60
    lengths = [147] * each + [342] * each + [512] * each  # a little over 1/7, 1/3 and 1/2: one of each fills a window
    assert sum(lengths) == capacity * each
    assert first_fit(lengths, capacity) == 100
    assert plan_of(lengths, capacity - 1).windows == each
    assert plan_of(lengths, capacity - 1).padding().sum() == 0


def test_a_golden_plan() -> None:
    generator = np.random.default_rng(3)
    plan = pack(generator.geometric(1 / 300, 100_000) + 1, 512)
    total = hashlib.sha256()
    for part, kind in ((plan.firsts_W, "<i8"), (plan.starts_P, "<i8"), (plan.sizes_P, "<i4")):
        total.update(part.astype(kind).tobytes())
    assert (plan.windows, plan.cut, plan.cut_by_stream) == GOLDEN[0]
    assert total.hexdigest() == GOLDEN[1]


GOLDEN = ((58_859, 18_215, 47_988), "49e05d3f5d744e55311f302adfe9468e2d98358f0ddc03e9dfa579988f8dbcc0")


def test_more_pieces_than_can_be_numbered_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_PIECES", 4)
    assert plan_of([9] * 4, 8).windows == 4
    with pytest.raises(ConfigError, match="best_fit can't plan 5 documents"):
        plan_of([9] * 5, 8)


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(2, 90), min_size=1, max_size=80), context=st.integers(1, 40))
def test_windows_are_in_tiers_of_their_longest_piece(lengths: list[int], context: int) -> None:
    plan = plan_of(lengths, context)
    halvings = []
    for window in windows_of(plan):
        longest = max(size for _, size in window)
        halvings.append(next(number for number in range(20) if longest * 2**number >= context + 1))
    assert halvings == sorted(halvings)
    assert plan.tiers() == tuple(halvings.count(number) for number in range(max(halvings) + 1))


@pytest.mark.parametrize("number", [0, 3])
def test_an_epoch_begins_with_the_longest_documents(number: int, shards: list[Path]) -> None:
    first, best_fit = (loader_of(shards, packing=name) for name in ("long_first", "best_fit"))
    served, usual = (epoch(loader, number).ids for loader in (first, best_fit))
    assert sorted(served.tolist()) == sorted(usual.tolist())
    assert served.tolist() != usual.tolist()
    plan = first.samples.taken["all"]
    assert isinstance(plan, PackedWindows)
    begins, tiers = np.cumsum((0, *plan.tiers)), plan.tiers
    rows = np.empty((plan.count, CONTEXT + 1), np.int64)
    for window, row in enumerate(rows):
        plan.read_into(row, window)
    rows = np.where(rows < 0, ~rows, rows)
    for begin, tier in zip(begins.tolist(), tiers, strict=False):
        part = slice(begin, begin + tier)
        assert sorted(served[part].tolist()) == sorted(rows[part, :-1].tolist())
    assert len([tier for tier in tiers if tier]) > 2
    assert epoch(first, number + 1).ids.tolist() != served.tolist()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four shards, one of them empty, of documents without a repeated id but EOS, their sources in turns. Some are
    longer than a window, some only EOS."""
    folder = tmp_path_factory.mktemp("shards")
    generator = np.random.default_rng(5)
    paths, used = [], 20
    for number, count in enumerate((40, 0, 60, 50)):
        lengths = generator.integers(0, 90, count)
        documents = []
        for length in lengths.tolist():
            documents.append(np.append(np.arange(used, used + length), EOS).astype(np.uint32))
            used += length
        paths.append(folder / f"{number:05d}.tokens")
        write_tokens(paths[-1], documents, vocab_size=1 << 20, eos_id=EOS, tokenizer_digest=DIGEST, text_bytes=7)
        write_sources(paths[-1].with_suffix(".sources"), ("abc"[i // 3 % 3] for i in range(count)))
    return paths


def documents_of(paths: list[Path]) -> list[list[int]]:
    found = []
    for path in paths:
        shard = open_tokens(path)
        found += [shard.ids[start:end].tolist() for start, end in itertools.pairwise(shard.starts.astype(int))]
    return found


def config_of(**choices: Any) -> PretrainConfig:
    settings = {"model": MODEL, "global_batch": 16, "warmup_steps": 2, "packing": "best_fit", **choices}
    return PretrainConfig.model_validate(settings)


def loader_of(shards: list[Path], **choices: Any) -> StepLoader:
    return open_loader(shards, config_of(**choices), context=CONTEXT, tokenizer_digest=DIGEST, fim_tokens=MARKS)


def epoch(loader: StepLoader, number: int = 0) -> Batch:
    """All windows of an epoch as the training gets them."""
    return loader._serve(10_000, number * loader.samples.windows, loader.samples.windows)


def test_documents_of_a_stream_are_told_by_source(shards: list[Path]) -> None:
    documents = documents_of(shards)
    whole = TokenStream(shards, tokenizer_digest=DIGEST)
    assert whole.document_lengths(shards).tolist() == [len(document) for document in documents]
    numbers = [i for count in (40, 60, 50) for i in range(count)]
    for source, stream in source_streams(shards, tokenizer_digest=DIGEST).items():
        mine = [one for one, number in zip(documents, numbers, strict=True) if "abc"[number // 3 % 3] == source]
        assert stream.document_lengths(shards).tolist() == [len(one) for one in mine]
        assert stream.read(0, stream.tokens).tolist() == [id for one in mine for id in one]


@pytest.mark.parametrize("number", [0, 3])
def test_an_epoch_serves_every_token_of_every_document_once(number: int, shards: list[Path]) -> None:
    served = epoch(loader_of(shards), number)
    long = [one for one in documents_of(shards) if len(one) > 1]
    learned_ids = served.targets[served.targets != IGNORED]
    first = {one[0] for one in long}  # foretold by the end of the document before, if any
    assert sorted(set(learned_ids.tolist()) | first) == sorted({id for one in long for id in one})
    counts = Counter(learned_ids[learned_ids != EOS].tolist())
    assert set(counts.values()) == {1}
    assert (learned_ids == EOS).sum() == len(long)
    read = Counter(served.ids[served.ids != EOS].tolist())
    assert max(read.values()) == 1
    assert len(read) == sum(len(one) - 1 for one in long)
    rows = np.concatenate((served.ids, served.targets[:, -1:]), axis=1).tolist()
    for one in long:
        if len(one) <= CONTEXT + 1:
            assert sum(one[0] in row and row[row.index(one[0]) :][: len(one)] == one for row in rows) == 1


def test_padding_is_read_as_ends_of_documents_and_never_learned(shards: list[Path]) -> None:
    loader = loader_of(shards)
    served = epoch(loader)
    (row,) = loader.packing_report() or [{}]
    assert row["padding"] > 0
    padding = loader.samples.batch(0, loader.samples.windows).ids == PADDING
    assert padding.sum() == row["padding"]
    assert (served.ids[padding] == EOS).all()
    assert (served.targets[padding] == IGNORED).all()
    assert (served.targets != IGNORED).any(axis=1).all()  # each row teaches something
    assert row["too_short"] == sum(len(one) == 1 for one in documents_of(shards)) > 0


def test_documents_apart_begin_anew_and_padding_sees_nothing_of_them(shards: list[Path]) -> None:
    together, apart = epoch(loader_of(shards)), epoch(loader_of(shards, isolate_documents=True))
    assert apart.positions is not None
    begins = np.concatenate((np.ones((len(apart.ids), 1), bool), apart.ids[:, :-1] == EOS), axis=1)
    assert ((apart.positions == 0) == begins).all()
    ends = together.ids == EOS
    assert (apart.targets[ends] == IGNORED).all()
    assert np.array_equal(apart.targets[~ends], together.targets[~ends])
    long = [one for one in documents_of(shards) if len(one) > 1]
    within = sum(len(one) - 1 for one in long)
    assert (apart.targets != IGNORED).sum() == within


def test_every_source_has_a_plan_of_its_own(shards: list[Path]) -> None:
    loader = loader_of(shards, mixture={"a": 1, "b": 3})
    numbers = [i for count in (40, 60, 50) for i in range(count)]
    source_of = {
        id: "abc"[number // 3 % 3]
        for one, number in zip(documents_of(shards), numbers, strict=True)
        for id in one
        if id != EOS
    }
    served = loader.samples.batch(0, 500).ids
    for row in np.where(served < 0, ~served, served).tolist():
        assert len({source_of[id] for id in row if id != EOS}) == 1
    rows: list[Mapping[str, Any]] = [*loader.samples.report(500)]
    assert [row["source"] for row in rows] == ["a", "b", "c"]
    assert sum(row["padding"] for row in rows) == (served == PADDING).sum()
    alone = pack(source_streams(shards, tokenizer_digest=DIGEST)["a"].document_lengths(shards), CONTEXT)
    assert rows[0]["windows"] == alone.windows
    assert [row["source"] for row in loader.packing_report() or []] == ["a", "b"]


@pytest.mark.parametrize("skipped", [(), ((3, 7), (20, 20))], ids=["undisturbed", "healed"])
def test_padding_is_counted_over_what_was_learned(
    skipped: tuple[tuple[int, int], ...], shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.pretrain.loader.windows.SUMMED", 7)
    loader, batch_schedule = loader_of(shards), BatchSchedule(skipped=skipped)
    counted = sum(
        int((loader.samples.batch((batch_schedule.batch(step) - 1) * 16, 16).ids == PADDING).sum())
        for step in range(1, 31)
    )
    (row,) = report_of_steps(loader.samples.report, batch_schedule, 30, loader.config.samples)
    assert row["served"] == 480
    assert row["padding"] == counted > 0


def test_fill_in_the_middle_takes_padding_before_text(shards: list[Path]) -> None:
    loader = loader_of(shards, fim_rate=1.0)
    plain, whole = (one.samples.batch(0, one.samples.windows).targets for one in (loader_of(shards), loader))
    assert np.array_equal(plain, whole)
    served = epoch(loader)
    assert (served.ids >= 0).all()
    lost = 0
    for old, new in zip(plain.tolist(), served.targets.tolist(), strict=True):
        text = {id for id in old if id > EOS}
        kept = [id for id in new if id > EOS and id not in MARKS]
        fim_tokens, padding = sum(id in MARKS for id in new), old.count(PADDING)
        assert len(kept) == len(set(kept))
        if fim_tokens < padding:
            assert text <= set(kept)
        lost += len(text - set(kept))
    assert lost > 0
    assert np.isin(served.ids, MARKS).any(axis=1).mean() > 0.9


def test_what_the_marks_cost_beside_padding_is_reported(shards: list[Path]) -> None:
    loader = loader_of(shards, fim_rate=0.5)
    plain = np.concatenate([loader.samples.batch(number, 1).ids for number in range(48)])
    served = np.concatenate([loader._rows(1, number, 1).ids for number in range(48)])
    text = [(ids != PADDING) & ~np.isin(ids, MARKS) for ids in (plain, served)]
    report = loader.fim_report(3)
    assert report is not None
    assert report["cut_off_share"] == round((text[0].sum() - text[1].sum()) / plain.size, 6) > 0


def test_a_growing_context_cuts_rows_and_keeps_their_tokens(shards: list[Path]) -> None:
    whole = loader_of(shards, isolate_documents=True)
    growing = loader_of(shards, isolate_documents=True, context_warmup_steps=8, context_warmup_parts=4)
    long, short = (loader.micro_batches(1, rank=0, ranks=1, size=16)[0] for loader in (whole, growing))
    assert short.ids.shape == (64, 8)
    assert np.array_equal(short.ids.reshape(16, 32), long.ids)
    assert np.array_equal(short.targets.reshape(16, 32), long.targets)
    assert short.positions is not None
    assert (short.positions[:, 0] == 0).all()


def test_documents_of_nothing_but_eos_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "00000.tokens"
    write_tokens(path, [np.zeros(1, np.uint32)] * 99, vocab_size=9, eos_id=0, tokenizer_digest=DIGEST, text_bytes=1)
    with pytest.raises(EmptyOutput, match="The training split lacks a document of two tokens or more"):
        loader_of([path])


def test_an_unknown_packing_is_refused() -> None:
    with pytest.raises(ValueError, match="'stream', 'best_fit' or 'long_first'"):
        config_of(packing="first_fit")


def padded_rows(step: int) -> Batch:
    """Eight rows of 16 places that end in more and more padding, the last with one target only."""
    generator = np.random.default_rng(step)
    ids = generator.integers(1, 64, (8, 16))
    targets = np.concatenate((ids[:, 1:], generator.integers(1, 64, (8, 1))), axis=1)
    for row, filled in enumerate((17, 16, 12, 12, 9, 5, 3, 2)):
        ids[row, filled:] = 0
        targets[row, filled - 1 :] = IGNORED
    return Batch(ids, targets)


def test_eight_padded_rows_at_once_teach_what_one_row_eight_times_teaches() -> None:
    whole, one_by_one = (open_ddp(packing="best_fit", micro_batch=size) for size in (8, 1))
    for step in range(1, 6):
        batch = padded_rows(step)
        counts = (batch.targets != IGNORED).sum(axis=1)
        apart = np.array([whole.model(*row).item() for row in micro_batches(batch, 1)])
        found = [
            engine.step(micro_batches(batch, size), 1e-2)[0].item() for engine, size in ((whole, 8), (one_by_one, 1))
        ]
        assert found == pytest.approx([(apart * counts).sum() / counts.sum()] * 2, abs=2e-5)
    assert (weights_of(one_by_one) - weights_of(whole)).abs().max() < 1e-4


PACKED = PretrainConfig.model_validate(
    {
        **CONFIG.model_dump(exclude={"model"}),
        "model": {**CONFIG.new_model.model_dump(), "context": 150},
        "packing": "best_fit",
    }
)


@pytest.fixture(scope="module")
def packed(data: tuple[Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("packed"), engine="ddp")
    pretrain.function(PACKED, *data, out)
    return out


@pytest.mark.soak
def test_a_training_learns_and_reports_what_was_packed(packed: Output, data: tuple[Artifact, Artifact]) -> None:
    rows = read_log(packed.path / "log.jsonl")
    assert rows[-1]["validation_loss"] < rows[0]["loss"] - 0.3
    paths = data[0].files("train/*.tokens")
    digest = open_tokens(paths[0]).header.tokenizer_digest
    loader = open_loader(paths, PACKED, context=150, tokenizer_digest=digest)
    served = loader.samples.batch(0, 12 * 8).ids
    padding = int((served == PADDING).sum())
    assert padding > 0
    assert packed.counts["tokens_seen"] == served.size - padding
    plan = pack(np.array([len(one) for one in documents_of(paths)]), 150)
    assert packed.counts["packing"] == {
        "padding_share": round(plan.padding().sum() / (plan.windows * 150), 6),
        "cut_share": 0.0,
        "cut_share_of_stream": round(plan.cut_by_stream / 60, 6),
        "too_short": 0,
    }
    assert plan.cut_by_stream > 10
    (row,) = packed.counts["tables"]["Packing"]
    assert (row["source"], row["documents"], row["windows"]) == ("all", 60, plan.windows)
    assert row["documents cut"] == "0.00%"


@pytest.mark.soak
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    packed: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out = output(tmp_path, engine="ddp")
    interrupt_and_resume(pretrain, PACKED, data, out, at=8)
    assert out.facts["resumed_from_step"] == 6
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(packed.path))
    assert out.counts == packed.counts


@pytest.mark.soak
def test_processes_and_micro_batches_learn_the_same(
    packed: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out = output(tmp_path, engine="fsdp", processes=2, micro_batch=1)
    pretrain.function(PACKED, *data, out)
    expected, found = ([row["loss"] for row in read_log(one.path / "log.jsonl")] for one in (packed, out))
    assert found == pytest.approx(expected, abs=2e-4)  # sums in another order
    assert out.counts["packing"] == packed.counts["packing"]
    assert out.counts["tokens_seen"] == packed.counts["tokens_seen"]
