"""The secret that surrogates depend on: the config says where it is, never what it is.

Whoever knows the salt can look up the surrogate of any value that they guess, so the salt stays out of profiles, keys,
manifests, logs and the store. Every process reads it from its own environment or file. A key contains its digest.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from storage.errors import ConfigError
from tasks.stage.config import StageConfig

REMEDY = "name an environment variable, {env: NAME}, or a file, {file: PATH}, but never write the salt itself"
HIDDEN = "(hidden)"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


class SaltSource(StageConfig):
    """Where the salt is: in an environment variable or in a file."""

    env: str | None = Field(None, pattern=_VARIABLE, description="environment variable with the salt")
    file: str | None = Field(
        None, min_length=1, description="text file with the salt, without the line break at its end"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("a salt is in either a variable (`env`) or a file (`file`)")
        return self


def without_secret(value: Any) -> Any:
    """A raw config value that is safe to show: HIDDEN in place of anything that may be a salt in clear."""
    if value is None or value == "" or isinstance(value, SaltSource):
        return value or None
    if isinstance(value, Mapping):
        fields = {name: where for name, where in value.items() if where is not None}
        if fields.keys() == {"file"} and isinstance(fields["file"], str):
            return value
        if fields.keys() == {"env"} and re.fullmatch(_VARIABLE, str(fields["env"])):
            return value
    return HIDDEN


def read_salt(source: SaltSource | None) -> str:
    """The salt, empty without a source. Raises ConfigError for a missing variable, or a file without a salt."""
    if source is None:
        return ""
    if source.env is not None:
        salt = os.environ.get(source.env, "")
        if not salt:
            state = "empty" if source.env in os.environ else "not set"
            raise ConfigError(
                f"filter.pii.salt: the environment variable {source.env} is {state}.",
                f"Set {source.env} for this process and for its workers.",
            )
        return salt
    assert source.file is not None
    problem = "is empty"
    try:
        salt = Path(source.file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        salt, problem = "", f"can't be read: {error.strerror}"
    except UnicodeDecodeError:  # whose text would quote the file
        salt, problem = "", "is not UTF-8"
    if not salt:
        raise ConfigError(f"filter.pii.salt: the file {source.file} {problem}.", "Write the salt into this file.")
    return salt


@functools.cache
def salt_digest(salt: str) -> str:
    """A digest that may be published in manifests: 64 hex digits.

    It uses scrypt (RFC 7914) instead of SHA-256 because salts are often short: each guess costs 16 MiB and tens of
    milliseconds. scrypt's own salt is fixed, because equal salts must give equal keys. That allows precomputing a table
    for this program, so a salt should still be long and random.
    """
    return hashlib.scrypt(salt.encode(), salt=b"gristmill filter.pii.salt", n=2**14, r=8, p=1, dklen=32).hex()
