"""What a report reads of artifacts, without what a page can't hold. Other versions of a stage may have written them:
values of manifests that have another form count as missing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from storage.artifact import Artifact
from storage.credentials import redact
from storage.errors import DamagedArtifact, harmless, make_again
from storage.manifest import Manifest

LEFT_OUT = "(left out)"
# Absolute paths, wherever they stand in a text, and those from a home; not the rest of an address. A text that is one,
# or has one in quotes, may have blanks in it
_ROOT = r"(?:file://|(?:~\w*)?/(?!/)|[A-Za-z]:\\|\\\\)"
_PATH = re.compile(rf"\A{_ROOT}.+|(?<='){_ROOT}[^']+|(?<=\"){_ROOT}[^\"]+|(?<![\w/.~-]){_ROOT}[^\s'\",\])}}]+")
SEPARATORS = {0x2028: " ", 0x2029: " "}  # of lines, which end a line of JavaScript too


Content = TypeVar("Content", bound=BaseModel)


def saved(artifact: Artifact, file: str, form: type[Content]) -> Content:
    """The fields of `form` in a file of JSON, safe to show. Raises DamagedArtifact."""
    try:
        found = form.model_validate_json(artifact.file(file).read_bytes())
        return form.model_validate(cleaned(found.model_dump(mode="json")))
    except (OSError, ValidationError) as error:
        stage = artifact.location.partition("/")[0]
        raise DamagedArtifact(f"{artifact.location}/{file} can't be read.", make_again(stage)) from error


def cleaned(value: Any, release: bool = False) -> Any:
    """JSON without control characters, passwords and numbers that JSON lacks; in a release without paths too."""
    if isinstance(value, str):
        text = harmless(redact(value)).translate(SEPARATORS)
        return _PATH.sub(LEFT_OUT, text) if release else text
    if isinstance(value, Mapping):
        return {cleaned(str(name), release): cleaned(one, release) for name, one in value.items()}
    if isinstance(value, list):
        return [cleaned(one, release) for one in value]
    return None if isinstance(value, float) and value - value != 0 else value  # infinite, or not a number


def number(value: object) -> float | None:
    """A finite number, or a text of one."""
    if isinstance(value, str):
        try:
            value = float(value.replace(",", ""))
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def whole(value: object) -> int | None:
    """A number without a fraction."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def mapping(value: object, *names: str) -> Mapping[str, Any]:
    """A mapping, or the one that the names lead to. Empty for anything else."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def counted(value: object) -> dict[str, int]:
    """The whole numbers of a mapping by name."""
    found = {str(name): whole(one) for name, one in mapping(value).items()}
    return {name: one for name, one in found.items() if one is not None}


def table(manifest: Manifest | None, title: str) -> list[Mapping[str, Any]]:
    """The rows of a stage's table, or none."""
    return rows(mapping(manifest.counts, "tables").get(title)) if manifest else []


def rows(value: object) -> list[Mapping[str, Any]]:
    """The mappings of a list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
