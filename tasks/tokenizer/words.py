"""The most frequent words of the sample, whether a tokenizer has them as single tokens, and how tokens are displayed.

A word is a pre-token of letters, with at most one space before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from storage.errors import DamagedArtifact
from tasks.tokenizer.bpe.alphabet import spell, unspell
from tasks.tokenizer.encoder.characters import LETTER, SIZE, character_classes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tasks.tokenizer.bpe.pretokens import Pretokens

SHOWN = 64  # characters of a token displayed, at most
SPACE = "␣"


class Seen(NamedTuple):
    """A pre-token and its count in the sample."""

    pretoken: bytes
    times: int


class Settled(NamedTuple):
    """The result of `prove_words`: all `number` pre-tokens with a count greater than `above` are single tokens. If
    `above` is None, none had to be."""

    above: int | None
    number: int


def by_frequency(pretokens: Pretokens) -> Iterator[Seen]:
    """Pre-tokens in decreasing order of frequency, equally frequent ones in order of their bytes."""
    words, ends, counts = pretokens
    for number in np.argsort(-counts, kind="stable").tolist():
        yield Seen(words[ends[number - 1] if number else 0 : ends[number]].tobytes(), int(counts[number]))


def commonest_words(pretokens: Pretokens, number: int) -> list[Seen]:
    """The `number` most frequent words, or all if there are fewer."""
    found: list[Seen] = []
    for seen in by_frequency(pretokens):
        if len(found) == number:
            break
        if is_word(seen.pretoken):
            found.append(seen)
    return found


def is_word(pretoken: bytes) -> bool:
    """Whether a pre-token consists of letters, as the patterns define them, with at most one space before them."""
    classes = character_classes()
    letters = [ord(character) for character in pretoken.decode("utf-8", "replace").removeprefix(" ")]
    return bool(letters) and all(code < SIZE and classes[code] == LETTER for code in letters)


def tokens_of(tokenizer: Tokenizer, pretoken: bytes) -> list[bytes]:
    """The tokens of one pre-token, as bytes."""
    return [unspell(token.value) or b"" for token in tokenizer.model.tokenize(spell(pretoken))]


def prove_words(tokenizer: Tokenizer, pretokens: Pretokens, above: int | None) -> Settled:
    """Check that every pre-token with a count greater than `above` is a single token.

    There are no more of these than ids. `bpe.train.settled_above` explains why it must hold. Raises DamagedArtifact.
    """
    number = 0
    for seen in by_frequency(pretokens):
        if above is None or seen.times <= above:
            break
        tokens = tokens_of(tokenizer, seen.pretoken)
        if tokens != [seen.pretoken]:
            raise DamagedArtifact(
                f"The trained tokenizer splits {show(seen.pretoken)}, which occurs {seen.times:,} times, into "
                f"{len(tokens)} tokens, although no remaining pair occurs more than {above:,} times.",
                "This is a bug; nothing was published.",
            )
        number += 1
    return Settled(above, number)


def show(token: bytes) -> str:
    """Bytes as Markdown code that is safe in a table cell: escaped as in Python, space as ␣, at most SHOWN characters.

    Bytes that are not UTF-8, invisible characters, and Markdown's backtick and pipe are escaped: \\x80 and above for a
    byte, \\u and \\U for a character.
    """
    text = token.decode("utf-8", "surrogateescape")
    more = "…" if len(text) > SHOWN else ""
    return f"`{''.join(map(_show_character, text[:SHOWN]))}{more}`"


def _show_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, decoded by `surrogateescape`
        return f"\\x{code - 0xDC00:02x}"
    if character == " ":
        return SPACE
    if character in "`|":
        return f"\\x{code:02x}"
    if character != SPACE and character != "\\" and character.isprintable():
        return character
    if code < 0x80:
        return character.encode("unicode_escape").decode("ascii")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # \x80 and above denote bytes
