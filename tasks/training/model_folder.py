"""A model folder passed between stages carries its tokenizer, and records which one it was trained with.

Law 6, wherever artifacts meet: the digest in the model's config.json must be that of the tokenizer beside it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from models.pretrained import load_config
from models.tokenizer import DIGEST_FIELD, copy_tokenizer, load_tokenizer, tokenizer_digest
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


def with_tokenizer_of(model: Path, other: Path, folder: Path, what: str, remedy: str) -> Path:
    """Copy the model in `other`, with the tokenizer and chat template of `model`, to `folder`. Returns `folder`.

    Raises TokenizerMismatch for another vocabulary. `what` names the other model in it, at the start of a sentence.
    """
    ours, theirs = (load_tokenizer(one).get_vocab() for one in (model, other))
    sizes = [load_config(one).vocab_size for one in (model, other)]
    if ours != theirs or sizes[0] != sizes[1]:
        raise TokenizerMismatch(
            f"{what} has another vocabulary than the model: {sizes[1]:,} ids, of which "
            f"{len(ours.items() & theirs.items()):,} are those of {sizes[0]:,}.",
            remedy,
        )
    shutil.copytree(other, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    copy_tokenizer(model, folder)
    path = folder / "config.json"
    config = {**parse_json(path.read_bytes()), DIGEST_FIELD: tokenizer_digest(folder)}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


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
