"""Scores clean and dirty questions separately. A question is dirty if its text occurs in the training documents.

The filter's contamination stage writes a line for each benchmark question: {"benchmark", "id", "ngrams", "found"}, the
number of its word n-grams and of those that occur in a training document. A score that is higher on the dirty questions
than on the clean ones is partly memory (Brown et al. 2020, "Language Models are Few-Shot Learners", appendix C).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import DamagedArtifact, make_again
from storage.shards.lines import read_json_lines
from tasks.significance.estimate import standard_error

FILE = "questions.jsonl"

Dirty = Mapping[str, bool | None]  # question → dirty, clean, or None: too short to tell


def find_dirty(folder: Path, share: float) -> dict[str, Dirty]:
    """Benchmark → question → whether more than `share` of its n-grams occur in training documents, or None for a
    question too short to have any. Benchmarks that the filter didn't check are left out. Raises DamagedArtifact for a
    bad line."""
    dirty: dict[str, dict[str, bool | None]] = defaultdict(dict)
    try:
        for row in read_json_lines(folder / FILE):
            met = row["found"] > share * row["ngrams"] if row["ngrams"] else None
            dirty[str(row["benchmark"])][str(row["id"])] = met
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DamagedArtifact(
            f"The filter's {FILE} has a line that isn't a question ({type(error).__name__}: {error}).",
            make_again("filter"),
        ) from error
    return {**dirty}


def check_asked(benchmark: str, asked: Iterable[str], known: Dirty) -> None:
    """Raises DamagedArtifact for a question that wasn't checked, as it must not pass as clean."""
    missing = sorted(set(asked) - known.keys())
    if missing:
        raise DamagedArtifact(
            f"The filter's {FILE} lacks {len(missing):,} questions of {benchmark}, such as {missing[0]}.",
            "The benchmark changed since: run the filter again.",
        )


def split(items: Sequence[Mapping[str, Any]], metric: str, dirty: Dirty | None) -> dict[str, Any]:
    """{"dirty_items", "unchecked_items"} and, if any are dirty, the scores of "clean" and "dirty" questions.

    `items` are rows of items.jsonl, `metric` is the reported one. `dirty_items` is null if no question could be
    checked. An empty subset is left out.
    """
    met = [dirty.get(str(item["id"])) if dirty else None for item in items]
    unchecked = met.count(None)
    if unchecked == len(items):
        return {"dirty_items": None, "unchecked_items": unchecked}
    subsets: dict[str, Any] = {"dirty_items": met.count(True), "unchecked_items": unchecked}
    if subsets["dirty_items"]:
        for kind, state in (("clean", False), ("dirty", True)):
            part = [item for item, is_dirty in zip(items, met, strict=True) if is_dirty is state]
            subsets |= {kind: _score(part, metric)} if part else {}
    return subsets


def _score(items: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    values = np.array([item["scores"][metric] for item in items], np.float64)
    number = len(values)
    choices = [len(item.get("likelihoods", ())) for item in items]
    return {
        "items": number,
        "value": float(values.mean()),
        "stderr": standard_error(values),
        "chance": sum(1 / size for size in choices) / number if all(choices) else None,
    }
