"""Personal data and secrets, by the filter's patterns, in a text that grows.

The patterns judge a value by the text around it. So text that may be a part of a finding waits: a run of characters
with a digit, an @ or another trigger, or a word that ` at ` may turn into an address. A run with a trigger waits until
it has ended and the text behind it that the patterns read has come. The patterns then see it in its context, and what
they find in it is marked. All other text is done when its word ends.

A run without an end is judged after every CUT characters. If a finding reaches the cut, the rest of the run is dropped.
Otherwise all is done but the last KEPT characters, so the time is linear in the text. The cost of that bound: a key
longer than CUT passes if its form shows only at its end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa
import regex

from tasks.export.push.secrets import looks_random
from tasks.filter.pii.config import PATTERN_ENTITIES
from tasks.filter.pii.findings import Finding
from tasks.filter.pii.fold import DOT_SIGN, fold
from tasks.filter.pii.patterns.candidates import candidates, folded
from tasks.filter.pii.patterns.find import find_patterns
from tasks.filter.pii.patterns.ibans import FORMS
from tasks.filter.pii.patterns.values import is_random
from tasks.filter.pii.replace import without_overlaps
from tasks.serve.guards.config import SECRETS, OutputRules
from tasks.serve.guards.rule import CONTEXT, END, Mark

WINDOW = 60  # characters on each side of a candidate for recognisers, as in the filter
# Characters behind a run that decide on it: words after a telephone number and its extension, the groups of an IBAN,
# the rest of a spelled address, or only whether the run goes on
BEHIND_NUMBER, BEHIND_IBAN, BEHIND_SPELLED, BEHIND_WORD = 48, 56, 80, 4
NEIGHBOUR = 40  # characters before a run with candidates that may change the judgement of it
CUT = 512  # characters of a run that are judged before it ends
KEPT = 160  # of these wait for the rest: a name before an @ has up to 128
KEY_BEGINS, LONG_KEY = 400, 17_000  # characters from a private key's header to its first line, and of the whole key
LONG_FOOTER = 6  # words

_GAP = r"[ ().\-/]"
_NUMBER = re.compile(rf"\d(?:{_GAP}{{0,3}}\d)*")
_OPEN_NUMBER = re.compile(rf"{_NUMBER.pattern}{_GAP}{{0,3}}\Z")
_LONG_NUMBER = re.compile(rf"\d(?:{_GAP}{{0,3}}\d){{5}}")  # a candidate for the filter
_LONG_WORD = 8  # characters of the shortest value with a digit that can be a secret or an ID
_IBAN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(' '.join(FORMS.values()).split())})\d\d", re.IGNORECASE)
_TRIGGER = re.compile(
    rf"(?P<number>{_NUMBER.pattern})|(?P<pem>-{{4,5}} ?BEGIN\b)|@|&commat;|(?:[0-9A-Fa-f]{{1,4}}::?){{2}}"
    r"|hf_|org_|pat-|AKIA|-u(?:ser)?[ =]{1,3}[\"']?[^\s\"']{0,80}:"
)
_LAST_WORD = re.compile(r"\w[\w.+\-]* ?\Z")
_WORD = r"\w[\w.+\-]*"
_SPELLED = regex.compile(
    rf"(?<![\w.+\-]){_WORD}(?:{DOT_SIGN}{_WORD}){{0,3}}(?: at \w[\w\-]* dot \w"
    rf"| ?(?:\[ ?at ?\]|\( ?at ?\)|\{{ ?at ?\}}|< ?at ?>) ?\w[\w\-]*(?:{DOT_SIGN})\w)",
    regex.IGNORECASE,
)
_MAY_SPELL = re.compile(r"\b(?:at|dot)\b|[\[({<]\s?\Z", re.IGNORECASE)
_GOES_ON = re.compile(r"(?:a|at|d|do|dot)\Z|[\[({<\d.\-/\u2010-\u2015\u2212]", re.IGNORECASE)  # or a number
_SUSPECT = re.compile(r"[\d@＠:&\[({<]|----|-u|hf_|org_|pat-|AKIA|\b(?:[Aa][Tt]|[Dd][Oo][Tt])\b")
_LAST_LINE = re.compile(r"[A-Za-z0-9+/=\\]*[\d+/=]")
_EITHER = regex.compile(r"\(\+\d{1,3} ?(?:or|oder|ou|o|/) ?0\)")  # (+353 or 0)86 854 9268
_HEADER = regex.compile(r"-{4,5} ?BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
_FOOTER = re.compile(r"-{4,5} ?END [A-Z0-9 ]{0,40}-{4,5}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{32}")
_OPEN = re.compile(rf"{_MAY_SPELL.pattern}|----|\(\+", re.IGNORECASE)
_OPEN_SIGNS = re.compile(r"(?:-{4,5} ?|--?u(?:ser)?[ =]{0,3}[\"']?)\Z")  # of a private key, of a flag with a login
_OPEN_TOKEN = re.compile(r"(?<![A-Za-z0-9_\-])eyJ[A-Za-z0-9_\-.]{10,}\Z")  # of a JSON web token
_RANDOM_WORD = re.compile(r"(?<![\w+/=.\-])[A-Za-z0-9+/_\-]{20,4000}={0,2}(?![\w+/=])")


class Run(NamedTuple):
    """A run with a trigger at [start:end], and the characters behind it to wait for."""

    start: int
    end: int
    behind: int
    is_key: bool = False


class PersonalData:
    """The rule of one direction."""

    def __init__(self, rules: OutputRules) -> None:
        self.confidence = rules.confidence
        self._passing = frozenset(value.lower() for value in rules.passes)
        self.actions = {str(entity): rules.action_of(entity) for entity in PATTERN_ENTITIES}
        if rules.random is not None:
            self.actions["RANDOM"] = rules.random

    def search(self) -> PersonalSearch:
        """See `Rule`."""
        return PersonalSearch(self)

    def marks(self, text: str, since: int = 0) -> list[Mark]:
        """The findings in a text as a whole, without those whose candidates end before `since`."""
        plain = folded(pa.array([text], pa.string()))
        findings: list[Finding] = []
        for row, hits in candidates(plain):
            near = [hit for hit in hits if hit[2] > since]
            findings = find_patterns(plain[row].as_py(), near, PATTERN_ENTITIES, WINDOW)
        findings = [one for one in findings if one.score >= self.confidence and not self._passes(text, one)]
        if "RANDOM" in self.actions:
            words = (
                word for word in _RANDOM_WORD.finditer(text) if is_random(word[0]) and looks_random(word[0].encode())
            )
            findings += (Finding("RANDOM", *word.span(), 0.0) for word in words)
        return [self.mark(one.entity, one.start, one.end) for one in without_overlaps(findings)]

    def _passes(self, text: str, found: Finding) -> bool:
        value = text[found.start : found.end].lower()
        return bool(self._passing) and not self._passing.isdisjoint((value, value[value.rfind("@") :]))

    def mark(self, entity: str, start: int, end: int, continues: bool = False) -> Mark:
        """The mark of a finding."""
        group = "secrets" if entity in SECRETS else "personal"
        return Mark(start, end, f"{group}.{entity}", self.actions[entity], f"<{entity}>", continues)


class PersonalSearch:
    """The rule's state in a text."""

    def __init__(self, rule: PersonalData) -> None:
        self.done = 0
        self._rule = rule
        self._end = 0
        self._until = 0  # there is nothing to judge before the text ends here
        self._idle = True  # nothing waits but, perhaps, the last step, which may begin a number or a spelled address
        self._dropping = ""  # the entity whose run goes on
        self._dropped = self._short_words = self._footer_words = 0

    def advance(self, text: str, base: int, step: int, final: bool) -> list[Mark]:
        """See `Search`."""
        self._end = base + len(text)
        marks: list[Mark] = []
        if self._dropping:
            marks += self._drop(text, base, step)
            if self._dropping:
                return marks
        if not final and self._end < self._until and self._end - self.done < CUT:
            return marks
        ended = final or END.match(text, len(text) - 1) is not None
        if self._idle and ended and not final and not _SUSPECT.search(text, self.done - base):
            self.done = self._end - step
            return marks
        while True:
            pending = fold(text[self.done - base :])
            run = _first_run(pending, final)
            if run is None:
                break
            cut = len(pending) - run.start >= CUT and not run.is_key
            if not (final or cut or len(pending) >= run.end + run.behind):
                self.done += run.start
                self._until = self.done - run.start + run.end + run.behind
                self._idle = False
                return marks
            marks += self._judge(text, base, run, cut and not final, ended)
            if self._dropping:
                return marks
        waits = 0 if final else _waiting(pending, ended)
        self.done = self._end - waits
        self._idle = ended and not _OPEN.search(pending, len(pending) - waits)
        return marks

    def sure(self, part: str) -> int:
        """See `Search`."""
        return self._end if self._idle and not _GOES_ON.match(part) else self.done

    def _judge(self, text: str, base: int, run: Run, cut: bool, ended: bool) -> list[Mark]:
        """The findings in the run, which begins at `run.start` behind `done`. Afterwards the run is done."""
        start, end, last = self.done + run.start, self.done + run.end, self._end
        if run.is_key:
            self.done = end if run.behind else last
            self._dropping = "" if run.behind else "PRIVATE_KEY"
            self._dropped = self._short_words = self._footer_words = 0
            return [self._rule.mark("PRIVATE_KEY", start, self.done)]
        first = max(start - CONTEXT, base)
        window = text[first - base :]
        found_here = self._rule.marks(window, start - first - NEIGHBOUR)
        self.done = end = max(last - KEPT, start + 1) if cut else end
        marks = []
        for found in found_here:
            begin, until = max(found.start + first, start), found.end + first
            if cut and not ended and until == last:
                self._dropping, self.done = found.label[1:-1], last
            elif until <= start or begin >= end:
                continue
            marks.append(found._replace(start=begin, end=until))
            self.done = max(self.done, until)
        if cut and not ended and not self._dropping and (token := _OPEN_TOKEN.search(window, start - first)):
            marks = [mark for mark in marks if mark.end <= first + token.start()]
            marks.append(self._rule.mark("JSON_WEB_TOKEN", first + token.start(), last))
            self._dropping, self.done = "JSON_WEB_TOKEN", last
        return marks

    def _drop(self, text: str, base: int, step: int) -> list[Mark]:
        """Drop a step, or the part of it that belongs to a run whose finding has been marked."""
        self._dropped += step
        stop = self._end
        if self._dropping != "PRIVATE_KEY":
            ends = END.match(text, len(text) - 1) is not None
            stop -= ends
        else:
            ends, stop = self._key_ends(text, base, step)
        mark = self._rule.mark(self._dropping, self.done, max(stop, self.done), continues=True)
        self.done = max(stop, self.done)
        if ends:
            self._dropping, self._idle = "", False
        return [mark] if mark.end > mark.start else []

    def _key_ends(self, text: str, base: int, step: int) -> tuple[bool, int]:
        """Whether a private key ends in this step, and where: at its footer, or before a word that isn't a line of it.
        Only one line, the last, may be short."""
        footer = _FOOTER.search(text, max(len(text) - step - 80, self.done - base - 80, 0))
        if footer is not None and base + footer.end() > self._end - step:
            return True, base + footer.end()
        word = text[len(text) - step :]
        if self._footer_words or "----" in word:
            self._footer_words += 1
        elif _BASE64.search(word):
            self._short_words = 0
        elif word.strip():
            self._short_words += 1 if _LAST_LINE.match(word) else 2
        if self._short_words > 1 or self._footer_words > LONG_FOOTER:
            return True, self._end - step
        return self._dropped > LONG_KEY, self._end


def _first_run(pending: str, final: bool) -> Run | None:
    """The first run with a trigger."""
    spelled = _SPELLED.search(pending) if _MAY_SPELL.search(pending) else None
    for trigger in _TRIGGER.finditer(pending):
        if spelled is not None and spelled.start() <= trigger.start():
            break
        if trigger.lastgroup == "pem":
            run = _key(pending, trigger.start(), final)
        else:
            run = _run(pending, trigger)
        if run is not None:
            return run if run.is_key else _joined(pending, run, final)
    return Run(spelled.start(), spelled.end(), BEHIND_SPELLED) if spelled is not None else None


def _run(pending: str, trigger: re.Match[str]) -> Run | None:
    start, end = _start(pending, trigger.start()), _end(pending, trigger.end())
    if "(+" in pending and (either := _EITHER.search(pending, 0, end)):
        start = min(start, either.start())
    if trigger[0] == "@" and end == trigger.end() and not pending[end : end + 1].isascii():
        behind = BEHIND_SPELLED  # a domain in a script without spaces
    elif trigger.lastgroup != "number":
        behind = BEHIND_WORD
    elif _LONG_NUMBER.match(trigger[0]):
        behind = BEHIND_NUMBER
    elif end - start >= _LONG_WORD:
        behind = BEHIND_WORD
    elif _IBAN.search(pending, start, end):
        behind = BEHIND_IBAN
    else:
        return None
    for number in _NUMBER.finditer(pending, start):
        if number.start() >= end:
            break
        if _LONG_NUMBER.match(number[0]):
            behind = max(behind, BEHIND_NUMBER)
        end = max(end, _end(pending, number.end()))
    return Run(start, end, behind)


def _joined(pending: str, run: Run, final: bool) -> Run:
    """The run, with the spelled address that it may begin."""
    if not _MAY_SPELL.search(pending, run.start):
        return run
    spelled = _SPELLED.search(pending, run.start, partial=not final)
    if spelled is None or spelled.start() >= run.end:
        return run
    if spelled.partial:
        return Run(run.start, len(pending), 1)
    return Run(run.start, max(run.end, spelled.end()), max(run.behind, BEHIND_SPELLED))


def _key(pending: str, at: int, final: bool) -> Run | None:
    """The private key whose header may begin here. Without anything to wait for, its end has not come."""
    header = _HEADER.match(pending, at, partial=not final)
    if header is None:
        return None
    waiting = Run(at, len(pending), 1)
    if header.partial:
        return waiting
    line, footer = _BASE64.search(pending, header.end()), _FOOTER.search(pending, header.end())
    if line is not None and (footer is None or line.start() < footer.start()):
        return Run(at, footer.end(), 1, is_key=True) if footer else Run(at, len(pending), 0, is_key=True)
    return None if final or footer or len(pending) - header.end() > KEY_BEGINS else waiting


def _waiting(pending: str, ended: bool) -> int:
    """The characters at the end of a text without a run that may yet be a part of one."""
    size = len(pending)
    if not ended:
        return min(size, KEPT)
    waits = 0
    if number := _OPEN_NUMBER.search(pending):
        waits = max(waits, size - _start(pending, number.start()))
    if signs := _OPEN_SIGNS.search(pending):
        waits = max(waits, size - signs.start())
    if (either := pending.rfind("(+")) >= 0 and _EITHER.match(pending, either, partial=True):
        waits = max(waits, size - either)
    if _MAY_SPELL.search(pending):
        spelled = _SPELLED.search(pending, partial=True)
    else:
        spelled = _LAST_WORD.search(pending)
    return max(waits, size - spelled.start()) if spelled is not None else waits


def _start(pending: str, at: int) -> int:
    """The start of the run that has a character at `at`."""
    start = 0
    for end in END.finditer(pending, 0, at):
        start = end.end()
    return start


def _end(pending: str, at: int) -> int:
    end = END.search(pending, at)
    return len(pending) if end is None else end.start()
