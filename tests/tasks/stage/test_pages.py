"""Pages: keys that Prefect takes, tables for reading, and what a stage's page says of a step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage.store import Store
from tasks.stage.config import StageConfig
from tasks.stage.decorator import stage
from tasks.stage.display.pages import Markup, escaped, prefect_key, readable_table, report
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, open_session


@stage(version=1)
def paged_source(config: StageConfig, out: Output) -> None:
    """One document, and a table whose columns are not in alphabetical order."""
    (out.path / "text.txt").write_text("text")
    out.table("Rules", [{"begins": "`" + "x" * 500 + "`", "rule": "form.words", "threshold": 0.4}])


@stage(version=1, part_of="paged_whole")
def paged_part(config: StageConfig, source: object, out: Output) -> None:
    """A part."""
    (out.path / "part.txt").write_text("part")


@stage(version=1)
def paged_whole(config: StageConfig, source: object, out: Output) -> None:
    """A stage that obtains a part under a name of its own."""
    out.obtain(paged_part, StageConfig(), source, name="part.mine")  # type: ignore[arg-type]
    (out.path / "whole.txt").write_text("whole")
    if (out.path.parents[2] / "fail").exists():
        raise RuntimeError("as it was told")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Store(str(tmp_path / "store")), Runtime(), "test")


@pytest.mark.parametrize("name", ["progress-signals.My_own.signal", "stage-pii_metadata", "progress-é", "a..b"])
def test_any_name_becomes_a_key_that_prefect_takes(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", prefect_key(name))
    assert prefect_key("stage-toxicity_model") == "stage-toxicity-model"


def test_columns_stay_in_their_order_but_long_text_goes_last_and_is_cut() -> None:
    text = "word " * 50
    table = readable_table([{"rule": "form.words", "begins": text, "value": 3.25, "threshold": 12_000}])
    head, rules, row = table.splitlines()
    assert head == "| rule | value | threshold | begins |"
    assert rules == "|---|--:|--:|---|", "numbers to the right"
    assert row.startswith("| form.words | 3.25 | 12,000 | word word")
    assert len(row) < 150


def test_cells_are_texts_unless_they_say_that_they_are_markdown() -> None:
    link = Markup(f"[stage](/artifacts/artifact/{'0' * 36})")
    table = readable_table([{"a": link, "b": "*1* [x] <b> | y\nz", "c": None, "d": True}])
    assert table.splitlines()[2] == f"| {link} | \\*1\\* \\[x\\] &lt;b> · y z |  | true |"
    assert table.splitlines()[0] == "| a | b | c | d |", "the address of a link is not long text"
    assert escaped("a_b") == "a\\_b"


def test_a_page_says_how_it_was_come_by_and_why_what_it_is_made_of_and_what_reads_it(session: Session) -> None:
    with open_session(session):
        source, _ = paged_source.materialize(StageConfig(), ())
        paged_whole.materialize(StageConfig(), (source,))
    session.pages["paged_source"] = "0123"
    page = report("paged_whole", session)
    assert page.startswith("## paged_whole: made in 0.")
    assert "Why it was made: never made before." in page
    assert f"**Made of:** [paged_source](/artifacts/artifact/0123) `{source.location.partition('/')[2][:6]}`" in page
    assert "**With:** [part.mine](/artifacts/key/stage-part-mine)" in page
    assert "| rule | threshold | begins |" in report("paged_source", session)
    assert "**Read by:** [part.mine](" in report("paged_source", session)
    assert session.steps["part.mine"].part_of == "paged_whole"


def test_a_page_of_what_was_in_the_store_has_its_columns_in_order_and_does_not_say_that_it_took_long(
    session: Session,
) -> None:
    for _ in range(2):
        with open_session(session):
            paged_source.materialize(StageConfig(), ())
    page = report("paged_source", session)
    assert page.startswith("## paged_source: from the store")
    assert "| in this run | making took |" in page
    assert "Why it was made" not in page
    assert "| rule | threshold | begins |" in page, "the manifest keeps the order of columns"


def test_where_a_run_stopped_is_known(session: Session) -> None:
    with open_session(session):
        source, _ = paged_source.materialize(StageConfig(), ())
        (session.store.local / "fail").touch()
        with pytest.raises(RuntimeError, match="as it was told"):
            paged_whole.materialize(StageConfig(), (source,))
    assert list(session.unfinished) == ["paged_whole"]
    assert list(session.steps) == ["paged_source", "part.mine"]
