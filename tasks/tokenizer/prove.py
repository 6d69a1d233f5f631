"""What a tokenizer must prove before it is published, as later stages and other people will load it.

Every byte has a token of its own that gives it back; hostile texts come back as they were; special tokens are never
text; transformers and our own kernels give the ids of `tokenizers`; and no word is split that the vocabulary has room
for (words.py). Anything else is a defect and nothing is published.

Lone surrogates are not among the texts: no UTF-8 spells them, so no document holds one (`download` puts such rows into
quarantine), and an encoder refuses a column that is not UTF-8. transformers runs the same `tokenizers` core, so it is
asked for a sixteenth of each long text only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from models.tokenizer import EOS, SPECIAL_TOKENS, load_tokenizer
from storage.errors import DamagedArtifact, TokenizerMismatch
from tasks.tokenizer.bpe.alphabet import unspell
from tasks.tokenizer.encoder.tables import byte_symbols, make_tables, obstacle, read_settings
from tasks.tokenizer.load import load_for_documents

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HARD_TEXTS = (
    "".join(map(chr, range(0x250))),  # all of ASCII with NUL and controls, and every Latin letter
    "\x00\x00a\x00",
    "  leading, trailing  \r\n\t\n\n  ",
    "Ελληνικά русский עברית العربية हिन्दी 中文 日本語 한국어 ไทย 👩‍👩‍👧‍👦🇫🇷 ﬁ Å é",
    "aбγ中אع한ก 1٣५௧Ⅷ½² aбγ\u0301中\u200dאع한ก",  # scripts and numbers that change within a word
    "\ufeff\u200b\u202e\ufffd\U0010ffff",
    "don't we'll I'M 3.14159 1234567890 x = {'a': [1, 2]}  # code",
    "\r\n\n\r\r\n \n\t\n  \u2028\u2029\x85\x0b\x0c\n" * 50,
    " ".join(SPECIAL_TOKENS),
    "".join(SPECIAL_TOKENS),
    "<|endoftext|<|endoftext|>|> <|END|> <| end |>",
)
MEGABYTE = 1 << 20
LONG_TEXTS = (
    " " * MEGABYTE,
    *(text * (MEGABYTE // 64) for text in ("a", "\n", "\r\n", "\x00", "the ", "-=")),
)
FIRST_PART = 16  # of a long text, for transformers
UTF8_BYTES = "".join(  # a text that holds each byte of UTF-8, which has no C0, C1 and F5 to FF
    map(
        chr,
        [
            *range(0x800),
            *range(0x800, 0xD800, 0x400),
            *range(0xE000, 0x10000, 0x400),
            *range(1 << 16, 17 << 16, 1 << 16),
        ],
    )
)


def prove(folder: Path, special_tokens: Sequence[str]) -> None:
    """Prove the tokenizer of a folder, whose special tokens are these from id 0 on.

    Raises DamagedArtifact for one that loses or mistakes something, TokenizerMismatch where two loaders differ.
    """
    tokenizer = load_for_documents(folder)
    texts = [*HARD_TEXTS, UTF8_BYTES, "".join(special_tokens), " ".join(special_tokens)]
    _prove_special_tokens(tokenizer, special_tokens)
    _prove_bytes(tokenizer)
    _prove_ids(tokenizer)
    ids = [_prove_text(tokenizer, text, len(special_tokens)) for text in (*texts, *LONG_TEXTS)]
    _prove_transformers(folder, tokenizer, special_tokens, texts)
    prove_kernels(folder, [*texts, *LONG_TEXTS], ids)


def prove_kernels(folder: Path, texts: Sequence[str], ids: Sequence[Sequence[int]]) -> None:
    """Our own kernels give these ids of these texts. Raises TokenizerMismatch; DamagedArtifact where they can't."""
    from tasks.tokenizer.encoder.encode import KernelEncoder

    settings = read_settings(folder)
    if problem := obstacle(settings):
        raise _unproved(f"{problem}: our own kernels could not encode by it")
    encoder = KernelEncoder(make_tables(settings))
    encoded = encoder.encode(pa.array(texts, pa.string()))
    for row, (text, expected) in enumerate(zip(texts, ids, strict=True)):
        if not np.array_equal(encoded.document(row), [*expected, encoder.eos_id]):
            raise _differs("our own encoder", text)


def _prove_special_tokens(tokenizer: Tokenizer, special_tokens: Sequence[str]) -> None:
    added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
    if added != dict(enumerate(special_tokens)):
        raise _unproved("does not give the special tokens their ids")


def _prove_bytes(tokenizer: Tokenizer) -> None:
    """Each of the 256 bytes, also those that no text holds: to a token, to its id, and back."""
    vocabulary, symbols = tokenizer.get_vocab(), byte_symbols()
    missing = [symbol for symbol in symbols if symbol not in vocabulary]
    if missing:
        raise _unproved(f"has no token for {len(missing)} of the 256 bytes")
    for byte, symbol in enumerate(symbols):
        ids = [token.id for token in tokenizer.model.tokenize(symbol)]
        if len(ids) != 1 or unspell(tokenizer.id_to_token(ids[0]) or "") != bytes([byte]):
            raise _unproved(f"does not give byte 0x{byte:02x} back")
    alone = [vocabulary[symbols[byte]] for byte in UTF8_BYTES.encode()]
    if tokenizer.decode(alone, skip_special_tokens=False) != UTF8_BYTES:
        raise _unproved("does not put characters together out of the tokens of their bytes")


def _prove_ids(tokenizer: Tokenizer) -> None:
    """Every number below the vocabulary's size is one token's id: the rows of the model's embedding."""
    taken = sorted(tokenizer.get_vocab().values())
    if taken != list(range(len(taken))):
        raise _unproved(f"does not have the ids 0 to {len(taken) - 1:,}, each once")


def _prove_text(tokenizer: Tokenizer, text: str, special: int) -> list[int]:
    ids: list[int] = tokenizer.encode(text).ids
    if min(ids, default=special) < special:
        raise _unproved(f"parsed a special token out of plain text {text[:40]!r}")
    if tokenizer.decode(ids, skip_special_tokens=False) != text:
        raise _unproved(f"does not bring back {text[:40]!r}")
    return ids


def _prove_transformers(folder: Path, tokenizer: Tokenizer, special_tokens: Sequence[str], texts: list[str]) -> None:
    transformers = load_tokenizer(folder)
    for text in [*texts, *(text[: len(text) // FIRST_PART] for text in LONG_TEXTS)]:
        if transformers.encode(text, split_special_tokens=True) != tokenizer.encode(text).ids:
            raise _differs("transformers", text)
    if transformers.convert_tokens_to_ids(EOS) != 0 or transformers.eos_token != EOS:
        raise _unproved("has lost its end-of-text token in transformers")
    parsed = transformers.encode("".join(special_tokens))
    if parsed != list(range(len(special_tokens))) or set(transformers.all_special_tokens) != set(special_tokens):
        raise _unproved("has lost a special token in transformers")


def _differs(encoder: str, text: str) -> TokenizerMismatch:
    return TokenizerMismatch(
        f"Of {text[:40]!r}{'…' if len(text) > 40 else ''}, {encoder} makes other ids than tokenizers.",
        "This is a defect; nothing was published.",
    )


def _unproved(problem: str) -> DamagedArtifact:
    return DamagedArtifact(f"The trained tokenizer {problem}.", "This is a defect; nothing was published.")
