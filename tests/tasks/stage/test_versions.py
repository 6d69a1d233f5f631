"""A stage's source is pinned beside its version: a changed behaviour can never hide.

When this fails, decide: if the stage's results change, raise `version=` in its decorator. Then, either way, pin anew
with `python -m tests.tasks.stage.pin`.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import flows.pipeline  # noqa: F401, registers the stages
import tasks.ablate.mix
import tasks.ablate.scaling  # noqa: F401, and those of matrices
from tasks.evaluate.votes import stage as votes
from tasks.filter.classifier import stage as classifiers
from tasks.stage import source
from tasks.stage.decorator import STAGES

PINS = Path(__file__).with_name("pins.json")
NAMES = sorted(name for name, stage in STAGES.items() if stage.function.__module__.startswith("tasks."))


def current() -> dict[str, dict[str, object]]:
    """Version and source digest of every stage of the pipeline, the nested ones too, and of those beside it."""
    assert votes.votes.name == "votes"
    assert classifiers.classifier.name == "classifier"
    return {name: {"version": STAGES[name].version, "source": STAGES[name].source} for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_source_and_version_are_pinned_together(name: str) -> None:
    pinned = json.loads(PINS.read_text())
    assert pinned[name] == current()[name], (
        f"The source of {name} changed. Raise its version if its results do; then `python -m tests.tasks.stage.pin`."
    )


def test_a_stages_source_is_all_that_shapes_its_bytes_and_nothing_else() -> None:
    sft = source.closure("tasks.posttrain.methods.sft")
    assert {"tasks.posttrain.train", "tasks.posttrain.rows.instruction", "models.tokenizer"} <= sft
    assert "tasks.filter.stage" not in sft
    assert "tasks.stage.decorator" not in sft, "what carries every stage alike changes no result"
    pretrain = source.closure("tasks.pretrain.stage")
    assert {"tasks.pretrain.loader", "tasks.pretrain.train", "tasks.training.plots"} <= pretrain
    assert not [name for name in pretrain if ".insight" in name or ".preflight" in name], "they watch, or try"
    assert "tasks.stage.display.pages" in source.closure("tasks.filter.stage"), "it writes the tables of report.md"
    assert "tasks.shards.incremental" in source.closure("tasks.tokenize.stage"), "it writes shards.json"


CACHED = (source.source_digest, source._read, source._remembered)


def digest_of(text: str, module: Path, changed: int | None = None) -> str:
    """The digest of a module with this text, last changed now or at this time, in a process that knows nothing yet."""
    module.write_text(text)
    for path in (module, module.parent):
        os.utime(path, None if changed is None else (changed, changed))
    for cached in CACHED:
        cached.cache_clear()
    return source.source_digest(f"tasks.{module.stem}")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of a module `tasks.demo`."""
    (tmp_path / "tasks").mkdir()
    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "tasks" / "demo.py"
    for cached in CACHED:
        cached.cache_clear()


def test_a_remembered_digest_is_that_of_the_files(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = digest_of("x = 1\n", module, changed=1)
    with monkeypatch.context() as later:
        later.setattr(source, "_dump", lambda *_: pytest.fail("it was parsed again"))
        assert digest_of("x = 1\n", module, changed=1) == one
    assert digest_of("x = 2\n", module, changed=2) != one
    assert digest_of("x = 1\n", module, changed=3) == one
    (damaged,) = (module.parents[1] / "cache").rglob("sources-*.json")
    for text in ("", "[]", '{"tasks.demo": 1}', '{"tasks.demo": ["f", "tasks", 2]}'):
        damaged.write_text(text)
        assert digest_of("x = 1\n", module, changed=4) == one


def test_a_comment_costs_nothing_and_code_does(module: Path) -> None:
    digest = functools.partial(digest_of, module=module)
    plain = digest("def f():\n    return 1\n")
    assert digest('"""Says what."""\n\ndef f():\n    """And why."""\n    # a comment\n    return 1\n') == plain
    assert digest("def f():\n    return 2\n") != plain
    field = 'x: int = Field(1, description="{}")\n'
    assert digest(field.format("one")) == digest(field.format("1"))
    assert digest(field.format("one")) != digest(field.format("one").replace("1,", "2,"))
