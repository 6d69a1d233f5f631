"""Whether two models' bits per byte are of the same text. Of different texts they say nothing about the models."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.errors import DamagedArtifact, make_again
from storage.manifest import check_name
from tasks.significance.answered import Answered

TOLERANCE = 0.02  # share of the bytes of a source: tokenizers leave out different ends of it


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Source(_Read):
    name: str
    bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)]


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


def _held_out(evaluation: Answered, model: str) -> _HeldOut | None:
    try:
        path = evaluation.folder / check_name(f"language/{model}/language.json")
        return _Language.model_validate_json(path.read_bytes()).held_out
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError, OSError) as error:
        raise DamagedArtifact(
            f"The language.json of {model} in {evaluation.name} can't be read.", make_again("evaluate")
        ) from error
