"""The rows of a stage's inputs: those of one artifact, or of several by name, such as people's and a model's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from storage.artifact import Artifact

Pairs = Artifact | Mapping[str, Artifact]


def files_of(pairs: Pairs) -> list[Path]:
    """The JSON Lines files, as absolute paths, in the order of the names."""
    return [path.resolve() for one in _all(pairs) for path in one.files("*.jsonl")]


def digest_of(pairs: Pairs) -> str:
    """The artifacts' digests, in the order of the names."""
    return " ".join(one.digest for one in _all(pairs))


def _all(pairs: Pairs) -> list[Artifact]:
    return [pairs] if isinstance(pairs, Artifact) else [one for _, one in sorted(pairs.items())]
