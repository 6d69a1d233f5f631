"""Keys: `gsk-ID-SECRET`. The ID is public. The ledger keeps only an scrypt digest of the secret, with a salt per key.

A secret has 256 random bits, which nobody can guess at any speed. A costly digest protects nothing more here, but each
wrong secret would cost the server that time. So scrypt runs with 4 MiB, in about 10 ms.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from dataclasses import dataclass

from storage.errors import ConfigError, harmless
from tasks.serve.access.config import Limits
from tasks.serve.access.quota import SECOND

PREFIX = "gsk-"
FORM = re.compile(rf"{PREFIX}([0-9A-Za-z]{{8}})-([0-9A-Za-z]{{43}})")
_ALPHABET = string.digits + string.ascii_letters
_NAME_LENGTH = 64


@dataclass(frozen=True)
class Key:
    """A key as a ledger keeps it. Times are microseconds since 1970, in UTC."""

    id: str
    name: str
    salt: bytes
    digest: bytes
    created: int
    expires: int | None = None
    revoked: int | None = None
    used: int | None = None
    limits: str = "{}"  # its own limits, as JSON

    def own_limits(self) -> Limits:
        """The limits that it has of its own, as the only fields that are set."""
        return Limits.model_validate_json(self.limits)

    def state(self, now: int) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


def new_key(name: str, own: Limits, now: float, expires: float | None = None) -> tuple[Key, str]:
    """A new key, and its text for the holder, which is stored nowhere. Raises ConfigError for an unusable name."""
    if not name.strip() or name != harmless(name) or not name.isprintable() or len(name) > _NAME_LENGTH:
        raise ConfigError(
            f"{name!r} can't be the name of a key.", f"Use 1 to {_NAME_LENGTH} printable characters, such as `alice`."
        )
    identity, secret = _random(8), _random(43)
    salt = secrets.token_bytes(16)
    limits = own.model_dump_json(exclude_unset=True)
    until = None if expires is None else int(expires * SECOND)
    key = Key(identity, name, salt, digest_of(secret, salt), int(now * SECOND), until, limits=limits)
    return key, f"{PREFIX}{identity}-{secret}"


def digest_of(secret: str, salt: bytes) -> bytes:
    """The digest of a secret, in about 10 ms without Python's lock."""
    return hashlib.scrypt(secret.encode(), salt=salt, n=2**12, r=8, p=1, dklen=32)


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
