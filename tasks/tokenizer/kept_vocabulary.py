"""Keeping a vocabulary while the corpus grows.

Merges learned from even slightly more text are another vocabulary: every document is tokenized again, and earlier
models cannot be trained further. With `tokenizer.keep` an earlier tokenizer is copied file by file, so its digest stays
the same, and only new shards are tokenized (tasks/shards/incremental.py).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.stage.named_artifact import named_artifact
from tasks.stage.output import Output
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.load import load_for_documents
from tasks.tokenizer.patterns import pattern_of

FIELD = "tokenizer.keep"


def kept_tokenizer(config: TokenizerConfig) -> Artifact | None:
    """The artifact that the config names, if any. Raises ConfigError for one that is not a tokenizer."""
    if config.keep is None:
        return None
    artifact = named_artifact(FIELD, config.keep)
    if artifact.manifest is None or artifact.manifest.stage != "tokenizer":
        raise ConfigError(f"{config.keep} in {FIELD} is not a tokenizer.", "List the artifacts: `gristmill store ls`")
    return artifact


def keep(config: TokenizerConfig, artifact: Artifact, documents: Artifact, out: Output) -> None:
    """Copy the artifact's files and repeat its checks. With `compare`, also measure it on the documents.

    Raises ConfigError if the tokenizer does not match the config.
    """
    from tasks.tokenizer.proof import prove
    from tasks.tokenizer.report import publish_comparison
    from tasks.tokenizer.sample import texts_to_measure

    check_fits(config, artifact.path, f"{config.keep} in {FIELD}", fewer_ids=True)
    for name in artifact.manifest.files if artifact.manifest else ():
        shutil.copyfile(artifact.path / name, out.path / name)
    prove(out.path, config.special_tokens)
    tokenizer = load_for_documents(out.path)
    size = tokenizer.get_vocab_size()
    if config.compare:
        publish_comparison(tokenizer, config, texts_to_measure(documents.files("*.parquet"), out), out)
    out.uses[f"{FIELD} {config.keep}"] = artifact.origin
    out.count(
        vocab_size=size, tokenizer_digest=tokenizer_digest(out.path), summary=f"{size:,} ids, kept from {config.keep}"
    )


def check_fits(config: TokenizerConfig, folder: Path, named: str, *, fewer_ids: bool) -> None:
    """Check that the tokenizer of a folder, called `named` in the error, has the vocabulary size and the pattern of the
    config. With `fewer_ids` it may have fewer, as one learned from a small sample does. Raises ConfigError."""
    from tasks.tokenizer.encoder.tables import read_settings

    size, pattern = load_for_documents(folder).get_vocab_size(), pattern_of(read_settings(folder))
    for name, asked, found, fits in (
        ("vocab_size", config.vocab_size, size, size == config.vocab_size or (fewer_ids and size < config.vocab_size)),
        ("pattern", config.pattern, pattern, pattern == config.pattern),
    ):
        if not fits:
            raise ConfigError(
                f"{named} has {name} {found}, but tokenizer.{name} is {asked}.",
                f"Set tokenizer.{name} to {found}, or give another tokenizer.",
            )
