"""GGUF of every architecture that is written: llama.cpp computes what transformers does, with ids of its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from models.pretrained import StoredWeights
from models.runtimes.transformers import TransformersRuntime
from storage.errors import ConfigError
from tasks.export.config import ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.formats.gguf.kinds import KINDS
from tasks.export.formats.gguf.vocabulary import SPACE
from tasks.export.formats.source import Source
from tasks.export.proof.judge import require
from tasks.export.proof.reference import Reference, hostile_texts
from tasks.export.run import prove
from tasks.export.tolerance import HALF
from tasks.tokenizer.patterns import OTHERS, gguf_pre_tokenizer
from tests.conftest import DATA
from tests.tasks.foreign import make_foreign, make_foreign_tokenizer
from tests.tasks.tiny_model import texts

SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 16}
YARN_SET = {**YARN, "attention_factor": 1.6, "beta_fast": 32.0, "beta_slow": 1.0}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
WINDOW, WHOLE = "sliding_attention", "full_attention"
GEMMA_3_4B = {WINDOW: {"rope_type": "default", "rope_theta": 10_000.0}, WHOLE: {**LINEAR, "rope_theta": 1_000_000.0}}


def split_as(name: str) -> Any:
    """A tokenizer that splits as Qwen 2 or Llama 3 do, by their own regular expressions."""
    from tokenizers import Regex, normalizers
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    tokenizer = make_foreign_tokenizer()
    steps = [Split(Regex(OTHERS[name]), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(steps)
    if name == "qwen2":
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def sentence_pieces(pieces: list[str], *, space_before: bool = True, template: str | None = None) -> Any:
    """A tokenizer as transformers converts a SentencePiece model: every split of a piece is a merge."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [
        (piece[:at], piece[at:])
        for piece in pieces
        for at in range(1, len(piece))
        if piece[:at] in vocabulary and piece[at:] in vocabulary and not piece.startswith("<")
    ]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if space_before else spaces
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>",
        chat_template=template or make_foreign_tokenizer().chat_template,
    )


def made_pieces() -> list[str]:
    """A small vocabulary in the manner of SentencePiece: control tokens, bytes, then pieces by how often they occur."""
    from collections import Counter

    words = [SPACE + word for text in texts() for word in text.split()]
    found = Counter(
        word[start:end] for word in words for start in range(len(word)) for end in range(start + 2, len(word) + 1)
    )
    letters = sorted({letter for word in words for letter in word})
    made = [piece for piece, count in sorted(found.items(), key=lambda item: (len(item[0]), item[0])) if count > 30]
    return ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *made, *letters]


def reference(model: Path, scratch: Path) -> Reference:
    ids = np.random.default_rng(0).integers(3, 300, (4, 60))
    windows = tuple(tuple(row) for row in ids.tolist())
    return Reference(model, windows, ExportConfig(prompts=["The fox"], greedy_tokens=8), scratch)


MIXTURE: dict[str, Any] = {
    "head_dim": 32,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, another head": {"head_dim": 32},
    "llama 3": {"rope_parameters": SCALED},
    "llama, positions stretched": {"rope_parameters": LINEAR},
    "llama, untied": {"tie_word_embeddings": False},
    "llama, yarn": {"rope_parameters": YARN},
    "llama, yarn as it is set": {"rope_parameters": YARN_SET},
    "mistral, yarn": {"rope_parameters": YARN, "sliding_window": None},
    "qwen2, yarn": {"rope_parameters": YARN_SET},
    "qwen3, yarn": {"rope_parameters": YARN_SET, "head_dim": 32},
    "qwen3, positions stretched": {"rope_parameters": LINEAR, "head_dim": 32},
    "mistral": {"sliding_window": None},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": MIXTURE,
    "gemma": {},
    "gemma3_text": {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 8, "layer_types": [WINDOW, WHOLE]},
    "gemma3_text, pieces": {"sliding_window": 8, "rope_parameters": GEMMA_3_4B, "layer_types": [WINDOW, WHOLE]},
    "olmo3": {"sliding_window": 8, "layer_types": [WINDOW, WHOLE], "tie_word_embeddings": False},
    "gpt2": {},
}


@pytest.mark.soak_but("llama", "llama, yarn as it is set", "gemma", "gemma3_text", "olmo3", "gpt2", "qwen3_moe")
@pytest.mark.parametrize("named", ARCHITECTURES)
def test_llama_cpp_computes_what_transformers_does(named: str, tmp_path: Path) -> None:
    architecture = named.split(",")[0].split(" ")[0]
    qwen = architecture.startswith("qwen")
    tokenizer = {
        named if qwen else "": lambda: split_as("qwen2"),
        "llama 3": lambda: split_as("llama-bpe"),
        "gemma": lambda: sentence_pieces(made_pieces(), space_before=False),
        "gemma3_text, pieces": lambda: sentence_pieces(made_pieces(), space_before=False),
    }.get(named)
    changes: dict[str, Any] = {"initializer_range": 0.15, **ARCHITECTURES[named]}
    model = make_foreign(tmp_path / "model", architecture, tokenizer and tokenizer(), **changes)
    FORMATS["gguf-f32"].write(Source(model), tmp_path)
    weights, parity, _ = prove(reference(model, tmp_path / "scratch"), "gguf-f32", tmp_path, 1)
    require("gguf-f32", parity, weights, HALF)
    assert parity.mean_divergence < 1e-5
    stored = {name for name in StoredWeights(model) if name != "lm_head.weight"}
    assert {name for name, _ in FORMATS["gguf-f32"].weights(model, tmp_path)} >= stored
    assert weights.row.error < 1e-6


@pytest.mark.parametrize(
    ("architecture", "changes", "why"),
    [
        ("gpt_neox", {}, "gpt_neox isn't among llama, mistral, qwen2"),
        ("llama", {"attention_bias": True}, "its projections have biases"),
        ("llama", {"hidden_act": "gelu"}, "its activation is gelu"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "scaled by dynamic"),
        ("qwen3", {"rope_parameters": SCALED}, "scaled by llama3, which llama.cpp doesn't do in a qwen3"),
        ("llama", {"rope_parameters": {**YARN, "truncate": False}}, "scaled by yarn with truncate False, which"),
        ("qwen3", {"rope_parameters": {**YARN, "beta_fast": 8.0}}, "beta_fast of its yarn is 8.0, and llama.cpp"),
        ("mistral", {"rope_parameters": {**YARN, "beta_slow": 2.0}, "sliding_window": None}, "beta_slow of its yarn"),
        ("mistral", {"sliding_window": 16}, r"a sliding window \(16\)"),
        ("qwen3_moe", {**MIXTURE, "norm_topk_prob": False}, "its norm_topk_prob is False, and qwen3moe has True"),
        ("qwen3_moe", {**MIXTURE, "decoder_sparse_step": 2}, "its decoder_sparse_step is 2"),
        ("qwen3_moe", {**MIXTURE, "mlp_only_layers": [1]}, r"its mlp_only_layers is \[1\]"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "it has final_logit_softcapping"),
        ("gemma3_text", {"query_pre_attn_scalar": 7}, "query_pre_attn_scalar is 7, and llama.cpp has 256"),
        ("gemma3_text", {"num_hidden_layers": 3, "layer_types": [WHOLE, WINDOW, WHOLE]}, "follow no regular pattern"),
        ("gemma3_text", {"rope_parameters": {WINDOW: LINEAR}}, "local rotary positions"),
        ("olmo3", {"tie_word_embeddings": True}, "olmo2 has one of its own"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(
    architecture: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    model = make_foreign(tmp_path / "model", architecture, **changes)
    with pytest.raises(ConfigError, match=why):
        FORMATS["gguf-f16"].check(model)


@pytest.mark.parametrize("name", ["gguf-q4_0", "gguf-adapter"])
def test_a_tensor_without_a_name_is_refused_before_there_are_weights(name: str, tmp_path: Path) -> None:
    pieces = sentence_pieces(made_pieces(), space_before=False)
    model = make_foreign(tmp_path / "model", "gemma", pieces, tie_word_embeddings=False)
    (model / "model.safetensors").unlink()  # the config says enough
    with pytest.raises(ConfigError, match=r"doesn't know the tensor lm_head\.weight"):
        FORMATS[name].check(model)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("q2_k", "14 of 15 matrices in iq4_nl, 1 in q8_0, as the widths 64 and 128 aren't multiples of 256"),
        ("iq4_nl", "1 of 15 matrices in q8_0, as the width 64 isn't a multiple of 256"),
        ("q8_0", None),
    ],
)
def test_types_that_stand_in_are_said(kind: str, said: str | None, tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", "llama")
    assert FORMATS[f"gguf-{kind}"].remark(model) == said
    FORMATS[f"gguf-{kind}"].write(Source(model), tmp_path)
    tensors = GGUFReader(FORMATS[f"gguf-{kind}"].path(tmp_path)).tensors
    types = Counter(tensor.tensor_type.name.lower() for tensor in tensors if len(tensor.shape) == 2)
    assert said is None or all(
        f"{count} in {one}" in said.replace(" of 15 matrices", "") for one, count in types.items() if one != kind
    )


def test_no_type_stands_in_where_blocks_divide_rows(tmp_path: Path) -> None:
    whole = make_foreign(tmp_path / "whole", "llama", hidden_size=256, intermediate_size=512)
    assert all(FORMATS[f"gguf-{kind}"].remark(whole) is None for kind in KINDS)
    odd = make_foreign(tmp_path / "odd", "gpt2", hidden_size=48)
    assert str(FORMATS["gguf-iq4_nl"].remark(odd)).endswith("in f16, as the width 48 isn't a multiple of 32")


def test_a_split_that_llama_cpp_does_not_know_is_refused(tmp_path: Path) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer = make_foreign_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(), ByteLevel(add_prefix_space=False)])
    with pytest.raises(ConfigError, match="doesn't know this tokenizer's split pattern"):
        FORMATS["gguf-f16"].check(make_foreign(tmp_path / "model", "llama", tokenizer))


def test_merges_that_no_score_says_are_refused(tmp_path: Path) -> None:
    model = make_foreign(tmp_path / "model", "llama", sentence_pieces(made_pieces()))
    FORMATS["gguf-f16"].check(model)
    settings = json.loads((model / "tokenizer.json").read_text())
    merges = settings["model"]["merges"]
    made = ["".join(pair) for pair in merges]
    several = next(number for number, piece in enumerate(made) if made.count(piece) > 1)
    merges.append(merges.pop(several))
    (model / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="at different ranks"):
        FORMATS["gguf-f16"].check(model)


def test_the_vocabulary_of_llama_2_is_written_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    file = DATA / "models" / "tokenizers" / "llama2" / "tokenizer.model"
    if not file.exists():
        pytest.skip(f"needs {file.name} of LLaMA 2")
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(file))
    tokenizer = sentence_pieces([model.id_to_piece(number) for number in range(model.vocab_size())])
    folder = make_foreign(tmp_path / "model", "llama", tokenizer, hidden_size=32, intermediate_size=32)
    FORMATS["gguf-f16"].write(Source(folder), tmp_path)
    runtime, ours = FORMATS["gguf-f16"].open(tmp_path, 1), TransformersRuntime(folder)
    for text in [*hostile_texts(folder), *texts()]:
        if "\x00" not in text:
            assert runtime.tokenize(text) == ours.tokenize(text), text[:50]
            assert runtime.tokenize(text) == model.encode(text, out_type=int) or "  " in text or SPACE in text
    runtime.close()


@pytest.mark.soak_but("llama-q8_0", "llama-q4_k_m")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_every_kind_is_read_back_as_it_was_written(architecture: str, kind: str, tmp_path: Path) -> None:
    """Matrices of 256 columns take the type itself, and llama.cpp opens what was written."""
    tokenizer, changes = None, dict[str, Any]()
    if architecture == "qwen3_moe":
        tokenizer, changes = split_as("qwen2"), {**MIXTURE, "num_experts": 4, "moe_intermediate_size": 256}
    sizes = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.05, "num_hidden_layers": 4}
    model = make_foreign(tmp_path / "model", architecture, tokenizer, **sizes, **changes)
    calibration = tuple(tuple(row) for row in np.random.default_rng(1).integers(3, 300, (4, 60)).tolist())
    name = f"gguf-{kind}"
    FORMATS[name].write(Source(model, calibration, name="tiny", licence="apache-2.0"), tmp_path)
    from gguf import GGUFReader

    read = GGUFReader(FORMATS[name].path(tmp_path))
    fields = {key: read.fields[key].contents() for key in ("general.name", "general.license", "general.size_label")}
    assert fields.pop("general.size_label") == "2.5M" or architecture != "llama"
    assert fields == {"general.name": "tiny", "general.license": "apache-2.0"}
    types = {tensor.name: tensor.tensor_type.name for tensor in read.tensors}
    assert types["blk.0.attn_q.weight"] == KINDS[kind].type  # type: ignore[index]
    assert types.get("blk.0.ffn_gate_exps.weight", KINDS[kind].type) == KINDS[kind].type  # type: ignore[index]
    assert types.get("blk.0.ffn_gate_inp.weight", "F32") == "F32"
    assert types["token_embd.weight"] == (KINDS[kind].output or KINDS[kind].type)  # type: ignore[index]
    weights, parity, _ = prove(reference(model, tmp_path / "scratch"), name, tmp_path, 1)
    require(name, parity, weights, FORMATS[name].tolerance)


def test_importance_spares_the_columns_that_matter(tmp_path: Path) -> None:
    from tasks.export.formats.gguf.quantize import dequantize, quantize

    draw = np.random.default_rng(0)
    values = draw.normal(size=(64, 256)).astype(np.float32)
    inputs = np.where(np.arange(256) % 32 < 4, 100.0, 0.01).astype(np.float32)
    plain, weighed = (dequantize(quantize(values, "Q4_K", given), "Q4_K") - values for given in (None, inputs))
    assert (weighed**2 * inputs).sum() < 0.8 * (plain**2 * inputs).sum()


def test_a_split_of_others_is_read_from_a_gguf_file_too() -> None:
    splits = gguf_pre_tokenizer("qwen2")
    assert splits is not None
    assert [piece for piece, _ in splits.pre_tokenize_str("I'M 123 ok")] == ["I", "'M", "Ġ", "1", "2", "3", "Ġok"]
