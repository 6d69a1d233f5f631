"""What sets an artifact apart: settings that differ from the defaults of its stage, and its files by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from storage.keys import differences
from storage.manifest import Manifest

LONGEST = 80  # characters of a value


def chosen(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """The fields of an artifact's config that differ from the defaults of its stage's section, or all fields if the
    stage has no section."""
    from profiles.schema import Profile

    field = Profile.model_fields.get(manifest.stage)
    kinds = [kind for kind in (field and (field.annotation, *get_args(field.annotation))) or () if _is_model(kind)]
    config = manifest.payload.config
    # Newer fields are left out of a config where they have their default
    defaults = {name: value for name, value in (_defaults(kinds[0]) if kinds else {}).items() if name in config}
    for path, _, value in differences(defaults, config):
        if value is not None or kinds:
            text = str(value)
            yield path, text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _defaults(kind: Any) -> dict[str, Any]:
    """The defaults of a config's fields as plain JSON, without required fields and those whose default depends on other
    fields."""
    defaults: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if field.is_required() or field.default_factory_takes_validated_data:
            continue
        default = field.get_default(call_default_factory=True)
        defaults[name] = default.model_dump(mode="json") if isinstance(default, BaseModel) else default
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


def by_kind(manifest: Manifest) -> Mapping[str, tuple[int, int]]:
    """Number and bytes of an artifact's files, by folder and extension."""
    kinds: dict[str, tuple[int, int]] = {}
    for name, entry in manifest.files.items():
        folder, _, file = name.rpartition("/")
        ending = f"*.{file.rpartition('.')[2]}" if "." in file else file
        kind = f"{folder.partition('/')[0]}/…{ending}" if folder else ending
        count, size = kinds.get(kind, (0, 0))
        kinds[kind] = count + 1, size + entry.size
    return kinds
