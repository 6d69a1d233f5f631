"""The check of a tokenizer made elsewhere that is to be adopted as the stage's artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.tokenizer import NEEDED_FILES, load_tokenizer
from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.extension import prove_extension
from tasks.tokenizer.kept_vocabulary import check_fits
from tasks.tokenizer.load import Loading

CONVERSATION = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def check_adopted(config: TokenizerConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that a folder holds a tokenizer with the vocabulary, the special tokens and the pattern of the config.

    Raises ConfigError for another vocabulary or pattern, DamagedArtifact and TokenizerMismatch for files that do not
    load or fail the proofs.
    """
    from tasks.tokenizer.encoder.tables import make_tables, obstacle, read_settings
    from tasks.tokenizer.proof import prove

    for name in NEEDED_FILES:
        if not (folder.path / name).is_file():
            raise DamagedArtifact(f"{name} is missing.", "Give the folder of a whole tokenizer.")
    if "base" in inputs:
        _check_template(folder.path)
        prove_extension(inputs["base"].path, folder.path)
        return
    try:  # before `tokenizers` loads it, whose errors have no specific type
        settings = read_settings(folder.path)
        problem = obstacle(settings)
        if not problem:
            make_tables(settings)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise DamagedArtifact(
            f"tokenizer.json can't be loaded ({type(error).__name__}: {error}).", "Save it again."
        ) from error
    if problem:
        raise DamagedArtifact(f"The tokenizer {problem}.", "Train a byte-level BPE, or let the stage do it.")
    _check_template(folder.path)
    check_fits(config, folder.path, str(folder.path), fewer_ids=False)
    prove(folder.path, config.special_tokens)


def _check_template(folder: Path) -> None:
    """Check that transformers loads the folder and that the chat template, which is a program, renders a conversation.
    Jinja's sandbox limits what it may do, but it may raise any error."""
    from jinja2 import TemplateError

    try:
        with Loading(folder / "tokenizer.json"):
            tokenizer = load_tokenizer(folder)
        tokenizer.apply_chat_template(CONVERSATION, return_dict=True, return_assistant_tokens_mask=True)
    except (
        TemplateError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        raise DamagedArtifact(
            f"The chat template can't render a conversation ({type(error).__name__}: {error}).",
            "Correct chat_template.jinja or tokenizer_config.json.",
        ) from error
