"""The half of a profile that enters keys: the base of every stage's config. The other half is runtime.py."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


class StageConfig(BaseModel):
    """Choices that change a stage's result. Frozen, unknown keys refused, every field described.

    A profile's mapping is merged with its parent's, so null removes: for a mapping it means an empty one, and as a
    value within one, if null isn't valid there, no entry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_clears_mappings(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        fields = cls.model_fields
        return {
            name: _cleared(value, fields[name].annotation) if name in fields else value for name, value in data.items()
        }


def _cleared(value: Any, annotation: Any) -> Any:
    """A value for a field of this type, without the nulls that only clear."""
    if get_origin(annotation) is not dict:
        return value
    if value is None:
        return {}
    of_values = get_args(annotation)[1]
    if not isinstance(value, Mapping) or of_values is Any or NoneType in get_args(of_values):
        return value
    return {key: inner for key, inner in value.items() if inner is not None}
