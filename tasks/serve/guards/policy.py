"""A policy, ready to use: its rules by direction, compiled, loaded and warm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import regex

from storage.errors import ConfigError
from tasks.filter.lists.read import read_list
from tasks.filter.signals.config import ClassifierSignalConfig
from tasks.serve.guards.config import Direction, GuardsConfig, InputRules, OutputRules
from tasks.serve.guards.personal import PersonalData
from tasks.serve.guards.request import InputVerdict, RequestGuard
from tasks.serve.guards.rule import Rule
from tasks.serve.guards.sentences import own, toxicity
from tasks.serve.guards.slurs import SLURS
from tasks.serve.guards.stream import OutputGuard
from tasks.serve.guards.words import PHRASE, Entry, Pattern, Words

UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
# For this the filter's patterns load their tables
WARMING = (
    "Write to jane.doe@corp-mail.com or call +49 30 2345678, from 93.184.216.34, with the card 4539 1488 0343 6467, "
    "the account BE68 5390 0754 7034, SSN 536-90-4399, token = q8Zr2LmX0vTb5KpY7sNd and id 12.345.678 (nif). The end."
)


class Guards:
    """The guards of one policy, shared by all requests. Thread-safe."""

    def __init__(self, config: GuardsConfig) -> None:
        """Takes seconds. Raises ConfigError and SourceError for rules that can't be used."""
        classifiers = [name for name, rule in config.own.items() if isinstance(rule.measure, ClassifierSignalConfig)]
        if len(classifiers) > 1:
            raise ConfigError(
                f"guards.own has {len(classifiers)} classifiers, but only one stays loaded.", "Keep one of them."
            )
        sentences: dict[Direction, list[Rule]] = {"input": [], "output": []}
        for chosen, rule in _of_sentences(config):
            for direction in chosen:
                sentences[direction].append(rule)
        self._output: list[Rule] = [PersonalData(config.output), *_of_words(config, config.output, "output")]
        self._output += sentences["output"]
        self._request = RequestGuard(
            config.input, PersonalData(config.input), [*_of_words(config, config.input, "input"), *sentences["input"]]
        )
        self.check_input([WARMING])
        warm = self.output()
        for word in WARMING.split(" "):
            warm.feed(f"{word} ")
        warm.finish()

    def check_input(self, texts: Sequence[str]) -> InputVerdict:
        """The verdict on a request with these messages, or this prompt."""
        return self._request.check(texts)

    def output(self) -> OutputGuard:
        """The state of a new answer."""
        return OutputGuard(self._output)


def _of_words(config: GuardsConfig, rules: OutputRules | InputRules, direction: Direction) -> Iterator[Rule]:
    """The slurs and the user's lists. A word of a script without spaces, or with other signs, is a
    pattern."""
    entries = dict.fromkeys(SLURS, Entry("slurs", rules.slurs, "<SLUR>"))
    patterns: list[Pattern] = []
    for name, listed in config.lists.items():
        if direction not in listed.applies_to:
            continue
        entry = Entry(f"lists.{name}", listed.action, f"<{name.upper()}>")
        for word in [*listed.words, *itertools.chain.from_iterable(map(read_list, listed.files))]:
            if UNSPACED.search(word):
                patterns.append(Pattern(f"(?i){regex.escape(word)}", len(word), entry))
            elif PHRASE.fullmatch(word):
                entries[word] = entry
            else:
                patterns.append(Pattern(rf"(?i)(?<!\w){regex.escape(word)}(?!\w)", len(word), entry))
        patterns += (Pattern(pattern, listed.longest, entry) for pattern in listed.patterns)
    yield Words(entries)
    yield from patterns


def _of_sentences(config: GuardsConfig) -> Iterator[tuple[Sequence[Direction], Rule]]:
    if config.toxicity is not None:
        yield config.toxicity.applies_to, toxicity(config.toxicity)
    for name, rule in config.own.items():
        yield rule.applies_to, own(name, rule)
