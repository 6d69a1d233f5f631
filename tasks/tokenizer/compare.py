"""Vocabularies of others, measured on the text that ours is measured on.

Which ones are compared is a choice in the config, and their files enter the key: the table is a count, and the same in
must give the same counts. But it is no file of the artifact. So the digest that later stages are keyed by stays what it
was, and a comparison added to a finished run costs a training of the tokenizer and not one of the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import SourceError
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.load import load_for_documents
from tasks.tokenizer.sentencepiece import load_sentencepiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer.model",))  # the first that is there


def fingerprints(config: TokenizerConfig) -> dict[str, str]:
    """SHA-256 of each vocabulary to compare with, by its name. Raises SourceError for a folder that holds none."""
    found = {}
    for name, folder in sorted(config.compare.items()):
        digest = hashlib.sha256()
        for path in _files(name, folder):
            data = path.read_bytes()
            digest.update(f"{path.name} {len(data)}\n".encode() + data)
        found[name] = digest.hexdigest()
    return found


def load_reference(name: str, folder: str) -> Tokenizer:
    """A vocabulary that is compared with, special tokens in a text being text. Raises SourceError."""
    paths = _files(name, folder)
    if paths[0].name == "tokenizer.model":
        return load_sentencepiece(paths[0])
    if paths[0].name == "tokenizer.json":
        return load_for_documents(paths[0].parent)
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer = Tokenizer(BPE.from_file(*map(str, paths)))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    return tokenizer


def compare(config: TokenizerConfig, texts: Mapping[str, list[str]], ours: Mapping[str, float]) -> list[dict[str, Any]]:
    """Rows of UTF-8 bytes per token of each source: ours, as given, and of each vocabulary to compare with."""
    rows: list[dict[str, Any]] = [{"source": source, "this vocabulary": ours[source]} for source in texts]
    for name, folder in sorted(config.compare.items()):
        tokenizer = load_reference(name, folder)
        head = f"{name} ({tokenizer.get_vocab_size():,} ids)"
        for row in rows:
            given = texts[row["source"]]
            tokens = sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in given)
            row[head] = round(sum(len(text.encode()) for text in given) / tokens, 3) if tokens else "no token"
    return rows


def _files(name: str, folder: str) -> list[Path]:
    for form in FORMS:
        paths = [Path(folder) / file for file in form]
        if all(path.is_file() for path in paths):
            return paths
    raise SourceError(
        f"tokenizer.compare names {name}, and {folder} holds no vocabulary.",
        "Name a folder with a tokenizer.json, with vocab.json and merges.txt, or with a tokenizer.model.",
    )
