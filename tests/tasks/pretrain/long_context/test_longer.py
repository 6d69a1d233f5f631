"""A base is trained on at twice its context: positions in what is saved, and what is measured before and after."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from models.convert import load, shape_of
from models.pretrained import load_config, load_pretrained
from models.tokenizer import DIGEST_FIELD, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.shards.token_sources import write_sources
from storage.shards.token_stream import TokenStream
from storage.shards.tokens import write_tokens
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.evaluation import Rows, bucket_sums
from tasks.pretrain.long_context.extend import as_extended
from tasks.pretrain.long_context.measure import DEPTHS, DIGITS, hidden_number, long_documents
from tasks.stage.output import Output
from tasks.training.bits_per_byte import read_windows, spread_windows
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.pretrain import bases
from tests.tasks.pretrain.one_process import one_process, open_ddp
from tests.tasks.pretrain.tiny_training import make_data, output
from tests.tasks.tiny_model import texts

__all__ = ["one_process"]  # the fixture

CONTEXT, DOCUMENT = 128, 150  # tokens. The bases have a context of 64
SETTINGS: dict[str, Any] = {
    "model": None,
    "context": CONTEXT,
    "steps": 4,
    "global_batch": 4,
    "warmup_steps": 1,
    "learning_rate": 1e-3,
    "packing": "long_first",
    "validation_every": 4,
    "validation_tokens": 512,
    "sample_tokens": 4,
}
BASES: dict[str, dict[str, Any]] = {"llama": {"method": "yarn", "attention_factor": 1.3}, "qwen2": {"method": "llama3"}}


def config_of(base: str) -> PretrainConfig:
    return PretrainConfig.model_validate({**SETTINGS, "rope_scaling": BASES[base]})


def made(folder: Path, base: str) -> tuple[Artifact, Artifact]:
    """Token shards with documents longer than the new context, and a base."""
    if not (folder / "long").exists():
        _, tokenizer = make_data(folder)
        loaded = load_tokenizer(tokenizer.path)
        ids = np.array([id for text in texts() for id in loaded.encode(text)], np.uint16)
        rows = [np.array([*row, 0], np.uint16) for row in np.split(ids, range(DOCUMENT, len(ids), DOCUMENT))]
        for part, some in (("train", rows[8:]), ("validation", rows[:8])):
            path = folder / "long" / part / "00000.tokens"
            path.parent.mkdir(parents=True)
            digest = tokenizer_digest(tokenizer.path)
            write_tokens(path, some, vocab_size=600, eos_id=0, text_bytes=9, tokenizer_digest=digest)
            write_sources(path.with_suffix(".sources"), ["all"] * len(some))
    return Artifact.at(folder / "long"), bases.made(folder, base)[1]


def trained(folder: Path, out: Path, base: str, **runtime: Any) -> Output:
    written = output(out, **{"engine": "ddp", **runtime})
    pretrain.function(config_of(base), *made(folder, base), written)
    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("longer")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], Output]:
    """The training of a base by one process."""
    return functools.cache(lambda base: trained(folder, folder / f"{base}-out", base))


@pytest.mark.soak_but("llama")
@pytest.mark.parametrize("base", BASES)
def test_the_saved_model_has_the_positions_that_it_was_trained_with(
    base: str, folder: Path, alone: Callable[[str], Output]
) -> None:
    out, (tokens, before) = alone(base), made(folder, base)
    settings = json.loads((out.path / "model" / "config.json").read_text())
    with as_extended(before.path, config_of(base)) as expected:
        assert settings == {**json.loads((expected / "config.json").read_text()), "dtype": "float32"}
    assert settings["max_position_embeddings"] == CONTEXT
    assert settings["rope_parameters"]["rope_type"] == BASES[base]["method"]
    if base == "llama":
        assert load(out.path / "model").shape == shape_of(load_config(out.path / "model"))
    stream = TokenStream(tokens.files("validation/*.tokens"), tokenizer_digest=settings[DIGEST_FIELD])
    windows = spread_windows(stream, CONTEXT, 512)
    ids, targets = read_windows(stream, windows, CONTEXT, len(windows))
    with torch.no_grad():
        loss = F.cross_entropy(load_pretrained(out.path / "model")(ids).logits.flatten(0, 1), targets.flatten())
    assert out.counts["validation_loss"] == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.soak_but("llama")
@pytest.mark.parametrize("base", BASES)
def test_what_the_training_changed_is_reported_by_position(
    base: str, folder: Path, alone: Callable[[str], Output]
) -> None:
    out, (tokens, before) = alone(base), made(folder, base)
    found = out.counts["long_context"]
    assert found["edges"] == [16 * number for number in range(9)]
    assert found["lengths"] == [64, 128], "the sentences don't fit into 16 or 32 tokens"
    assert [len(row) for row in found["found"]["after"]] == [len(DEPTHS)] * 2
    assert (out.path / "long_context.png").stat().st_size > 5_000
    stream = TokenStream(tokens.files("validation/*.tokens"), tokenizer_digest=tokenizer_digest(before.path))
    rows = long_documents(stream, stream.document_lengths(tokens.files("validation/*.tokens")), CONTEXT, 4)
    assert rows is not None
    with as_extended(before.path, config_of(base)) as extended:
        models = {"before": load_pretrained(extended), "after": load_pretrained(out.path / "model")}
    for when, model in models.items():
        with torch.no_grad():
            logits = model(torch.from_numpy(rows.ids_NT)).logits
        nats = F.cross_entropy(logits.mT, torch.from_numpy(rows.targets_NT), reduction="none")
        bits = (nats.view(-1, 8, 16).mean((0, 2)) / np.log(2)).tolist()
        assert found["bits_per_token"][when] == pytest.approx(bits, abs=1e-4)
    assert found["bits_per_token"]["before"] > found["bits_per_token"]["after"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("base", "runtime"),
    [
        ("llama", {"engine": "fsdp", "zero_stage": 3, "processes": 2, "micro_batch": 1}),
        ("llama", {"tensor_parallel": 2, "processes": 2}),
        ("llama", {"context_parallel": 2, "processes": 2}),
        ("llama", {"pipeline_parallel": 2, "processes": 2, "micro_batch": 2}),
        ("llama", {"engine": "deepspeed", "zero_stage": 3, "processes": 2}),
        ("qwen2", {"processes": 2}),
        ("qwen2", {"engine": "fsdp", "zero_stage": 3, "processes": 2}),
    ],
    ids=str,
)
def test_every_engine_measures_the_same(
    base: str, runtime: dict[str, Any], folder: Path, alone: Callable[[str], Output], tmp_path: Path
) -> None:
    found = trained(folder, tmp_path / "out", base, **runtime).counts["long_context"]
    expected = alone(base).counts["long_context"]
    for when in ("before", "after"):
        assert found["bits_per_token"][when] == pytest.approx(expected["bits_per_token"][when], abs=2e-3)
    assert found["found"] == expected["found"]


@pytest.mark.soak
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    folder: Path, alone: Callable[[str], Output], tmp_path: Path
) -> None:
    tokens, base = made(folder, "llama")
    whole = alone("llama")
    resumed = output(tmp_path / "out", engine="ddp")
    interrupt_and_resume(pretrain, config_of("llama"), (tokens, base), resumed, at=3)
    for name in ("model/model.safetensors", "model/config.json", "long_context.png"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert resumed.counts["long_context"] == whole.counts["long_context"]


def test_sums_by_position_are_those_of_the_logits() -> None:
    engine = open_ddp(micro_batch=2)
    draw = np.random.default_rng(0)
    ids, targets = draw.integers(0, 64, (5, 13)), draw.integers(0, 64, (5, 13))
    with torch.no_grad():
        logits = engine.model(torch.from_numpy(ids))
        nats = F.cross_entropy(logits.mT, torch.from_numpy(targets), reduction="none").numpy()
    targets[:, ::2] = logits.argmax(-1)[:, ::2].numpy()
    with torch.no_grad():
        nats = F.cross_entropy(logits.mT, torch.from_numpy(targets), reduction="none").numpy()
    best = logits.argmax(-1).numpy() == targets
    kept = draw.random((5, 13)) < 0.7
    sums = bucket_sums(engine, Rows(ids, np.where(kept, targets, -100)), [0, 4, 13], lambda: None).numpy()
    for bucket, part in enumerate((slice(0, 4), slice(4, 13))):
        for column, values in enumerate((nats, best, np.ones_like(nats))):
            assert sums[:, bucket, column] == pytest.approx((values * kept)[:, part].sum(1), rel=1e-5)
    assert engine.model.head.record is None


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_number_is_hidden_at_its_depth_and_begun_again_at_the_end(depth: float) -> None:
    def encode(words: str) -> list[int]:
        return [ord(letter) for letter in words]

    text = np.full(500, ord("~"))
    found = hidden_number(text, 200, depth, np.random.default_rng(3), [1], encode)
    assert found is not None
    ids, targets = found
    assert len(ids) == len(targets) == 200
    words = "".join(map(chr, ids[1:].tolist()))
    number = words.partition("is ")[2][:DIGITS]
    assert number.isdigit()
    assert words.count(f"The secret number is {number}.\n") == 1
    assert "".join(map(chr, targets[targets != -100].tolist())) == f" {number}"
    assert (words + targets[-1:].tobytes().decode()[0]).endswith(f"The secret number is {number}")
    room = words.count("~")
    assert words.index("\nThe") == round(depth * room)
    assert hidden_number(text, 40, depth, np.random.default_rng(3), [1], encode) is None
    assert hidden_number(text[:50], 200, depth, np.random.default_rng(3), [1], encode) is None


def test_only_documents_that_fill_the_context_are_measured() -> None:
    class Counting:
        tokens = 400

        def read(self, start: int, count: int) -> Any:
            return np.arange(start, start + count)

    lengths = np.array([50, 101, 100, 149])
    stream: Any = Counting()
    rows = long_documents(stream, lengths, 100, 9)
    assert rows is not None
    assert rows.ids_NT[:, 0].tolist() == [50, 251]
    assert (rows.targets_NT == rows.ids_NT + 1).all()
    assert long_documents(stream, lengths, 149, 9) is None
