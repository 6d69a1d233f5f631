"""Checks that a model, its tokenizer and token shards belong together: their tokenizer digests must be equal.

A model folder contains its tokenizer, and its config.json the digest of the tokenizer that it was trained with.
"""

from __future__ import annotations

import json
from pathlib import Path

from models.tokenizer import DIGEST_FIELD, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, TokenizerMismatch
from storage.token_sources import SUFFIX
from storage.tokens import TokenHeader, open_tokens


def check_tokenizer(folder: Path, *, expected: str | None = None) -> str:
    """The digest of a model's tokenizer. Raises TokenizerMismatch if it is not the one that the model was trained with,
    or not `expected`."""
    config = folder / "config.json"
    if not config.is_file():
        raise DamagedArtifact(f"{folder} has no config.json.", "Check it with `gristmill store verify`.")
    trained_with = json.loads(config.read_text()).get(DIGEST_FIELD)
    found = tokenizer_digest(folder)
    for other, what in ((trained_with, "that its weights were trained with"), (expected, "that of the data")):
        if other is not None and other != found:
            raise TokenizerMismatch(
                f"The tokenizer in {folder} ({found[:12]}) is not {what} ({other[:12]}).",
                "Retrain the model on shards of this tokenizer, or restore its own files.",
            )
    return found


def check_shards(tokens: Artifact, digest: str) -> list[Path]:
    """The token shards of a split, as absolute paths, each checked by `check_shard`."""
    paths = tokens.files("*.tokens")
    for path in paths:
        check_shard(path, tokens, digest)
    return [path.resolve() for path in paths]


def check_shard(path: Path, tokens: Artifact, digest: str) -> TokenHeader:
    """The header of a token shard, after checking its tokenizer, its checksum, and the artifact's digests of it and its
    sources file.

    The checksum covers the ids, the manifest also header and sources. Raises TokenizerMismatch, DamagedArtifact.
    """
    shard = open_tokens(path, tokenizer_digest=digest, verify=True)
    for file in (path, path.with_suffix(SUFFIX)):
        tokens.check_bytes(file)
    return shard.header
