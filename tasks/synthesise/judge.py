"""Which answers are documents. The rest are counted by their reason, and are in the ledger.

What a model wraps around a text is taken off where that is safe: its reasoning in marks of its own, a line such as
"Here is the summary:", and a code fence around the whole.
"""

from __future__ import annotations

import re

from tasks.endpoint.client import Completion

REASONS = (  # for `gristmill explain --removed-by`
    "refused_by_server",
    "empty_answer",
    "unfinished_answer",
    "damaged_answer",
    "model_refuses",
    "copy_of_source",
    "repeated_answer",
    "repeated_request",
)
ALIKE = 0.8  # of the runs of words of an answer and its source: at this share or more it is a copy
RUN = 3  # words
_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_THINKS = re.compile(r"\s*<think(?:ing)?>")
_HERALD = re.compile(
    r"\A(?:(?:sure|certainly|of course|okay|ok)\b[^\n]{0,20}?)?\b(?:here(?:['’]s| is| are)|below (?:is|are)) "
    r"(?:the|a|an|your|my|some|\w+ questions)\b[^\n]{0,100}:[*_ ]*\n\s*",
    re.IGNORECASE,
)
_FENCED = re.compile(r"\A```(?:text|markdown|md|txt|plaintext)?[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_REFUSAL = re.compile(
    r"\A\W*(?:(?:i['’]m|i am) (?:\w+ )?sorry,? but i\b|sorry,? (?:but )?i (?:can|am|['’]m)|i apologi[sz]e,? but\b|"
    r"(?:unfortunately,? )?i (?:can['’]t|cannot|can not|am unable to|am not able to|won['’]t|will not) (?:help|assist|"
    r"provide|rewrite|summari[sz]e|write|create|generate|fulfil|comply|do (?:that|this)|answer|process|complete)|"
    r"(?:unfortunately,? )?(?:i['’]m|i am) (?:unable|not able) to\b|"
    r"as an? (?:ai\b[^.\n]{0,60}?,? i\b|(?:ai )?(?:large )?language model\b))",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f�]")


def document_in(answer: Completion | None, excerpt: str) -> tuple[str, str]:
    """(the text of a new document, "") or (what the answer was, the reason why it is none)."""
    if answer is None:
        return "", "refused_by_server"
    text = unwrapped(answer.text, excerpt)
    if not answer.finished or _THINKS.match(text):
        return text, "unfinished_answer"
    if not text:
        return text, "empty_answer"
    if {*_CONTROL.findall(text)} - {*excerpt}:
        return text, "damaged_answer"
    if _REFUSAL.match(text):
        return text, "model_refuses"
    if alike(text, excerpt) >= ALIKE:
        return text, "copy_of_source"
    return text, ""


def unwrapped(text: str, source: str) -> str:
    """An answer without what its model put around it. What the source begins with too stays."""
    text = _THOUGHT.sub("", text).strip()
    if (herald := _HERALD.match(text)) and not source.lstrip().startswith(herald[0].rstrip()):
        text = text[herald.end() :].strip()
    if (fenced := _FENCED.match(text)) and "```" not in fenced[1] and "```" not in source:
        text = fenced[1].strip()
    return text


def alike(one: str, other: str) -> float:
    """The Jaccard similarity of two texts' runs of words, in lower case and without punctuation."""
    mine, theirs = _runs(one), _runs(other)
    return len(mine & theirs) / max(1, len(mine | theirs))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1))}
