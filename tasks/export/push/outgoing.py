"""What would go out with a release: every file, the warnings of its licences, and what tells of its maker.

Texts are searched for passwords and tokens, for home directories, for this machine's name and for this user's address
on it. That is a net with a mesh: it finds what a program left by accident, not what somebody hid.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.credentials import redact
from storage.digests import file_digest
from storage.errors import StoreError
from storage.manifest import MANIFEST, SUMS
from tasks.export.card.licences import WARNING
from tasks.export.saved import SIGNATURE, check, parse_sums

LONGEST_TEXT = 64 << 20  # bytes: a tokenizer's vocabulary is a text, weights are none
SHORTEST_HOST = 6  # characters: shorter ones are words
WEIGHTS = (".safetensors", ".gguf", ".onnx", ".bin", ".data", ".pt", ".pt2")
_HOME = re.compile(r"(?:/home|/Users)/[^/\s\"'<>:]+/|/root/|[A-Za-z]:\\{1,2}Users\\{1,2}[^\\\s\"']+")


@dataclass(frozen=True)
class Finding:
    """A line of a text that tells of its maker; a secret is not quoted."""

    where: str
    what: str
    secret: bool = False


@dataclass(frozen=True)
class Outgoing:
    """A sound release on its way: SHA-256 and bytes by name, the list of files last."""

    folder: Path
    digests: dict[str, str]
    sizes: dict[str, int]
    warnings: list[str]
    findings: list[Finding]


def look(folder: Path) -> Outgoing:
    """Check a saved release, signed or not, and search its texts. Raises StoreError, DamagedArtifact."""
    if (folder / MANIFEST).exists():
        raise StoreError(
            f"{folder} is an artifact in a store, whose manifest tells of the machine that made it.",
            "Save a copy and push that: gristmill release save REF FOLDER",
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


def _search(path: Path, name: str) -> Iterator[Finding]:
    if path.suffix in WEIGHTS or path.stat().st_size > LONGEST_TEXT:
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    patterns = _patterns()
    for number, line in enumerate(text.split("\n"), 1):
        if redact(line) != line:
            yield Finding(f"{name}, line {number}", "a password or a token", secret=True)
        for what, pattern in patterns.items():
            if found := pattern.search(line):
                yield Finding(f"{name}, line {number}", f"{what}: {found[0]}")


def _patterns() -> dict[str, re.Pattern[str]]:
    patterns = {"a home directory": _HOME}
    host = socket.gethostname()
    if len(host) >= SHORTEST_HOST and host != "localhost":
        patterns["this machine's name"] = re.compile(rf"\b{re.escape(host)}\b")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return patterns
    patterns["this user's address"] = re.compile(rf"\b{re.escape(user)}@[\w-]+[\w.-]*")
    return patterns
