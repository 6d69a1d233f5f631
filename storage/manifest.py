"""The manifest: the description of an artifact, stored with it.

It is written last; without it the artifact does not exist. It records the key's whole payload (so a cache miss can be
explained), the files with their digests (so damage can be located), the counts (so nothing is lost silently), and the
circumstances: environment, source digest, duration. Circumstances are not part of the identity or of the digest.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.digests import FileEntry
from storage.errors import StoreError
from storage.keys import KeyPayload

FORMAT = 1
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"


class InputRef(BaseModel):
    """Where an input came from, for lineage: an artifact and the part of it that was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    location: str = Field(description="stage/key of the artifact")
    part: str = Field(default="", description="subfolder that was read; empty for all of it")


class Manifest(BaseModel):
    """See the module's docstring. `counts` describe the result; `facts` are circumstances (times, speeds)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    key: str
    payload: KeyPayload
    digest: str
    files: dict[str, FileEntry]
    origins: dict[str, InputRef] = Field(default_factory=dict, description="inputs by name")
    uses: dict[str, InputRef] = Field(default_factory=dict, description="other artifacts that were used, by name")
    counts: dict[str, Any] = Field(default_factory=dict, description="counts and measurements of the result")
    facts: dict[str, Any] = Field(default_factory=dict, description="durations, speeds: differ from run to run")
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

    def to_json(self) -> str:
        """Indented JSON, readable by people and by `from_json`."""
        return json.dumps(self.model_dump(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Manifest:
        """Parse a manifest. Raises StoreError for invalid JSON and for another format version."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise StoreError(
                f"The manifest of {where} is not JSON: {error}.", f"Delete {where} and run again."
            ) from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise StoreError(
                f"{where} was written in manifest format {found}; this version reads format {FORMAT}.",
                "Use the version of Gristmill that wrote it, or another store (--set runtime.store=…).",
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise StoreError(
                f"The manifest of {where} is not valid: {error}.", f"Delete {where} and run again."
            ) from error
