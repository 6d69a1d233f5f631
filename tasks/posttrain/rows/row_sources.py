"""The rows that a stage is given: those of one artifact, or of several by name, such as people's and a model's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from storage.artifact import Artifact

Pairs = Artifact | Mapping[str, Artifact]


def files_of(pairs: Pairs) -> list[Path]:
    """Their files of JSON Lines, absolute, in the order of the names."""
    return [path.resolve() for one in _all(pairs) for path in one.files("*.jsonl")]


def digest_of(pairs: Pairs) -> str:
    """What tells them from others."""
    return " ".join(one.digest for one in _all(pairs))


def _all(pairs: Pairs) -> list[Artifact]:
    return [pairs] if isinstance(pairs, Artifact) else [one for _, one in sorted(pairs.items())]
