"""The runtime: every stage names the groups that it reads, and reads no other."""

from __future__ import annotations

import ast
import functools

import pytest

import flows.diagram.stages  # noqa: F401, registers the stages
from tasks.stage import source
from tasks.stage.decorator import STAGES
from tasks.stage.runtime import Runtime, RuntimeGroup

GROUPS = {
    name
    for name, field in Runtime.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, RuntimeGroup)
}
# What takes a group from the stage that calls it, or serves any
CARRIERS = frozenset({"tasks.stage", "tasks.checks", "tasks.children"})


@functools.cache
def parsed(module: str) -> list[ast.AST]:
    file = source._file(module)
    assert file is not None
    return list(ast.walk(ast.parse(file.read_text())))


def groups_read(module: str) -> set[str]:
    """The groups that `….runtime.GROUP` names in the code behind a stage, its children and its shards included."""
    behind = source.closure(module, CARRIERS)
    # A child process has an environment and a time limit
    found = {"compute"} if any("tasks.children.supervise" in source._read(name)[0] for name in behind) else set()
    for name in behind:
        for node in parsed(name):
            if isinstance(node, ast.Attribute) and node.attr in GROUPS:
                owner = node.value
                named = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if named == "runtime":
                    found.add(node.attr)
    return found


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_names_the_groups_of_the_runtime_that_it_reads(name: str) -> None:
    stage = STAGES[name]
    assert set(stage.runtime) == groups_read(stage.function.__module__)
    assert stage.part_of is None or stage.part_of in STAGES


def test_every_group_is_read_by_some_stage() -> None:
    assert {group for stage in STAGES.values() for group in stage.runtime} == GROUPS
