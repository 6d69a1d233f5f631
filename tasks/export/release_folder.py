"""A release outside the store: saves a folder to hand on, and checks one that was received.

    report.html       about the run that made it, and report.json with the same numbers
    SHA256SUMS        every file with its SHA-256. Without the report, its SHA-256 is the artifact's digest
    SHA256SUMS.sig    the signature of that file, if any

An artifact is immutable, so it can't hold a signature: a copy is saved, and signed where the key is. Nor can it hold
the report, whose times differ from run to run. The manifest is not copied. It describes the machine that made the
release, and SHA256SUMS doesn't vouch for it.

A check trusts nothing in the folder: a name that leads out of it is refused, no link is followed, and only plain files
are opened.
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
from storage.digests import FileEntry, file_digest, sums
from storage.errors import DamagedArtifact, SignatureError, StoreError
from storage.manifest import MANIFEST, SUMS, check_name
from storage.store import STORE_FILE
from tasks.export.signature import sign, signer

SIGNATURE = f"{SUMS}.sig"
REPORT, REPORT_PAGE = "report.json", "report.html"  # of a release: they are no part of its artifact
# Files that a hub adds to each of its repositories, and its client to a folder that it downloads to
OF_A_HUB = re.compile(r"\.gitattributes|\.cache/huggingface/(\.gitignore|CACHEDIR\.TAG|.+\.(metadata|lock))")
MOST_BYTES = 16 << 20  # of a list: far more than any release needs
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
NAMED = 3  # problems of a folder that a message names: a list of thousands helps nobody
_AGAIN = "Get the release again from a source that you trust, in binary mode, and add nothing to its folder."


def save(artifact: Artifact, folder: Path, report: Mapping[str, bytes]) -> None:
    """Copy a release with its report to a new folder, and check every byte of the copy. Raises StoreError for a folder
    that exists, is in a store or can't be written, and DamagedArtifact."""
    with writing(folder):
        if folder.exists() or folder.is_symlink():
            raise StoreError(f"{folder} exists already.", "Name a new folder.")
        if any((parent / STORE_FILE).is_file() for parent in folder.absolute().parents):
            raise StoreError(f"{folder} is in a store, which has its own files only.", "Name a folder outside it.")
    assert artifact.manifest is not None
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            for name in artifact.manifest.files:
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(artifact.path / name, draft / name)
            entries = dict(artifact.manifest.files)
            for name, content in report.items():
                (draft / name).write_bytes(content)
                entries[name] = FileEntry(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
            (draft / SUMS).write_text(sums(entries))
            check(draft)
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def sign_folder(folder: Path, key: Path) -> None:
    """Sign a saved release with an SSH key, replacing any signature. A damaged release isn't signed.
    Raises StoreError, DamagedArtifact, ConfigError, SignatureError."""
    if (folder / MANIFEST).exists():
        raise StoreError(
            f"{folder} is an artifact in a store, which must not change.",
            "Save a copy and sign that: `gristmill release save REF FOLDER`",
        )
    signature = sign(check(folder), key)
    with writing(folder):
        (folder / SIGNATURE).write_bytes(signature)


def verify_folder(folder: Path, signers: Path, identity: str | None = None) -> tuple[str, str]:
    """Check a folder's list, then its signature, then every file. Returns the signer and the release's digest.

    Raises SignatureError, DamagedArtifact, StoreError, ConfigError.
    """
    listed = _read(folder, SUMS)
    parse_sums(listed)
    if not os.path.lexists(folder / SIGNATURE):
        raise SignatureError(f"{folder} isn't signed: it lacks {SIGNATURE}.", "Ask its publisher for a signature.")
    who = signer(listed, _read(folder, SIGNATURE), signers, identity)
    check(folder, listed)
    return who, digest_of(listed)


def verify_unsigned(folder: Path) -> str:
    """Check a folder's files against its own list, and return the release's digest. Nobody vouches for the list:
    whoever changed a file may have changed the list too. Raises DamagedArtifact, StoreError."""
    return digest_of(check(folder))


def digest_of(listed: bytes) -> str:
    """The digest of the artifact that a checked list is of: the list's SHA-256 without the report."""
    lines = listed.splitlines(keepends=True)
    added = tuple(f"  {name}\n".encode() for name in (REPORT, REPORT_PAGE))
    return hashlib.sha256(b"".join(line for line in lines if not line.endswith(added))).hexdigest()


def check(folder: Path, listed: bytes | None = None) -> bytes:
    """Check every file of a release, and return the list of files. Raises DamagedArtifact, which names missing, changed
    and additional files, and StoreError if the folder can't be read."""
    listed = _read(folder, SUMS) if listed is None else listed
    expected = parse_sums(listed)
    try:
        problems = list(_problems(folder, expected))
    except OSError as error:
        raise StoreError(f"{folder} can't be read: {error}.", "Make it readable for this user.") from error
    if problems:
        raise DamagedArtifact(f"{folder} isn't the release that {SUMS} lists: {few(problems, '; ')}.", _AGAIN)
    return listed


def parse_sums(listed: bytes) -> dict[str, str]:
    """SHA-256 by name, from a list as `storage.digests.sums` writes it. Raises DamagedArtifact for any other form, and
    for a name that leads out of the folder or is listed twice."""
    try:
        text = listed.decode()
    except UnicodeDecodeError as error:
        raise DamagedArtifact(f"{SUMS} is not UTF-8.", _AGAIN) from error
    expected: dict[str, str] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], 1):
        match = _LINE.fullmatch(line)
        if not match or not line.isprintable():
            raise DamagedArtifact(
                f"Line {number} of {SUMS} isn't a SHA-256 with a name: {_printable(line[:120])}.", _AGAIN
            )
        digest, name = match.groups()
        try:
            check_name(name)
        except ValueError as error:
            raise DamagedArtifact(f"Line {number} of {SUMS}: {error}.", _AGAIN) from error
        if name in expected or name in (SUMS, SIGNATURE):
            why = "listed twice" if name in expected else "listed, although a list excludes itself and its signature"
            raise DamagedArtifact(f"Line {number} of {SUMS}: {name} is {why}.", _AGAIN)
        expected[name] = digest
    if lines[-1]:
        raise DamagedArtifact(f"{SUMS} ends within a line.", _AGAIN)
    if not expected:
        raise DamagedArtifact(f"{SUMS} doesn't list any file.", _AGAIN)
    return expected


def _problems(folder: Path, expected: Mapping[str, str]) -> Iterator[str]:
    """Yields a phrase for each missing, changed or additional file, by name."""
    there = dict(entries(folder))
    for name in sorted(expected.keys() | there.keys()):
        if name not in there:
            yield f"{name} is missing"
        elif not there[name]:
            yield f"{_printable(name)} isn't a plain file"
        elif name in expected and file_digest(folder / name) != expected[name]:
            yield f"{name} has changed"
        elif name not in expected and name not in (SUMS, SIGNATURE) and not OF_A_HUB.fullmatch(name):
            yield f"{_printable(name)} is not part of it"


def added_by_hub(folder: Path) -> list[str]:
    """The unsigned files of an intact release, which a hub or its client added."""
    return sorted(name for name, _ in entries(folder) if OF_A_HUB.fullmatch(name))


def entries(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yields every entry below a folder by name, and whether it is a plain file. Of folders only empty ones are listed,
    with a slash at the end. No link is followed. Raises OSError."""
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
    """The first names, and the number of the remaining ones."""
    return between.join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Within the block, which writes a release to a folder, an error of the disk becomes a StoreError with a remedy
    about that folder, as neither a store nor a run is involved."""
    try:
        yield
    except RuntimeError as error:  # pathlib's, for circular links
        raise StoreError(f"{folder} can't be used: {error}.", "Name another folder.") from error
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else folder
        raise StoreError(
            f"{where} can't be used: {error.strerror or error}.",
            "Name a folder that this user may write, on a disk with room for the release.",
        ) from error


def _read(folder: Path, name: str) -> bytes:
    """The content of a small plain file of a folder. Raises StoreError if it is missing or can't be read,
    DamagedArtifact if it isn't a plain file or is too large."""
    path = folder / name
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode):
            raise DamagedArtifact(f"{path} isn't a plain file.", _AGAIN)
        if state.st_size > MOST_BYTES:
            raise DamagedArtifact(f"{path} has {state.st_size:,} bytes, more than any release needs.", _AGAIN)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"{folder} isn't a release: it lacks {name}.", "Give a folder that `gristmill release save` wrote."
        ) from error
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error}.", "Make it readable for this user.") from error


def _printable(name: str) -> str:
    """A name that a stranger chose, without characters that control a terminal."""
    return name if name.isprintable() else ascii(name)
