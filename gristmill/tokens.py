"""Train a tokenizer on documents, load one, encode and decode."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

from gristmill.folders import items_of, made, read, scratch, texts_of, watcher
from gristmill.settings import config_of, new_folder, path_of
from models.tokenizer import EOS
from storage.errors import BadDocument, ConfigError, SourceError
from tasks.tokenizer import TokenizerConfig, load_for_documents
from tasks.tokenizer import train_tokenizer as tokenizer_stage

Ids = list[int]


class Tokenizer:
    """A byte-level BPE vocabulary. Special tokens that a text spells are encoded as text, and none is added.

    >>> tokenizer = gm.load_tokenizer("my-tokenizer")
    >>> tokenizer.decode(tokenizer.encode("The mill"))
    'The mill'
    """

    def __init__(self, path: Path, *, owned: TemporaryDirectory[str] | None = None) -> None:
        self.path = path
        self._owned = owned  # removed with this object
        self._tokenizer = load_for_documents(path)

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def eos_id(self) -> int | None:
        """The id that ends a document, None for a vocabulary without it."""
        found = self._tokenizer.token_to_id(EOS)
        return None if found is None else int(found)

    @overload
    def encode(self, texts: str) -> Ids: ...  # type: ignore[overload-overlap]  # a text is an iterable of texts
    @overload
    def encode(self, texts: Iterable[str]) -> list[Ids]: ...
    def encode(self, texts: str | Iterable[str]) -> Ids | list[Ids]:
        """The ids of a text, or of each of several. Raises BadDocument, which names the index, for an item that is
        not a text.

        >>> tokenizer.encode(["The mill", "grinds"])
        """
        if isinstance(texts, str):
            return self.encode([texts])[0]
        given = list(texts) if isinstance(texts, Sequence) and not isinstance(texts, bytes) else items_of(texts)
        checked = texts_of(given)
        return [one.ids for one in self._tokenizer.encode_batch(checked)]

    @overload
    def decode(self, ids: Sequence[int]) -> str: ...
    @overload
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]: ...
    def decode(self, ids: Sequence[int] | Sequence[Sequence[int]]) -> str | list[str]:
        """The text of a row of ids, or of each of several. Raises BadDocument for an id that the vocabulary lacks.

        >>> tokenizer.decode([[257, 300], [301]])
        """
        if not isinstance(ids, Iterable):
            raise BadDocument(
                f"The ids are of type {type(ids).__name__}.", "Give a list of ids, or a list of such lists."
            )
        rows = [*ids]
        if rows and isinstance(rows[0], Iterable):
            return [self._decode(self._row(row, number), number) for number, row in enumerate(rows)]
        return self._decode(rows, 0)

    def _row(self, row: Any, number: int) -> list[Any]:
        if not isinstance(row, Iterable):
            raise BadDocument(f"Row {number} is {row!r}.", "Give a list of ids, or a list of such lists.")
        return [*row]

    def _decode(self, ids: list[Any], number: int) -> str:
        for place, one in enumerate(ids):
            if isinstance(one, bool) or not hasattr(one, "__index__") or not 0 <= int(one) < self.vocab_size:
                raise BadDocument(
                    f"Id {place} of row {number} is {one!r}.", f"Ids are whole numbers from 0 to {self.vocab_size - 1}."
                )
        return str(self._tokenizer.decode([int(one) for one in ids], skip_special_tokens=False))

    def save(self, path: str | PathLike[str]) -> Path:
        """Write its files into a new or empty folder, as transformers' AutoTokenizer and `load_tokenizer` read them.

        >>> tokenizer.save("my-tokenizer")
        """
        target = new_folder(path, "path")
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"<Tokenizer: {self.vocab_size:,} ids>"


def train_tokenizer(
    source: Any,
    vocab_size: int | None = None,
    *,
    pattern: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Tokenizer:
    """Learn a byte-level BPE vocabulary, and prove that it is lossless.

    `source` is a folder or a file of documents, what `filter` wrote, an artifact, or an iterable of texts.
    `vocab_size` is 4,096 by default, special tokens included. `pattern` says how text is split: gpt2, gpt4 or llama3.
    `config` has further keys of `tokenizer:` in a profile. The files lie in a temporary folder until `save`. Raises
    ConfigError for a wrong setting, SourceError for documents that can't be read.

    >>> tokenizer = gm.train_tokenizer("clean/", vocab_size=32_000)
    >>> tokenizer.save("my-tokenizer")
    """
    chosen = config_of(TokenizerConfig, "tokenizer", config, vocab_size=vocab_size, pattern=pattern)
    if chosen.keep is not None:
        raise ConfigError("tokenizer.keep names an artifact of a store.", "Use load_tokenizer, or a profile.")
    if chosen.extend is not None:
        raise ConfigError("tokenizer.extend is for a base that a profile trains.", "Use a profile, or leave it out.")
    observer = watcher(progress)
    owned = TemporaryDirectory(prefix="gristmill-tokenizer-")
    with scratch() as folder:
        documents = read(source, folder, observer).warned().documents
        out = made(tokenizer_stage, chosen, [documents], folder / "made", observer)
        shutil.copytree(out.path, owned.name, dirs_exist_ok=True)
    return Tokenizer(Path(owned.name), owned=owned)


def load_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """The tokenizer of a folder, or of a tokenizer.json. Raises SourceError for a folder without one, DamagedArtifact
    for a file that is not a tokenizer.

    >>> gm.load_tokenizer("my-tokenizer").vocab_size
    """
    given = path_of(path, "path")
    folder = given.parent if given.name == "tokenizer.json" else given
    if not (folder / "tokenizer.json").is_file():
        raise SourceError(f"{folder} lacks a tokenizer.json.", "Give the folder of a tokenizer.")
    return Tokenizer(folder)
