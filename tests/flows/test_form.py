"""What the form of a deployment takes as an override, before there is a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.schema_tools.validation import validate
from pydantic import TypeAdapter

from flows.deployed.form import Settings

ROOT = Path(__file__).parents[2]
FORM = {"type": "object", "properties": {"overrides": TypeAdapter(Settings).json_schema()}}


def refusals(*overrides: str) -> list[str]:
    """What Prefect's server says of them."""
    return [error.message for error in validate({"overrides": [*overrides]}, FORM)]


def paths(section: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Each key of a profile, and of the mappings in it."""
    for name, value in section.items():
        yield f"{before}{name}"
        if isinstance(value, Mapping):
            yield from paths(value, f"{before}{name}.")


def test_every_key_of_our_profiles_and_of_our_pages_is_taken() -> None:
    profiles = [yaml.safe_load(path.read_text()) for path in (ROOT / "profiles").glob("*.yaml")]
    of_profiles = {path for profile in profiles for path in paths(profile) if path != "extends"}
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.stem != "write-a-stage"]  # whose stage is made up
    of_pages = {found for page in pages for found in re.findall(r"--set '?([\w.]+)=", page.read_text())}
    assert len(of_profiles) > 100
    assert len(of_pages) > 20
    assert [key for key in sorted(of_profiles | of_pages) if refusals(f"{key}=1")] == []


@pytest.mark.parametrize("key", ["pretrain.stepz", "toxicity.max_score", "filter.toxicity.max", "pretrain.steps.x"])
def test_a_key_that_there_is_not_is_refused_in_words(key: str) -> None:
    assert refusals("filter=null", f"{key}=1") == ["'a key that docs/profiles.md lists' was expected"]
