"""The manifest: the description of an artifact, stored with it.

It is written last: without it the artifact does not exist. It records the key's whole payload (so a cache miss can be
explained), the files with their digests (so damage can be located), the counts (so nothing is lost silently), and the
circumstances: environment, source digest, duration. Circumstances are not part of the identity or of the digest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from storage.digests import DIGEST, FileEntry
from storage.errors import DamagedArtifact, StoreError, make_again
from storage.keys import KeyPayload

FORMAT = 1
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
LONGEST_PART, LONGEST_PATH = 255, 2048  # bytes, the limits of file systems and buckets


def check_name(name: str) -> str:
    """A path inside a folder: of a file in an artifact, or an artifact in a store. Raises ValueError for a path that
    leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or "\\" in name or name == ".":
        raise ValueError(f"{name!r} is not a path inside the folder")
    return check_text(name)


def check_text(name: str) -> str:
    """A path that file systems accept. Raises ValueError for NUL, a lone surrogate and a path that is too long."""
    if "\0" in name:
        raise ValueError(f"{name!r} is not a path")
    parts = [len(part) for part in name.encode().split(b"/")]
    if max(parts) > LONGEST_PART or sum(parts) > LONGEST_PATH:
        raise ValueError(f"{name[:80]}… is too long for a path")
    return name


class InputRef(BaseModel):
    """The origin of an input, for lineage: an artifact, and the part of it that was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    location: Annotated[str, AfterValidator(check_text)] = Field(description="stage/key of the artifact")
    part: str = Field(default="", description="subfolder that was read, or empty for the whole artifact")


class Manifest(BaseModel):
    """An artifact's description. `counts` describe the result, `facts` the circumstances (times, speeds)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    key: str
    payload: KeyPayload
    digest: str = Field(pattern=DIGEST)
    files: dict[Annotated[str, AfterValidator(check_name)], FileEntry]
    origins: dict[str, InputRef] = Field(default_factory=dict, description="inputs by name")
    uses: dict[str, InputRef] = Field(default_factory=dict, description="other artifacts used, by name")
    counts: dict[str, Any] = Field(default_factory=dict, description="counts and measurements of the result")
    facts: dict[str, Any] = Field(
        default_factory=dict, description="durations and speeds, which differ from run to run"
    )
    source_digest: str = Field(default="", description="digest of the stage's source code")
    environment: dict[str, str] = Field(default_factory=dict, description="versions, commit, changes since, processor")
    created: str = Field(description="UTC time with microseconds, ISO 8601")

    @property
    def stage(self) -> str:
        """The name of the stage that made the artifact."""
        return self.payload.stage

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    @property
    def adopted(self) -> str:
        """The origin of an adopted artifact, or empty for one that a stage made."""
        return str(self.facts.get("adopted", ""))

    def to_json(self) -> str:
        """Indented JSON, for people and for `from_json`, with a checksum of the rest. Columns of tables keep their
        stage's order."""
        data = json.loads(json.dumps(self.model_dump()))
        return json.dumps({**data, "checksum": _checksum(data)}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """Parse a manifest. Raises DamagedArtifact for an invalid one, StoreError for another format."""
        again = make_again(where.partition("/")[0])
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DamagedArtifact(f"The manifest of {where} is not JSON: {error}.", again) from error
        if not isinstance(data, dict):
            raise DamagedArtifact(f"The manifest of {where} is not a mapping.", again)
        if (version := data.get("format")) != FORMAT:
            raise StoreError(
                f"{where} was written in manifest format {version}, but this version reads format {FORMAT}.",
                "Use the version of Gristmill that wrote it, or another store "
                "(--store, or runtime.store in a profile).",
            )
        recorded = data.pop("checksum", None)
        if recorded is not None and recorded != _checksum(data):
            raise DamagedArtifact(f"The manifest of {where} was changed: its checksum differs.", again)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first, count = error.errors()[0], error.error_count()
            more = f", and {count - 1} more" if count > 1 else ""
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}{more}"
            raise DamagedArtifact(f"The manifest of {where} is not valid: {problem}.", again) from error


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
