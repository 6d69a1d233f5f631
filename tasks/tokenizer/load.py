"""Loading a tokenizer for encoding documents, by the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from models.tokenizer import EOS
from storage.errors import DamagedArtifact
from storage.shards.lines import parse_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer


ENDS = (EOS, "<|end_of_text|>")  # of documents, in vocabularies whose eos_token may end a turn instead


class Marks(NamedTuple):
    """The ids that begin every document, mostly none, and the one that ends it."""

    beginning: tuple[int, ...]
    end: int


class Loading:
    """Around a call of `tokenizers`, which raises a bare Exception or panics for a file that it can't read. Raises
    DamagedArtifact instead, with the `name` of the file, by default its path."""

    def __init__(self, path: Path, name: str = "", remedy: str = "Save it again.") -> None:
        self.name, self.remedy = name or str(path), remedy

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is Exception or (kind is not None and kind.__name__ == "PanicException"):
            raise DamagedArtifact(f"{self.name} can't be loaded: {error}.", self.remedy) from error


def load_for_documents(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, set up so that special tokens in a text are encoded as text. Raises DamagedArtifact
    for a file that isn't a tokenizer."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    with Loading(path):
        tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def marks_of(folder: Path, tokenizer: Tokenizer) -> Marks:
    """How the tokenizer of a folder marks documents for a pretraining: what it puts before every text, such as BOS, and
    the end of a document under one of its usual names, or else its eos_token. Raises DamagedArtifact for a tokenizer
    without one."""
    whole, plain = (tokenizer.encode("a", add_special_tokens=added).ids for added in (True, False))
    named = parse_json((folder / "tokenizer_config.json").read_bytes()).get("eos_token")
    own = named.get("content") if isinstance(named, dict) else named
    end = next((id for name in (*ENDS, own) if name and (id := tokenizer.token_to_id(name)) is not None), None)
    if end is None:
        raise DamagedArtifact(f"The tokenizer in {folder} lacks an eos_token.", "Name it in its tokenizer_config.json.")
    return Marks(tuple(whole[: whole.index(plain[0])]), end)
