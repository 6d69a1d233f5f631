"""An artifact as stages see it: an immutable local folder with a digest.

A stage names the *part* of an input that it reads (`raw.part("documents")`), and only that part's digest enters its
key, so new preference pairs do not retrain the tokenizer. Files in a bucket are fetched one by one when they are read:
`files` and `file` fetch what they name, `path` the whole part. Digests and names come from the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from storage.digest_cache import remembered_digest
from storage.digests import FileEntry, file_digest, list_files, part_of, tree_digest
from storage.errors import DamagedArtifact, StoreError, make_again
from storage.manifest import InputRef, Manifest


@dataclass(frozen=True)
class Artifact:
    """An immutable folder, or a part of one. `folder` is where its files are, or where `fetch` puts them."""

    folder: Path
    digest: str
    manifest: Manifest | None = None
    location: str = ""
    part_name: str = ""
    chosen: tuple[str, ...] = ()  # see `only`
    fetch: Callable[[Iterable[str]], None] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def at(cls, folder: Path) -> Artifact:
        """A plain folder as an artifact without a manifest, hashed now. For tests and notebooks."""
        if not folder.is_dir():
            raise StoreError(f"{folder} is not a folder.", "Give the folder of an artifact.")
        return cls(folder=folder, digest=tree_digest(list_files(folder)))

    @property
    def path(self) -> Path:
        """The folder with every file in it. Raises DamagedArtifact for a file that can't be fetched."""
        if self.fetch is not None:
            self.bring(self._entries())
        return self.folder

    def part(self, name: str) -> Artifact:
        """The subfolder `name` as an artifact. Raises DamagedArtifact if it is missing."""
        if not self.has_folder(name):
            raise DamagedArtifact(
                f"{self.location or self.folder} has no folder {name}.",
                f"Give the profile a source of {name}. If it has one, run `gristmill store verify`.",
            )
        folder = self.folder / name
        if self.manifest is None:
            return Artifact.at(folder)
        part = f"{self.part_name}/{name}" if self.part_name else name
        digest = tree_digest(part_of(self.manifest.files, part))
        return replace(self, folder=folder, digest=digest, part_name=part, chosen=())

    def only(self, *names: str) -> Artifact:
        """The same folder with only these files and subfolders: the others enter no key. Raises DamagedArtifact for an
        unknown name."""
        entries = list_files(self.folder) if self.manifest is None else part_of(self.manifest.files, self.part_name)
        chosen = _among(entries, names)
        for name in names:
            if name not in chosen and not any(known.startswith(f"{name}/") for known in chosen):
                raise DamagedArtifact(f"{self.location or self.folder} has no {name}.", "Run `gristmill store verify`.")
        return replace(self, digest=tree_digest(chosen), chosen=names)

    def whole(self) -> Artifact:
        """The artifact that this is a part of, or this one if it is whole or a plain folder."""
        if self.manifest is None or not self.part_name:
            return self
        folder = self.folder.parents[len(Path(self.part_name).parts) - 1]
        return replace(self, folder=folder, digest=self.manifest.digest, part_name="", chosen=())

    def has_folder(self, name: str) -> bool:
        """Whether it has a subfolder of this name."""
        if self.fetch is None:
            return (self.folder / name).is_dir()
        return any(known.startswith(f"{name}/") for known in self._entries())

    def names(self, pattern: str) -> list[str]:
        """The names of files in the folder that match a glob without `**`, sorted. Fetches none."""
        if self.fetch is None:
            paths = (path for path in self.folder.glob(pattern) if path.is_file())
            return [path.relative_to(self.folder).as_posix() for path in sorted(paths)]
        parts = pattern.split("/")
        return sorted(name for name in self._entries() if _matches(name.split("/"), parts))

    def folders(self, pattern: str) -> list[str]:
        """Like `names`, for subfolders."""
        if self.fetch is None:
            paths = (path for path in self.folder.glob(pattern) if path.is_dir())
            return [path.relative_to(self.folder).as_posix() for path in sorted(paths)]
        parts = pattern.split("/")
        above = {tuple(name.split("/")[: len(parts)]) for name in self._entries() if name.count("/") >= len(parts)}
        return sorted("/".join(name) for name in above if _matches(name, parts))

    def files(self, pattern: str) -> list[Path]:
        """The artifact's files that match a glob, sorted by path. Raises DamagedArtifact if none does."""
        names = self.names(pattern)
        if not names:
            raise DamagedArtifact(
                f"{self.location or self.folder} has no file {pattern}.",
                make_again(self.location.partition("/")[0]) if self.location else "Give the folder of an artifact.",
            )
        self.bring(names)
        return [self.folder / name for name in names]

    def file(self, name: str) -> Path:
        """One of its files, by its name in the folder. For an unknown name, the path that it would have."""
        if self.fetch is not None and name in self._entries():
            self.bring([name])
        return self.folder / name

    def bring(self, names: Iterable[str]) -> None:
        """Fetch some of its files, unless they are on this machine. Raises DamagedArtifact if one can't be fetched."""
        if self.fetch is not None:
            prefix = f"{self.part_name}/" if self.part_name else ""
            self.fetch([f"{prefix}{name}" for name in names])

    def file_digest(self, path: Path) -> str:
        """SHA-256 of one of its files, from the manifest, or computed for a plain folder. Raises DamagedArtifact for a
        file that the manifest does not list."""
        if self.manifest is None:
            return file_digest(path)
        name = (Path(self.part_name) / path.relative_to(self.folder)).as_posix()
        if name not in self.manifest.files:
            raise DamagedArtifact(
                f"{name} of artifact {self.location} is not in its manifest.", "Remove it: artifacts are immutable."
            )
        return self.manifest.files[name].sha256

    def check_bytes(self, path: Path) -> None:
        """Check that one of its files still has the bytes that its stage wrote. Raises DamagedArtifact. Does nothing
        for a plain folder, which has no digests."""
        if self.manifest is None:
            return
        expected = self.file_digest(path)
        if remembered_digest(self.file(path.relative_to(self.folder).as_posix())) != expected:
            raise DamagedArtifact(
                f"{path.name} of artifact {self.location} has changed bytes.", make_again(self.manifest.stage)
            )

    @property
    def origin(self) -> InputRef:
        """This artifact as a manifest records it among its inputs."""
        return InputRef(location=self.location or str(self.folder), part=self.part_name)

    def _entries(self) -> dict[str, FileEntry]:
        """The manifest's files of this part, and only the chosen ones, by their names in the folder."""
        assert self.manifest is not None
        entries = part_of(self.manifest.files, self.part_name)
        return _among(entries, self.chosen) if self.chosen else entries


def _among(entries: dict[str, FileEntry], names: Iterable[str]) -> dict[str, FileEntry]:
    """The files that are named, or lie in a named subfolder."""
    named = {*names}
    return {name: entry for name, entry in entries.items() if {name, name.partition("/")[0]} & named}


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(name) == len(pattern) and all(map(fnmatchcase, name, pattern))
