"""What each verifiable reward gives an answer: a number that the answer and its reference alone decide."""

from __future__ import annotations

import re
import unicodedata

from tasks.posttrain.rewards.config import ExactReward, FormatReward, LengthReward, RegexReward

_EDGES = re.compile(r"^[^\w+\-$€£]+|[^\w%°]+$")


def normal(text: str) -> str:
    """Unicode NFKC, folded case, single spaces, no punctuation at the ends; signs and units of numbers stay."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _EDGES.sub("", folded)


def exact(reward: ExactReward, answer: str, reference: str) -> float:
    """Whether an answer is its reference, or holds it between other words."""
    ours, theirs = normal(answer), normal(reference)
    if reward.match == "equal" or not theirs:
        return float(ours == theirs)
    return float(re.search(rf"(?<!\w){re.escape(theirs)}(?!\w)", ours) is not None)


def regex(reward: RegexReward, answer: str, reference: str) -> float:
    """Whether the last match in both has the same groups, after normalisation. Where the reference has no match, no
    answer is right."""
    found, wanted = _last_groups(reward.pattern, answer), _last_groups(reward.pattern, reference)
    return float(wanted is not None and found == wanted)


def format_(reward: FormatReward, answer: str) -> float:
    """Whether the pattern matches the whole answer, without white space around it; `.` is any character."""
    return float(re.fullmatch(reward.pattern, answer.strip(), re.DOTALL) is not None)


def length(reward: LengthReward, tokens: int) -> float:
    """How close to the target an answer's number of tokens is, from 0 to 1."""
    return max(0.0, 1 - abs(tokens - reward.target) / reward.target)


def has_reference(reward: RegexReward, reference: str) -> bool:
    """Whether the pattern finds in a reference what answers are compared with."""
    return _last_groups(reward.pattern, reference) is not None


def _last_groups(pattern: str, text: str) -> tuple[str, ...] | None:
    matches = list(re.finditer(pattern, text))
    return tuple(normal(group or "") for group in matches[-1].groups()) if matches else None
