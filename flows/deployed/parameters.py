"""The form of a deployment: the parameters of its flow, as types.

Prefect makes the form of their JSON schema, and its server refuses what does not match it before a run is created. So
the names of profiles and stages are choices there, an override must have a key that there is and a value, and none of
them can hold a password, which would stay in the server's database. Python sees plain strings, and the run itself
checks the rest.

A refusal by a `pattern` would quote the pattern and the value, which may hold a password. So one is a condition of an
`if`, and what is wanted stands as the `const` of its `else`: "'a ref such as tiny/dpo' was expected".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler

from flows.deployed.patterns import CHARACTERS, NO_CREDENTIALS, NO_SALT, OVERRIDE, keys
from profiles.load import names
from profiles.schema import Profile
from profiles.stage_names import ALL
from tasks.stage.decorator import STAGES
from tasks.stage.runtime import LONGEST_HOURS


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


def _all(first: tuple[str, dict[str, Any]], *others: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Each condition must hold; else it is told what is wanted by the first that does not."""
    return {**_only(*first), **({"then": _all(*others)} if others else {})}


ADDRESS = _all(
    ("an address", {"minLength": 1, "pattern": CHARACTERS}),
    ("an address without a password or token in it", {"pattern": NO_CREDENTIALS}),
)


def _profile() -> dict[str, Any]:
    # Of what is no string, all patterns are true
    a_file = {"type": "string", "pattern": rf"{CHARACTERS}{NO_CREDENTIALS}[\s\S]*\.ya?ml$"}
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
            **_all(
                ("text without control characters", {"pattern": CHARACTERS}),
                ("section.key=value", {"pattern": OVERRIDE}),
                ("a key that docs/profiles.md lists (a list is given whole)", {"pattern": f"^({keys(Profile)})="}),
                ("a value without a password or token in it", {"pattern": NO_CREDENTIALS}),
                ("filter.pii.salt.env=VARIABLE in place of a salt", {"pattern": NO_SALT}),
            ),
        },
        "examples": [["pretrain.steps=2000"]],
    }


def _last_stage() -> dict[str, Any]:
    return {"description": "The stage to end with; without one, the release.", "enum": [*ALL, None]}


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
        **ADDRESS,
    }


def _store() -> dict[str, Any]:
    return {
        "description": "The store of the release: a folder, or an fsspec URL such as s3://bucket/path.",
        "type": "string",
        **ADDRESS,
    }


def _public() -> dict[str, Any]:
    return {"description": "Of the hub: for everybody to see.", "type": "boolean"}


def _hours() -> dict[str, Any]:
    return {
        "description": "How long to wait for approval; then the run fails.",
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": LONGEST_HOURS,
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
