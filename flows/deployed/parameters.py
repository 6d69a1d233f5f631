"""The form of a deployment: the parameters of its flow, as types.

Prefect makes the form of their JSON schema, and its server refuses what does not match it before it creates a run. So
profiles and stages are choices there, and an override must have a known key and a value. Python sees plain strings, and
the run itself checks the rest: values, and passwords, which by then are in the server's database.

A refusal by a `pattern` would quote the pattern and the value. So a pattern is the condition of an `if`, and the
`const` of its `else` says what was expected: "'a ref such as tiny/dpo' was expected".

The server runs no Python of ours, and a text can have any length. So no pattern may read the same text again and again:
each part that repeats stops where the next can begin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, GetJsonSchemaHandler

from profiles.load import names
from profiles.schema import Profile
from profiles.stage_names import ALL, TRAINED
from tasks.stage.decorator import STAGES
from tasks.stage.runtime import LONGEST_HOURS
from tasks.training.chain import BASE

MOST_SEEDS = 200  # of an arm
OVERRIDE = r"^\w+(\.[^=]*[^=\s])?="
CHARACTERS = r"^(?=[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]*$)"  # that YAML takes and a database keeps


@dataclass(frozen=True)
class Schema:
    """The JSON schema of a type in the form, made on request: by then all stages are known. It holds the description,
    as Prefect drops that of a field."""

    make: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema, for pydantic."""
        return self.make()


def _plain(description: str, **schema: Any) -> Schema:
    return Schema(lambda: {"description": description, **schema})


def _only(wanted: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    """A schema that requires one of the conditions, and otherwise says what is `wanted`."""
    return {"if": {"anyOf": conditions}, "else": {"const": wanted}}


def _all(first: tuple[str, dict[str, Any]], *others: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A schema that requires every condition, and otherwise says what the first failing one wants."""
    return {**_only(*first), **({"then": _all(*others)} if others else {})}


ADDRESS = _only("an address", {"minLength": 1, "pattern": CHARACTERS})


def _profile() -> dict[str, Any]:
    # A pattern is true of everything but strings
    a_file = {"type": "string", "pattern": rf"{CHARACTERS}[\s\S]*\.ya?ml$"}
    return {
        "description": "The profile to run: one of Gristmill's, or the path of a YAML file on the worker.",
        "anyOf": [
            {"title": "one of Gristmill's", "type": "string", "enum": names()},
            {"title": "a file", "type": "string"},
        ],
        **_only(f"{', '.join(names())}, or the path of a .yaml file", {"enum": names()}, a_file),
    }


def _settings(
    description: str = "Keys to override, each as `section.key=value`, for example `pretrain.steps=2000`, or "
    "`runtime.approve=[pretrain]` to be asked first. docs/profiles.md lists them.",
    example: str = "pretrain.steps=2000",
) -> dict[str, Any]:
    return {
        "description": description,
        "type": "array",
        "items": {
            "type": "string",
            **_all(
                ("text without control characters", {"pattern": CHARACTERS}),
                ("section.key=value", {"pattern": OVERRIDE}),
                ("a key that docs/profiles.md lists (a list is given whole)", {"pattern": f"^({keys(Profile)})="}),
            ),
        },
        "examples": [[example]],
    }


def _varied() -> dict[str, Any]:
    said = "Keys to vary, each as `section.key=value`, or `section.key=[value, value]` for several values."
    return _settings(said, "pretrain.learning_rate=[3e-3, 6e-3]")


def _link() -> dict[str, Any]:
    said = "The stage whose model is measured, by default the first that all keys change."
    return {"description": said, "enum": [*TRAINED, BASE, None]}


def _names(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "type": "array",
        "items": {"type": "string", **_only("a name", {"minLength": 1, "pattern": CHARACTERS})},
    }


def _last_stage() -> dict[str, Any]:
    return {"description": "The last stage, by default the release.", "enum": [*ALL, None]}


def _stage() -> dict[str, Any]:
    whole = [name for name, stage in STAGES.items() if stage.part_of is None]
    return {"description": "A stage.", "type": "string", "enum": sorted(whole)}


def _refreshed() -> dict[str, Any]:
    return {
        "description": "Stages to rebuild even if they are stored. Nothing is overwritten.",
        "type": "array",
        "items": {"description": "A stage, or a part of one such as form.", "type": "string", "enum": sorted(STAGES)},
        "uniqueItems": True,
    }


def _ref() -> dict[str, Any]:
    return {
        "description": "An artifact in the store: a ref such as tiny/dpo, an earlier one such as tiny/dpo@2, or "
        "stage/key.",
        "type": "string",
        **_only("a ref such as tiny/dpo or tiny/dpo@2, or stage/key", {"pattern": r"^[\w.-]+/[\w.-]+(@\d+)?$"}),
    }


def _address() -> dict[str, Any]:
    return {
        "description": "The destination: hf://OWNER/NAME, the URL of a bucket or a server, a folder of the worker, or "
        "serve:FOLDER, a running `gristmill serve` by its state folder (serve:FOLDER#MODEL for one of its models).",
        "type": "string",
        **ADDRESS,
    }


def _store() -> dict[str, Any]:
    return {
        "description": "The release's store: a folder, or an fsspec URL such as s3://bucket/path.",
        "type": "string",
        **ADDRESS,
    }


def _registry() -> dict[str, Any]:
    return {
        "description": "A model registry of MLflow to register the release in: its address, or `environment` for "
        "MLFLOW_REGISTRY_URI or MLFLOW_TRACKING_URI of the worker. Empty: none.",
        "type": "string",
        **_only("an address, or environment", {"pattern": CHARACTERS}),
    }


def _model_name() -> dict[str, Any]:
    return {
        "description": "The name of the registered model. Empty: that of the profile.",
        "type": "string",
        **_only("a name without /, : and '", {"pattern": r"^[^/:'\x00-\x1f]*$"}),
    }


def _alias() -> dict[str, Any]:
    return {
        "description": "An alias of the registered version, besides `released`.",
        "type": "string",
        **_only("letters, digits, - and _", {"pattern": r"^[\w-]{0,255}$"}),
    }


@functools.cache  # Prefect asks for each flow
def keys(*groups: type[BaseModel]) -> str:
    """A pattern of the keys of these groups and those below them: of nested groups, and the user's own names in a
    mapping. A list has no keys: it is given whole."""
    fields: dict[str, list[Any]] = {}
    for group in groups:
        for name, field in group.model_fields.items():
            fields.setdefault(name, []).append(field.annotation)
    return "|".join(rf"{name}{_dot(_below(annotations))}" for name, annotations in fields.items())


def _below(annotations: Sequence[Any]) -> str:
    """A pattern of what may follow the dot after a key of one of these types, or empty if nothing may."""
    kinds = [kind for annotation in annotations for kind in _kinds(annotation)]
    groups = dict.fromkeys(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    values = [get_args(kind)[1] for kind in kinds if get_origin(kind) in (dict, Mapping)]
    ways = [keys(*groups)] if groups else []
    ways += [rf"[^.=]+{_dot(_below(values))}"] if values else []
    ways += ["[^=]+"] if Any in kinds else []
    return "|".join(ways)


def _kinds(annotation: Any) -> list[Any]:
    """The types of a union, without annotations."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return [kind for one in get_args(annotation) for kind in _kinds(one)]
    return [annotation]


def _dot(below: str) -> str:
    return rf"(\.({below}))?" if below else ""


ProfileName = Annotated[str, Schema(_profile)]
Settings = Annotated[Sequence[str], Schema(_settings)]
Varied = Annotated[Sequence[str], Schema(_varied)]
Arms = Annotated[
    Sequence[str],
    _plain(
        "Settings that belong together, as one arm each: `{section.key: value, section.key: value}`.",
        type="array",
        items={"type": "string", **_only("{section.key: value}", {"pattern": rf"{CHARACTERS}\s*\{{[\s\S]*\}}\s*$"})},
    ),
]
Seeds = Annotated[int, _plain("Runs of each arm, with different seeds.", type="integer", minimum=1, maximum=MOST_SEEDS)]
Jobs = Annotated[
    int | None, _plain("Trainings at once, by default one on each GPU.", type=["integer", "null"], minimum=1)
]
Each = Annotated[bool, _plain("One change at a time, in place of all combinations.", type="boolean")]
Halve = Annotated[
    bool, _plain("Give up the worse half of the arms after a quarter, then half of the steps.", type="boolean")
]
Budgets = Annotated[
    Sequence[float],
    _plain(
        "Compute of the trainings in FLOPs. Three or four, each two to three times the one before, are usual.",
        type="array",
        items={"type": "number", "exclusiveMinimum": 0},
        minItems=1,
    ),
]
Widths = Annotated[
    Sequence[int],
    _plain(
        "Widths of the trainings, by default those around the best size.",
        type="array",
        items={"type": "integer", "minimum": 1},
    ),
]
Compute = Annotated[float | None, _plain("A compute in FLOPs to predict.", type=["number", "null"], exclusiveMinimum=0)]
CheckRate = Annotated[
    bool, _plain("Try half and twice the learning rate at the smallest and the largest size.", type="boolean")
]
Beyond = Annotated[bool, _plain("Predict farther than ten times the largest training.", type="boolean")]
Proxy = Annotated[
    Sequence[str],
    Schema(
        lambda: _settings(
            "Keys of the small runs, each as `pretrain.key=value`, by default a quarter of the profile's steps.",
            "pretrain.model.depth=4",
        )
    ),
]
Mixtures = Annotated[
    int | None, _plain("Mixtures to try, by default 8 for each source.", type=["integer", "null"], minimum=1)
]
Checks = Annotated[
    int, _plain("Runs of each arm that check the proposal. 0: no check.", type="integer", minimum=0, maximum=MOST_SEEDS)
]
Sources = Annotated[Sequence[str], Schema(lambda: _names("Sources to mix, by default all. Others aren't trained on."))]
Targets = Annotated[
    Sequence[str],
    Schema(
        lambda: _names(
            "What is to be predicted well: sources, or `name=weight` of sources, files and benchmarks, by default all "
            "sources that are mixed."
        )
    ),
]
Epochs = Annotated[
    float | None,
    _plain("Read no source more often, by default as pretrain.max_epochs or 4.", type=["number", "null"], minimum=0.01),
]
Full = Annotated[bool, _plain("Check the proposal at the profile's own size.", type="boolean")]
Link = Annotated[str | None, Schema(_link)]
LastStage = Annotated[str | None, Schema(_last_stage)]
StageName = Annotated[str, Schema(_stage)]
Refreshed = Annotated[Sequence[str], Schema(_refreshed)]
Refresh = Annotated[bool, _plain("Rebuild it even if it is stored.", type="boolean")]
Ref = Annotated[str, Schema(_ref)]
Address = Annotated[str, Schema(_address)]
StorePlace = Annotated[str, Schema(_store)]
Public = Annotated[bool, _plain("Make the hub's repository public.", type="boolean")]
Hours = Annotated[
    float,
    _plain(
        "Hours to wait for approval before the run fails.", type="number", exclusiveMinimum=0, maximum=LONGEST_HOURS
    ),
]
RegistryPlace = Annotated[str, Schema(_registry)]
ModelName = Annotated[str, Schema(_model_name)]
Alias = Annotated[str, Schema(_alias)]
