"""A stored evaluation: the scores of models and tasks, and the answers to single questions.

    scores.json               {"models": {MODEL: {"bits_per_byte", "tasks": {TASK: {"metric", "value", …}}}}}
    items/MODEL/TASK.jsonl    a line a question: {"id", "cluster", "scores": {METRIC: number}}

A folder may come from anywhere, so every line is checked before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, StoreError, make_again
from storage.manifest import check_name
from storage.shards.lines import read_json_lines
from tasks.significance.estimate import Values

SCORES = "scores.json"
ITEMS = "items"
OF_TASK = "items.jsonl"  # the same of one task, as it is measured
BITS = "bits_per_byte"  # named like a task; it has one value a model
LARGEST = 1e100  # largest score whose square, and sums of such squares, are still finite


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


Number = Annotated[float, BeforeValidator(_no_bool), Field(strict=True, allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class MetricScore(_Read):
    """One metric of a task."""

    value: Number
    stderr: Number | None = None
    higher_is_better: bool = True


class TaskScore(_Read):
    """One task of a model. `metric` is its headline. Scores that differ in `data_digest`, `version` or `asked` (shots,
    chat and generation) can't be compared."""

    metric: str
    value: Number
    stderr: Number | None = None
    chance: Number | None = None
    items: Annotated[int, Field(ge=0)] = 0
    higher_is_better: bool = True
    metrics: dict[str, MetricScore] = Field(default_factory=dict)
    data_digest: str | None = None
    version: str | int | float | None = None
    asked: dict[str, Any] | None = None

    def of(self, metric: str) -> MetricScore | None:
        """One of its metrics, the headline among them."""
        if metric in self.metrics:
            return self.metrics[metric]
        if metric != self.metric:
            return None
        return MetricScore(value=self.value, stderr=self.stderr, higher_is_better=self.higher_is_better)


class ModelScores(_Read):
    """All scores of a model."""

    bits_per_byte: Number | None = None
    tasks: dict[str, TaskScore] = Field(default_factory=dict)


class _Scores(_Read):
    models: dict[str, ModelScores]


class _Line(_Read):
    id: str
    cluster: str | None = None
    scores: dict[str, Number]


@dataclass(frozen=True)
class Answers:
    """One metric of one task: questions by id, with their clusters and scores, shape (questions,)."""

    ids: tuple[str, ...]
    clusters: tuple[str | None, ...]
    values: Values


@dataclass(frozen=True)
class Answered:
    """An evaluation in a folder. `name` is what people call it, in tables and errors."""

    name: str
    folder: Path
    models: dict[str, ModelScores]
    _lines: dict[tuple[str, str], list[_Line]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, folder: Path, name: str) -> Answered:
        """The evaluation in `folder`. Raises DamagedArtifact for invalid scores, StoreError for an older format."""
        try:
            scores = _Scores.model_validate_json((folder / SCORES).read_bytes())
        except FileNotFoundError as error:
            raise DamagedArtifact(f"{name} has no {SCORES}.", make_again("evaluate")) from error
        except (ValidationError, OSError) as error:
            if not (folder / ITEMS).is_dir():
                raise StoreError(
                    f"{name} has no answers to single questions, since an earlier version of evaluate made it, or its "
                    f"{SCORES} is damaged: {_told(error)}.",
                    _AGAIN,
                ) from error
            raise DamagedArtifact(f"The {SCORES} of {name} is damaged: {_told(error)}.", _AGAIN) from error
        return cls(name, folder, scores.models)

    @classmethod
    def of(cls, artifact: Artifact, name: str) -> Answered:
        """The evaluation of an artifact. Raises ConfigError for an artifact of another stage."""
        if artifact.manifest is not None and artifact.manifest.stage != "evaluate":
            raise ConfigError(
                f"{name} is an artifact of {artifact.manifest.stage}, not of evaluate.", "Name one of evaluate."
            )
        return cls.read(artifact.path, name)

    def answers(self, model: str, task: str, metric: str) -> Answers | None:
        """The answers to a task by one of its metrics, or None if none were kept. Raises DamagedArtifact."""
        lines = self._read(model, task)
        having = [line for line in lines if metric in line.scores]
        if not having:
            return None
        values = np.array([line.scores[metric] for line in having], dtype=np.float64)
        return Answers(tuple(line.id for line in having), tuple(line.cluster for line in having), values)

    def _read(self, model: str, task: str) -> list[_Line]:
        if (model, task) not in self._lines:
            what = f"the answers of {model} to {task} in {self.name}"
            path = self._path(model, task, what)
            self._lines[model, task] = _lines_of(path, what) if path.exists() else []
        return self._lines[model, task]

    def _path(self, model: str, task: str, what: str) -> Path:
        """Names come from a file: they must not lead out of the folder."""
        name = f"{ITEMS}/{model}/{task}.jsonl"
        try:
            parts = check_name(name)
        except ValueError as error:
            raise DamagedArtifact(f"A file can't have this name, {what}: {error}.", _AGAIN) from error
        return self.folder / parts


_AGAIN = make_again("evaluate")


def _lines_of(path: Path, what: str) -> list[_Line]:
    lines, seen = [], set()
    try:
        for number, row in enumerate(read_json_lines(path), 1):
            line = _Line.model_validate(row)
            if line.id in seen:
                raise ValueError(f"line {number}: a second question {line.id[:80]!r}")
            seen.add(line.id)
            lines.append(line)
    except ValidationError as error:
        raise DamagedArtifact(f"Line {number} of {what} is damaged: {_told(error)}.", _AGAIN) from error
    except (ValueError, OSError) as error:
        raise DamagedArtifact(f"A file is damaged, {what}: {_told(error)}.", _AGAIN) from error
    if not lines:
        raise DamagedArtifact(f"A file is empty, {what}.", _AGAIN)
    return lines


def _told(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
    return str(error)
