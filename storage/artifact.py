"""An artifact as stages see it: an immutable local folder with a digest.

A stage names the *part* of an input that it reads (`raw.part("documents")`), and only that part's digest enters its
key, so new preference pairs do not retrain the tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from storage.digests import file_digest, list_files, part_of, tree_digest
from storage.errors import DamagedArtifact, StoreError, make_again
from storage.manifest import InputRef, Manifest
from storage.remembered import remembered_digest


@dataclass(frozen=True)
class Artifact:
    """An immutable folder, or a part of one."""

    path: Path
    digest: str
    manifest: Manifest | None = None
    location: str = ""
    part_name: str = ""

    @classmethod
    def at(cls, folder: Path) -> Artifact:
        """A plain folder as an artifact without a manifest, hashed now; for tests and notebooks."""
        if not folder.is_dir():
            raise StoreError(f"{folder} is not a folder.", "Give the folder of an artifact.")
        return cls(path=folder, digest=tree_digest(list_files(folder)))

    def part(self, name: str) -> Artifact:
        """The subfolder `name` as an artifact of its own. Raises DamagedArtifact if there is none."""
        path = self.path / name
        if not path.is_dir():
            raise DamagedArtifact(
                f"{self.location or self.path} has no folder {name}.",
                f"Give the profile a source of {name}; if it has one, run `gristmill store verify`.",
            )
        if self.manifest is None:
            return Artifact.at(path)
        part = f"{self.part_name}/{name}" if self.part_name else name
        return replace(self, path=path, digest=tree_digest(part_of(self.manifest.files, part)), part_name=part)

    def only(self, *names: str) -> Artifact:
        """The same folder, of which only these files and subfolders count: the others enter no key. Raises
        DamagedArtifact for a name that there is not."""
        entries = list_files(self.path) if self.manifest is None else part_of(self.manifest.files, self.part_name)
        chosen = {name: entry for name, entry in entries.items() if {name, name.partition("/")[0]} & {*names}}
        for name in names:
            if name not in chosen and not any(known.startswith(f"{name}/") for known in chosen):
                raise DamagedArtifact(f"{self.location or self.path} has no {name}.", "Run `gristmill store verify`.")
        return replace(self, digest=tree_digest(chosen))

    def whole(self) -> Artifact:
        """The artifact that this is a part of; itself, if it is a whole one or a plain folder."""
        if self.manifest is None or not self.part_name:
            return self
        folder = self.path.parents[len(Path(self.part_name).parts) - 1]
        return replace(self, path=folder, digest=self.manifest.digest, part_name="")

    def files(self, pattern: str) -> list[Path]:
        """The artifact's files that match a glob, sorted by path. Raises DamagedArtifact if none does."""
        found = sorted(path for path in self.path.glob(pattern) if path.is_file())
        if not found:
            raise DamagedArtifact(
                f"{self.location or self.path} has no file {pattern}.",
                make_again(self.location.partition("/")[0]) if self.location else "Give the folder of an artifact.",
            )
        return found

    def file_digest(self, path: Path) -> str:
        """SHA-256 of one of its files: from the manifest, or computed for a plain folder. Raises DamagedArtifact for a
        file that the manifest does not list."""
        if self.manifest is None:
            return file_digest(path)
        name = (Path(self.part_name) / path.relative_to(self.path)).as_posix()
        if name not in self.manifest.files:
            raise DamagedArtifact(
                f"{name} of artifact {self.location} is not in its manifest.",
                "Remove it: artifacts are immutable.",
            )
        return self.manifest.files[name].sha256

    def check_bytes(self, path: Path) -> None:
        """Check that one of its files still has the bytes that its stage wrote; a plain folder has nothing to check
        against. Raises DamagedArtifact."""
        if self.manifest is not None and remembered_digest(path) != self.file_digest(path):
            raise DamagedArtifact(
                f"{path.name} of artifact {self.location} has changed bytes.",
                make_again(self.manifest.stage),
            )

    @property
    def origin(self) -> InputRef:
        """This artifact as a manifest records it among its inputs."""
        return InputRef(location=self.location or str(self.path), part=self.part_name)
