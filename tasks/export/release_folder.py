"""A release outside the store: a folder to hand on, and what is wrong with one that was handed on.

    SHA256SUMS        every file with its SHA-256, as the store wrote it; its own SHA-256 is the artifact's digest
    SHA256SUMS.sig    the signature of that file, if there is one

An artifact is immutable, so that a signature can't lie in it: a copy of it is saved, and signed where the key is. The
manifest is not copied. It tells of the machine that made the release, and SHA256SUMS doesn't vouch for it.

Whoever checks a folder trusts nothing in it: a name that leads out of it is refused, no link is followed, and only
plain files are opened.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from storage.artifact import Artifact
from storage.digests import file_digest
from storage.errors import DamagedArtifact, SignatureError, StoreError
from storage.manifest import MANIFEST, SUMS, check_name
from storage.store import STORE_FILE
from tasks.export.signature import sign, signer

SIGNATURE = f"{SUMS}.sig"
# What a hub adds to each of its repositories, and its client to a folder that it downloads to
OF_A_HUB = re.compile(r"\.gitattributes|\.cache/huggingface/(\.gitignore|CACHEDIR\.TAG|.+\.(metadata|lock))")
MOST_BYTES = 16 << 20  # of a list: far more than a release has files
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
NAMED = 3  # of what is wrong with a folder: a list of thousands tells nobody anything
_AGAIN = "Get the release again from whom you trust, in binary mode; nothing may be added to its folder."


def save(artifact: Artifact, folder: Path) -> None:
    """Copy a release to a new folder and check every byte of the copy. Raises StoreError, DamagedArtifact."""
    with writing(folder):
        if folder.exists() or folder.is_symlink():
            raise StoreError(f"{folder} is there already.", "Name a folder that is not.")
        if any((parent / STORE_FILE).is_file() for parent in folder.absolute().parents):
            raise StoreError(f"{folder} lies in a store, which has its own files only.", "Name a folder outside of it.")
    assert artifact.manifest is not None
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            for name in [*artifact.manifest.files, SUMS]:
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(artifact.path / name, draft / name)
            check(draft)
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def sign_folder(folder: Path, key: Path) -> None:
    """Sign a saved release with an SSH key, in place of a signature that it may have. A damaged one is not signed.
    Raises StoreError, DamagedArtifact, ConfigError, SignatureError."""
    if (folder / MANIFEST).exists():
        raise StoreError(
            f"{folder} is an artifact in a store, which stays as it was made.",
            "Save a copy and sign that: `gristmill release save REF FOLDER`",
        )
    signature = sign(check(folder), key)
    with writing(folder):
        (folder / SIGNATURE).write_bytes(signature)


def verify_folder(folder: Path, signers: Path, identity: str | None = None) -> tuple[str, str]:
    """Who signed the release in a folder, and its digest: the list, its signature, then every file is checked.

    Raises SignatureError, DamagedArtifact, StoreError, ConfigError.
    """
    listed = _read(folder, SUMS)
    parse_sums(listed)
    if not os.path.lexists(folder / SIGNATURE):
        raise SignatureError(f"{folder} is not signed: it has no {SIGNATURE}.", "Ask who released it for one.")
    who = signer(listed, _read(folder, SIGNATURE), signers, identity)
    check(folder, listed)
    return who, hashlib.sha256(listed).hexdigest()


def verify_unsigned(folder: Path) -> str:
    """The digest of the release in a folder, each of whose files is as its own list says. Nobody vouches for the list:
    whoever changed a file may have changed it too. Raises DamagedArtifact, StoreError."""
    return hashlib.sha256(check(folder)).hexdigest()


def check(folder: Path, listed: bytes | None = None) -> bytes:
    """The list of a release's files, each of which has the bytes that it should. Raises DamagedArtifact, which names
    what is missing, changed or too many, and StoreError."""
    listed = _read(folder, SUMS) if listed is None else listed
    expected = parse_sums(listed)
    try:
        problems = list(_problems(folder, expected))
    except OSError as error:
        raise StoreError(f"{folder} can't be read: {error}.", "Make it readable for you.") from error
    if problems:
        raise DamagedArtifact(f"{folder} is not the release that {SUMS} lists: {few(problems, '; ')}.", _AGAIN)
    return listed


def parse_sums(listed: bytes) -> dict[str, str]:
    """SHA-256 by name, of a list as `storage.digests.sums` writes it. Raises DamagedArtifact for any other form, for a
    name that leads out of the folder and for one that stands there twice."""
    try:
        text = listed.decode()
    except UnicodeDecodeError as error:
        raise DamagedArtifact(f"{SUMS} is not UTF-8.", _AGAIN) from error
    expected: dict[str, str] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], 1):
        found = _LINE.fullmatch(line)
        if not found or not line.isprintable():
            raise DamagedArtifact(f"Line {number} of {SUMS} is no SHA-256 with a name: {_shown(line[:120])}.", _AGAIN)
        digest, name = found.groups()
        try:
            check_name(name)
        except ValueError as error:
            raise DamagedArtifact(f"Line {number} of {SUMS}: {error}.", _AGAIN) from error
        if name in expected or name in (SUMS, SIGNATURE):
            why = "twice" if name in expected else "although it can't list itself or its signature"
            raise DamagedArtifact(f"Line {number} of {SUMS}: {name} stands there {why}.", _AGAIN)
        expected[name] = digest
    if lines[-1]:
        raise DamagedArtifact(f"{SUMS} ends within a line.", _AGAIN)
    if not expected:
        raise DamagedArtifact(f"{SUMS} lists no file.", _AGAIN)
    return expected


def _problems(folder: Path, expected: Mapping[str, str]) -> Iterator[str]:
    """A phrase for each thing that is not as it should be, by name."""
    there = dict(entries(folder))
    for name in sorted(expected.keys() | there.keys()):
        if name not in there:
            yield f"{name} is missing"
        elif not there[name]:
            yield f"{_shown(name)} is no plain file"
        elif name in expected and file_digest(folder / name) != expected[name]:
            yield f"{name} has changed"
        elif name not in expected and name not in (SUMS, SIGNATURE) and not OF_A_HUB.fullmatch(name):
            yield f"{_shown(name)} is not part of it"


def added_by_hub(folder: Path) -> list[str]:
    """The files in a sound release that nobody signed: a hub and its client put them there."""
    return sorted(name for name, _ in entries(folder) if OF_A_HUB.fullmatch(name))


def entries(folder: Path) -> Iterator[tuple[str, bool]]:
    """All that lies below a folder but folders that are not empty, by name, and whether it is a plain file; an empty
    folder ends in a slash. No link is followed. Raises OSError."""
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        with os.scandir(here) as inside:
            inner = list(inside)
            if not inner:
                yield f"{here.relative_to(folder).as_posix()}/", True
            for entry in inner:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    yield Path(entry.path).relative_to(folder).as_posix(), entry.is_file(follow_symlinks=False)


def few(names: Sequence[str], between: str = ", ") -> str:
    """The first of some names, and how many more there are."""
    return between.join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A block that writes a release to a folder: what a disk says to that is a StoreError with a remedy of its own, as
    neither a store nor a run is meant."""
    try:
        yield
    except RuntimeError as error:  # pathlib's, of links in a circle
        raise StoreError(f"{folder} can't be used: {error}.", "Name another folder.") from error
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else folder
        raise StoreError(
            f"{where} can't be used: {error.strerror or error}.",
            "Name a folder that this user may write, on a disk with room for the release.",
        ) from error


def _read(folder: Path, name: str) -> bytes:
    """A small plain file of a folder. Raises StoreError where it is missing, DamagedArtifact for anything else."""
    path = folder / name
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode):
            raise DamagedArtifact(f"{path} is no plain file.", _AGAIN)
        if state.st_size > MOST_BYTES:
            raise DamagedArtifact(f"{path} has {state.st_size:,} bytes, which no release needs.", _AGAIN)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"{folder} is no release: it has no {name}.", "Give a folder that `gristmill release save` wrote."
        ) from error
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error}.", "Make it readable for you.") from error


def _shown(name: str) -> str:
    """A name that a stranger chose, without characters that steer a terminal."""
    return name if name.isprintable() else ascii(name)
