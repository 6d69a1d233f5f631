"""Held-out text: the number is the pipeline's own, and its parts are what a hand would add up."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from models.likelihood import mean_loss
from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer, tokenizer_digest
from storage.shards.token_sources import write_sources
from storage.shards.token_stream import TokenStream
from tasks.evaluate.language.calibration import calibration
from tasks.evaluate.language.documents import byte_table, read_documents
from tasks.evaluate.language.held_out import HeldOut, by_length, by_position, by_source, measure_held_out
from tasks.evaluate.language.ratios import length_label, position_label, ratio
from tasks.evaluate.language.scores import Scores, TransformersScorer, score
from tasks.training.bits_per_byte import likelihood
from tests.tasks.tiny_model import make_model, make_validation, texts

SOURCES = (["fox", "fox", "hen", "fox", "fox", "hen"], ["owl"] * 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held_out")
    make_model(folder / "model")
    make_validation(folder / "validation", folder / "model")
    for shard, names in enumerate(SOURCES):
        write_sources(folder / "validation" / f"{shard:05d}.sources", names)
    return folder


def measured(folder: Path, max_tokens: int | None = None) -> HeldOut:
    model, tokenizer = load_pretrained(folder / "model").eval(), load_tokenizer(folder / "model")
    digest = tokenizer_digest(folder / "model")
    return measure_held_out(
        TransformersScorer(model), tokenizer, shards_of(folder), digest=digest, max_tokens=max_tokens
    )


def shards_of(folder: Path) -> list[Path]:
    return sorted((folder / "validation").glob("*.tokens"))


@pytest.mark.parametrize("max_tokens", [None, 256])
def test_bits_per_byte_have_the_bits_that_they_always_had(folder: Path, max_tokens: int | None) -> None:
    model = load_pretrained(folder / "model").eval()
    stream = TokenStream(shards_of(folder), tokenizer_digest=tokenizer_digest(folder / "model"))
    before = likelihood(lambda ids, targets: mean_loss(model, ids, targets), stream, context=128, max_tokens=max_tokens)
    assert measured(folder, max_tokens).likelihood == before


def test_every_token_but_the_first_is_measured_once_and_belongs_to_its_document(folder: Path) -> None:
    held_out = measured(folder)
    model, tokenizer = load_pretrained(folder / "model").eval(), load_tokenizer(folder / "model")
    ids = [[*tokenizer.encode(text), 0] for text in list(texts())[:12]]
    flat = [id for document in ids for id in document]
    of = [number for number, document in enumerate(ids) for _ in document]
    nats = []
    for start in range(0, len(flat) - 1, 128):
        window = torch.tensor([flat[start : start + 128]])
        logs = model(input_ids=window).logits[0].log_softmax(-1)
        nats += [-float(logs[place, id]) for place, id in enumerate(flat[start + 1 : start + 129])]
    assert held_out.scores.nats == pytest.approx(nats, abs=1e-5)
    assert held_out.document.tolist() == of[1:]
    sizes = [len(text.encode()) for text in list(texts())[:12]]
    assert held_out.documents.bytes == pytest.approx(sizes)
    assert held_out.nats.sum() == pytest.approx(held_out.likelihood.nats_per_token * held_out.likelihood.tokens)


def test_sources_and_lengths_have_their_own_bits_per_byte_with_errors_over_documents(folder: Path) -> None:
    held_out = measured(folder)
    names = [name for shard in SOURCES for name in shard]
    rows = {row["name"]: row for row in by_source(held_out)}
    assert list(rows) == ["fox", "hen", "owl"]
    for name, row in rows.items():
        mine = [number for number, other in enumerate(names) if other == name]
        bits = [held_out.nats[number] / math.log(2) for number in mine]
        sizes = [held_out.text_bytes[number] for number in mine]
        whole = sum(bits) / sum(sizes)
        # Linearised: the residuals of a ratio, as a mean over documents
        residuals = [b - whole * s for b, s in zip(bits, sizes, strict=True)]
        error = statistics.stdev(residuals, 0) / statistics.fmean(sizes) / math.sqrt(len(mine))
        assert row["documents"] == len(mine)
        assert row["bits_per_byte"] == pytest.approx(whole)
        assert row["bits_per_byte_stderr"] == pytest.approx(error)
    lengths = by_length(held_out)
    assert sum(row["documents"] for row in lengths) == 12
    assert lengths[0]["name"] == "under 256"
    assert lengths[0]["documents"] == 12


def test_a_sample_counts_the_bytes_of_what_it_measured(folder: Path) -> None:
    held_out = measured(folder, 256)
    tokenizer = load_tokenizer(folder / "model")
    ids = [id for text in list(texts())[:12] for id in [*tokenizer.encode(text), 0]]
    windows = math.ceil((len(ids) - 1) / 128)
    chosen = [number * windows // 2 for number in range(2)]
    text = "".join(
        tokenizer.decode([id for id in ids[start * 128 + 1 : start * 128 + 129] if id != 0]) for start in chosen
    )
    assert held_out.text_bytes.sum() == len(text.encode())
    stream, found = (
        TokenStream(shards_of(folder), tokenizer_digest=tokenizer_digest(folder / "model")),
        held_out.likelihood,
    )
    assert found.tokens == 256
    assert found.text_bytes == pytest.approx(stream.text_bytes * 256 / stream.tokens), "and all in proportion"


def test_the_loss_by_position_covers_all_tokens(folder: Path) -> None:
    held_out = measured(folder)
    rows = by_position(held_out)
    assert [row["position"] for row in rows] == ["1", "2", "3–4", "5–8", "9–16", "17–32", "33–64", "65–128"]
    assert sum(row["tokens"] for row in rows) == held_out.likelihood.tokens
    second = held_out.scores.nats[1::128]
    assert rows[1]["nats_per_token"] == pytest.approx(float(second.mean()), rel=1e-6)


def test_a_model_that_uses_its_context_has_less_loss_late_in_the_window() -> None:
    position = np.tile(np.arange(1, 65), 10)
    nats = (5 - np.log2(position) / 2).astype(np.float32)
    rows = by_position(made_up(nats, position, documents=10))
    losses = [row["nats_per_token"] for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == 5
    assert all(row["nats_per_token_stderr"] == pytest.approx(0, abs=1e-12) for row in rows), "each document is alike"


def made_up(nats: np.ndarray, position: np.ndarray, documents: int) -> HeldOut:
    from tasks.evaluate.language.documents import Documents
    from tasks.training.bits_per_byte import Likelihood

    number = len(nats)
    starts = np.linspace(0, number, documents + 1).astype(np.int64)
    known = Documents(["one"], np.zeros(documents, np.int64), starts, np.ones(number, np.float32))
    scores = Scores(nats, np.full(number, 0.5, np.float32), np.zeros(number, np.bool_))
    document = known.of(np.arange(number))
    return HeldOut(Likelihood(1.0, number, number), known, scores, document, position, np.ones(number))


def test_a_token_of_a_byte_level_vocabulary_has_as_many_bytes_as_it_stands_for(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "model")
    table = byte_table(tokenizer)
    assert table is not None
    text = "Ein Füchslein, 狐 and 🦊 — \x00 too.\n"
    assert table[tokenizer.encode(text)].sum() == len(text.encode())
    assert table[tokenizer.eos_token_id] == 0


def test_documents_know_their_sources_over_the_borders_of_shards(folder: Path) -> None:
    tokenizer, digest = load_tokenizer(folder / "model"), tokenizer_digest(folder / "model")
    found = read_documents(shards_of(folder), tokenizer, digest)
    assert [found.names[number] for number in found.source] == [name for shard in SOURCES for name in shard]


def test_a_prediction_is_the_first_of_the_most_likely_ids(folder: Path) -> None:
    model = load_pretrained(folder / "model").eval()
    torch.nn.init.zeros_(model.get_output_embeddings().weight)  # all 600 ids are equally likely
    ids = torch.arange(64)[None]
    total, scores = score(model, ids, torch.tensor([[0, 1, -100, 0] * 16]))
    assert scores.right.tolist() == [True, False, True] * 16
    assert scores.confidence == pytest.approx(np.full(48, 1 / 600))
    assert float(total) == pytest.approx(48 * math.log(600))


def test_calibration_has_the_numbers_of_a_hand() -> None:
    confidence = np.array([0.9, 0.1, 0.2, 0.8, 0.7, 0.3], np.float32)
    right = np.array([True, False, True, True, False, False])
    found = calibration(Scores(np.zeros(6, np.float32), confidence, right), np.array([0, 0, 1, 1, 2, 2]), 2)
    low, high = found["bins"]
    assert (low["tokens"], high["tokens"]) == (3, 3)
    assert (low["confidence"], low["accuracy"]) == pytest.approx((0.2, 1 / 3))
    assert (high["confidence"], high["accuracy"]) == pytest.approx((0.8, 2 / 3))
    assert found["ece"] == pytest.approx(0.5 * (1 / 3 - 0.2) + 0.5 * (0.8 - 2 / 3))
    # Three documents with one token each in a bin: the plain standard error of three numbers
    assert low["accuracy_stderr"] == pytest.approx(statistics.stdev([0, 1, 0]) / math.sqrt(3))


def test_the_error_of_a_calibrated_model_is_the_one_that_is_expected() -> None:
    draw = np.random.default_rng(1)
    found = []
    for _ in range(40):
        confidence = draw.uniform(0.05, 0.95, 3000).astype(np.float32)
        right = draw.uniform(size=3000) < confidence
        found.append(calibration(Scores(np.zeros(3000, np.float32), confidence, right), np.arange(3000), 15))
    assert statistics.fmean(one["ece"] for one in found) == pytest.approx(found[0]["ece_if_calibrated"], rel=0.1)
    sharpened = np.minimum(confidence * 1.3, 1)
    off = calibration(Scores(np.zeros(3000, np.float32), sharpened, right), np.arange(3000), 15)
    assert off["ece"] > 3 * off["ece_if_calibrated"]


def test_standard_errors_over_documents_are_as_wide_as_repetitions_scatter() -> None:
    """Documents whose tokens are alike: the error over tokens would be far too small."""
    draw = np.random.default_rng(2)
    means, errors = [], []
    for _ in range(400):
        sizes = draw.integers(50, 500, 40).astype(float)
        found = ratio(sizes * draw.normal(1.5, 0.3, 40), sizes)
        assert found is not None
        assert found.error is not None
        means.append(found.value)
        errors.append(found.error)
    assert statistics.fmean(errors) == pytest.approx(statistics.stdev(means), rel=0.1)


def test_a_single_document_has_no_error_and_none_has_no_mean() -> None:
    assert ratio(np.array([3.0, 0.0]), np.array([2.0, 0.0])) == (1.5, None, 1)
    assert ratio(np.array([]), np.array([])) is None
    assert [length_label(number) for number in (0, 1, 5)] == ["under 256", "256 to 1,023", "65,536 and more"]
    assert position_label(11, 1500) == "1,025–1,500"
