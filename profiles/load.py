"""Reads a profile: YAML, `extends`, `--set a.b=c`, and errors that name the key and the nearest known one."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from profiles.schema import Profile
from profiles.sections import NAME
from storage.credentials import REMEDY, has_credentials
from storage.errors import ConfigError
from tasks.filter.presets import without_groups
from tasks.tokenizer.config import OF_NEW

FOLDER = Path(__file__).parent
# By tag: the form of a value and its first characters. In YAML 1.1, which PyYAML reads, 010 is eight, 1:30 is ninety,
# and 1e9 is a string
CORE_SCHEMA = {
    "tag:yaml.org,2002:bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:int": ("[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
SETTINGS = "`gristmill serve settings` lists every key."
SCHEMA = "`gristmill profile schema` lists every key."
RECIPES = "recipes/"
SOURCES_OF_BASE = {"folder", "repository", "gguf", "artifact"}
PRESET, CLEAN = "filter.preset", "clean"
EXTEND = "tokenizer.extend"
LISTS = ("tuple_type", "list_type", "set_type", "frozen_set_type")  # pydantic's errors for values that aren't lists
OF_PYDANTIC = re.compile(r"\[key\]|literal\[.*\]")  # parts of an error's place that are in no profile
BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text"}  # by pydantic's name
MOST_NODES = 100_000  # a profile has a few hundred values,
MOST_BYTES = 1_000_000  # and a few thousand bytes; PyYAML takes three seconds for a million


Section = TypeVar("Section", bound=BaseModel)


def load(name: str, overrides: Sequence[str] = ()) -> Profile:
    """The profile `name` (a name under `profiles/`, such as tiny or recipes/kto, or a path to a YAML file) with
    `a.b=value` overrides.

    Raises ConfigError, which names the profile, the key and what to write instead.
    """
    data = _read(name, ())
    for override in sorted(overrides, key=lambda one: not one.startswith((f"{PRESET}=", f"{EXTEND}="))):  # these first
        if override.startswith(f"{PRESET}="):
            data = _for_preset(data, {"filter": {"preset": override.partition("=")[2]}})
        _set(data, override)
        if override.startswith(f"{EXTEND}="):
            data = _for_extension(data, data)
    stem = _find(name).stem
    if data.get("name") == stem and not re.fullmatch(NAME, stem):
        raise ConfigError(
            f"Profile {name}: {stem} is not a valid name.", "Add a `name:` of lower-case letters, digits, - and _."
        )
    check_credentials(data, f"Profile {name}")
    for path, text in _texts(data, ""):
        if not text.isprintable() and re.search("[\ud800-\udfff]", text):
            raise ConfigError(f"Profile {name}: {path} has half of a surrogate pair.", "Write the character itself.")
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"Profile {name}: {_explain(error)}", SCHEMA) from error
    for path in _numbers_from_booleans(data, profile.model_dump(), ""):
        raise ConfigError(f"Profile {name}: {path} is true or false, but must be a number.", SCHEMA)
    return profile


def section(kind: type[Section], name: str, given: Mapping[str, Any]) -> Section:
    """One section of a profile by itself, such as the filter's. Raises ConfigError as `load` does."""
    try:
        made = kind.model_validate(given)
    except ValidationError as error:
        raise ConfigError(_explain(error, (name,)), SCHEMA) from error
    for path in _numbers_from_booleans(given, made.model_dump(), name):
        raise ConfigError(f"{path} is true or false, where a number is due.", SCHEMA)
    return made


def read_settings(kind: type[Section], path: Path | None, overrides: Sequence[str] = ()) -> Section:
    """The settings of a YAML file that isn't a profile, such as a server's, with `a.b=value` overrides. Raises
    ConfigError as `load` does."""
    if path is not None and not path.is_file():
        raise ConfigError(f"{path} is not a file.", "Give the path of a YAML file.")
    data = {} if path is None else _mapping(path, "", may_be_empty=True)
    for override in overrides:
        _set(data, override)
    what = "The settings" if path is None else str(path)
    check_credentials(data, what)
    try:
        made = kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{what}: {_explain(error, root=kind)}", SETTINGS) from error
    for key in _numbers_from_booleans(data, made.model_dump(), ""):
        raise ConfigError(f"{what}: {key} is true or false, but must be a number.", SETTINGS)
    return made


def _numbers_from_booleans(given: Any, taken: Any, path: str) -> Iterator[str]:
    """The keys at which pydantic took `true` or `false` for 1 or 0."""
    if isinstance(given, Mapping) and isinstance(taken, Mapping):
        for key in given.keys() & taken.keys():
            yield from _numbers_from_booleans(given[key], taken[key], f"{path}.{key}".lstrip("."))
    elif isinstance(given, list) and isinstance(taken, list | tuple):
        for number, (one, other) in enumerate(zip(given, taken, strict=False)):
            yield from _numbers_from_booleans(one, other, f"{path}.{number}")
    elif isinstance(given, bool) and isinstance(taken, int | float) and not isinstance(taken, bool):
        yield path


def check_credentials(data: Any, what: str) -> None:
    """Raises ConfigError, which names the keys, for values that hold a password or a token. Call it before anything
    else reads the values: errors quote their input."""
    paths = sorted({path for path, text in _texts(data, "") if has_credentials(text)})
    if paths:
        raise ConfigError(f"{what}: {', '.join(paths)} holds a password or a token.", REMEDY)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text with the path of its key. A key itself has the path `a key of` its section."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"a key of {path}" if path else "a key", str(key)
            named = "a key" if has_credentials(str(key)) else key
            yield from _texts(inner, f"{path}.{named}".lstrip("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{path}.{number}")


def names() -> list[str]:
    """The profiles that come with Gristmill."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def recipes() -> list[str]:
    """The recipes that come with Gristmill, as `recipes/NAME`."""
    return sorted(f"{RECIPES}{path.stem}" for path in (FOLDER / RECIPES).glob("*.yaml"))


def text_of(name: str) -> str:
    """A profile as it is written. Raises ConfigError as `load` does for a profile that does not exist."""
    return _find(name).read_text(encoding="utf-8")


def purpose(name: str) -> str:
    """The description of a profile that comes with Gristmill."""
    return str(parse_value(text_of(name))["description"])


def _find(name: str, relative_to: Path | None = None) -> Path:
    if name in names() or name in recipes():
        return FOLDER / f"{name}.yaml"
    path, beside = Path(name), Path(f"{name}.yaml")
    for candidate in (path, relative_to.parent / path if relative_to else path, beside):
        if candidate.suffix in (".yaml", ".yml") and os.path.isfile(
            candidate
        ):  # unlike Path's, False if it is too long
            return candidate
    choices = (
        f"Choose one of {', '.join(names())}, a recipe that `gristmill new` lists, or give the path of a .yaml file."
    )
    if not name:
        raise ConfigError("The profile's name is empty.", choices)
    if os.path.exists(path):
        raise ConfigError(f"{name} is not a profile.", "A profile is a file whose name ends in .yaml.")
    known = {one.removeprefix(RECIPES): one for one in [*recipes(), *names()]}
    nearest = difflib.get_close_matches(name.removeprefix(RECIPES), known, 1)
    where = f", which {relative_to} extends," if relative_to else ""
    remedy = f"Did you mean {known[nearest[0]]}?" if nearest else choices
    raise ConfigError(f"Profile {name}{where} does not exist.", remedy)


def _read(name: str, children: tuple[Path, ...], relative_to: Path | None = None) -> dict[str, Any]:
    path = _find(name, relative_to)
    if path in children:
        raise ConfigError(f"Profile {path.name} extends itself.", "Remove one `extends`.")
    data = _mapping(path)
    parent = data.pop("extends", None)
    if "filter" not in data and path.parent != FOLDER and _leaves_filter(parent) and _in_files(data):
        data["filter"] = {"preset": CLEAN}  # own files are not web pages
    if parent is None:
        return data
    if not isinstance(parent, str):
        raise ConfigError(f"{path} extends {parent!r}, which is not a name.", "Name one profile, or a path to one.")
    data.setdefault("name", path.stem)  # the parent's name would move the parent's refs
    below = _read(parent, (*children, path), path)
    return _merge(_for_extension(_for_base(_for_preset(below, data), data), data), data)


def _mapping(path: Path, what: str = "Profile ", *, may_be_empty: bool = False) -> dict[str, Any]:
    """The mapping of a YAML file. Raises ConfigError, which names it after `what`, for any other content."""
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ConfigError(
            f"{what}{path} has {size:,} bytes, more than {MOST_BYTES:,}.",
            "Keep data in separate files, and name them in the profile.",
        )
    try:
        data = parse_value(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what}{path} is not UTF-8: {_byte(error)}.", "Save it as UTF-8.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{what}{path} is not YAML: {_problem(error)}.", "Correct it.") from error
    if data is None and may_be_empty:
        return {}
    if not isinstance(data, dict):
        problem = "is empty" if data is None else "is not a mapping"
        raise ConfigError(f"{what}{path} {problem}.", "Begin it with `extends: tiny`, or `gristmill new` writes one.")
    return data


def _leaves_filter(parent: object) -> bool:
    """Whether a profile that extends `parent` has only the default rules, which are for web pages and nobody chose."""
    return (
        parent is None
        or parent in names()
        or (parent in recipes() and "filter" not in parse_value(text_of(str(parent))))
    )


def _in_files(data: Mapping[str, Any]) -> bool:
    """Whether all documents of a profile are in its own files."""
    download = data.get("download")
    sources = download.get("sources") if isinstance(download, Mapping) else None
    named = [one for one in sources if isinstance(one, Mapping)] if isinstance(sources, list) else []
    documents = [one for one in named if one.get("role", "documents") == "documents"]
    return bool(documents) and all(one.get("kind") in ("files", "documents") for one in named)


def parse_value(text: str) -> Any:
    """The value of a YAML text. Raises YAMLError, also for endless nesting or repetition by aliases."""
    try:
        value = yaml.load(text, _UniqueKeys)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deep") from error
    waiting, nodes = [value], 0
    while waiting:
        node = waiting.pop()
        nodes += 1
        if nodes > MOST_NODES:
            raise yaml.YAMLError(f"it has more than {MOST_NODES:,} values, counting each use of an alias")
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return value


def _byte(error: UnicodeDecodeError) -> str:
    line = error.object[: error.start].count(b"\n") + 1
    return f"byte 0x{error.object[error.start]:02x} in line {line}"


def _problem(error: yaml.YAMLError) -> str:
    """The problem and its place, without the line itself, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        return f"{error.problem or error.context}{where}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.reason} (character {error.position + 1})"
    return str(error)


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a repeated key, which would silently replace the first, and has the numbers and booleans of
    YAML 1.2: `on`, `no` and 1:30 are strings, 010 is ten, 1e9 is a number. A malformed value, such as the date
    2026-13-01, is an error with a place."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own, which belong to the class
        first: [(tag, pattern) for tag, pattern in known if tag not in CORE_SCHEMA]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value. Raises ConstructorError, with the place of the value."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            problem = "a value does not match its form or its tag"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping. Raises ConstructorError, with the place of a repeated key."""
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            if key.tag != "tag:yaml.org,2002:merge":
                seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, (_pattern, _first) in CORE_SCHEMA.items():
    _UniqueKeys.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`: mappings merge, everything else, including lists, is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _for_preset(below: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The parent `below`, without the rules that a filter preset in `over` fills in."""
    section, under = over.get("filter"), below.get("filter")
    if not isinstance(section, Mapping) or not isinstance(under, Mapping):
        return below
    return {**below, "filter": without_groups(under, section.get("preset"))}


def _for_extension(below: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The parent `below`, without its settings of a new vocabulary if `over` extends that of a base."""
    section, under = over.get("tokenizer"), below.get("tokenizer")
    if not isinstance(section, Mapping) or section.get("extend") is None or not isinstance(under, Mapping):
        return below
    return {**below, "tokenizer": {name: value for name, value in under.items() if name not in OF_NEW}}


def _for_base(below: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The parent `below`, without the source and licence of its base if `over` starts from another model."""
    base, under = over.get("base"), below.get("base")
    if not isinstance(base, Mapping) or not isinstance(under, Mapping) or not base.keys() & SOURCES_OF_BASE:
        return below
    if all(under.get(name) == value for name, value in base.items()):
        return below
    export = below.get("export")
    if isinstance(export, dict) and isinstance(export.get("licences"), dict):
        licences = {name: value for name, value in export["licences"].items() if name != "base"}
        below = {**below, "export": {**export, "licences": licences}}
    return {**below, "base": {}}


def _set(data: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    if not separator or not path:
        missing = "value" if path else "key"
        raise ConfigError(f"--set {override} lacks a {missing}.", "Write --set section.key=value.")
    *parents, last = path.split(".")
    here = data
    for number, parent in enumerate(parents, 1):
        here = here.setdefault(parent, {})
        if not isinstance(here, dict):
            found = f"{'.'.join(parents[:number])} is {json.dumps(here, default=str)}, not a section with keys"
            raise ConfigError(f"--set {override}: {found}.", SCHEMA)
    try:
        here[last] = parse_value(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {path}: the value is not YAML: {_problem(error)}.", "Quote it, or close it."
        ) from error


def _explain(error: ValidationError, above: tuple[str, ...] = (), root: type[BaseModel] = Profile) -> str:
    lines: list[str] = []
    for problem in error.errors():
        location, known = _written(
            (*above, *(part for part in problem["loc"] if not OF_PYDANTIC.fullmatch(str(part)))), root
        )
        path = ".".join(str(part) for part in location)
        message = problem["msg"].removeprefix("Value error, ")
        context = problem.get("ctx", {})
        if problem["type"] == "default_factory_not_called":
            continue  # a default that depends on a wrong value above
        if problem["type"] == "extra_forbidden":
            nearest = _nearest(location, known, root)
            lines.append(f"unknown key {path}" + (f" (did you mean {nearest}?)" if nearest else ""))
        elif problem["type"] == "missing":
            lines.append(f"{path} is missing")
        elif problem["type"] in ("model_type", "model_attributes_type"):
            lines.append(f"{path} is a section with keys, not {json.dumps(problem['input'], default=str)}")
        elif problem["type"] in LISTS:
            lines.append(f"{path} is a list, such as [{problem['input']}], not {problem['input']!r}")
        elif problem["type"] in ("string_pattern_mismatch", "string_too_short", "string_too_long"):
            pattern = f"the pattern is {context['pattern']}" if "pattern" in context else ""
            wanted = "; ".join(filter(None, [_description(location, root), pattern])) or message
            lines.append(f"{path} = {problem['input']!r} has the wrong form: {wanted}")
        elif problem["type"] == "union_tag_invalid":
            key = context["discriminator"].strip("'_()")  # a field, or our function `_kind`
            lines.append(
                f"{path}.{key} = {context['tag']!r} is unknown: choose one of {_choices(context['expected_tags'])}"
            )
        elif problem["type"] == "union_tag_not_found":
            key = context["discriminator"].strip("'_()")  # a field, or our function `_kind`
            lines.append(f"{path}.{key} is missing: it says which keys the others are")
        elif problem["type"] == "literal_error":
            lines.append(f"{path} = {problem['input']!r} is unknown: choose one of {_choices(context['expected'])}")
        elif problem["type"] == "too_short":
            least = context["min_length"]
            lines.append(f"{path} needs at least {least} value{'s' * (least != 1)}")
        elif problem["type"] == "too_long":
            most = context["max_length"]
            lines.append(f"{path} = {problem['input']!r} has more than {most} value{'s' * (most != 1)}")
        elif problem["type"] in BOUNDS:
            name, words = BOUNDS[problem["type"]]
            lines.append(f"{path} = {problem['input']!r} must be {words} {_bound(context[name])}")
        elif (kind := problem["type"].partition("_")[0]) in TYPES and problem["type"].endswith(
            ("_type", "_parsing", "_from_float")
        ):
            lines.append(f"{path} = {problem['input']!r} is not {TYPES[kind]}")
        elif isinstance(problem["input"], Mapping):  # a whole section, whose keys contradict each other
            lines.append(f"{path}: {message}" if path else message)
        else:
            lines.append(f"{path} = {problem['input']!r}: {message}")
    return "; ".join(dict.fromkeys(lines)) + "."


def _bound(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _choices(expected: str) -> str:
    """Pydantic's list of choices as words."""
    return ", ".join(re.findall(r"'([^']*)'", expected)) or expected


def _description(location: Sequence[int | str], root: type[BaseModel]) -> str:
    """The description of the field at a location, or of the field whose value contains it."""
    names = [part for part in location if isinstance(part, str)]
    descriptions = [
        field.description or ""
        for model in _models_at(location[: location.index(names[-1]) + 1], root)
        for name, field in model.model_fields.items()
        if name == names[-1]
    ]
    return descriptions[0] if descriptions else ""


def _nearest(location: Sequence[int | str], known: Sequence[type[BaseModel]], root: type[BaseModel]) -> str:
    """The key that was meant, of the models at its place: the same name one group deeper (runtime.workers:
    data.workers), or a similar sibling."""
    last = str(location[-1])
    if root is Profile and len(location) == 1 and difflib.get_close_matches(last, ["extends"]):
        return "extends"
    below = [
        f"{name}.{last}"
        for model in known
        for name, field in model.model_fields.items()
        for inner in models_in(field.annotation)
        if last in inner.model_fields
    ]
    beside = sorted({name for model in known for name in model.model_fields})
    near = [*below, *difflib.get_close_matches(last, beside, 1, 0.5)]
    return ".".join([*(str(part) for part in location[:-1]), near[0]]) if near else ""


def _written(
    location: Sequence[int | str], root: type[BaseModel]
) -> tuple[tuple[int | str, ...], Sequence[type[BaseModel]]]:
    """A location as it is in a profile, without pydantic's names for the kind that a group of keys has, and the models
    whose keys are valid there."""
    written: list[int | str] = []
    models: list[type[BaseModel]] = [root]
    for number, part in enumerate(location):
        is_key = isinstance(part, int) or any(part in model.model_fields for model in models)
        kinds = [] if is_key or len(models) < 2 else [model for model in models if _has_kind(model, part)]
        if kinds:
            models = kinds
            continue
        written.append(part)
        if number + 1 < len(location):
            models = _inside(models, part) or models
    return tuple(written), models


def _has_kind(model: type[BaseModel], kind: int | str) -> bool:
    return any(kind in get_args(field.annotation) for field in model.model_fields.values())


def _models_at(location: Sequence[int | str], root: type[BaseModel]) -> list[type[BaseModel]]:
    """The models whose keys are valid at `location`, through lists and unions."""
    models: list[type[BaseModel]] = [root]
    for part in location[:-1]:
        models = _inside(models, part) or models  # an index or a union's tag doesn't lead deeper
    return models


def _inside(models: Sequence[type[BaseModel]], key: int | str) -> list[type[BaseModel]]:
    """The models of a key's value."""
    fields = (field for model in models for name, field in model.model_fields.items() if name == key)
    return [model for field in fields for model in models_in(field.annotation)]


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The groups of keys in an annotation, through unions, lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)
