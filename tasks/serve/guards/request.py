"""The checks of requests: sizes, encoding, hidden characters, injection and repetition, and the rules on text.

A request is a whole text, so the filter's patterns see it at once, and no text is held back.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tasks.serve.guards.config import Action, InputRules
from tasks.serve.guards.hidden import with_whole_characters, without_control, without_invisible
from tasks.serve.guards.personal import PersonalData
from tasks.serve.guards.rule import Mark, Rule
from tasks.serve.guards.stream import Finding, Tally, united

REPEATED_FROM = 1000  # characters of a message that may repeat itself: a shorter one does little harm
# Phrases of published attacks, and the role markers of common templates. None of the markers has an effect: user text
# is encoded with special tokens split
INJECTIONS = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\s{1,3}(?:\w{1,12}\s{1,3}){0,4}"
    r"(?:previous|prior|above|earlier|preceding|system|initial|original)\s{1,3}(?:\w{1,12}\s{1,3}){0,2}"
    r"(?:instructions?|prompts?|rules?|directions?|guidelines?|messages?|commands?)\b"
    r"|\b(?:reveal|print|show|repeat|output|tell me|give me)\s{1,3}(?:\w{1,12}\s{1,3}){0,3}"
    r"(?:system|initial|hidden|secret|original)\s{1,3}(?:prompt|instructions?|message)\b"
    r"|\byou are (?:now )?(?:in )?(?:DAN|developer mode|jailbroken|unrestricted|god mode)\b"
    r"|\bdo anything now\b|\b(?:developer|debug|god) mode (?:is )?(?:enabled|activated)\b",
    re.IGNORECASE,
)
MARKERS = re.compile(
    r"<\|[\w/]{2,40}\|>|<\uff5c[^\uff5c]{2,40}\uff5c>|\[/?(?:INST|SYSTEM_PROMPT)\]|<</?SYS>>|</?(?:start|end)_of_turn>"
    r"|^[ \t]*(?:#{2,3} ?)?(?:system|assistant|developer)(?: (?:prompt|message))?:",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class InputVerdict:
    """The verdict on a request: `texts` are those to go on with, and `message` says what is refused and why, without
    the text that was found."""

    action: Action
    texts: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    message: str = ""


class RequestGuard:
    """The checks of one policy, shared by all requests."""

    def __init__(self, rules: InputRules, personal: PersonalData, others: Sequence[Rule]) -> None:
        self._rules, self._personal, self._others = rules, personal, others

    def check(self, texts: Sequence[str]) -> InputVerdict:
        """The verdict on the messages of a request."""
        tally = Tally("input")
        message = self._sizes(texts)
        if message:
            tally.add("size", "refuse")
        checked: list[str] = []
        for text in texts if not message else ():
            text, message = self._checked(text, tally)
            if message:
                break
            checked.append(text)
        findings = tally.findings
        if message:
            return InputVerdict("refuse", (), findings, message)
        masked = any(finding.action == "mask" for finding in findings)
        return InputVerdict("mask" if masked else "allow", tuple(checked), findings)

    def _sizes(self, texts: Sequence[str]) -> str:
        rules = self._rules
        if len(texts) > rules.max_messages:
            return f"The request has {len(texts):,} messages, more than {rules.max_messages:,}."
        longest = max(map(len, texts), default=0)
        if longest > rules.max_characters:
            return f"A message has {longest:,} characters, more than {rules.max_characters:,}."
        size = sum(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts)
        return f"The messages have {size:,} bytes, more than {rules.max_bytes:,}." if size > rules.max_bytes else ""

    def _checked(self, text: str, tally: Tally) -> tuple[str, str]:
        """A message as the model may get it, and why it is refused."""
        rules = self._rules
        for rule, action, clean in (
            ("encoding", rules.encoding, with_whole_characters),
            ("control", rules.control, without_control),
            ("invisible", rules.invisible, without_invisible),
            ("repeated", rules.repeated, self._without_repetition),
        ):
            cleaned, count = clean(text)
            if count:
                tally.add(rule, action, count)
                if action == "refuse":
                    return text, _refusal(rule)
            if rule == "encoding" or action == "mask":
                text = cleaned
        parts, end = [], 0
        for group in united(self._marks(text)):
            for mark in group:
                tally.add(mark.rule, mark.action)
            if refused := next((mark.rule for mark in group if mark.action == "refuse"), ""):
                return text, _refusal(refused)
            if masked := [mark for mark in group if mark.action == "mask"]:
                parts += [text[end : masked[0].start], masked[0].label]
                end = max(mark.end for mark in masked)
        return "".join([*parts, text[end:]]), ""

    def _marks(self, text: str) -> Iterator[Mark]:
        for rule, pattern in (("injection", INJECTIONS), ("injection", MARKERS)):
            for match in pattern.finditer(text):
                yield Mark(*match.span(), rule, self._rules.injection, "<INJECTION>")
        yield from self._personal.marks(text)
        for other in self._others:
            yield from other.search().advance(text, 0, len(text), True)

    def _without_repetition(self, text: str) -> tuple[str, int]:
        if len(text) < REPEATED_FROM:
            return text, 0
        data = text.encode("utf-8", "replace")
        repeated = len(data) > self._rules.max_repetition * len(zlib.compress(data, 1))
        return text[:REPEATED_FROM] if repeated else text, repeated


def _refusal(rule: str) -> str:
    return f"The guard {rule} refuses a message of this request. Remove what it looks for, and send it again."
