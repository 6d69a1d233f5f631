"""Special tokens, and loading, copying and digesting a tokenizer with its chat template.

The digest is recorded in token shards, checkpoints and models, and checked by every stage that joins them. It covers
only what affects ids or prompts: the vocabulary and the template.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

EOS = "<|endoftext|>"  # ends a document, and is the BOS of formats that need one
PAD = "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
END = "<|end|>"  # ends a turn
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")  # fill in the middle
FIM_TOKENS = (FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
SPECIAL_TOKENS = (EOS, PAD, SYSTEM, USER, ASSISTANT, END, *FIM_TOKENS)  # in the order of their ids, from 0

CHAT_TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")
ROLES_AS_TEXT_PATH = Path(__file__).with_name("roles_as_text.jinja")
DIGEST_FIELD = "gristmill_tokenizer_digest"  # in a model's config.json: of the tokenizer it was trained with
BASE_FIELD = "gristmill_base"  # in the same place: the base of a model that was not trained from scratch
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
WITH_BOS = "{{- bos_token -}}"  # put before a template that leaves out the BOS of every text
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
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
    """The tokenizer of a folder, by transformers, without remote code or network. When it renders conversations, a
    message's text never becomes a control token."""
    from transformers import PreTrainedTokenizerFast

    from models.conversation import apply_chat_template

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    tokenizer.apply_chat_template = MethodType(apply_chat_template, tokenizer)
    loaded: PreTrainedTokenizerFast = tokenizer
    return loaded


def beginning(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The ids that the tokenizer puts before every text, such as BOS. Often none."""
    ids, (first, *_) = (tokenizer.encode("a", add_special_tokens=whole) for whole in (True, False))
    return list(ids[: ids.index(first)])


def begins_with_bos(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether every text begins with the tokenizer's BOS. Its model expects that of conversations too."""
    return tokenizer.bos_token_id is not None and beginning(tokenizer)[:1] == [tokenizer.bos_token_id]


def text_ids(tokenizer: PreTrainedTokenizerFast, text: str, *, begun: bool = True) -> list[int]:
    """The ids of a plain text, after the tokenizer's beginning (see `beginning`) if `begun`. Special tokens that it
    spells stay text."""
    ids: list[int] = tokenizer.encode(text, split_special_tokens=True, add_special_tokens=begun)
    return ids


def token_text(tokenizer: PreTrainedTokenizerFast, id: int) -> str:
    """The text of a token inside a text, special ones by their names."""
    text: str = tokenizer.decode([*text_ids(tokenizer, "a", begun=False), id], clean_up_tokenization_spaces=False)
    return text[1:]


def roles_as_text(end: str) -> str:
    """Our chat template for a vocabulary without its tokens: a turn ends with `end`, and the roles are plain text. Each
    stands on a line of its own, because text directly after a role would merge with it more often."""
    quoted = end.replace("\\", "\\\\").replace("'", "\\'")
    return ROLES_AS_TEXT_PATH.read_text(encoding="utf-8").replace(END, quoted)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a third-party folder: its tokenizer.json, whatever class its config names.

    transformers rebuilds some classes from the vocabulary and the merges, with the class's way of splitting text rather
    than the file's. Only special tokens that the config doesn't name are taken from such a class. Without a
    tokenizer.json the class itself is used. Raises transformers' exceptions for a folder that it can't load.
    """
    from transformers import AutoTokenizer

    theirs: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not (folder / "tokenizer.json").is_file():
        of_class: PreTrainedTokenizerFast = theirs
        return of_class
    tokenizer = load_tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    for name in NAMED:
        token = getattr(theirs, name)
        if getattr(tokenizer, name) is None and token in vocabulary:
            setattr(tokenizer, name, token)
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a tokenizer as `load_tokenizer` reads it: with a tokenizer.json that neither cuts nor pads texts, and with
    settings that don't change what it decodes."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings = {**portable_settings(settings), "clean_up_tokenization_spaces": False}
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def portable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenizer_config.json that transformers 4 reads as transformers 5 does: 5 saves a class that 4 lacks, and has
    another name for additional special tokens."""
    kept = {name: value for name, value in settings.items() if name != "backend"}
    if isinstance(kept.get("extra_special_tokens"), list):
        kept["additional_special_tokens"] = kept.pop("extra_special_tokens")
    return {**kept, "tokenizer_class": "PreTrainedTokenizerFast"}


HOSTILE = (
    "The river rises in the hills, 12 km south of 3.5 villages.",
    "  def f(x):\n\treturn x  # doesn't\n\n\n",
    "Übergröße, 東京, привет, עולם 🙂 e\N{COMBINING ACUTE ACCENT} čeština",
    "2023 1 apple costs 2023, 1234567890 or 1,000,000.00 (0x1F, 3e-5, 007, ٣٤٥, ²³½, Ⅷ)",
    " a  b   c    d\t\te\r\nf \n g\u00a0h\u3000i\u200bj ",
    "DON'T we'LL I'm it’s <b>x</b> snake_case camelCase a/b\\c https://example.org/?q=1&r=%20",
    "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET} ﷺ ǅ ﬁ \x07\x7f\ufeff 𝔘𝔫𝔦 क्षि ไทย",
)


def other_ids(tokenizer: PreTrainedTokenizerFast, truth: Tokenizer) -> str | None:
    """The first text whose ids, or decoded ids, differ between a tokenizer and `truth`. None if they agree. It tries
    hostile texts, and each added token by itself and within words."""
    truth.no_truncation()
    truth.no_padding()
    added = sorted(
        {token.content for token in truth.get_added_tokens_decoder().values()} | {*tokenizer.get_added_vocab()}
    )
    for text in (*HOSTILE, *added, *(f"a{token}b {token} 1{token}2" for token in added)):
        for special in (True, False):
            ids = truth.encode(text, add_special_tokens=special).ids
            if tokenizer(text, add_special_tokens=special)["input_ids"] != ids:
                return text
        if tokenizer.decode(ids) != truth.decode(ids, skip_special_tokens=False):
            return text
    return None


class NotExtendedError(ValueError):
    """A tokenizer that isn't another one with further tokens."""


def new_tokens(base: Path, extended: Path) -> dict[int, list[int]]:
    """The ids that the tokenizer of a folder has beyond those of a `base`'s, each with the base's ids that it joins.
    Replacing each by those gives what the base's tokenizer gives for the same text. Raises NotExtendedError."""
    old, new = (json.loads((folder / "tokenizer.json").read_bytes()) for folder in (base, extended))
    ids: dict[str, int] = new["model"]["vocab"]
    known = {**old["model"]["vocab"], **{token["content"]: token["id"] for token in old["added_tokens"]}}
    kept, merges = len(old["model"]["merges"]), new["model"]["merges"]
    same = {**new, "model": None} == {**old, "model": None} and merges[:kept] == old["model"]["merges"]
    if not same or not known.items() <= ids.items():
        raise NotExtendedError("it isn't the base's tokenizer with more tokens")
    pieces = {id: [id] for id in known.values()}
    for pair in merges[kept:]:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        if not {ids.get(left), ids.get(right)} <= pieces.keys():
            raise NotExtendedError(f"it joins {left} and {right}, which no merge before gives")
        pieces[ids[left + right]] = pieces[ids[left]] + pieces[ids[right]]
    return {id: parts for id, parts in pieces.items() if len(parts) > 1}


def padding_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """The id that pads a batch. A base model's tokenizer often lacks one, and any will do, as a mask leaves it out."""
    pad = tokenizer.pad_token_id
    return int(tokenizer.eos_token_id if pad is None else pad)
