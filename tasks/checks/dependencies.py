"""The packages of an installation: each one that Gristmill requires, its version, its licence, and what requires it.

Read from the metadata of the installed packages, so it describes this environment, not a lock file.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from importlib import metadata
from typing import cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tasks.checks.installation import CONSTRAINTS, pins
from tasks.text.packages import FINETUNE, REQUIREMENTS

ROOT = "gristmill"
DATA = "data of tiny and smoke"
UNKNOWN = "unknown"
LONGEST = 80  # characters of a licence's name; some packages put the licence itself there


@dataclass(frozen=True)
class Dependency:
    """An installed package. `required_by` are packages, `gristmill` and `gristmill[EXTRA]` among them. `tested` is the
    version of constraints.txt, empty if it has none."""

    name: str
    version: str
    licence: str
    required_by: tuple[str, ...]
    tested: str

    @property
    def public_version(self) -> str:
        """The version without its local part: 2.13.0 of 2.13.0+cpu."""
        return self.version.partition("+")[0]


def dependencies() -> list[Dependency]:
    """Every installed package that Gristmill, an extra of it or its data requires, directly or not, by name."""
    found = metadata.metadata(ROOT)
    required = _required_by([(ROOT, ""), *((ROOT, extra) for extra in found.get_all("Provides-Extra") or [])])
    for name in pins(REQUIREMENTS) | pins(FINETUNE):
        if _distribution(name):
            required[canonicalize_name(name)].add(DATA)
    tested = {
        canonicalize_name(name): version
        for name, version in (pins(CONSTRAINTS) | pins(REQUIREMENTS) | pins(FINETUNE)).items()
    }
    return [
        Dependency(
            name,
            metadata.version(name),
            licence(cast(Message, metadata.metadata(name))),
            tuple(sorted(by, key=lambda one: (not one.startswith(ROOT), one))),
            tested.get(canonicalize_name(name), ""),
        )
        for name, by in sorted(required.items())
    ]


def licence(found: Message) -> str:
    """The licence that a package's metadata state: as an expression, as classifiers, or in words."""
    if expression := found.get("License-Expression"):
        return str(expression)
    classified = [
        str(line).rpartition("::")[2].strip()
        for line in found.get_all("Classifier") or []
        if str(line).startswith("License ::") and not str(line).endswith("OSI Approved")
    ]
    words = str(found.get("License") or "").strip().splitlines()
    return "; ".join(classified) or (words[0].strip()[:LONGEST] if words else UNKNOWN)


def _required_by(roots: list[tuple[str, str]]) -> defaultdict[str, set[str]]:
    """Who requires each installed package, from these packages with these extras on."""
    required: defaultdict[str, set[str]] = defaultdict(set)
    waiting, seen = list(roots), set(roots)
    while waiting:
        name, extra = waiting.pop()
        by = f"{name}[{extra}]" if extra and name == ROOT else name
        for needed in _needs(name, extra):
            spelled = canonicalize_name(needed.name)
            if spelled == ROOT or not _distribution(spelled):
                continue
            required[spelled].add(by)
            for following in ((spelled, one) for one in ("", *needed.extras)):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
    return required


def _needs(name: str, extra: str) -> Iterator[Requirement]:
    """The requirements of a package here: its own, or with `extra` only those of the extra."""
    found = _distribution(name)
    for line in (found.requires if found else None) or []:
        needed = Requirement(line)
        alone = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if alone if not extra else (not alone and needed.marker and needed.marker.evaluate({"extra": extra})):
            yield needed


@functools.cache
def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def as_json(one: Dependency) -> Mapping[str, object]:
    """A package as JSON."""
    return {
        "name": one.name,
        "version": one.version,
        "licence": one.licence,
        "required_by": list(one.required_by),
        "tested_version": one.tested or None,
    }
