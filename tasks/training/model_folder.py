"""A model folder on its way between stages: it carries its tokenizer, and says which one it was trained with.

Law 6 at every join: the digest recorded in the model's config.json must be that of the tokenizer beside it.
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
    """The digest of a model's tokenizer, which is also `expected` where that is given.

    Raises TokenizerMismatch when the files beside the model are not those it was trained with, or not the expected.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise DamagedArtifact(f"{folder} holds no config.json.", "Look at it with `gristmill store verify`.")
    trained_with = json.loads(config.read_text()).get(DIGEST_FIELD)
    found = tokenizer_digest(folder)
    for other, what in ((trained_with, "that its weights were trained with"), (expected, "that of the data")):
        if other is not None and other != found:
            raise TokenizerMismatch(
                f"The tokenizer in {folder} ({found[:12]}) is not {what} ({other[:12]}).",
                "Train the model again on shards of this tokenizer, or put its own files back.",
            )
    return found


def check_shards(tokens: Artifact, digest: str) -> list[Path]:
    """The token shards of a split, as absolute paths, each as `check_shard` wants it."""
    paths = tokens.files("*.tokens")
    for path in paths:
        check_shard(path, tokens, digest)
    return [path.resolve() for path in paths]


def check_shard(path: Path, tokens: Artifact, digest: str) -> TokenHeader:
    """The header of a token shard of this tokenizer that is as it was written, its sources too.

    Its own checksum covers the ids; the artifact's manifest covers also what is said of them: EOS, bytes of text, the
    sources. Raises TokenizerMismatch, DamagedArtifact.
    """
    shard = open_tokens(path, tokenizer_digest=digest, verify=True)
    for file in (path, path.with_suffix(SUFFIX)):
        tokens.check_bytes(file)
    return shard.header
