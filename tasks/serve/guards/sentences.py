"""Guards that are asked about sentences: the toxicity classifier, and a user's function or classifier.

A sentence ends at its mark and a space, at a line's end, or after LONGEST characters. Unless the guard only reports, an
answer is held back to the sentence's end.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from storage.artifact import Artifact
from storage.errors import ConfigError, SourceError
from tasks.filter.signals.config import ERROR, ClassifierSignalConfig, PythonSignalConfig
from tasks.serve.guards.config import Action, OwnRule, ToxicityRule
from tasks.serve.guards.rule import Mark
from tasks.serve.guards.words import Entry
from tasks.stage.output import Output

LONGEST = 300  # characters of a sentence, as long as the filter's pieces: in a longer one, bad words are diluted
BEHIND_MARK = 4  # characters of closing quotes and brackets

log = logging.getLogger("gristmill.serve.guards")
_END = re.compile(r"[.!?…][\"')\]}»”’]{0,3}\s|[。！？]|\n")
Measure = Callable[[pa.Array], pa.RecordBatch]


class Sentences:
    """The rule of a guard. `judge` gives the entry of a sentence that is a finding, and None for another one."""

    def __init__(self, judge: Callable[[str], Entry | None], action: Action) -> None:
        self.judge, self.action = judge, action

    def search(self) -> SentencesSearch:
        """See `Rule`."""
        return SentencesSearch(self)


class SentencesSearch:
    """The rule's state in a text."""

    def __init__(self, rule: Sentences) -> None:
        self.done = 0
        self._rule = rule
        self._begin = 0
        self._waits = rule.action != "allow"

    def advance(self, text: str, base: int, step: int, final: bool) -> list[Mark]:
        """See `Search`."""
        marks: list[Mark] = []
        at = max(len(text) - step - BEHIND_MARK, self._begin - base)
        for sentence_end in _END.finditer(text, at):
            marks += self._ask(text, base, base + sentence_end.end())
        if final or base + len(text) - self._begin >= LONGEST:
            marks += self._ask(text, base, base + len(text))
        self.done = self._begin if self._waits else base + len(text)
        return marks

    def sure(self, part: str) -> int:
        """See `Search`."""
        return self.done

    def _ask(self, text: str, base: int, end: int) -> list[Mark]:
        whole = text[max(self._begin - base, 0) : end - base]
        start = end - len(whole.lstrip())
        self._begin = end
        sentence = whole.strip()
        entry = self._rule.judge(sentence) if sentence else None
        return [] if entry is None else [Mark(start, start + len(sentence), *entry)]


def toxicity(rule: ToxicityRule) -> Sentences:
    """The rule of the classifier. Raises SourceError without its folder or packages."""
    from tasks.filter.toxicity.config import PackageModelConfig
    from tasks.filter.toxicity.measure import load_model
    from tasks.filter.toxicity.package import export_package

    if rule.folder is not None and not Path(rule.folder).expanduser().is_dir():
        raise SourceError(f"The folder {rule.folder} does not exist.", "Check guards.toxicity.folder.")
    with tempfile.TemporaryDirectory() as scratch:
        out = Output.at(Path(scratch))
        if rule.folder is None:
            export_package(PackageModelConfig(), out)
        model = load_model(out.path if rule.folder is None else Path(rule.folder).expanduser())

    entry = Entry("toxicity", rule.action, "<TOXIC>")

    def judge(sentence: str) -> Entry | None:
        scores, words = model.score(pa.array([sentence], pa.string()))
        return entry if words[0] and scores[0] > rule.max_score else None

    return Sentences(judge, rule.action)


def own(name: str, rule: OwnRule) -> Sentences:
    """The rule of a user's guard. Raises SourceError or ConfigError for one that can't be loaded."""
    measure = _function(rule.measure) if isinstance(rule.measure, PythonSignalConfig) else _classifier(rule.measure)

    columns = {*rule.min, *rule.max}
    tried = measure(pa.array(["A sentence."], pa.string()))  # so that a mistake ends the start
    if missing := columns - {*tried.schema.names}:
        known = ", ".join(tried.schema.names)
        raise ConfigError(f"guards.own.{name} bounds {min(missing)}, but measures {known}.", "Bound one of these.")

    entry = Entry(f"own.{name}", rule.action, f"<{name.upper()}>")
    failed = entry._replace(rule=f"own.{name} failed")  # so that metrics tell it from what the guard finds

    def judge(sentence: str) -> Entry | None:
        try:
            row = measure(pa.array([sentence], pa.string())).to_pylist()[0]
        except SourceError as error:
            log.error("the guard own.%s failed, so a sentence counts as a finding", name, exc_info=error)
            return failed
        if why := row.get(ERROR):
            kind = why.partition(":")[0]  # what follows may quote the sentence
            log.error("the guard own.%s failed on a sentence (%s), which counts as a finding", name, kind)
            return failed
        if None in (row[column] for column in columns):  # a classifier gives no score to a text without words
            return entry if isinstance(rule.measure, PythonSignalConfig) else None
        low = any(row[column] < bound for column, bound in rule.min.items())
        high = any(row[column] > bound for column, bound in rule.max.items())
        return entry if low or high else None

    return Sentences(judge, rule.action)


def _function(config: PythonSignalConfig) -> Measure:
    from tasks.filter.signals.functions import measure_with
    from tasks.stage.user_function import fingerprints, load

    digests = fingerprints(config)
    load(config, digests)  # so that a mistake ends the start
    document = tuple(pa.array([value], pa.string()) for value in ("sentence", "serve", "{}"))
    return lambda texts: measure_with(config, json.dumps(digests), texts, *document)


def _classifier(config: ClassifierSignalConfig) -> Measure:
    from tasks.filter.classifier.signal_model import make_classifier
    from tasks.filter.signals.scores import measure_scores

    if config.first is not None:
        raise ConfigError("guards.own: a classifier has `first`, which is trained on a corpus.", "Leave it out.")
    scratch = tempfile.TemporaryDirectory()
    out = Output.at(Path(scratch.name))
    make_classifier(config.scorer().model_copy(update={"labelled": []}), Artifact.at(out.scratch), out)

    def measure(texts: pa.Array) -> pa.RecordBatch:
        return measure_scores(config, out.path, texts)

    weakref.finalize(measure, scratch.cleanup)
    return measure
