"""Checks that a tokenizer must pass before it is published, loaded as later stages and other people will load it.

Every byte has its own token that decodes to it. Difficult texts survive a round trip. Special tokens are never parsed
from text. transformers, if it is installed, and our own kernels give the same ids as `tokenizers`. No word is split
that the vocabulary has room for (words.py). A failure is a bug, and nothing is published.

Lone surrogates are not among the texts: UTF-8 cannot encode them, so no document contains one (`download` quarantines
such rows), and an encoder refuses a column that is not UTF-8. transformers uses the same `tokenizers` core, so only a
sixteenth of each long text is checked with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from models.tokenizer import EOS, SPECIAL_TOKENS, load_tokenizer
from storage.errors import DamagedArtifact, TokenizerMismatch
from tasks.tokenizer.bpe.alphabet import BYTE_SYMBOLS, unspell
from tasks.tokenizer.encoder.tables import make_tables, obstacle, read_settings
from tasks.tokenizer.load import load_for_documents

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tasks.tokenizer.encoder.encode import KernelEncoder

HARD_TEXTS = (
    "".join(map(chr, range(0x250))),  # all of ASCII including NUL and control characters, and all Latin letters
    "\x00\x00a\x00",
    "  leading, trailing  \r\n\t\n\n  ",
    "Ελληνικά русский עברית العربية हिन्दी 中文 日本語 한국어 ไทย 👩‍👩‍👧‍👦🇫🇷 ﬁ Å é",
    "aбγ中אع한ก 1٣५௧Ⅷ½² aбγ\u0301中\u200dאع한ก",  # scripts and number systems mixed within a word
    "\ufeff\u200b\u202e\ufffd\U0010ffff",
    "don't we'll I'M 3.14159 1234567890 x = {'a': [1, 2]}  # code",
    "\r\n\n\r\r\n \n\t\n  \u2028\u2029\x85\x0b\x0c\n" * 50,
    " ".join(SPECIAL_TOKENS),
    "".join(SPECIAL_TOKENS),
    "<|endoftext|<|endoftext|>|> <|END|> <| end |>",
)
LONG_TEXTS = tuple(text * (1 << 14) for text in ("    ", "a", "\n", "\r\n", "\x00", "the ", "-="))
FIRST_PART = 16  # transformers is checked on 1/16 of a long text
UTF8_BYTES = "".join(  # a text with every byte that occurs in UTF-8: all but C0, C1 and F5 to FF
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


def prove(folder: Path, special_tokens: Sequence[str]) -> KernelEncoder:
    """Check the tokenizer of a folder, which must have these special tokens with ids from 0. Returns our own encoder
    for it.

    Raises DamagedArtifact if it loses or misinterprets something, TokenizerMismatch if two loaders differ.
    """
    tokenizer = load_for_documents(folder)
    texts = [*HARD_TEXTS, UTF8_BYTES, "".join(special_tokens), " ".join(special_tokens)]
    if tokenizer.truncation is not None:  # at a length that no text below may have
        raise _unproved("cuts long documents off")
    _prove_special_tokens(tokenizer, special_tokens)
    _prove_bytes(tokenizer)
    _prove_ids(tokenizer)
    ids = [_prove_text(tokenizer, text, len(special_tokens)) for text in (*texts, *LONG_TEXTS)]
    if find_spec("transformers"):  # not needed to clean text
        _prove_transformers(folder, tokenizer, special_tokens, texts)
    return prove_kernels(folder, [*texts, *LONG_TEXTS], ids)


def prove_kernels(folder: Path, texts: Sequence[str], ids: Sequence[Sequence[int]]) -> KernelEncoder:
    """Check that our kernels give these ids for these texts, and return their encoder. Raises TokenizerMismatch, or
    DamagedArtifact if the kernels do not support the tokenizer."""
    from tasks.tokenizer.encoder.encode import KernelEncoder

    settings = read_settings(folder)
    if problem := obstacle(settings):
        raise _unproved(f"{problem}: our own kernels do not support it")
    encoder = KernelEncoder(make_tables(settings))
    encoded = encoder.encode(pa.array(texts, pa.string()))
    for row, (text, expected) in enumerate(zip(texts, ids, strict=True)):
        if not np.array_equal(encoded.document(row), [*expected, encoder.eos_id]):
            raise _differs("our own encoder", text)
    return encoder


def _prove_special_tokens(tokenizer: Tokenizer, special_tokens: Sequence[str]) -> None:
    added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
    if added != dict(enumerate(special_tokens)):
        raise _unproved("does not give the special tokens their ids")


def _prove_bytes(tokenizer: Tokenizer) -> None:
    """Each of the 256 bytes, including those that do not occur in UTF-8: to a token, to its id, and back."""
    vocabulary, symbols = tokenizer.get_vocab(), BYTE_SYMBOLS
    missing = [symbol for symbol in symbols if symbol not in vocabulary]
    if missing:
        raise _unproved(f"has no token for {len(missing)} of the 256 bytes")
    for byte, symbol in enumerate(symbols):
        ids = [token.id for token in tokenizer.model.tokenize(symbol)]
        if len(ids) != 1 or unspell(tokenizer.id_to_token(ids[0]) or "") != bytes([byte]):
            raise _unproved(f"does not decode byte 0x{byte:02x}")
    alone = [vocabulary[symbols[byte]] for byte in UTF8_BYTES.encode()]
    if tokenizer.decode(alone, skip_special_tokens=False) != UTF8_BYTES:
        raise _unproved("does not decode characters from the tokens of their bytes")


def _prove_ids(tokenizer: Tokenizer) -> None:
    """Ids must be consecutive from 0, because they are the rows of the model's embedding."""
    taken = sorted(tokenizer.get_vocab().values())
    if taken != list(range(len(taken))):
        raise _unproved(f"does not have each of the ids 0 to {len(taken) - 1:,} exactly once")


def _prove_text(tokenizer: Tokenizer, text: str, special: int) -> list[int]:
    ids: list[int] = tokenizer.encode(text).ids
    if min(ids, default=special) < special:
        raise _unproved(f"parsed a special token from the plain text {text[:40]!r}")
    if tokenizer.decode(ids, skip_special_tokens=False) != text:
        raise _unproved(f"does not decode {text[:40]!r} to the same text")
    return ids


def _prove_transformers(folder: Path, tokenizer: Tokenizer, special_tokens: Sequence[str], texts: list[str]) -> None:
    transformers = load_tokenizer(folder)
    for text in [*texts, *(text[: len(text) // FIRST_PART] for text in LONG_TEXTS)]:
        if transformers.encode(text, split_special_tokens=True) != tokenizer.encode(text).ids:
            raise _differs("transformers", text)
    if transformers.convert_tokens_to_ids(EOS) != 0 or transformers.eos_token != EOS:
        raise _unproved("loses its end-of-text token in transformers")
    parsed = transformers.encode("".join(special_tokens))
    if parsed != list(range(len(special_tokens))) or set(transformers.all_special_tokens) != set(special_tokens):
        raise _unproved("loses a special token in transformers")


def _differs(encoder: str, text: str) -> TokenizerMismatch:
    return TokenizerMismatch(
        f"For {text[:40]!r}{'…' if len(text) > 40 else ''}, {encoder} gives other ids than tokenizers.",
        "This is a bug; nothing was published.",
    )


def _unproved(problem: str) -> DamagedArtifact:
    return DamagedArtifact(f"The tokenizer {problem}.", "This is a bug; nothing was published.")
