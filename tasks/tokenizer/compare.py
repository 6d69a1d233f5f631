"""Other vocabularies, measured on the same text as ours.

The config names the vocabularies, and the digests of their files enter the key, so the table always belongs to the
files that it was made from. The table isn't a file of the artifact, though: the digest that later stages depend on
stays the same, and adding a comparison to a finished run retrains the tokenizer but not the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from storage.errors import ConfigError, SourceError
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.load import Loading, load_for_documents

SENTENCEPIECE = "tokenizer.model"
FORMATS = (("tokenizer.json",), ("vocab.json", "merges.txt"), (SENTENCEPIECE,))  # the first one found is used


class Reference(NamedTuple):
    """A vocabulary to compare with: its number of ids, and how it encodes a text (special tokens are plain text)."""

    size: int
    encode: Callable[[str], Sequence[int]]


def fingerprints(config: TokenizerConfig) -> dict[str, str]:
    """SHA-256 of each vocabulary to compare with, by name. Raises SourceError for a folder that holds none."""
    found = {}
    for name, folder in sorted(config.compare.items()):
        digest = hashlib.sha256()
        for path in _files(name, folder):
            data = path.read_bytes()
            digest.update(f"{path.name} {len(data)}\n".encode() + data)
        found[name] = digest.hexdigest()
    return found


def check_libraries(config: TokenizerConfig) -> None:
    """Raise ConfigError, before anything is trained, if a vocabulary needs a library that is not installed."""
    for name, folder in sorted(config.compare.items()):
        if _files(name, folder)[0].name == SENTENCEPIECE and find_spec("sentencepiece") is None:
            raise ConfigError(
                f"tokenizer.compare names {name}, a SentencePiece model, but sentencepiece is not installed.",
                "Install the extra: pip install 'gristmill[sentencepiece]', or give a folder with a tokenizer.json.",
            )


def load_reference(name: str, folder: str) -> Reference:
    """A vocabulary to compare with. Raises SourceError, DamagedArtifact."""
    paths = _files(name, folder)
    if paths[0].name == SENTENCEPIECE:
        return _load_sentencepiece(paths[0])
    if paths[0].name == "tokenizer.json":
        tokenizer = load_for_documents(paths[0].parent)
    else:
        from tokenizers import Tokenizer
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel

        with Loading(paths[0]):
            tokenizer = Tokenizer(BPE.from_file(*map(str, paths)))
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    return Reference(tokenizer.get_vocab_size(), lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def _load_sentencepiece(path: Path) -> Reference:
    sentencepiece = import_module("sentencepiece")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise SourceError(
            f"{path} is not a SentencePiece model: {error}.", "Name another folder in tokenizer.compare."
        ) from error
    return Reference(processor.get_piece_size(), processor.encode)


def compare(config: TokenizerConfig, texts: Mapping[str, list[str]], ours: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row per source with UTF-8 bytes per token: `ours`, and those of each vocabulary to compare with."""
    rows: list[dict[str, Any]] = [{"source": source, "this vocabulary": ours[source]} for source in texts]
    for name, folder in sorted(config.compare.items()):
        reference = load_reference(name, folder)
        head = f"{name} ({reference.size:,} ids)"
        for row in rows:
            given = texts[row["source"]]
            tokens = sum(len(reference.encode(text)) for text in given)
            row[head] = round(sum(len(text.encode()) for text in given) / tokens, 3) if tokens else "no token"
    return rows


def _files(name: str, folder: str) -> list[Path]:
    for names in FORMATS:
        paths = [Path(folder) / file for file in names]
        if all(path.is_file() for path in paths):
            return paths
    raise SourceError(
        f"tokenizer.compare names {name}, but {folder} has no vocabulary.",
        "Name a folder with a tokenizer.json, with vocab.json and merges.txt, or with a tokenizer.model.",
    )
