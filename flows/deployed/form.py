"""The form of a deployment: the parameters of its flow, as types.

Prefect makes the form of their JSON schema, and its server refuses what does not match it before a run is created. So
the names of profiles and stages are choices there, an override must have a key that there is and a value, and none of
them can hold a password, which would stay in the server's database. Python sees plain strings, and the run itself
checks the rest.

A refusal by a `pattern` would quote the pattern and the value, which may hold a password. So one is a condition of an
`if`, and what is wanted stands as the `const` of its `else`: "'a ref such as tiny/dpo' was expected".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, GetJsonSchemaHandler

from profiles.load import models_in, names
from profiles.schema import ALL, Profile
from storage.credentials import NO_CREDENTIALS
from tasks.stage.decorator import STAGES


@dataclass(frozen=True)
class Schema:
    """What the form shows of a type, made when it is asked for: by then all stages are known. With the description, as
    Prefect leaves that of a field out."""

    make: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What pydantic asks for."""
        return self.make()


def _only(wanted: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    """One of the conditions must hold; else it is told what is `wanted`."""
    return {"if": {"anyOf": conditions}, "else": {"const": wanted}}


def _profile() -> dict[str, Any]:
    a_file = {"type": "string", "pattern": rf"{NO_CREDENTIALS}[\s\S]*\.ya?ml$"}  # of what is no string, all are true
    return {
        "description": "What to run: a profile that comes with Gristmill, or the path of a YAML file on the worker.",
        "anyOf": [
            {"title": "one of Gristmill's", "type": "string", "enum": names()},
            {"title": "a file", "type": "string"},
        ],
        **_only(f"{', '.join(names())}, or the path of a .yaml file without a password", {"enum": names()}, a_file),
    }


def _settings() -> dict[str, Any]:
    return {
        "description": "Keys that have other values than in the profile, each as `section.key=value`, for example "
        "`pretrain.steps=2000`, or `runtime.approve=[pretrain]` to be asked first. docs/profiles.md lists them.",
        "type": "array",
        "items": {
            "type": "string",
            **_only(
                "section.key=value, with no password or token in it",
                {"pattern": rf"{NO_CREDENTIALS}\w+(\.[^\s.=]+)*="},
            ),
            "then": _only("a key that docs/profiles.md lists", {"pattern": f"^({_keys((Profile,))})="}),
        },
        "examples": [["pretrain.steps=2000"]],
    }


@functools.cache  # Prefect asks for each flow
def _keys(groups: tuple[type[BaseModel], ...]) -> str:
    """A pattern of the keys of these groups, and of those of the groups in them; in a mapping from names of the user's
    own, any."""
    found: dict[str, list[type[BaseModel]]] = {}
    free = set[str]()
    for group in groups:
        for name, field in group.model_fields.items():
            found.setdefault(name, []).extend(models_in(field.annotation))
            if _names_things(field.annotation):
                free.add(name)
    return "|".join(
        rf"{name}(\.[^\s=]+)?" if name in free else rf"{name}(\.({_keys(tuple(below))}))?" if below else name
        for name, below in found.items()
    )


def _names_things(annotation: Any) -> bool:
    """Whether a value may be a mapping whose keys are no fields."""
    return (
        annotation is Any
        or get_origin(annotation) in (dict, Mapping)
        or any(_names_things(argument) for argument in get_args(annotation))
    )


def _last_stage() -> dict[str, Any]:
    return {
        "description": "The stage to end with; without one, the release.",
        "enum": [*ALL, None],
    }


def _stage() -> dict[str, Any]:
    whole = [name for name, stage in STAGES.items() if stage.part_of is None]
    return {"description": "A stage.", "type": "string", "enum": sorted(whole)}


def _refreshed() -> dict[str, Any]:
    return {
        "description": "Stages to make anew although they are in the store. Nothing is overwritten.",
        "type": "array",
        "items": {"description": "A stage, or a part of one such as form.", "type": "string", "enum": sorted(STAGES)},
        "uniqueItems": True,
    }


def _refresh() -> dict[str, Any]:
    return {"description": "Make it anew although it is in the store.", "type": "boolean"}


def _ref() -> dict[str, Any]:
    return {
        "description": "An artifact in the store: a ref such as tiny/dpo, an earlier one such as tiny/dpo@2, or "
        "stage/key.",
        "type": "string",
        **_only("a ref such as tiny/dpo or tiny/dpo@2, or stage/key", {"pattern": r"^[\w.-]+/[\w.-]+(@\d+)?$"}),
    }


def _address() -> dict[str, Any]:
    return {
        "description": "Where to: hf://OWNER/NAME, the URL of a bucket or a server, or a folder of the worker.",
        "type": "string",
        **_only("an address without a password or token in it", {"minLength": 1, "pattern": NO_CREDENTIALS}),
    }


def _store() -> dict[str, Any]:
    return {
        "description": "The store of the release: a folder, or an fsspec URL such as s3://bucket/path.",
        "type": "string",
        **_only("an address without a password or token in it", {"minLength": 1, "pattern": NO_CREDENTIALS}),
    }


def _public() -> dict[str, Any]:
    return {"description": "Of the hub: for everybody to see.", "type": "boolean"}


def _hours() -> dict[str, Any]:
    return {
        "description": "How long to wait for approval; then the run fails.",
        "type": "number",
        "exclusiveMinimum": 0,
    }


ProfileName = Annotated[str, Schema(_profile)]
Settings = Annotated[Sequence[str], Schema(_settings)]
LastStage = Annotated[str | None, Schema(_last_stage)]
StageName = Annotated[str, Schema(_stage)]
Refreshed = Annotated[Sequence[str], Schema(_refreshed)]
Refresh = Annotated[bool, Schema(_refresh)]
Ref = Annotated[str, Schema(_ref)]
Address = Annotated[str, Schema(_address)]
StorePlace = Annotated[str, Schema(_store)]
Public = Annotated[bool, Schema(_public)]
Hours = Annotated[float, Schema(_hours)]
