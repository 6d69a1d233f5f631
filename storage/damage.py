"""Finds damage of an artifact: missing, changed or extra files, and a manifest that contradicts itself.

Every byte of an artifact is checked against its manifest before a stage reads it. Otherwise a byte that changed without
changing the size would give other rows, weights or tokens, and their result would be published under the right key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from storage.digests import FileEntry, sums, tree_digest
from storage.errors import ConfigError
from storage.manifest import MANIFEST, SUMS, Manifest

UNPUBLISHED = " was not published with it"
Digests = Callable[[Iterable[str]], Mapping[str, str]]


def find_damage(
    manifest: Manifest, location: str, sizes: Mapping[str, int], digests: Digests | None, closed: Sequence[str] = ()
) -> Iterator[str]:
    """A phrase for each difference from what was published. `sizes` are the bytes of every existing file, by its path
    in the artifact. `digests` hashes some of them; None compares only sizes. Files in `closed` folders can't be
    checked."""
    yield from contradictions(manifest, location)
    hidden = tuple(f"{folder}/" for folder in closed)
    expected = {SUMS: FileEntry(sha256=manifest.digest, size=len(sums(manifest.files).encode())), **manifest.files}
    visible = {name: entry for name, entry in expected.items() if not name.startswith(hidden)}
    yield from (f"{location}/{phrase}" for _, phrase in differing(visible, sizes, digests))
    for name in sorted(sizes.keys() - expected.keys() - {MANIFEST}):
        if not name.rpartition("/")[2].startswith("."):  # file managers and NFS make these, and no stage reads them
            yield f"{location}/{name}{UNPUBLISHED}"


def differing(
    expected: Mapping[str, FileEntry], sizes: Mapping[str, int], digests: Digests | None
) -> Iterator[tuple[str, str]]:
    """The name of each file that is not as expected, and a phrase that says how."""
    whole = []
    for name, entry in expected.items():
        if name not in sizes:
            yield name, f"{name} is missing"
        elif sizes[name] != entry.size:
            yield name, f"{name} has {sizes[name]:,} bytes instead of {entry.size:,}"
        else:
            whole.append(name)
    found = digests(whole) if digests else {name: expected[name].sha256 for name in whole}
    for name in whole:
        entry = expected[name]
        if name not in found:
            yield name, f"{name} can't be read"
        elif found[name] != entry.sha256:
            yield name, f"{name} changed: SHA-256 {found[name][:12]}… instead of {entry.sha256[:12]}…"


def contradictions(manifest: Manifest, location: str) -> Iterator[str]:
    """A phrase for each contradiction of a manifest with its location or its own files."""
    stage, _, name = location.partition("/")
    try:
        key = manifest.payload.key()
    except ConfigError:
        key = ""  # NaN or a lone surrogate, which no stage's config can have
    if key != manifest.key:
        yield f"the manifest of {location} has another key than its config and inputs"
    if (manifest.stage, manifest.key) != (stage, name.partition(".")[0]):
        yield f"the manifest of {location} is that of {manifest.stage}/{manifest.key[:12]}"
    if manifest.digest != tree_digest(manifest.files):
        yield f"the manifest of {location} has another digest than its files"


def local_sizes(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Bytes of every file below a folder, by its POSIX path, and the subfolders that this user may not enter, such as
    removed texts in another user's store. Raises OSError."""
    sizes: dict[str, int] = {}
    closed: list[str] = []

    def failed(error: OSError) -> None:
        if not isinstance(error, PermissionError) or Path(error.filename) == folder:
            raise error
        closed.append(Path(error.filename).relative_to(folder).as_posix())

    for place, _, names in os.walk(folder, onerror=failed):
        for path in (Path(place, name) for name in names):
            sizes[path.relative_to(folder).as_posix()] = path.lstat().st_size
    return sizes, closed
