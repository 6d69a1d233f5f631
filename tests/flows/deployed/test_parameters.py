"""The overrides that a deployment's form accepts, before a run exists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.schema_tools.validation import validate
from pydantic import TypeAdapter

from flows.deployed.parameters import CHARACTERS, OVERRIDE, Settings, keys
from profiles.schema import Profile

ROOT = Path(__file__).parents[3]
LENGTH = 20_000
FORM = {"type": "object", "properties": {"overrides": TypeAdapter(Settings).json_schema()}}


def refusals(*overrides: Any) -> list[str]:
    """The refusals of Prefect's server."""
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
    others = {"write-a-stage", "serving", "serving-settings"}  # of a stage that is made up, and of the server
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.stem not in others]
    of_pages = {found for page in pages for found in re.findall(r"--set '?([\w.]+)=", page.read_text())}
    assert len(of_profiles) > 100
    assert len(of_pages) > 20
    assert [key for key in sorted(of_profiles | of_pages) if refusals(f"{key}=1")] == []


@pytest.mark.parametrize(
    "key",
    [
        "pretrain.stepz",
        "toxicity.max_score",
        "filter.toxicity.max",
        "pretrain.steps.x",
        "filter.languages.de.bogus",
        "filter.signals.mine.bogus",
        "filter.language.scores.de.x",
        "evaluate.side_by_side.endpoints.mine.bogus",
        "download.sources.limit",
        "grpo.rewards.kind",
        "evaluate.tasks.k",
    ],
)
def test_a_key_that_there_is_not_is_refused_in_words(key: str) -> None:
    wanted = "'a key that docs/profiles.md lists (a list is given whole)' was expected"
    assert refusals("filter=null", f"{key}=1") == [wanted]


@pytest.mark.parametrize(
    "key",
    [
        "export.licences.My Source",
        "tokenizer.compare.my tok",
        "runtime.pools.stages.pretrain",
        "filter.languages.de",
        "filter.languages.de.gopher_quality.min_words",
        "evaluate.side_by_side.endpoints.mine.url",
        "feedback.endpoint.fields.x",
        "filter.toxicity.measure.model",
    ],
)
def test_names_of_ones_own_are_taken(key: str) -> None:
    assert refusals(f"{key}=1") == []


@pytest.mark.parametrize("item", [1, None, True, {"a": 1}, ["pretrain.steps=1"]])
def test_what_is_no_text_is_told_so(item: Any) -> None:
    (refusal,) = refusals(item)
    assert refusal.endswith("is not of type 'string'")


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("pretrain.steps", "section.key=value"),
        ("=1", "section.key=value"),
        ("pretrain.steps =1", "section.key=value"),
        ("description=\ud800", "text without control characters"),
        ("description=a\0b", "text without control characters"),
    ],
)
def test_each_refusal_says_what_is_wanted(override: str, wanted: str) -> None:
    assert refusals(override) == [f"'{wanted}' was expected"]


@pytest.mark.parametrize(
    "unit", ["a", "a.", "=", ".", " ", "\n", "_", "\\", "filter.languages.de.", "export.licences."]
)
def test_no_pattern_backtracks(unit: str) -> None:
    """A pattern that does would take minutes."""
    text = (unit * LENGTH)[:LENGTH]
    for override in (text, f"description={text}", f"{text}=\ud800"):
        for pattern in (CHARACTERS, OVERRIDE, f"^({keys(Profile)})="):
            re.search(pattern, override)
