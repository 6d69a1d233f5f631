"""A run's name, its page however it ends, its log, and progress that ends."""

from __future__ import annotations

import base64
import logging
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flows.pages.bars import Bar, draw_bars
from flows.pages.log import Once
from flows.pages.names import is_random, profile_of, run_name
from flows.pages.progress import Pace
from flows.pages.report import run_page, summary
from flows.records.recorder import Asked
from flows.session import session_of
from profiles.load import load
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import SourceError
from storage.store import Store
from tasks.dedup import dedup
from tasks.download import download
from tasks.stage.display.progress import Progress
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.stage.test_together import WordsConfig, words

SETTINGS = ["download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 40}]", "download.benchmarks=[arc_easy]"]


def ran(store: Path, *, refresh: tuple[str, ...] = ()) -> tuple[Session, Profile]:
    """The data half's beginning, plainly."""
    profile = load("smoke", [*SETTINGS, f"runtime.store={store}"])
    session = session_of(profile, "dedup", refresh)
    with open_session(session):
        raw, _ = download.materialize(profile.download, ())
        assert profile.dedup is not None
        dedup.materialize(profile.dedup, (raw.part("documents"),))
    return session, profile


def test_a_run_is_named_by_what_was_asked_and_not_by_how_it_is_run() -> None:
    assert run_name("tiny", (), None, ()) == "tiny"
    assert run_name("tiny", ["pretrain.steps=9", "runtime.store=a"], "sft", ["pretrain", "filter"]) == (
        "tiny to sft, pretrain.steps=9, filter rebuilt, pretrain rebuilt"
    )
    assert len(run_name("tiny", ["filter.lists=" + "x" * 200], None, ())) == 80
    assert "hunter2" not in run_name("tiny", ["download.sources=s3://me:hunter2@bucket"], None, ())
    assert profile_of("mine/other.yaml") == "other"


@pytest.mark.parametrize(
    "name", ["magic-otter", "chi4-morthond", "iota4-ina-fringe", "pi733-canis-majoris-mass", "eta--warp", "Tasty-Pho"]
)
def test_a_name_that_prefect_or_its_form_made_up_is_replaced(name: str) -> None:
    assert is_random(name)


@pytest.mark.parametrize("name", ["Ann tries 4,000 steps", "v2", "alpha", "lr3-warm", "chi4-400", "Small-vocabulary"])
def test_a_name_that_a_person_gave_stays(name: str) -> None:
    assert not is_random(name)


def test_the_page_of_a_run_tells_what_was_made_and_why_and_what_it_took(tmp_path: Path) -> None:
    session, profile = ran(tmp_path)
    page = run_page(session, profile, Asked("smoke", SETTINGS, "dedup"), 2.5)
    assert page.startswith("# smoke: completed")
    assert "**3 made now, 0 from the store**, stages and their parts, in 2.5 s." in page
    assert "up to `dedup`" in page
    assert re.search(r"↳ \[sketches\]\(\S+\) \| \*\*made now\*\* \|", page)
    assert re.search(r"- \*\*dedup\*\*: \d+ documents in, .*; made now, never made before", page)
    assert re.search(r"- \[dedup\]\(\S+\) of \[download\]\(\S+\) `\w{6}/documents`: `artifacts/dedup/\w+`", page)
    assert "stopped here" not in page


def test_a_run_that_takes_all_from_the_store_does_not_read_as_if_it_had_worked(tmp_path: Path) -> None:
    ran(tmp_path)
    session, profile = ran(tmp_path)
    page = run_page(session, profile, Asked("smoke"), 0.2)
    assert "**0 made now, 2 from the store**" in page
    assert "made now, never" not in page
    assert {row["this run"] for row in summary(session, profile)} == {"from the store"}


def test_a_refresh_says_so(tmp_path: Path) -> None:
    ran(tmp_path)
    session, profile = ran(tmp_path, refresh=("dedup",))
    page = run_page(session, profile, Asked("smoke", refresh=["dedup"]), 0.2)
    assert "rebuilt, even if stored: `dedup`" in page
    assert "made now, refresh was asked for" in page


def test_the_page_of_a_failed_run_says_where_it_stopped_and_what_to_do(tmp_path: Path) -> None:
    session, profile = ran(tmp_path)
    session.unfinished["filter"] = 0.0
    page = run_page(session, profile, Asked("smoke", to="tokenizer"), 1, SourceError("It *is* gone.", "Look for it."))
    assert page.startswith("# smoke: failed in filter")
    assert "> **`filter`:** It \\*is\\* gone." in page
    assert "> Look for it." in page
    assert re.search(r"\| \*\*filter\*\* \| \*\*stopped here\*\* \|", page)
    assert re.search(r"\| tokenizer \| not reached \|", page)
    assert "| tokenize | not reached" not in page, "the run was not to come there"


def test_the_page_of_a_cancelled_run_says_so(tmp_path: Path) -> None:
    session, profile = ran(tmp_path)
    session.unfinished["filter"] = 0.0
    page = run_page(session, profile, Asked("smoke"), 1, KeyboardInterrupt())
    assert page.startswith("# smoke: stopped in filter")
    assert "cancelled or interrupted while it worked on `filter`" in page


def test_bars_are_as_long_as_their_numbers_and_none_is_lost() -> None:
    image = draw_bars([Bar("a", 200, "200"), Bar("b<c", 100, "100"), Bar("d", 0.001, "1"), Bar("e", 0, "0")], "sizes")
    svg = base64.b64decode(image.partition("base64,")[2].rstrip(")"))
    found = [float(each.get("width", 0)) for each in ElementTree.fromstring(svg) if each.tag.endswith("rect")]
    assert found == [270.0, 135.0, 2.0, 0.0]


def test_an_error_is_logged_once_and_without_a_traceback_where_a_person_can_mend_it() -> None:
    kept, error = Once(), SourceError("No file matches.", "Name one.")
    record = logging.LogRecord(
        "prefect.task_runs", logging.ERROR, "", 0, "Task run failed", (), (type(error), error, None)
    )
    assert not kept.filter(record), "the flow's end tells it"
    ended = logging.LogRecord("prefect.task_runs", logging.ERROR, "", 0, "Finished in state Failed('No …')", (), None)
    assert kept.filter(ended)
    assert (ended.levelname, ended.getMessage()) == ("INFO", "Finished in state Failed")
    defect = TypeError("not ours")
    record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), (TypeError, defect, None))
    assert kept.filter(record)
    assert record.exc_info, "a defect keeps its traceback"
    assert not kept.filter(record)


def test_the_time_left_counts_from_the_first_step_that_was_done() -> None:
    times = [0.0]
    pace = Pace(clock=lambda: times[-1])
    shown = []
    for now, done in ((20.0, 0), (60.0, 21), (62.0, 25), (64.0, 29)):  # a start of a minute, from a checkpoint
        times.append(now)
        pace.heard(done)
        shown.append(pace.describe(Progress("pretrain", done, 101, "steps")))
    assert shown[1] == "21/101 steps", "of one step nothing is known but that the start is over"
    assert shown[3] == "29/101 steps · 2.0 steps/s · 36.0 s left"


def test_artifacts_that_were_made_together_have_a_row_each(tmp_path: Path) -> None:
    with open_session(Session(Store(str(tmp_path / "store")), runtime_of(workers=1), "smoke")) as session:
        (tmp_path / "text").mkdir()
        (tmp_path / "text" / "a.txt").write_text("!")
        text = Artifact.at(tmp_path / "text")
        words.materialize(WordsConfig(words=("b",)), (text,))
        words.materialize(WordsConfig(words=("a", "b")), (text,))
    page = run_page(session, load("smoke", SETTINGS), Asked("smoke"), 1)
    assert re.search(r"\| ↳ \[demo-word\]\(\S+\) \(2\) \| \*\*made now\*\* \|", page)
    assert re.search(r"\| \u2002\u2002↳ a \| \*\*made now\*\* \|", page)
    assert re.search(r"\| \u2002\u2002↳ b \| from the store \|", page)
