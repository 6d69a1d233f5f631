"""Kinds of GGUF file, by the types of their matrices, as llama.cpp's own tool names and mixes them.

A k-quant has blocks of 256 weights that contain scales for blocks of 32, an IQ type a codebook (Gerganov, Kawrakow et
al., llama.cpp). A mix keeps the most sensitive matrices at more bits: the values of attention and the last matrix of
the feed-forward network, in the first and last eighth of the layers and every third between, and the output layer. If
a block doesn't divide the rows, a type with blocks of 32 stands in, or float16 if 32 doesn't divide them either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tasks.export.tolerance import EIGHT_BIT, FOUR_BIT, HALF, SIX_BIT, THREE_BIT, TWO_BIT, Tolerance

GgufKind = Literal[
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q4_k_m",
    "q4_k_s",
    "q4_0",
    "iq4_xs",
    "iq4_nl",
    "q3_k_m",
    "iq3_s",
    "iq3_xxs",
    "q2_k",
]
Rows = Literal["all", "more", "first_eighth", "first_sixteenth"]  # the layers that a rule applies to

# The type that takes another's place if 256 doesn't divide a row, as in llama.cpp
SMALLER_BLOCKS = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "IQ3_S": "IQ4_NL",
    "IQ3_XXS": "IQ4_NL",
    "IQ4_XS": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}


@dataclass(frozen=True)
class Kind:
    """The type of most matrices by the names of `gguf`, that of the output layer, and those of the matrices that
    differ, by the first rule that applies."""

    type: str
    tolerance: Tolerance
    output: str = ""
    mixed: Mapping[str, tuple[tuple[Rows, str], ...]] = field(default_factory=dict)
    chat_rank: int = 9
    usual: bool = False

    def of(self, name: str, layer: int, layers: int) -> str:
        """The type of a matrix of a layer, by its name in a block, such as `attn_v`."""
        return next((kind for rows, kind in self.mixed.get(name, ()) if _holds(rows, layer, layers)), self.type)


def _holds(rows: Rows, layer: int, layers: int) -> bool:
    if rows == "all":
        return True
    if rows == "more":
        eighth = layers // 8
        return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return layer < layers // (8 if rows == "first_eighth" else 16)


KINDS: Mapping[GgufKind, Kind] = {
    # llama.cpp rounds inside its kernels, so float32 is no closer than float16
    "f32": Kind("F32", HALF, chat_rank=2),
    "f16": Kind("F16", HALF, chat_rank=0, usual=True),
    "bf16": Kind("BF16", EIGHT_BIT, chat_rank=3),
    "q8_0": Kind("Q8_0", EIGHT_BIT, chat_rank=1, usual=True),
    "q6_k": Kind("Q6_K", SIX_BIT, "Q6_K", chat_rank=4),
    "q5_k_m": Kind("Q5_K", FOUR_BIT, "Q6_K", {
        "attn_v": (("more", "Q6_K"),), "ffn_down": (("more", "Q6_K"),), "attn_qkv": (("all", "Q6_K"),),
    }, chat_rank=5),
    "q4_k_m": Kind("Q4_K", FOUR_BIT, "Q6_K", {
        "attn_v": (("more", "Q6_K"),), "ffn_down": (("more", "Q6_K"),), "attn_qkv": (("all", "Q5_K"),),
    }, chat_rank=6, usual=True),
    "q4_k_s": Kind("Q4_K", FOUR_BIT, "Q6_K", {
        "attn_v": (("first_eighth", "Q5_K"),), "ffn_down": (("first_eighth", "Q5_K"),),
    }, chat_rank=7),
    "q4_0": Kind("Q4_0", FOUR_BIT, "Q8_0", chat_rank=9, usual=True),
    "iq4_xs": Kind("IQ4_XS", FOUR_BIT, "Q6_K", {"ffn_down": (("first_eighth", "Q5_K"),)}, chat_rank=8),
    "iq4_nl": Kind("IQ4_NL", FOUR_BIT, "Q6_K", {"ffn_down": (("first_eighth", "Q5_K"),)}, chat_rank=8),
    "q3_k_m": Kind("Q3_K", THREE_BIT, "Q6_K", {
        "attn_v": (("first_eighth", "Q5_K"), ("all", "Q4_K")),
        "ffn_down": (("first_sixteenth", "Q5_K"), ("all", "Q4_K")),
        "attn_output": (("all", "Q4_K"),), "attn_qkv": (("all", "Q4_K"),),
    }, chat_rank=10),
    "iq3_s": Kind("IQ3_S", THREE_BIT, "Q6_K", {"attn_v": (("all", "Q4_K"),)}, chat_rank=11),
    "iq3_xxs": Kind("IQ3_XXS", THREE_BIT, "Q6_K", {
        "attn_v": (("all", "Q4_K"),), "ffn_down": (("first_eighth", "Q4_K"), ("all", "Q3_K")),
    }, chat_rank=12),
    "q2_k": Kind("Q2_K", TWO_BIT, "Q6_K", {
        "attn_v": (("all", "Q3_K"),), "ffn_down": (("all", "Q3_K"),), "attn_output": (("all", "Q3_K"),),
    }, chat_rank=13),
}  # fmt: skip
FILE_TYPES = {kind: "ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}" for kind in KINDS}
