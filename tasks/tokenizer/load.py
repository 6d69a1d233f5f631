"""Loading a tokenizer for encoding documents, by the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_for_documents(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, set up so that special tokens in a text are encoded as text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer
