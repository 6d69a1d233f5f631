"""Identity: two artifacts with the same key are the same, before either exists.

A key is the SHA-256 of a canonical JSON payload: stage, version, config and the digests of the inputs. The manifest
keeps the whole payload, so that a cache miss can be explained field by field instead of by two unequal hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict, Field

from storage.errors import ConfigError

KEY_LENGTH = 32  # hex digits kept: 128 bits, enough for identity and short enough for a path


class KeyPayload(BaseModel):
    """Everything that determines an artifact's identity, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str = Field(description="name of the stage")
    version: int = Field(description="version of the stage, incremented by hand when its results change")
    config: dict[str, Any] = Field(description="the stage's config as plain JSON")
    inputs: dict[str, str] = Field(description="digest of each input artifact and of each source outside the store")

    def key(self) -> str:
        """The artifact's key: `KEY_LENGTH` hex digits."""
        return hashlib.sha256(canonical_json(self.model_dump())).hexdigest()[:KEY_LENGTH]


def canonical_json(value: Any) -> bytes:
    """JSON in a canonical form: sorted keys, no white space, no NaN, UTF-8.

    Raises ConfigError for a value that has no such form (a set, an object, NaN, a lone surrogate) and so cannot be part
    of an identity.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"A config value has no stable identity: {error}.", "Use numbers, strings, booleans, lists and mappings."
        ) from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """The fields in which two payloads differ, as (dotted path, old value, new value), in order of path.

    A field that only one side has is reported as None on the other. Lists of groups, such as sources, are compared
    group by group if they have the same length.
    """
    fields: list[tuple[str, Any, Any]] = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        path = f"{prefix}{name}"
        if _groups(before) and _groups(after) and len(before) == len(after):
            before, after = dict(enumerate(before)), dict(enumerate(after))
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            fields += differences(before, after, f"{path}.")
        elif before != after:
            fields.append((path, before, after))
    return fields


def _groups(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return isinstance(value, list | tuple) and all(isinstance(one, Mapping) for one in value)
