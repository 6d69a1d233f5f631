"""How text is cut into pre-tokens before merging, by the names that GGUF and transformers know.

gpt2    Radford et al. 2019: contractions in small letters; runs of letters, of numbers, of other signs, each with one
        space before it; white space, whose last character is left to what follows.
gpt4    cl100k of tiktoken: numbers by one to three digits; letters with one sign or space before them; line breaks stay
        with the signs before them; white space up to its last line break.
llama3  Llama 3 (Grattafiori et al. 2024) took gpt4's over: the cuts are the same, the name is not.

Where the originals ignore case in a contraction by `(?i:…)`, the letters are listed: with the flag, oniguruma takes
the long s (U+017F) for an s, which llama.cpp doesn't.

llama.cpp cuts alike but for the 4,382 letters and numbers that Unicode 16 added (2024: Todhri, Garay, Tulu-Tigalari,
more hieroglyphs, …), which its tables don't know yet and take for other signs: beside those its ids may differ, though
they stand for the same bytes (tests/tasks/tokenizer/test_parity.py counts them).

A tokenizer's pattern is read off its tokenizer.json (`pattern_of`), so that no second file can contradict it; hence the
two spellings of one pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

PatternName = Literal["gpt2", "gpt4", "llama3"]


@dataclass(frozen=True)
class Pattern:
    """`regex` is a Split, or empty where `tokenizers` has it built in; `gguf` is llama.cpp's name for it; the others
    say what becomes of digits and of white space."""

    regex: str
    gguf: str
    digits: str
    white_space: str


GPT2_DIGITS = "a run of digits of any length is cut out with one space before it, and merges decide what becomes of it"
GPT2_WHITE_SPACE = (
    "a run of white space is cut out but for its last character, which goes with what follows it if it is a space"
)
GPT4_DIGITS = "digits are cut by three from the left, without the space before them"
GPT4_WHITE_SPACE = (
    "white space is cut after its last line break; line breaks stay with the signs before them; of other white space "
    "the last character goes with the letters after it, and a space with the signs after it"
)


PATTERNS: dict[PatternName, Pattern] = {
    "gpt2": Pattern("", "gpt-2", GPT2_DIGITS, GPT2_WHITE_SPACE),
    "gpt4": Pattern(
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        "dbrx",  # which was trained with GPT-4's vocabulary; llama.cpp has no name of OpenAI's for it
        GPT4_DIGITS,
        GPT4_WHITE_SPACE,
    ),
    "llama3": Pattern(
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
        GPT4_DIGITS,
        GPT4_WHITE_SPACE,
    ),
}


def pre_tokenizer(name: PatternName) -> PreTokenizer:
    """The pattern as `tokenizers` applies it; bytes become symbols in its last step."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    regex = PATTERNS[name].regex
    if not regex:
        return ByteLevel(add_prefix_space=False, use_regex=True)
    return Sequence([Split(Regex(regex), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


def pattern_of(settings: dict[str, Any]) -> PatternName | None:
    """The pattern of a parsed tokenizer.json; None for one that is not ours."""
    found = settings.get("pre_tokenizer") or {}
    steps = found.get("pretokenizers", []) if found.get("type") == "Sequence" else [found]
    splits, last = steps[:-1], steps[-1] if steps else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space") is not False:
        return None
    if not splits:
        return "gpt2" if last.get("use_regex") else None
    if len(splits) > 1 or last.get("use_regex"):
        return None
    split = splits[0]
    cuts = (split.get("type"), split.get("behavior"), split.get("invert")) == ("Split", "Isolated", False)
    regex = split.get("pattern", {}).get("Regex")
    return next((name for name, pattern in PATTERNS.items() if cuts and pattern.regex == regex), None)
