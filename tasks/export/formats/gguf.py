"""GGUF, the file that llama.cpp and its kin read, written with the `gguf` package.

llama.cpp's converter scripts refuse a vocabulary that they don't know; ours is a byte-level BPE with a pre-tokenizer
that llama.cpp knows by name, so the file is written here, as is that of a base model which our decoder carries whole
and whose tokenizer is such a one. Two conventions differ from transformers: rotary pairs are
neighbours and not halves (queries and keys are permuted), and the chat template must not hold `generation` tags, which
only training needs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from models.conversation import special_ids, turn_end
from models.presets import ModelShape
from models.tokenizer import FIM_TOKENS, load_tokenizer
from storage.errors import ConfigError
from storage.shards.arrays import AnyArray, Float32
from tasks.export.formats.format import Format
from tasks.export.tolerance import EIGHT_BIT, FOUR_BIT, HALF, Tolerance
from tasks.tokenizer.patterns import gguf_name_of

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

    from models.runtimes.protocol import ModelRuntime
    from models.transformer import Transformer

GgufType = Literal["f32", "f16", "q8_0", "q4_0"]

# llama.cpp rounds inside its kernels, so float32 is no closer than float16
_TOLERANCES: dict[GgufType, Tolerance] = {"f32": HALF, "f16": HALF, "q8_0": EIGHT_BIT, "q4_0": FOUR_BIT}
_CHAT_RANKS: dict[GgufType, int] = {"f16": 0, "q8_0": 1, "f32": 2, "q4_0": 3}

_GPT2_BLOCK = {
    "attention_norm": "attn_norm",
    "attention.qkv": "attn_qkv",
    "attention.output": "attn_output",
    "feed_forward_norm": "ffn_norm",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}


@dataclass(frozen=True)
class Gguf(Format):
    """One GGUF file whose matrices are of this type."""

    kind: GgufType

    @property
    def tolerance(self) -> Tolerance:
        return _TOLERANCES[self.kind]

    @property
    def usual(self) -> bool:
        return self.kind != "f32"

    @property
    def chat_rank(self) -> int:
        return _CHAT_RANKS[self.kind]

    @property
    def loading(self) -> str:
        return f"`llama-cli -m gguf/model-{self.kind}.gguf`"

    def path(self, release: Path) -> Path:
        return release / "gguf" / f"model-{self.kind}.gguf"

    def check(self, model: Path) -> None:
        from models.convert import NotCarriedError, shape_of
        from models.pretrained import load_config

        try:
            shape = shape_of(load_config(model))
        except NotCarriedError as error:
            raise ConfigError(
                f"No GGUF file can be written of this model: {error}.", "Leave gguf out of export.formats."
            ) from error
        _check_window(shape)
        _check_pre_tokenizer(_tokenizer_settings(model))

    def write(self, model: Path, release: Path) -> None:
        from models.convert import load

        self.check(model)
        path = self.path(release)
        path.parent.mkdir(exist_ok=True)
        write_gguf(load(model), model, path, self.kind)

    def open(self, release: Path, threads: int) -> ModelRuntime:
        from models.runtimes.llama_cpp import LlamaCppRuntime

        return LlamaCppRuntime(self.path(release), threads=threads)


def write_gguf(model: Transformer, tokenizer_folder: Path, path: Path, kind: GgufType) -> None:
    """Write one file. In `q4_0` the embedding, which is also the output layer, stays at 8 bits.

    Raises ConfigError for a model that llama.cpp would compute differently.
    """
    from gguf import GGUFWriter

    shape = model.shape
    _check_window(shape)
    writer = GGUFWriter(path, "gpt2" if shape.family == "gpt2" else "llama")
    _write_shape(writer, shape)
    _write_tokenizer(writer, tokenizer_folder, shape.vocab_size)
    for name, weights in _tensors(model).items():
        chosen = _type_of(name, weights, kind)
        writer.add_tensor(name, _quantize(weights, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def plain_template(folder: Path) -> str:
    """The chat template as a runtime takes it: without the tags that tell training which tokens bear loss."""
    text = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}\n?", "", text)


def _write_shape(writer: GGUFWriter, shape: ModelShape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.depth)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_vocab_size(shape.vocab_size)
    if shape.family == "gpt2":
        writer.add_layer_norm_eps(shape.norm_eps)
        return
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_dimension_count(shape.head_dim)
    assert shape.rope_theta is not None
    writer.add_rope_freq_base(shape.rope_theta)


def _write_tokenizer(writer: GGUFWriter, folder: Path, rows: int) -> None:
    """The vocabulary with as many entries as the embedding has rows: llama.cpp refuses a difference."""
    from gguf import Keys, TokenType

    settings = _tokenizer_settings(folder)
    pre = _check_pre_tokenizer(settings)
    tokenizer = load_tokenizer(folder)
    ids, special = tokenizer.get_vocab(), special_ids(tokenizer)
    names = {number: token for token, number in ids.items()}
    kinds = {number: TokenType.CONTROL if number in special else TokenType.NORMAL for number in names}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([names.get(number, f"<|unused {number}|>") for number in range(rows)])
    writer.add_token_types([kinds.get(number, TokenType.UNUSED) for number in range(rows)])
    merges = settings["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    eos, end = tokenizer.eos_token_id, turn_end(tokenizer)
    writer.add_bos_token_id(eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    writer.add_eos_token_id(eos)
    writer.add_eot_token_id(eos if end is None else end)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    fim_keys = (Keys.Tokenizer.FIM_PRE_ID, Keys.Tokenizer.FIM_SUF_ID, Keys.Tokenizer.FIM_MID_ID)
    for key, token in zip(fim_keys, FIM_TOKENS, strict=True):  # the writer has no method of its own for these
        if token in ids:
            writer.add_uint32(key, ids[token])
    writer.add_add_bos_token(False)
    writer.add_chat_template(plain_template(folder))


def _check_window(shape: ModelShape) -> None:
    if shape.sliding_window is not None and shape.sliding_window < shape.context:
        raise ConfigError(
            f"llama.cpp has no sliding window of {shape.sliding_window} for this architecture.",
            "Leave gguf out of export.formats, or make pretrain.model.sliding_window the context.",
        )


def _tokenizer_settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return settings


def _check_pre_tokenizer(settings: dict[str, Any]) -> str:
    """llama.cpp's name for how a parsed tokenizer.json splits text: one of our patterns, or that of SmolLM. Raises
    ConfigError where llama.cpp would do otherwise, as with a normalizer."""
    plain = settings.get("normalizer") is None and settings["model"].get("type") == "BPE"
    pre = gguf_name_of(settings) if plain else None
    if pre is None:
        raise ConfigError(
            "llama.cpp has no name for this tokenizer's split pattern.",
            "Leave gguf out of export.formats, or train a tokenizer with a tokenizer.pattern.",
        )
    return pre


def _tensors(model: Transformer) -> dict[str, Float32]:
    """Every tensor under llama.cpp's name, in float32."""
    shape = model.shape
    ours = {name: value.detach().float().cpu().numpy() for name, value in model.state_dict().items()}
    tensors = {"token_embd.weight": ours["embedding.weight"]}
    if not shape.tie_embeddings:
        tensors["output.weight"] = ours["head.weight"]
    if shape.family == "gpt2":
        tensors["position_embd.weight"] = ours["positions.weight"]
    for kind in ("weight", "bias") if shape.family == "gpt2" else ("weight",):
        tensors[f"output_norm.{kind}"] = ours[f"norm.{kind}"]
        for layer in range(shape.depth):
            block = {name: ours[f"blocks.{layer}.{name}.{kind}"] for name in _GPT2_BLOCK}
            named = _gpt2_block(block) if shape.family == "gpt2" else _llama_block(block, shape)
            tensors |= {f"blk.{layer}.{name}.{kind}": value for name, value in named.items()}
    return tensors


def _gpt2_block(block: dict[str, Float32]) -> dict[str, Float32]:
    return {_GPT2_BLOCK[name]: value for name, value in block.items()}


def _llama_block(block: dict[str, Float32], shape: ModelShape) -> dict[str, Float32]:
    heads, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    q, k, v = np.split(block["attention.qkv"], [heads, heads + shared])
    gate, up = np.split(block["feed_forward.up"], 2)
    return {
        "attn_norm": block["attention_norm"],
        "attn_q": _pair_neighbours(q, shape.heads),
        "attn_k": _pair_neighbours(k, shape.kv_heads),
        "attn_v": v,
        "attn_output": block["attention.output"],
        "ffn_norm": block["feed_forward_norm"],
        "ffn_gate": gate,
        "ffn_up": up,
        "ffn_down": block["feed_forward.down"],
    }


def _pair_neighbours(weights: Float32, heads: int) -> Float32:
    """Rows of each head from (first half, second half) to pairs of neighbours."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _type_of(name: str, weights: Float32, kind: GgufType) -> GGMLQuantizationType:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if weights.ndim < 2 or name == "position_embd.weight":
        return GGMLQuantizationType.F32
    wanted = "q8_0" if kind == "q4_0" and name in ("token_embd.weight", "output.weight") else kind
    chosen = GGMLQuantizationType[wanted.upper()]
    block, _ = GGML_QUANT_SIZES[chosen]
    return chosen if weights.shape[-1] % block == 0 else GGMLQuantizationType.F16


def _quantize(weights: Float32, chosen: GGMLQuantizationType) -> AnyArray:
    from gguf.quants import quantize

    return quantize(np.ascontiguousarray(weights), chosen)
