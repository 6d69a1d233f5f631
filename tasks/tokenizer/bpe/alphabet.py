"""Bytes as the printable characters that a byte-level vocabulary is written with (`bytes_to_unicode` of GPT-2, Radford
et al. 2019): those that are letters and signs in Latin-1 stand for themselves, the others for what follows U+0100."""

from __future__ import annotations

BYTES = 256
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTE_ORDER = (*PRINTABLE, *(byte for byte in range(BYTES) if byte not in PRINTABLE))  # by character: the order of ids
CHARACTERS = {byte: chr(byte) for byte in PRINTABLE} | {
    byte: chr(BYTES + number) for number, byte in enumerate(BYTE_ORDER[len(PRINTABLE) :])
}
_BYTES = {ord(character): byte for byte, character in CHARACTERS.items()}
_KNOWN = frozenset(CHARACTERS.values())


def spell(token: bytes) -> str:
    """The characters that stand for these bytes, one each."""
    return "".join(CHARACTERS[byte] for byte in token)


def unspell(characters: str) -> bytes | None:
    """The bytes that these characters stand for; None where one of them stands for none, as a space."""
    return characters.translate(_BYTES).encode("latin-1") if _KNOWN.issuperset(characters) else None
