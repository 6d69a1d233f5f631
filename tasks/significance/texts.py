"""Bits per byte of two models on the same text, and whether it is the same. Of different texts they say nothing about
the models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.errors import DamagedArtifact, make_again
from storage.manifest import check_name
from tasks.significance.answered import Answered, MetricScore
from tasks.significance.estimate import Values

DOCUMENTS = "documents.parquet"  # the loss of each document
TOLERANCE = 0.02  # share of the bytes of a source: tokenizers leave out different ends of it


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Source(_Read):
    name: str
    bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    bits_per_byte: Annotated[float, Field(allow_inf_nan=False)] | None = None
    bits_per_byte_stderr: Annotated[float, Field(allow_inf_nan=False)] | None = None


class _HeldOut(_Read):
    is_sample: bool
    by_source: list[_Source]


class _Language(_Read):
    held_out: _HeldOut


def other_text(one: Answered, model: str, two: Answered, other: str) -> bool:
    """Whether both record the text that they were measured on, and it differs in its sources or, if all of it was
    measured, in their bytes. Raises DamagedArtifact."""
    first, second = _held_out(one, model), _held_out(two, other)
    if first is None or second is None:
        return False
    here, there = ({source.name: source.bytes for source in told.by_source} for told in (first, second))
    if here.keys() != there.keys():
        return True
    if first.is_sample or second.is_sample:
        return False
    return any(abs(size - there[name]) > TOLERANCE * max(size, there[name]) for name, size in here.items())


class Change(NamedTuple):
    """Bits per byte of two models on the documents that both measured, and each document's part of the difference,
    shape (documents,). The mean of the parts is the difference, and their spread that of a ratio of sums (Cochran 1977,
    section 6.4)."""

    first: float
    second: float
    parts: Values


def source_score(evaluation: Answered, model: str, source: str) -> MetricScore | str:
    """Bits per byte of a source of the held-out text, or why there are none. Raises DamagedArtifact."""
    measured = _held_out(evaluation, model)
    sources = measured.by_source if measured else []
    for one in sources:
        if one.name == source and one.bits_per_byte is not None:
            return MetricScore(value=one.bits_per_byte, stderr=one.bits_per_byte_stderr, higher_is_better=False)
    names = ", ".join(one.name for one in sources if one.bits_per_byte is not None) or "none"
    why = f"{evaluation.name} measured {model} on no text of {source}, but of {names}"
    return f"{why}: raise evaluate.language.validation_tokens" if source in {one.name for one in sources} else why


def change(one: Answered, model: str, two: Answered, other: str, source: str | None) -> Change | str | None:
    """The change from the first model to the second, on the held-out documents of a source or all. A reason if the
    documents differ, None if an evaluation doesn't have them. Raises DamagedArtifact."""
    first, second = _documents(one, model, source), _documents(two, other, source)
    if first is None or second is None:
        return None
    met = first.join(second, ["text", "number"], join_type="inner", right_suffix="_2").sort_by("number")
    nats, sizes = ([met[name + end].to_numpy() for end in ("", "_2")] for name in ("nats", "bytes"))
    measured = min(first.num_rows, second.num_rows)
    if met.num_rows < (1 - TOLERANCE) * measured or not met.num_rows:
        return "they were measured on different documents"
    if np.abs(sizes[0] - sizes[1]).sum() > TOLERANCE * sizes[0].sum():
        return "they were measured on different parts of the documents"
    before, after = (n.sum() / s.sum() / math.log(2) for n, s in zip(nats, sizes, strict=True))
    away = nats[1] / math.log(2) - after * sizes[1] - (nats[0] / math.log(2) - before * sizes[0])
    return Change(before, after, after - before + np.asarray(away) / sizes[0].mean())


def _documents(evaluation: Answered, model: str, source: str | None) -> pa.Table | None:
    """The held-out documents with bytes that a model was measured on."""
    path = _language_folder(evaluation, model) / DOCUMENTS
    try:
        table = pq.read_table(path, columns=["text", "held_out", "number", "bytes", "nats"])
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(evaluation, model, path.name) from error
    table = table.filter(pc.and_(table["held_out"], pc.greater(table["bytes"], 0)))
    return table if source is None else table.filter(pc.equal(table["text"], source))


def _held_out(evaluation: Answered, model: str) -> _HeldOut | None:
    path = _language_folder(evaluation, model) / "language.json"
    try:
        return _Language.model_validate_json(path.read_bytes()).held_out
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise _unreadable(evaluation, model, path.name) from error


def _language_folder(evaluation: Answered, model: str) -> Path:
    try:
        return evaluation.folder / check_name(f"language/{model}")
    except ValueError as error:
        raise _unreadable(evaluation, model, "folder") from error


def _unreadable(evaluation: Answered, model: str, name: str) -> DamagedArtifact:
    return DamagedArtifact(f"The {name} of {model} in {evaluation.name} can't be read.", make_again("evaluate"))
