"""Python values as the settings of a profile: a whole profile, overrides, and one section of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from flows.options import settings
from profiles.load import check_credentials, section
from profiles.sections import NAME
from storage.errors import ConfigError, GristmillError
from storage.files.cache import cache_folder

Config = TypeVar("Config", bound=BaseModel)
ProfileLike = str | PathLike[str] | Mapping[str, Any]
Overrides = Mapping[str, Any] | Sequence[str] | None
ARGUMENTS = (  # by option of the commands
    (r"--set section\.key=value", 'overrides such as {"section.key": value}'),
    (r"--set ([\w.]+)=(\S+?)(?=[:;,.)]*(\s|$))", r'{"\1": \2}'),
    (r"--refresh (\w+)", r'refresh=["\1"]'),
    (r"--store\b", "the argument store"),
    (r"--refresh\b", "the argument refresh"),
    (r"--set\b", "the overrides"),
    (r"--yes\b", "approve=True"),
)


def profile_name(profile: ProfileLike) -> str:
    """The name or the path by which a profile is loaded. One that is given as a mapping is written to the cache folder,
    so that `gristmill why` and the other commands find the profile of the run later. Raises ConfigError."""
    if isinstance(profile, str | PathLike):
        return fspath(profile)
    if not isinstance(profile, Mapping):
        raise ConfigError(
            f"A profile can't be of type {type(profile).__name__}.", "Give a name, a path to a YAML file, or a mapping."
        )
    check_credentials(profile, "The profile")
    text = _as_yaml(dict(profile), "The profile")
    given = profile.get("name")
    name = given if isinstance(given, str) and re.fullmatch(NAME, given) else "profile"
    path = cache_folder() / "profiles" / hashlib.sha256(text.encode()).hexdigest()[:16] / f"{name}.yaml"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return str(path)


@contextmanager
def python_words(profile: ProfileLike) -> Iterator[str]:
    """The name of a profile for the commands. Errors inside name what was given from Python: "the profile" for a
    mapping, and arguments in place of options."""
    name = profile_name(profile)
    try:
        yield name
    except GristmillError as error:
        message, remedy = error.message, error.remedy
        if isinstance(profile, Mapping):
            message = message.replace(f"Profile {name}", "The profile").replace(name, "the profile")
        error.message, error.remedy = _as_arguments(message), _as_arguments(remedy)
        error.args = (error.message, error.remedy)
        raise


def _as_arguments(sentence: str) -> str:
    """A sentence with the arguments of `plan` and `run` in place of options. Commands in backticks stay."""
    parts = re.split("(`[^`]*`)", sentence)
    for option, argument in ARGUMENTS:
        parts[::2] = [re.sub(option, argument, part) for part in parts[::2]]
    return "".join(parts)


def path_of(value: Any, name: str) -> Path:
    """An argument that names a file or folder. Raises ConfigError for any other value."""
    if not isinstance(value, str | PathLike) or "\0" in fspath(value) or not _is_text(fspath(value)):
        raise ConfigError(f"{name} is {value!r}.", "Give the path of a file or folder.")
    return Path(value)


def new_folder(value: Any, name: str) -> Path:
    """An argument that names a folder to write, new or empty. Raises ConfigError for any other."""
    target = path_of(value, name)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConfigError(f"{target} is not an empty folder.", "Name a new one, or remove what is in it.")
    return target


def _is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8."""
    return not re.search("[\ud800-\udfff]", value)


def stage_name(stage: Any) -> str | None:
    """The stage to end with. Raises ConfigError for any value but a name and None."""
    if stage is not None and not isinstance(stage, str):
        raise ConfigError(f"to is {stage!r}.", 'Give the name of a stage, such as "filter".')
    return stage


def stage_list(stages: Any) -> list[str]:
    """Stages to rebuild: a name, several, or none. Raises ConfigError."""
    names = [stages] if isinstance(stages, str) else list(stages or ())
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"refresh is {stages!r}.", 'Give names of stages, such as ["filter"].')
    return names


def override_list(overrides: Overrides, store: str | PathLike[str] | None) -> list[str]:
    """Overrides as the option --set takes them, with the store among them. Raises ConfigError."""
    if isinstance(overrides, Mapping):
        given = [f"{key}={_as_yaml(value, f'The override {key}')}" for key, value in overrides.items()]
    elif isinstance(overrides, str):
        raise ConfigError(
            f"The overrides are a single text, {overrides!r}.", 'Give a mapping, such as {"pretrain.steps": 100}.'
        )
    else:
        given = [str(one) for one in overrides or ()]
    return settings(given, None if store is None else fspath(store))


def config_of(kind: type[Config], name: str, given: Mapping[str, Any] | None, **named: Any) -> Config:
    """The config of one section of a profile, from a mapping and from arguments, which must not contradict each other.
    Arguments that are None don't count. Raises ConfigError, which names the key."""
    if not isinstance(given, Mapping | None):
        raise ConfigError(f"config is of type {type(given).__name__}.", f"Give a mapping with keys of `{name}:`.")
    found = dict(given or {})
    for key, value in named.items():
        if value is None:
            continue
        if key in found and found[key] != value:
            raise ConfigError(f"{name}.{key} is given twice, in `config` and as an argument.", "Give it once.")
        found[key] = value
    check_credentials(found, name)
    return section(kind, name, found)


def _as_yaml(value: Any, what: str) -> str:
    """A value as JSON, which is YAML too."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
        text.encode()  # a lone surrogate can't be written
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{what} can't be written as YAML: {error}.", "Use texts, numbers, booleans, None, lists and mappings."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if hasattr(value, "item"):  # a NumPy number
        return value.item()
    raise TypeError(f"{value!r} is of type {type(value).__name__}")
