"""Clean and dirty questions: dirty are those whose text occurs in the training documents.

The filter's contamination stage leaves a line for each benchmark question: {"benchmark", "id", "ngrams", "found"}, how
many word n-grams it has and how many of them occur in a training document. A score that is higher on the dirty
questions than on the clean ones is partly memory (Brown et al. 2020, "Language Models are Few-Shot Learners",
appendix C).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from storage.errors import DamagedArtifact, make_again
from storage.shards.lines import read_json_lines

FILE = "questions.jsonl"

Dirty = Mapping[str, bool | None]  # question → dirty, clean, or None: too short to tell


class Answer(NamedTuple):
    """One question as a model answered it: 1 for right, 0 for wrong; the chance of guessing it."""

    id: str
    accuracy: float
    normalised_accuracy: float
    chance: float


def find_dirty(folder: Path, share: float) -> dict[str, Dirty]:
    """Benchmark → question → whether more than `share` of its n-grams occur in training documents; None for a question
    too short to have one. Benchmarks that the filter didn't check are left out. Raises DamagedArtifact."""
    dirty: dict[str, dict[str, bool | None]] = defaultdict(dict)
    try:
        for row in read_json_lines(folder / FILE):
            met = row["found"] > share * row["ngrams"] if row["ngrams"] else None
            dirty[str(row["benchmark"])][str(row["id"])] = met
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DamagedArtifact(
            f"The filter's {FILE} has a line that is no question ({type(error).__name__}: {error}).",
            make_again("filter"),
        ) from error
    return {**dirty}


def check_asked(benchmark: str, asked: Iterable[str], known: Dirty) -> None:
    """Raises DamagedArtifact for a question that wasn't checked: none may pass as clean for that reason."""
    missing = sorted(set(asked) - known.keys())
    if missing:
        raise DamagedArtifact(
            f"The filter's {FILE} lacks {len(missing):,} questions of {benchmark}, such as {missing[0]}.",
            "The benchmark changed since: run the filter again.",
        )


def split(answers: Sequence[Answer], dirty: Dirty | None) -> dict[str, Any]:
    """{"dirty_items", "unchecked_items"} and, where some are dirty, the scores of "clean" and "dirty" questions.

    `dirty_items` is null where no question could be checked; a subset without a question is left out.
    """
    met = [dirty[answer.id] if dirty else None for answer in answers]
    unchecked = met.count(None)
    if unchecked == len(answers):
        return {"dirty_items": None, "unchecked_items": unchecked}
    found: dict[str, Any] = {"dirty_items": met.count(True), "unchecked_items": unchecked}
    if found["dirty_items"]:
        for kind, wanted in (("clean", False), ("dirty", True)):
            part = [answer for answer, is_dirty in zip(answers, met, strict=True) if is_dirty is wanted]
            found |= {kind: _score(part)} if part else {}
    return found


def _score(answers: Sequence[Answer]) -> dict[str, float]:
    number = len(answers)
    accuracy, normalised, chance = (sum(column) / number for column in list(zip(*answers, strict=True))[1:])
    scores: dict[str, float] = {"items": number, "chance": chance, "accuracy": accuracy}
    scores["normalised_accuracy"] = normalised
    if number > 1:  # one answer has no error that could be estimated
        scores["accuracy_stderr"] = math.sqrt(accuracy * (1 - accuracy) / (number - 1))
        scores["normalised_accuracy_stderr"] = math.sqrt(normalised * (1 - normalised) / (number - 1))
    return scores
