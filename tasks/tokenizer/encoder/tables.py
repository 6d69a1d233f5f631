"""A tokenizer.json as the kernels take it: merges in a table, and the id of each byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.tokenizer import EOS
from storage.arrays import UInt32, UInt64
from tasks.tokenizer.encoder import kernels
from tasks.tokenizer.patterns import PatternName, pattern_of

PLAIN = {  # of the model: what the kernels know nothing of
    "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
    "byte_fallback": False, "ignore_merges": False,
}  # fmt: skip


class Tables(NamedTuple):
    """Read only, for any number of threads. `symbols` are the ids of the 256 bytes, `pairs` see `fill_pairs`."""

    pattern: PatternName
    symbols: UInt32
    pairs: UInt64
    eos_id: int
    vocab_size: int


def read_settings(folder: Path) -> dict[str, Any]:
    """The tokenizer.json of a folder."""
    settings: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return settings


def obstacle(settings: dict[str, Any]) -> str:
    """Why the kernels can't encode by this tokenizer.json, as the end of a sentence; empty when they can."""
    model = settings["model"]
    if model["type"] != "BPE" or any((model.get(name) or plain) != plain for name, plain in PLAIN.items()):
        return "is no plain byte-level BPE"
    if any(symbol not in model["vocab"] for symbol in byte_symbols()):
        return "has no token for some byte"
    if any(settings.get(step) for step in ("normalizer", "post_processor", "truncation", "padding")):
        return "changes the text before or the ids after"
    if any(not token["special"] for token in settings["added_tokens"]):
        return "has added tokens that are text"
    return "" if pattern_of(settings) else "cuts text by a pattern that is not ours"


def make_tables(settings: dict[str, Any]) -> Tables:
    """The tables of a tokenizer.json that has no `obstacle`."""
    pattern = pattern_of(settings)
    assert pattern is not None
    vocabulary = settings["model"]["vocab"]
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in settings["model"]["merges"]]
    left, right, joined = (
        np.array([vocabulary[name] for name in names], np.uint32)
        for names in (
            [pair[0] for pair in merges], [pair[1] for pair in merges], ["".join(pair) for pair in merges],
        )
    )  # fmt: skip
    pairs = np.empty((1 << max(4, (4 * len(merges)).bit_length()), 2), np.uint64)
    kernels.fill_pairs(left, right, joined, pairs)
    symbols = np.array([vocabulary[symbol] for symbol in byte_symbols()], np.uint32)
    names = vocabulary.keys() | {token["content"] for token in settings["added_tokens"]}
    return Tables(pattern, symbols, pairs, vocabulary[EOS], len(names))


def byte_symbols() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    symbols = {byte: chr(byte) for byte in visible}
    symbols |= {byte: chr(0x100 + number) for number, byte in enumerate(others)}
    return [symbols[byte] for byte in range(256)]
