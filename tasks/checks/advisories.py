"""Known vulnerabilities of installed packages, as a package index tells them in its JSON API.

PyPI answers `GET /pypi/NAME/VERSION/json` from the database of the Python Packaging Advisory Database and GitHub. What
leaves the machine is the names and versions of packages, and only by `gristmill dependencies --advisories`. A version
that the index does not know is reported as unknown and never taken for a safe one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.errors import SourceError
from tasks.checks.dependencies import Dependency

ASK_PIP = "from pip._internal.models.index import PyPI; print(PyPI.url)"
AT_ONCE = 8  # requests
SECONDS = 30.0  # for an answer


class Advisory(BaseModel):
    """One vulnerability of a version."""

    model_config = ConfigDict(frozen=True)

    id: str
    aliases: list[str] = []
    fixed_in: list[str] = []
    withdrawn: str | None = None
    link: str | None = None


class _Answer(BaseModel):
    vulnerabilities: list[Advisory] = Field(default_factory=list)


def default_index() -> str:
    """The public index, by the address that pip has for it. Raises SourceError where there is no pip."""
    done = subprocess.run([sys.executable, "-c", ASK_PIP], capture_output=True, text=True)
    if done.returncode:
        raise SourceError("There is no pip here to name the package index.", "Give one: --index URL.")
    return done.stdout.strip()


def advisories(packages: Iterable[Dependency], index: str) -> dict[str, list[Advisory] | None]:
    """The advisories on each package by name, those that were withdrawn left out; None for a version that the index
    does not know. Raises SourceError when it does not answer, or knows none of them."""
    asked = list(packages)
    try:
        host = httpx.URL(index).host or index  # the whole of it may hold a password
        with (
            httpx.Client(base_url=index, timeout=SECONDS, follow_redirects=True) as client,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            answers = list(pool.map(lambda package: _ask(client, package, host), asked))
    except httpx.InvalidURL as error:
        raise SourceError(f"--index is no URL: {error}.", "Give one such as https://index.example.org.") from error
    if asked and all(answer is None for answer in answers):
        raise SourceError(
            f"{host} knows no version of the {len(asked)} packages that are installed.",
            "Give an index with PyPI's JSON API: --index URL. Mirrors often have only the packages.",
        )
    return {package.name: answer for package, answer in zip(asked, answers, strict=True)}


def _ask(client: httpx.Client, package: Dependency, host: str) -> list[Advisory] | None:
    told = "it is no answer of PyPI's JSON API"
    try:
        response = client.get(f"/pypi/{package.name}/{package.public_version}/json")
        if response.status_code == HTTPStatus.NOT_FOUND:
            return None
        if response.is_success:
            known = _Answer.model_validate_json(response.content).vulnerabilities
            return [one for one in known if one.withdrawn is None]
        told = f"HTTP status {response.status_code}"
    except ValidationError:
        pass
    except httpx.HTTPError as error:
        told = str(error).rstrip(".")
    raise SourceError(
        f"The advisories on {package.name} can't be had from {host}: {told}.",
        "Check the network, or name another index with --index.",
    )
