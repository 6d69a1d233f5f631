"""How text is split into pre-tokens before merging, under the names that GGUF and transformers use.

gpt2    Radford et al. 2019: contractions in lower case; runs of letters, of numbers, of other characters, each with one
        preceding space; white space, whose last character is left to what follows.
gpt4    cl100k_base of tiktoken: numbers of one to three digits; letters with one preceding character; line breaks stay
        with the punctuation before them; white space up to its last line break.
llama3  Llama 3 (Grattafiori et al. 2024) adopted gpt4's: the boundaries are the same, only the name differs.

Where the originals ignore case in contractions by `(?i:…)`, the letters are listed: with the flag, oniguruma takes the
long s (U+017F) for an s, which llama.cpp does not.

llama.cpp splits alike except for the 4,382 letters and numbers that Unicode 16 added in 2024 (Todhri, Garay,
Tulu-Tigalari, more hieroglyphs, …), which its tables do not have yet and treat as other characters. Next to those its
ids may differ, although they decode to the same bytes (tests/tasks/tokenizer/test_parity.py counts them).

A tokenizer's pattern is recognised from its tokenizer.json (`pattern_of`), so that no second file can contradict it;
hence the two spellings of one pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

PatternName = Literal["gpt2", "gpt4", "llama3"]


@dataclass(frozen=True)
class Pattern:
    """`regex` is for a Split step, or empty if the pattern is built into `tokenizers`. `gguf` is llama.cpp's name for
    it. `digits` and `white_space` describe it in the report."""

    regex: str
    gguf: str
    digits: str
    white_space: str


GPT2_DIGITS = "a run of digits of any length is one pre-token, with the space before it; merges may split it further"
GPT2_WHITE_SPACE = (
    "a run of white space is one pre-token without its last character, which joins what follows if it is a space"
)
GPT4_DIGITS = "digits are split into groups of three from the left, without the space before them"
GPT4_WHITE_SPACE = (
    "white space is split after its last line break; line breaks stay with the punctuation before them; the last "
    "character of other white space joins the letters after it, and a space the punctuation after it"
)


# Patterns of third-party tokenizers, by llama.cpp's name, not for those trained here. A flag ignores case
_OTHERS_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
OTHERS = {"qwen2": _OTHERS_REGEX.format(digits=""), "llama-bpe": _OTHERS_REGEX.format(digits="{1,3}")}

SMOLLM = "smollm"  # SmolLM's: digits one by one, then as gpt2. Not for tokenizers that are trained here
SINGLE_DIGITS = {"type": "Digits", "individual_digits": True}  # its first step in a tokenizer.json

PATTERNS: dict[PatternName, Pattern] = {
    "gpt2": Pattern("", "gpt-2", GPT2_DIGITS, GPT2_WHITE_SPACE),
    "gpt4": Pattern(
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        "dbrx",  # a model trained with GPT-4's vocabulary: llama.cpp has no other name for the pattern
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
    """The pattern as a pre-tokenizer of `tokenizers`, whose last step maps bytes to symbols."""
    from tokenizers.pre_tokenizers import ByteLevel

    regex = PATTERNS[name].regex
    return _split_by(regex) if regex else ByteLevel(add_prefix_space=False, use_regex=True)


def _split_by(regex: str) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    return Sequence([Split(Regex(regex), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


def gguf_names() -> list[str]:
    """llama.cpp's names for the known ways of splitting."""
    return list(dict.fromkeys([*(pattern.gguf for pattern in PATTERNS.values()), *OTHERS, SMOLLM]))


def gguf_pre_tokenizer(gguf: str) -> PreTokenizer | None:
    """The pre-tokenizer that llama.cpp has this name for. None for an unknown name."""
    from tokenizers.pre_tokenizers import Digits, Sequence

    if gguf == SMOLLM:
        return Sequence([Digits(individual_digits=True), pre_tokenizer("gpt2")])
    if gguf == "qwen2":
        return _split_by(OTHERS[gguf])
    return next((pre_tokenizer(name) for name, pattern in PATTERNS.items() if pattern.gguf == gguf), None)


def gguf_name_of(settings: dict[str, Any]) -> str | None:
    """llama.cpp's name for how a parsed tokenizer.json splits text. None if it has none."""
    pattern = pattern_of(settings)
    if pattern is not None:
        return PATTERNS[pattern].gguf
    regex = _split_regex(settings)
    if regex is not None:
        return next((name for name, known in OTHERS.items() if known == regex), None)
    steps = (settings.get("pre_tokenizer") or {}).get("pretokenizers", [])
    by_digit = len(steps) == 2 and steps[0] == SINGLE_DIGITS and pattern_of({"pre_tokenizer": steps[1]}) == "gpt2"
    return SMOLLM if by_digit else None


def pattern_of(settings: dict[str, Any]) -> PatternName | None:
    """The pattern of a parsed tokenizer.json. None if it isn't one of ours."""
    found = settings.get("pre_tokenizer") or {}
    if found.get("type") == "Sequence" and len(found.get("pretokenizers", [])) == 1:
        (found,) = found["pretokenizers"]
    if found.get("type") == "ByteLevel" and found.get("add_prefix_space") is False and found.get("use_regex"):
        return "gpt2"
    regex = _split_regex(settings)
    return next((name for name, pattern in PATTERNS.items() if regex and pattern.regex == regex), None)


def _split_regex(settings: dict[str, Any]) -> str | None:
    """The regular expression of a parsed tokenizer.json that splits by one and then maps bytes. None for others."""
    found = settings.get("pre_tokenizer") or {}
    steps = found.get("pretokenizers", []) if found.get("type") == "Sequence" else []
    if len(steps) != 2:
        return None
    split, last = steps
    kept = (last.get("type"), last.get("add_prefix_space"), last.get("use_regex")) == ("ByteLevel", False, False)
    cuts = (split.get("type"), split.get("behavior"), split.get("invert")) == ("Split", "Isolated", False)
    regex: str | None = split.get("pattern", {}).get("Regex") if cuts and kept else None
    return regex
