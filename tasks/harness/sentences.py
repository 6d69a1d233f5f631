"""Sentence ends in English, by NLTK's punkt_tab, and the language of a text, both of which the code of IFEval needs.

The harness downloads punkt_tab if it is missing, and its language detector draws random numbers without a seed. Here
`download` copies the English model next to the task's data, so that it is identified with them and nothing is fetched,
and the detector gets a seed.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from storage.errors import ConfigError, SourceError
from tasks.text.packages import package_file

ENGLISH = "tokenizers/punkt_tab/english"
FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
PACKAGE, PACKAGE_FOLDER = "llama-index-core", "llama_index/core/_static/nltk_cache"  # read as files, never imported
SENTENCES = "sentences"  # the folder beside a task's data
DETECTOR_SEED = 0  # as in langdetect's documentation


def english_sentences() -> Path:
    """The folder of the model: where NLTK looks, or else in the data package. Raises SourceError if it is in
    neither."""
    for root in _where_nltk_looks():
        if all((root / ENGLISH / name).is_file() for name in FILES):
            return root / ENGLISH
    try:
        return package_file(PACKAGE, f"{PACKAGE_FOLDER}/{ENGLISH}")
    except SourceError as error:
        raise SourceError(
            f"A task of download.harness reads NLTK's punkt_tab, and it is neither in NLTK's folders nor in {PACKAGE}.",
            f"{error.remedy}, or put it at $NLTK_DATA/{ENGLISH}.",
        ) from error


def sentences_digest() -> str:
    """SHA-256 over the model's files. Raises SourceError if the model is missing."""
    folder, digest = english_sentences(), hashlib.sha256()
    for name in FILES:
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def copy_sentences(target: Path) -> None:
    """Copy the model into a task's folder. Raises SourceError if the model is missing."""
    _copy(english_sentences(), target)


@contextmanager
def repeatable_detector() -> Iterator[None]:
    """Within the block, langdetect gives the same verdict on the same text each time. Without a seed it samples."""
    from langdetect import DetectorFactory

    before = DetectorFactory.seed
    DetectorFactory.seed = DETECTOR_SEED
    try:
        yield
    finally:
        DetectorFactory.seed = before


@contextmanager
def with_sentences(folder: Path) -> Iterator[None]:
    """Within the block, NLTK has only the model in `folder`. A download raises ConfigError."""
    import nltk

    def refuse(what: Any = None, *_: Any, **__: Any) -> None:
        raise ConfigError(
            f"The code of a task would download {what} from the network.",
            "Leave the task out: of NLTK's data only the English part of punkt_tab is prepared.",
        )

    before = list(nltk.data.path), nltk.download
    # A private copy, as NLTK refuses folders that other users can write to, such as those of a shared store
    with TemporaryDirectory(prefix="gristmill-nltk-") as private:
        _copy(folder, Path(private) / ENGLISH)
        for path in Path(private).rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        nltk.data.path[:], nltk.download = [private], refuse
        try:
            yield
        finally:
            nltk.data.path[:], nltk.download = before


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (target / name).write_bytes((source / name).read_bytes())


def _where_nltk_looks() -> Iterator[Path]:
    """The folders of nltk.data.path, without importing NLTK, which takes two seconds."""
    named = [root for root in os.environ.get("NLTK_DATA", "").split(os.pathsep) if root]
    shared = [f"{root}/{part}/nltk_data" for root in (sys.prefix, "/usr", "/usr/local") for part in ("share", "lib")]
    for root in (*named, "~/nltk_data", f"{sys.prefix}/nltk_data", *shared):
        yield Path(root).expanduser()
