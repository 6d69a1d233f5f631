"""A SentencePiece `tokenizer.model` of Llama's kind as the `tokenizers` library has it, without SentencePiece.

The file is a protocol buffer (sentencepiece_model.proto of google/sentencepiece); read are the pieces with their scores
and kinds, and what kind of model they make. SentencePiece joins the neighbours whose joint piece has the highest score;
as merges of BPE, that is every way to split a piece into two others, in the order of the pieces' scores.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import SourceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PIECE, TRAINER = 1, 2  # fields of the model
TEXT, SCORE = 1, 2  # fields of a piece
MODEL_TYPE, BPE_TYPE = 3, 2  # a field of the trainer's settings, and its value
VARINT, EIGHT_BYTES, SIZED, FOUR_BYTES = 0, 1, 2, 5  # wire types
SPACE = "▁"
UNKNOWN = "<unk>"


def load_sentencepiece(path: Path) -> Tokenizer:
    """The BPE of such a file, a space before each text, bytes for characters it doesn't know. Raises SourceError."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.normalizers import Prepend, Replace, Sequence

    try:
        scores, kind = _read(path.read_bytes())
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise SourceError(f"{path} is no SentencePiece model.", "Name another folder in tokenizer.compare.") from error
    if kind != BPE_TYPE or UNKNOWN not in scores:
        raise SourceError(
            f"{path} is not a BPE of SentencePiece with {UNKNOWN}.", "Convert it to a tokenizer.json with transformers."
        )
    ids = {piece: number for number, piece in enumerate(scores)}
    merges = [
        (-score, ids[piece[:cut]], ids[piece[cut:]], (piece[:cut], piece[cut:]))
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    pairs = [pair for *_, pair in sorted(merges)]
    tokenizer = Tokenizer(BPE(ids, pairs, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = Sequence([Prepend(SPACE), Replace(" ", SPACE)])
    return tokenizer


def _read(data: bytes) -> tuple[dict[str, float], int]:
    """Pieces with their scores, in the order of their ids; and the kind of model."""
    scores: dict[str, float] = {}
    kind = 0
    for field, value in _fields(data):
        if field == PIECE:
            piece = dict(_fields(_sized(value)))
            scores[_sized(piece[TEXT]).decode()] = struct.unpack("<f", _sized(piece.get(SCORE, b"\0\0\0\0")))[0]
        elif field == TRAINER:
            found = dict(_fields(_sized(value))).get(MODEL_TYPE, 0)
            kind = found if isinstance(found, int) else 0
    return scores, kind


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the fields of one message: a number for a varint, bytes for all others."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        size, at = _varint(data, at) if kind == SIZED else ({EIGHT_BYTES: 8, FOUR_BYTES: 4}[kind], at)
        if at + size > len(data):
            raise IndexError
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number by seven bits a byte, the lowest first; and the place after it."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _sized(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise IndexError
    return value
