"""The votes that become preferences."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from storage.digest_cache import remembered_digests
from storage.errors import SourceError
from tasks.stage.config import StageConfig


class VotesConfig(StageConfig):
    """A file of votes, as `gristmill vote` writes it."""

    file: str = Field(min_length=1, description="the file of votes")


def fingerprint(config: VotesConfig) -> dict[str, str]:
    """The SHA-256 of the file. Raises SourceError for a file that can't be read."""
    path = Path(config.file).expanduser()
    try:
        return {"votes": remembered_digests([path])[path]}
    except OSError as error:
        raise SourceError(f"The votes in {path} can't be read: {error.strerror}.", "Check the path.") from error
