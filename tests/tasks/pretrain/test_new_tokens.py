"""A base that gets new tokens: rows that are means, by every kind of head; the base's own number before; engines and a
resume give the same model, which transformers and llama.cpp open."""

from __future__ import annotations

import functools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.kernels.cross_entropy import IGNORED
from models.pretrained import load_config, load_pretrained
from models.runtimes.llama_cpp import LlamaCppRuntime
from models.runtimes.transformers import TransformersRuntime
from models.tokenizer import DIGEST_FIELD, HOSTILE, copy_tokenizer, load_tokenizer, new_tokens, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import SourceError, TokenizerMismatch
from storage.shards.documents import Document, write_documents
from storage.shards.token_stream import source_streams
from tasks.base.more_rows import MULTIPLE, add_rows, check_rows
from tasks.export import ExportConfig, export
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.held_out_change import same_text
from tasks.stage.output import Output
from tasks.tokenize.stage import TokenizeConfig, tokenize
from tasks.tokenizer import TokenizerConfig, load_for_documents, train_tokenizer
from tasks.training.bits_per_byte import read_windows, spread_windows
from tests.tasks.pretrain.bases import CONFIG, SETTINGS
from tests.tasks.pretrain.tiny_training import losses_of, output
from tests.tasks.tiny_model import RUNTIME, make_tokenizer, texts

NEW = 15
LIKE_LLAMA = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
}
# Tied, untied, computed by transformers with a tied head, and with a head that has a bias
BASES: dict[str, dict[str, Any]] = {
    "llama": {**LIKE_LLAMA, "tie_word_embeddings": True},
    "mistral": {**LIKE_LLAMA, "tie_word_embeddings": False, "sliding_window": None},
    "qwen2": {**LIKE_LLAMA, "tie_word_embeddings": True},
    "phi": {**LIKE_LLAMA, "tie_word_embeddings": False},
}
PADDED = 512  # rows; the tokenizer has fewer ids


def base_of(folder: Path, family: str, rows: int | None = None) -> Artifact:
    """A base with our tokenizer and weights drawn at random, wide enough that tokens differ."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    tokenizer = make_tokenizer(folder / "tokenizer")
    base = folder / f"{family}-{rows}"
    if not base.exists():
        torch.manual_seed(1)
        marks = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
        size = rows or load_for_documents(tokenizer).get_vocab_size()
        settings = {**BASES[family], "vocab_size": size, "initializer_range": 0.2, **marks}
        config = AutoConfig.for_model(family, max_position_embeddings=64, **settings)
        setattr(config, DIGEST_FIELD, tokenizer_digest(tokenizer))
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, value in model.named_parameters():
            if name == "lm_head.bias":
                torch.nn.init.normal_(value)
        model.generation_config = GenerationConfig(**marks)
        model.save_pretrained(base)
        copy_tokenizer(tokenizer, base)
    return Artifact.at(base)


def extended(folder: Path) -> tuple[Artifact, Artifact]:
    """Tokens of two sources, and the tokenizer that has `NEW` more for them."""
    made = folder / "extended"
    if not made.exists():
        given = (
            Document.new(f"{text} Myocarditis, the myocardium's infarction.", name) for text in texts() for name in "ab"
        )
        write_documents(made / "in" / "00000.parquet", given)
        documents, base = Artifact.at(made / "in"), Artifact.at(make_tokenizer(folder / "tokenizer"))
        out = Output.at(made / "tokenizer", runtime=RUNTIME)
        train_tokenizer.function(TokenizerConfig(extend=NEW), documents, base, out)
        tokens = Output.at(made / "tokens", runtime=RUNTIME)
        tokenize.function(TokenizeConfig(validation_share=0.1), documents, Artifact.at(out.path), tokens)
    return Artifact.at(made / "tokens" / "out"), Artifact.at(made / "tokenizer" / "out")


def trained(folder: Path, out: Path, family: str = "llama", rows: int | None = None, **runtime: Any) -> Output:
    written = output(out, **{"engine": "ddp", **runtime})
    pretrain.function(CONFIG, *extended(folder), base_of(folder, family, rows), written)
    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("new-tokens")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], Output]:
    """The training of a family by one process."""
    return functools.cache(lambda family: trained(folder, folder / f"{family}-out", family))


@pytest.mark.parametrize("rows", [None, PADDED])
@pytest.mark.parametrize("family", BASES)
def test_rows_of_new_tokens_are_means_of_what_they_join(family: str, rows: int | None, folder: Path) -> None:
    base, (_, tokenizer) = base_of(folder, family, rows), extended(folder)
    made = folder / f"rows-{family}-{rows}"
    add_rows(base.path, tokenizer.path, made)
    old, new = (load_pretrained(one).state_dict() for one in (base.path, made))
    pieces, ids = new_tokens(base.path, tokenizer.path), load_for_documents(base.path).get_vocab_size()
    assert len(pieces) == NEW
    size = load_config(made).vocab_size
    assert size == (rows or -(-(ids + NEW) // MULTIPLE) * MULTIPLE)
    for name in check_rows(base.path):
        for row, value in enumerate(new.pop(name)):
            mean = old[name][pieces[row]].mean(0) if row in pieces else old[name][row] if row < len(old[name]) else None
            expected = old[name][:ids].mean(0) if mean is None else mean
            assert torch.allclose(value, expected, rtol=0, atol=1e-6)
            if row < ids:
                assert torch.equal(value, old[name][row])
    new.pop("lm_head.weight", None)  # tied
    assert all(torch.equal(value, old[name]) for name, value in new.items())
    assert json.loads((made / "config.json").read_text())[DIGEST_FIELD] == tokenizer_digest(tokenizer.path)


@pytest.mark.parametrize("family", ["llama", pytest.param("phi", marks=pytest.mark.soak)])
def test_a_base_is_measured_in_its_own_tokens(family: str, folder: Path, alone: Callable[[str], Output]) -> None:
    """By transformers on the base, window by window, with the ids that its own tokenizer gives the decoded text."""
    tokens, tokenizer = extended(folder)
    base = base_of(folder, family)
    old, new = load_for_documents(base.path), load_for_documents(tokenizer.path)
    theirs: Any = load_pretrained(base.path).eval()
    sizes = {"a": 0.0, "b": 0.0}
    before = dict(sizes)
    digest = tokenizer_digest(tokenizer.path)

    def parts(id: int) -> list[int]:
        ids: list[int] = old.encode(new.decode([id])).ids
        return ids or [id]  # the end of a document

    for source, stream in source_streams(tokens.files("validation/*.tokens"), tokenizer_digest=digest).items():
        windows = spread_windows(stream, 32, CONFIG.validation_tokens)
        for ids, targets in zip(*read_windows(stream, windows, 32, len(windows)), strict=True):
            whole = [int(ids[0]), *targets[targets != IGNORED].tolist()]
            lengths = np.cumsum([len(parts(id)) for id in whole])
            fitting = int((lengths <= 33).sum())
            own = torch.tensor([part for id in whole[:fitting] for part in parts(id)])
            losses = torch.nn.functional.cross_entropy(theirs(own[None, :-1]).logits[0], own[1:], reduction="none")
            before[source] += float(losses[lengths[0] - 1 :].double().sum())
            sizes[source] += fitting - 1
    reported = alone(family).counts
    name = next(name for name in reported if name.startswith("held_out_bits_per_"))
    for source, nats in before.items():
        assert reported[name][source]["before"] == pytest.approx(nats / sizes[source] / math.log(2), rel=1e-5)
        assert reported[name][source]["after"] < reported[name][source]["before"]


def test_a_window_is_the_same_text_before_and_after() -> None:
    ids, targets = torch.tensor([9, 1, 8, 2, 3]), torch.tensor([1, 8, 2, 3, 9])
    pieces = {8: [4, 5], 9: [4, 5, 6]}
    own_ids, own_targets, seen, cut = same_text(ids, targets, pieces)
    assert own_ids.tolist() == [4, 5, 6, 1, 4]
    assert own_targets.tolist() == [IGNORED, IGNORED, 1, 4, 5]
    assert seen.tolist() == ids.tolist()
    assert cut.tolist() == [1, 8, IGNORED, IGNORED, IGNORED]
    shorter = same_text(torch.tensor([1, 2, 0, 0]), torch.tensor([2, IGNORED, IGNORED, IGNORED]), {3: [1, 1]})
    assert [row.tolist() for row in shorter[:2]] == [[1, 2, 0, 0], [2, IGNORED, IGNORED, IGNORED]]
    assert shorter[3].tolist() == [2, IGNORED, IGNORED, IGNORED]


@pytest.mark.parametrize(
    ("family", "runtime"),
    [
        ("llama", {"engine": "fsdp", "processes": 2, "micro_batch": 2}),
        pytest.param("phi", {"engine": "fsdp", "processes": 2, "micro_batch": 2}, marks=pytest.mark.soak),
        pytest.param("llama", {"engine": "deepspeed", "zero_stage": 3}, marks=pytest.mark.soak),
        pytest.param("mistral", {"tensor_parallel": 2, "processes": 2}, marks=pytest.mark.soak),
        pytest.param("mistral", {"pipeline_parallel": 2, "processes": 2, "micro_batch": 2}, marks=pytest.mark.soak),
    ],
)
def test_every_engine_begins_with_the_same_rows(
    family: str, runtime: dict[str, Any], folder: Path, tmp_path: Path, alone: Callable[[str], Output]
) -> None:
    out = trained(folder, tmp_path, family, **runtime)
    assert losses_of(out) == pytest.approx(losses_of(alone(family)), abs=1e-4)
    name = next(name for name in out.counts if name.startswith("held_out_bits_per_"))
    for source, measured in alone(family).counts[name].items():
        assert out.counts[name][source]["before"] == pytest.approx(measured["before"], abs=1e-4)


def test_a_killed_run_resumes_to_the_same_model(
    folder: Path, tmp_path: Path, alone: Callable[[str], Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = alone("llama")
    monkeypatch.setenv("GRISTMILL_FAULTS", "kill@8")
    again = trained(folder, tmp_path, "llama")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (again.path / "model" / name).read_bytes() == (whole.path / "model" / name).read_bytes()
    name = next(name for name in whole.counts if name.startswith("held_out_bits_per_"))
    assert again.counts[name] == whole.counts[name]


def test_an_adapter_over_new_tokens_is_merged_and_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't be laid over the base, which lacks the rows."""
    settings = {"adapter": {"rank": 4, "alpha": 8}, "steps": 4, "warmup_steps": 1, "validation_every": 4}
    config = PretrainConfig.model_validate({**SETTINGS, **settings})
    notes: list[str] = []
    monkeypatch.setattr(Output, "note", lambda self, message: notes.append(message))
    out, base = output(tmp_path, engine="ddp"), base_of(folder, "llama")
    pretrain.function(config, *extended(folder), base, out)
    assert not (out.path / "adapter").exists()
    assert any(note.startswith("there is no adapter/: the base lacks the new tokens") for note in notes)
    assert out.counts["merged_logit_difference"] < 1e-4
    merged, before = (load_pretrained(one).state_dict() for one in (out.path / "model", base.path))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(merged[name], before[name])
    rows = before["model.embed_tokens.weight"]
    assert torch.equal(merged["model.embed_tokens.weight"][: len(rows)], rows)


@pytest.mark.soak
def test_a_release_with_new_tokens_is_opened_by_transformers_and_llama_cpp(
    folder: Path, tmp_path: Path, alone: Callable[[str], Output]
) -> None:
    model, (tokens, tokenizer) = alone("llama").path / "model", extended(folder)
    config = ExportConfig(formats=["safetensors", "gguf-f32"], prompts=["The fox"], greedy_tokens=4, positions=64)
    out = Output.at(tmp_path, stage="export", runtime=RUNTIME)
    export.function(config, Artifact.at(model), None, tokens.part("validation"), {}, None, out)  # proves both
    file = next(out.path.rglob("*.gguf"))
    ours, pieces = TransformersRuntime(model), new_tokens(base_of(folder, "llama").path, tokenizer.path)
    seen: set[int] = set()
    with LlamaCppRuntime(file) as theirs:
        for text in (*HOSTILE, "Myocarditis, the myocardium's infarction"):
            ids = load_tokenizer(model)(text)["input_ids"]
            assert theirs.tokenize(text) == ids
            seen |= {*ids} & pieces.keys()
            ids = ids[:60]  # of a context of 64
            assert theirs.log_probabilities(ids) == pytest.approx(
                ours.log_probabilities(ids), abs=0.03
            )  # its KV cache: 16 bits
    assert len(seen) > 3


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    base, (_, tokenizer) = base_of(folder, "llama"), extended(folder)
    with pytest.raises(TokenizerMismatch, match="can't be trained with this base"):
        add_rows(tokenizer.path, base.path, tmp_path / "made")
    lacking = shutil.copytree(base.path, tmp_path / "base")
    weights = load_file(lacking / "model.safetensors")
    del weights["model.embed_tokens.weight"]
    save_file(weights, lacking / "model.safetensors", {"format": "pt"})
    with pytest.raises(SourceError, match="isn't a row for each token"):
        check_rows(tmp_path / "base")
