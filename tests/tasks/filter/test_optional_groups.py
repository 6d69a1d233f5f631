"""Null switches every optional group of the filter off, one by one and all at once."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import get_args

import pytest

from storage.artifact import Artifact
from storage.shards.documents import Document, read_documents, shard_name, write_documents
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.families import menders, rules, signal_configs
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.filter.test_filter import GOOD, RULES, questions

OPTIONAL = sorted(name for name, field in FilterConfig.model_fields.items() if NoneType in get_args(field.annotation))
TEXT = f"{GOOD} Write to jane.doe@mail.com."


def run(folder: Path, config: FilterConfig) -> Output:
    write_documents(folder / "in" / shard_name(0), [Document.new(TEXT, "test", author="jane.doe@mail.com")])
    out = Output.at(folder, stage="filter", runtime=runtime_of(workers=1))
    filter_documents.function(config, Artifact.at(folder / "in"), questions(folder / "benchmarks"), out)
    return out


@pytest.mark.soak_but("toxicity", "pii", "quality")
@pytest.mark.parametrize("group", OPTIONAL)
def test_a_group_that_is_null_measures_and_judges_nothing(group: str, tmp_path: Path) -> None:
    config = FilterConfig.model_validate({**RULES, group: None})
    out = run(tmp_path, config)
    (document,) = read_documents(out.path / "documents" / shard_name(0))
    assert ("jane.doe@mail.com" in document.text) == (group == "pii")
    assert ("jane.doe@mail.com" in json.loads(document.metadata)["author"]) == (group == "pii")
    assert (out.path / "contamination").exists() == (group != "contamination")
    assert not [rule.name for rule in rules(config) if rule.name.partition(".")[0] == group]


def test_all_groups_may_be_null_at_once(tmp_path: Path) -> None:
    config = FilterConfig.model_validate({**RULES, **dict.fromkeys(OPTIONAL)})
    assert (list(signal_configs(config)), [rule.name for rule in rules(config)], menders(config)) == (
        ["form"],
        ["empty"],
        [],
    )
    out = run(tmp_path, config)
    (document,) = read_documents(out.path / "documents" / shard_name(0))
    assert document.text == TEXT


def test_there_may_be_no_benchmarks(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "none.json").write_text("")
    write_documents(tmp_path / "in" / shard_name(0), [Document.new(TEXT, "test")])
    out = Output.at(tmp_path, stage="filter", runtime=runtime_of(workers=1))
    given = Artifact.at(tmp_path / "in"), Artifact.at(tmp_path / "benchmarks")
    filter_documents.function(FilterConfig.model_validate(RULES), *given, out)
    assert out.counts["documents"]["kept"] == 1
    assert (out.path / "contamination" / "questions.jsonl").read_text() == ""
