"""Digests that identify a task of the harness before its data is read: its definition, and its files or a commit."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator
from pathlib import Path

from storage.digest_cache import remembered_digest
from storage.digests import list_files, tree_digest
from storage.errors import SourceError
from tasks.harness.config import HarnessSource
from tasks.harness.definitions import definition_digest, installed, reads_sentences
from tasks.harness.sentences import sentences_digest

SUBSET = "{subset}"


def fingerprint(source: HarnessSource) -> dict[str, str]:
    """Digests by name: of the definition, and of each split's files or the commit. Raises SourceError for a missing
    file or folder."""
    name = f"harness {source.task}"
    if source.folder is not None:
        folder = Path(source.folder).expanduser()
        if not folder.is_dir():
            raise SourceError(f"{folder} is not a folder.", f"Correct download.harness.folder of {source.task}.")
        digests = {f"{name} definition": f"{installed()} {tree_digest(list_files(folder))}"}
    else:
        folder = None
        digests = {f"{name} definition": definition_digest(source.task)}
    if reads_sentences(source.task, folder):
        digests[f"{name} sentences"] = sentences_digest()
    if source.revision is not None:
        return {**digests, name: source.revision}
    for split, pattern in (source.files or {}).items():
        paths = [*files_of(pattern.replace(SUBSET, "*"))]
        if not paths:
            raise SourceError(
                f"The task {source.task} reads its split {split} from {pattern}, and no such file exists.",
                "Correct download.harness.",
            )
        digest = hashlib.sha256()
        for path in paths:
            digest.update(f"{path.name}\0{remembered_digest(path)}\0".encode())
        digests[f"{name} {split}"] = digest.hexdigest()
    return digests


def files_of(pattern: str) -> Iterator[Path]:
    """Yields the files of a glob, sorted."""
    for path in sorted(glob.glob(str(Path(pattern).expanduser()), recursive=True)):
        if Path(path).is_file():
            yield Path(path)
