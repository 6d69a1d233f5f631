"""A model folder passed between stages carries its tokenizer, and records which one it was trained with.

Law 6, wherever artifacts meet: the digest in the model's config.json must be that of the tokenizer beside it.
"""

from __future__ import annotations

from pathlib import Path

from models.tokenizer import DIGEST_FIELD, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, TokenizerMismatch
from storage.shards.lines import parse_json
from storage.shards.token_sources import SUFFIX
from storage.shards.tokens import TokenHeader, open_tokens


def check_tokenizer(folder: Path, *, expected: str | None = None) -> str:
    """The digest of a model's tokenizer.

    Raises TokenizerMismatch if the files beside the model are not those that it was trained with, or not `expected`,
    and DamagedArtifact for a missing or invalid config.json.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise DamagedArtifact(f"{folder} lacks config.json.", "Check it with `gristmill store verify`.")
    try:
        trained_with = parse_json(config.read_bytes()).get(DIGEST_FIELD)
    except (ValueError, AttributeError) as error:
        raise DamagedArtifact(f"{config} is not a model's config: {error}.", "Save the model again.") from error
    digest = tokenizer_digest(folder)
    for other, what in ((trained_with, "the one that its weights were trained with"), (expected, "that of the data")):
        if other is not None and other != digest:
            raise TokenizerMismatch(
                f"The tokenizer in {folder} ({digest[:12]}) is not {what} ({str(other)[:12]}).",
                "Retrain the model on shards of this tokenizer, or restore its own tokenizer files.",
            )
    return digest


def check_shards(tokens: Artifact, digest: str) -> list[Path]:
    """The token shards of a split, as absolute paths, each checked by `check_shard`."""
    paths = tokens.files("*.tokens")
    for path in paths:
        check_shard(path, tokens, digest)
    return [path.resolve() for path in paths]


def check_shard(path: Path, tokens: Artifact, digest: str) -> TokenHeader:
    """Check that a token shard and its sources are as written, with this tokenizer. Returns the shard's header.

    The shard's own checksum covers the ids. The artifact's manifest also covers its metadata (EOS, bytes of text) and
    the sources. Raises TokenizerMismatch, DamagedArtifact.
    """
    shard = open_tokens(path, tokenizer_digest=digest, verify=True)
    for file in (path, path.with_suffix(SUFFIX)):
        tokens.check_bytes(file)
    return shard.header
