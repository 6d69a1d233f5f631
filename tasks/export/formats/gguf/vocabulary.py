"""The vocabulary as llama.cpp reads it: a byte-level BPE with a pre-tokenizer that it knows by name, or the BPE of a
SentencePiece model, as LLaMA 2 and Gemma have.

llama.cpp merges the pieces of SentencePiece by their scores, without a list of merges, so the scores are derived from
the order of merges. If one piece has merges of different ranks, no score can express that, and the vocabulary is
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.conversation import TemplateFaultError, special_ids, turns_of
from models.tokenizer import FIM_TOKENS, begins_with_bos, load_tokenizer
from storage.errors import ConfigError
from tasks.tokenizer.patterns import gguf_name_of

if TYPE_CHECKING:
    from gguf import GGUFWriter, TokenType
    from transformers import PreTrainedTokenizerFast

SPACE = "▁"  # SentencePiece's sign for a space
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_NO_SPACE_BEFORE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_SPACE_BEFORE = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, _NO_SPACE_BEFORE]}


def check_vocabulary(model: Path) -> None:
    """Raises ConfigError for a tokenizer whose encoding llama.cpp can't reproduce."""
    _kind(_settings(model))


def plain_template(folder: Path) -> str:
    """The chat template as a runtime takes it: without the tags that mark the tokens with loss for training."""
    text = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}\n?", "", text)


def write_vocabulary(writer: GGUFWriter, folder: Path, rows: int) -> None:
    """Write the vocabulary with as many entries as the embedding has rows: llama.cpp refuses a difference."""
    settings, tokenizer = _settings(folder), load_tokenizer(folder)
    pre = _kind(settings)
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    types = _types(tokenizer, settings, names, rows)
    writer.add_tokenizer_model("llama" if pre is None else "gpt2")
    writer.add_tokenizer_pre(pre or "default")
    writer.add_token_list([names.get(number, f"<|unused {number}|>") for number in range(rows)])
    if pre is None:
        scores = _scores(settings)
        writer.add_token_scores([scores.get(names.get(number, ""), 0.0) for number in range(rows)])
        writer.add_add_space_prefix(settings["normalizer"] == _SPACE_BEFORE)
    writer.add_token_types(types)
    if pre is not None:
        merges = settings["model"]["merges"]
        writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    _write_special(writer, tokenizer)
    writer.add_chat_template(plain_template(folder))


def _write_special(writer: GGUFWriter, tokenizer: PreTrainedTokenizerFast) -> None:
    from gguf import Keys

    ids, eos = tokenizer.get_vocab(), tokenizer.eos_token_id
    try:
        end = turns_of(tokenizer).end
    except TemplateFaultError:
        end = eos
    writer.add_bos_token_id(eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    writer.add_eos_token_id(eos)
    writer.add_eot_token_id(end)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    if tokenizer.unk_token_id is not None:
        writer.add_unk_token_id(tokenizer.unk_token_id)
    fim_keys = (Keys.Tokenizer.FIM_PRE_ID, Keys.Tokenizer.FIM_SUF_ID, Keys.Tokenizer.FIM_MID_ID)
    for key, token in zip(fim_keys, FIM_TOKENS, strict=True):  # the writer lacks methods for these
        if token in ids:
            writer.add_uint32(key, ids[token])
    writer.add_add_bos_token(begins_with_bos(tokenizer))
    writer.add_add_eos_token(tokenizer.encode("a")[-1:] == [eos])


def _types(
    tokenizer: PreTrainedTokenizerFast, settings: Mapping[str, Any], names: Mapping[int, str], rows: int
) -> list[TokenType]:
    from gguf import TokenType

    special = special_ids(tokenizer)
    added = {token["id"] for token in settings.get("added_tokens", [])}
    whole_bytes = bool(settings["model"].get("byte_fallback"))

    def kind(number: int) -> TokenType:
        if number not in names:
            return TokenType.UNUSED
        if number in special:
            return TokenType.UNKNOWN if number == tokenizer.unk_token_id else TokenType.CONTROL
        if whole_bytes and _BYTE.fullmatch(names[number]):
            return TokenType.BYTE
        return TokenType.USER_DEFINED if number in added else TokenType.NORMAL

    return [kind(number) for number in range(rows)]


def _kind(settings: Mapping[str, Any]) -> str | None:
    """llama.cpp's name for the way a byte-level BPE splits text, or None for the BPE of a SentencePiece model. Raises
    ConfigError if llama.cpp would encode differently, as with most normalizers."""
    kind, normalizer = settings["model"].get("type"), settings.get("normalizer")
    if kind == "BPE" and settings["model"].get("byte_fallback"):
        _scores(settings)
        splits = settings.get("pre_tokenizer")
        if normalizer in (_SPACE_BEFORE, _NO_SPACE_BEFORE) and (splits is None or _by_space(splits)):
            return None
        raise _refusal("the SentencePiece model's normalizer or pre-tokenizer is neither LLaMA's nor Gemma's")
    pre = gguf_name_of(dict(settings)) if kind == "BPE" else None
    # For text that isn't in NFC, llama.cpp's ids of Qwen's models differ from transformers' in everyone's GGUF files
    if pre is None or (normalizer is not None and (pre, normalizer) != ("qwen2", {"type": "NFC"})):
        raise _refusal("llama.cpp doesn't know this tokenizer's split pattern")
    return pre


def _by_space(splits: Mapping[str, Any]) -> bool:
    """Whether this is Gemma's pre-tokenizer, which never splits as its normalizer leaves no space."""
    return (splits.get("type"), splits.get("pattern")) == ("Split", {"String": " "})


def _scores(settings: Mapping[str, Any]) -> dict[str, float]:
    """A score for each piece that merges make, higher for earlier ones. Raises ConfigError for merges that no
    SentencePiece model has: llama.cpp joins any two pieces that make a third, by the score of the third."""
    pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in settings["model"]["merges"]]
    ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
    vocabulary = settings["model"]["vocab"]
    scores: dict[str, float] = {}
    last = ""
    for left, right in pairs:
        piece = left + right
        if piece == last:
            continue
        splits = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        if piece in scores or any(
            split not in ranks for split in splits if split[0] in vocabulary and split[1] in vocabulary
        ):
            raise _refusal(f"the merges make {piece!r} at different ranks, and llama.cpp has one score per piece")
        scores[piece] = -float(len(scores))
        last = piece
    return scores


def _settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return settings


def _refusal(why: str) -> ConfigError:
    return ConfigError(
        f"{why[0].upper()}{why[1:]}.",
        "Leave gguf out of export.formats, or train a tokenizer with a tokenizer.pattern.",
    )
