"""What would go out with a release: every file, the warnings of its licences, and what tells of its maker.

Files of any kind are searched for passwords and tokens, for home directories, for this machine's name and for this
user's address on it; of large ones the head and the tail, where formats of weights keep what is no weight. That is a
net with a mesh: it finds what a program left by accident, not what somebody hid.
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

LONGEST_TEXT = 64 << 20  # bytes that are searched in whole: a tokenizer's vocabulary is a text, weights are none
HEAD, TAIL = 16 << 20, 1 << 20  # of a longer file: metadata of GGUF, and of ONNX and archives
SHOWN = 3  # findings of a kind in a file
SHORTEST_HOST = 6  # characters: shorter ones are words
_HOME = re.compile(rb"(?:/home|/Users)/[^/\s\"'<>:]{1,99}/|/root/|[A-Za-z]:\\{1,2}Users\\{1,2}[^\\\s\"']{1,99}")


@dataclass(frozen=True)
class Finding:
    """A place that tells of its maker; a secret is not quoted, but named by the `digest` of its value."""

    where: str
    what: str
    digest: str = ""


@dataclass(frozen=True)
class Outgoing:
    """A sound release on its way: SHA-256 and bytes by name, the list of files last."""

    folder: Path
    digests: dict[str, str]
    sizes: dict[str, int]
    warnings: list[str]
    findings: list[Finding]


def look(folder: Path) -> Outgoing:
    """Check a saved release, signed or not, and search its files. Raises StoreError, DamagedArtifact."""
    if (folder / MANIFEST).exists():
        raise StoreError(
            f"{folder} is an artifact in a store, whose manifest tells of the machine that made it.",
            "Save a copy and push that: `gristmill release save REF FOLDER`",
        )
    digests = dict(sorted(parse_sums(check(folder)).items()))
    for name in (SIGNATURE, SUMS):  # last: where the list is, all of it is
        if (folder / name).is_file():
            digests[name] = file_digest(folder / name)
    notice = folder / "NOTICE"
    told = notice.read_text(encoding="utf-8").split("\n\n") if notice.is_file() else []
    return Outgoing(
        folder,
        digests,
        {name: (folder / name).stat().st_size for name in digests},
        [one.removeprefix(WARNING) for one in told if one.startswith(WARNING)],
        [found for name in digests for found in _search(folder / name, name)],
    )


def secrets_of(outgoing: Outgoing, allowed: Collection[str] = ()) -> dict[str, str]:
    """The passwords and tokens that are not allowed: where each first is, by its digest."""
    found: dict[str, str] = {}
    for one in outgoing.findings:
        if one.digest and one.digest not in allowed:
            found.setdefault(one.digest, one.where)
    return found


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
        for found in matches[:SHOWN]:
            quoted = found[0].decode(errors="backslashreplace")
            yield Finding(_where(name, data, found.start(), binary), f"{what}: {quoted}")
        if len(matches) > SHOWN:
            yield Finding(name, f"{what}, {len(matches) - SHOWN:,} times more")


def _seen(path: Path) -> tuple[bytes, bool]:
    """The bytes of a file that are searched, and whether they are no text. A text in UTF-16 is read as UTF-8."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix == ".safetensors":  # eight bytes say how long its head is; all else is weights
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
    except (KeyError, OSError):  # a container's user may have no name
        return patterns
    if not binary:  # a short name and @ are in any weights
        patterns["this user's address"] = re.compile(rb"(?<!\w)%s@[\w-][\w.-]{0,99}" % re.escape(user))
    return patterns
