"""A vocabulary that is kept while the documents grow.

Merges learned anew from a little more text are another vocabulary: every document is tokenized again, and no model
trained before can go on. With `tokenizer.keep` an earlier tokenizer is taken over, file by file, so its digest stays,
and tokenization encodes only the shards that it has not seen (tasks/shards/incremental.py).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.stage.named import named_artifact
from tasks.stage.output import Output
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.load import load_for_documents
from tasks.tokenizer.patterns import pattern_of

FIELD = "tokenizer.keep"


def kept_tokenizer(config: TokenizerConfig) -> Artifact | None:
    """The artifact that the config names. Raises ConfigError for one that is no tokenizer."""
    if config.keep is None:
        return None
    artifact = named_artifact(FIELD, config.keep)
    if artifact.manifest is None or artifact.manifest.stage != "tokenizer":
        raise ConfigError(f"{config.keep} in {FIELD} is no tokenizer.", "Name one: `gristmill store ls`.")
    return artifact


def keep(config: TokenizerConfig, artifact: Artifact, documents: Artifact, out: Output) -> None:
    """Take the artifact's files over, proved anew; measure it on the documents where others are compared with it.

    Raises ConfigError when the files are not what the config says.
    """
    from tasks.tokenizer.prove import prove
    from tasks.tokenizer.report import publish_comparison
    from tasks.tokenizer.sample import survey

    _check(config, artifact.path)
    for name in artifact.manifest.files if artifact.manifest else ():
        shutil.copyfile(artifact.path / name, out.path / name)
    prove(out.path, config.special_tokens)
    tokenizer = load_for_documents(out.path)
    size = tokenizer.get_vocab_size()
    if config.compare:
        publish_comparison(tokenizer, config, survey(documents.files("*.parquet"), out).texts, out)
    out.uses[f"{FIELD} {config.keep}"] = artifact.origin
    out.count(
        vocab_size=size,
        tokenizer_digest=tokenizer_digest(out.path),
        summary=f"{size:,} ids, kept from {config.keep}",
    )


def _check(config: TokenizerConfig, folder: Path) -> None:
    from tasks.tokenizer.encoder.tables import read_settings

    size, pattern = load_for_documents(folder).get_vocab_size(), pattern_of(read_settings(folder))
    for name, asked, found, fits in (
        ("vocab_size", config.vocab_size, size, size <= config.vocab_size),  # a small sample fills it in part
        ("pattern", config.pattern, pattern, pattern == config.pattern),
    ):
        if not fits:
            raise ConfigError(
                f"{config.keep} in {FIELD} has the {name} {found}, and tokenizer.{name} is {asked}.",
                f"Set tokenizer.{name} to {found}, or keep another.",
            )
