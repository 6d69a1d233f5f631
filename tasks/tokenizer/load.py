"""Loading a tokenizer for encoding documents, by the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from storage.errors import DamagedArtifact

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Loading:
    """Around a call of `tokenizers`, which raises a bare Exception or panics for a file that it can't read. Raises
    DamagedArtifact instead."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is Exception or (kind is not None and kind.__name__ == "PanicException"):
            raise DamagedArtifact(f"{self.path} can't be loaded: {error}.", "Save it again.") from error


def load_for_documents(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, set up so that special tokens in a text are encoded as text. Raises DamagedArtifact
    for a file that isn't a tokenizer."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    with Loading(path):
        tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer
