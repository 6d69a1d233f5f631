"""Bytes as printable characters, in which byte-level vocabularies are written (GPT-2's `bytes_to_unicode`, Radford et
al. 2019): visible Latin-1 characters represent themselves, all other bytes are mapped to U+0100 and following."""

from __future__ import annotations

BYTES = 256
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTE_ORDER = (*PRINTABLE, *(byte for byte in range(BYTES) if byte not in PRINTABLE))  # sorted by character, as ids are
CHARACTERS = {byte: chr(byte) for byte in PRINTABLE} | {
    byte: chr(BYTES + number) for number, byte in enumerate(BYTE_ORDER[len(PRINTABLE) :])
}
BYTE_SYMBOLS = tuple(CHARACTERS[byte] for byte in range(BYTES))
_BYTES = {ord(character): byte for byte, character in CHARACTERS.items()}
_KNOWN = frozenset(CHARACTERS.values())


def spell(token: bytes) -> str:
    """The characters that represent these bytes, one per byte."""
    return "".join(CHARACTERS[byte] for byte in token)


def unspell(characters: str) -> bytes | None:
    """The bytes that these characters represent. None if one of them represents no byte, such as a space."""
    return characters.translate(_BYTES).encode("latin-1") if _KNOWN.issuperset(characters) else None
