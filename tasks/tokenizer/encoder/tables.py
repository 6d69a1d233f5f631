"""A tokenizer.json as tables for the kernels: the merges, and the id of each byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.tokenizer import EOS
from storage.shards.arrays import UInt32, UInt64
from storage.shards.lines import parse_json
from tasks.tokenizer.bpe.alphabet import BYTE_SYMBOLS
from tasks.tokenizer.encoder import kernels
from tasks.tokenizer.patterns import PatternName, pattern_of

PLAIN = {  # settings of the model for which the kernels support only these values
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "byte_fallback": False,
    "ignore_merges": False,
}


class Tables(NamedTuple):
    """Read-only, for any number of threads. `symbols` are the ids of the 256 bytes; for `pairs` see
    `kernels.fill_pairs`."""

    pattern: PatternName
    symbols: UInt32
    pairs: UInt64
    eos_id: int
    vocab_size: int


def read_settings(folder: Path) -> dict[str, Any]:
    """The parsed tokenizer.json of a folder."""
    settings: dict[str, Any] = parse_json((folder / "tokenizer.json").read_bytes())
    return settings


def obstacle(settings: dict[str, Any]) -> str:
    """Why the kernels don't support this tokenizer.json, as the end of a sentence. Empty if they do."""
    model = settings["model"]
    if model["type"] != "BPE" or any((model.get(name) or plain) != plain for name, plain in PLAIN.items()):
        return "is not plain byte-level BPE"
    if EOS not in model["vocab"]:
        return f"lacks {EOS}"
    if any(symbol not in model["vocab"] for symbol in BYTE_SYMBOLS):
        return "has no token for some byte"
    if any(settings.get(step) for step in ("normalizer", "truncation", "padding")) or _adds_tokens(settings):
        return "normalises the text or post-processes the ids"
    if any(not token["special"] for token in settings["added_tokens"]):
        return "has added tokens that are not special"
    return "" if pattern_of(settings) else "has an unknown pre-tokenizer pattern"


def _adds_tokens(settings: dict[str, Any]) -> bool:
    """Whether the post-processor changes ids. A template of just the text, as transformers writes it for a tokenizer
    without BOS, doesn't, and a byte-level one only moves offsets."""
    step = settings.get("post_processor") or {"type": "ByteLevel"}
    if step["type"] == "TemplateProcessing":
        return any("Sequence" not in piece for piece in step.get("single", [{}]))
    return bool(step["type"] != "ByteLevel")


def make_tables(settings: dict[str, Any]) -> Tables:
    """The tables of a tokenizer.json without an `obstacle`."""
    pattern = pattern_of(settings)
    assert pattern is not None
    vocabulary = settings["model"]["vocab"]
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in settings["model"]["merges"]]
    left, right, joined = (
        np.array([vocabulary[name] for name in names], np.uint32)
        for names in ([pair[0] for pair in merges], [pair[1] for pair in merges], ["".join(pair) for pair in merges])
    )
    pairs = np.empty((1 << max(4, (4 * len(merges)).bit_length()), 2), np.uint64)
    kernels.fill_pairs(left, right, joined, pairs)
    symbols = np.array([vocabulary[symbol] for symbol in BYTE_SYMBOLS], np.uint32)
    ids = [*vocabulary.values(), *(token["id"] for token in settings["added_tokens"])]
    return Tables(pattern, symbols, pairs, vocabulary[EOS], max(ids) + 1)
