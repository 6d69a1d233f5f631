"""A release's contents before a push: every file, the warnings of its licences, and findings that reveal its maker.

Files of any kind are searched for passwords and tokens, for home directories, for this machine's name and for this
user's address on it. Large files are searched only at head and tail, where weight formats keep their metadata. The
search finds what a program left by accident, not what somebody hid.
"""

from __future__ import annotations

import codecs
import getpass
import os
import re
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.digests import file_digest
from storage.errors import StoreError
from storage.manifest import MANIFEST, SUMS
from tasks.export.card.licences import WARNING
from tasks.export.push.secrets import digest_of, find_secrets
from tasks.export.release_folder import SIGNATURE, check, parse_sums

LONGEST_TEXT = 64 << 20  # bytes of the largest file that is searched whole, such as a tokenizer's vocabulary
HEAD, TAIL = 16 << 20, 1 << 20  # of a longer file: metadata of GGUF, and of ONNX and archives
SHOWN = 3  # findings of a kind in a file
SHORTEST_HOST = 6  # characters: shorter ones are words
_HOME = re.compile(rb"(?:/home|/Users)/[^/\s\"'<>:]{1,99}/|/root/|[A-Za-z]:\\{1,2}Users\\{1,2}[^\\\s\"']{1,99}")


@dataclass(frozen=True)
class Finding:
    """A place that reveals the maker. A secret isn't quoted, but named by the `digest` of its value."""

    where: str
    what: str
    digest: str = ""


@dataclass(frozen=True)
class Outgoing:
    """An intact release to push: SHA-256 and bytes by name, the list of files last."""

    folder: Path
    digests: dict[str, str]
    sizes: dict[str, int]
    warnings: list[str]
    findings: list[Finding]


def look(folder: Path) -> Outgoing:
    """Check a saved release, signed or not, and search its files. Raises StoreError for an artifact in a store, and
    DamagedArtifact."""
    if (folder / MANIFEST).exists():
        raise StoreError(
            f"{folder} is an artifact in a store, whose manifest describes the machine that made it.",
            "Save a copy and push that: `gristmill release save REF FOLDER`",
        )
    digests = dict(sorted(parse_sums(check(folder)).items()))
    for name in (SIGNATURE, SUMS):  # last, so that the list implies all files
        if (folder / name).is_file():
            digests[name] = file_digest(folder / name)
    notice = folder / "NOTICE"
    paragraphs = notice.read_text(encoding="utf-8").split("\n\n") if notice.is_file() else []
    return Outgoing(
        folder,
        digests,
        {name: (folder / name).stat().st_size for name in digests},
        [one.removeprefix(WARNING) for one in paragraphs if one.startswith(WARNING)],
        [finding for name in digests for finding in _search(folder / name, name)],
    )


def secrets_of(outgoing: Outgoing, allowed: Collection[str] = ()) -> dict[str, str]:
    """The first place of each password or token that isn't allowed, by its digest."""
    places: dict[str, str] = {}
    for one in outgoing.findings:
        if one.digest and one.digest not in allowed:
            places.setdefault(one.digest, one.where)
    return places


def _search(path: Path, name: str) -> Iterator[Finding]:
    data, binary = _seen(path)
    seen: set[bytes] = set()
    for place, value in find_secrets(data):
        if value not in seen:
            seen.add(value)
            digest = digest_of(value)
            yield Finding(_where(name, data, place, binary), f"a password or a token, {digest}", digest)
    for what, pattern in _patterns(binary).items():
        matches = list(pattern.finditer(data))
        for match in matches[:SHOWN]:
            quoted = match[0].decode(errors="backslashreplace")
            yield Finding(_where(name, data, match.start(), binary), f"{what}: {quoted}")
        if len(matches) > SHOWN:
            yield Finding(name, f"{what}, {len(matches) - SHOWN:,} times more")


def _seen(path: Path) -> tuple[bytes, bool]:
    """The bytes of a file to search, and whether they are binary. Text in UTF-16 is converted to UTF-8."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix == ".safetensors":  # eight bytes for the length of its header, which is before the weights
            data = file.read(8)
            data += file.read(min(int.from_bytes(data, "little"), LONGEST_TEXT))
        elif size <= LONGEST_TEXT:
            data = file.read()
        else:
            data = file.read(HEAD) + b"\n"
            file.seek(-TAIL, os.SEEK_END)
            data += file.read()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    return data, b"\0" in data[: 1 << 16]


def _where(name: str, data: bytes, place: int, binary: bool) -> str:
    return f"{name}, byte {place:,}" if binary else f"{name}, line {data.count(10, 0, place) + 1}"


def _patterns(binary: bool) -> dict[str, re.Pattern[bytes]]:
    patterns = {"a home directory": _HOME}
    host = socket.gethostname()
    if len(host) >= SHORTEST_HOST and host != "localhost":
        patterns["this machine's name"] = re.compile(rb"(?<!\w)%s(?!\w)" % re.escape(os.fsencode(host)))
    try:
        user = os.fsencode(getpass.getuser())
    except (KeyError, OSError):  # a container's user may lack a name
        return patterns
    if not binary:  # any weights contain a short name followed by @
        patterns["this user's address"] = re.compile(rb"(?<!\w)%s@[\w-][\w.-]{0,99}" % re.escape(user))
    return patterns
