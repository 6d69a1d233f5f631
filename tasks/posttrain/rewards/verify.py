"""The verifiable rewards: numbers that depend only on an answer and its reference."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import regex as patterns  # not re, which can't limit the time of a match

from storage.errors import ConfigError
from tasks.posttrain.rewards.config import ExactReward, FormatReward, LengthReward, RegexReward

MATCH_SECONDS = 5.0  # of CPU time: a pattern that takes longer for one text would take forever
_EDGES = patterns.compile(r"^(?:(?!\.\d)[^\w+\-$€£])+|[^\w%°+#]+$")
# A number must not be part of another one: no sign, decimal point or thousands separator around it
_BEFORE, _AFTER = r"(?<!\w)(?<!\d[.,])(?<!(?<!\w)[-+.])", r"(?!\w)(?![.,]\d)"


def normal(text: str) -> str:
    """Unicode NFKC, folded case, single spaces, no punctuation at the ends. Signs and units of numbers stay."""
    composed = unicodedata.normalize("NFKC", "".join(map(_separate, text)))
    folded = " ".join(composed.replace("\N{MINUS SIGN}", "-").casefold().split())
    return _EDGES.sub("", folded) or folded


def _separate(character: str) -> str:
    """Mark exponents, indices and fractions, which NFKC would turn into further digits of the number before."""
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return {"<super>": "^", "<sub>": "_", "<fraction>": " "}.get(kind, "") + character


def exact(reward: ExactReward, answer: str, reference: str) -> float:
    """1 if an answer equals its reference or, with `match: contains`, has it between other words."""
    ours, theirs = normal(answer), normal(reference)
    if reward.match == "equal" or not theirs:
        return float(ours == theirs)
    before, after = (
        (number if theirs[end].isdigit() else word)
        for end, number, word in ((0, _BEFORE, r"(?<!\w)"), (-1, _AFTER, r"(?!\w)"))
    )
    return float(patterns.search(f"{before}{patterns.escape(theirs)}{after}", ours) is not None)


def regex(reward: RegexReward, answer: str, reference: str) -> float:
    """1 if the last match in both has the same groups, after normalisation. If the reference has no match, no answer
    is right."""
    ours, theirs = _last_groups(reward.pattern, answer), _last_groups(reward.pattern, reference)
    return float(theirs is not None and ours == theirs)


def format_(reward: FormatReward, answer: str) -> float:
    """1 if the pattern matches the whole answer, without white space around it. `.` matches any character."""
    pattern = patterns.compile(reward.pattern, patterns.DOTALL)
    return float(_timed(pattern, lambda: pattern.fullmatch(answer.strip(), timeout=MATCH_SECONDS)) is not None)


def length(reward: LengthReward, tokens: int) -> float:
    """How close an answer's number of tokens is to the target, from 0 to 1."""
    return max(0.0, 1 - abs(tokens - reward.target) / reward.target)


def has_reference(reward: RegexReward, reference: str) -> bool:
    """Whether the pattern has a match in a reference, to compare answers with."""
    return _last_groups(reward.pattern, reference) is not None


def _last_groups(pattern: str, text: str) -> tuple[str, ...] | None:
    compiled = patterns.compile(pattern)
    matches = _timed(compiled, lambda: list(compiled.finditer(text, timeout=MATCH_SECONDS)))
    matches = [match for match in matches if match[0]]  # an empty match says nothing
    return tuple(normal(group or "") for group in matches[-1].groups()) if matches else None


def _timed(pattern: Any, match: Callable[[], Any]) -> Any:
    try:
        return match()
    except TimeoutError as error:
        raise ConfigError(
            f"The pattern {pattern.pattern!r} of a reward takes more than {MATCH_SECONDS:g} s to match one answer.",
            "Avoid nested repetitions, such as (a+)+.",
        ) from error
