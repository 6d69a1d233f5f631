"""Special tokens, and loading, copying and digesting a tokenizer with its chat template.

The digest is recorded in token shards, checkpoints and models, and checked by every stage that joins them. It covers
what affects ids or prompts, the vocabulary and the template, and nothing else.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EOS = "<|endoftext|>"  # ends a document; also the BOS of formats that need one
PAD = "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
END = "<|end|>"  # ends a turn
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = (
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
)  # fill in the middle
FIM_TOKENS = (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
SPECIAL_TOKENS = (EOS, PAD, SYSTEM, USER, ASSISTANT, END, *FIM_TOKENS)  # in the order of their ids, from 0

CHAT_TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")
DIGEST_FIELD = "gristmill_tokenizer_digest"  # in a model's config.json: of the tokenizer it was trained with
BASE_FIELD = "gristmill_base"  # and, of one that was not trained from scratch, what it started from
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
WITH_BOS = "{{- bos_token -}}"  # before a template that leaves out what every text begins with
NEEDED_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")  # transformers 5 writes no map


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 in hex over vocabulary and chat template, each prefixed by its name and length."""
    digest = hashlib.sha256()
    for name in ("tokenizer.json", "chat_template.jinja"):
        data = (folder / name).read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files, byte for byte."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder, by transformers, without remote code or network."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)


def beginning(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """What the tokenizer puts before every text, such as BOS; often nothing."""
    ids, (first, *_) = (tokenizer.encode("a", add_special_tokens=whole) for whole in (True, False))
    return list(ids[: ids.index(first)])


def begins_with_bos(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether every text begins with the tokenizer's BOS. Its model expects that of conversations too."""
    return tokenizer.bos_token_id is not None and beginning(tokenizer)[:1] == [tokenizer.bos_token_id]


def text_ids(tokenizer: PreTrainedTokenizerFast, text: str, *, begun: bool = True) -> list[int]:
    """The ids of a plain text, begun as every text is, or not; special tokens that it spells stay text."""
    ids: list[int] = tokenizer.encode(text, split_special_tokens=True, add_special_tokens=begun)
    return ids


def our_template(end: str = END) -> str:
    """Our chat template; over a vocabulary without its tokens a turn ends with `end`, and the roles are plain text."""
    quoted = end.replace("\\", "\\\\").replace("'", "\\'")
    return CHAT_TEMPLATE_PATH.read_text(encoding="utf-8").replace(END, quoted)


def padding_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """What fills a batch up: a base's tokenizer often has no token for it, and any will do, as a mask leaves it out."""
    pad = tokenizer.pad_token_id
    return int(tokenizer.eos_token_id if pad is None else pad)
