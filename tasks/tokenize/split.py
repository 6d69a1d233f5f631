"""The split into training and validation, which follows from a document's id."""

from __future__ import annotations

import hashlib


def in_validation(document: str, share: float) -> bool:
    """Whether the document with this id is held out. The hash is salted, because other selections use the id too."""
    drawn = hashlib.sha256(f"validation {document}".encode()).digest()
    return int.from_bytes(drawn[:8]) < share * 2.0**64
