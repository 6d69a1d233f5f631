"""What a Prefect server sees of a run: a task a stage, Cached when it came from the store, tables and the report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:  # prefect is imported by the tests that need it
    from prefect.client.schemas.objects import TaskRun

ROOT = Path(__file__).parents[2]
SETTINGS = ["download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 40}]", "download.benchmarks=[arc_easy]"]


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    with (
        prefect_test_harness(server_startup_timeout=180),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield


def test_stages_are_tasks_and_the_cached_ones_say_so(server: None, tmp_path: Path) -> None:
    from flows.pipeline import pipeline

    overrides = [*SETTINGS, f"runtime.store={tmp_path / 'store'}"]
    first = pipeline("smoke", overrides, to="filter")
    again = pipeline("smoke", overrides, to="filter")
    assert first == again
    states, keys = asyncio.run(seen())
    assert states == [
        {"download": "Completed", "dedup": "Completed", "filter": "Completed"},
        {"download": "Cached", "dedup": "Cached", "filter": "Cached"},
    ]
    assert {"stage-download", "stage-dedup", "stage-filter", "run-report"} <= keys


def test_a_failing_stage_fails_the_run_with_its_own_error(server: None, tmp_path: Path) -> None:
    from flows.pipeline import pipeline
    from storage.errors import SourceError

    missing = "download.sources=[{kind: files, name: mine, paths: [nowhere.jsonl]}]"
    with pytest.raises(SourceError, match="no file matches"):
        pipeline("smoke", [missing, f"runtime.store={tmp_path / 'store'}"], to="download")


def test_a_server_that_a_user_named_and_that_goes_away_is_told_in_a_sentence(server: None) -> None:
    import httpx
    from prefect.settings import PREFECT_API_URL

    from flows.server import given_server
    from flows.stop import Stop
    from storage.errors import ServerError

    address = PREFECT_API_URL.value()
    assert address is not None
    with given_server(address, Stop()):
        pass
    gone = pytest.raises(ServerError, match=f"server at {address} is gone during the run: refused")
    with gone as caught, given_server(address, Stop()):
        raise httpx.ConnectError("refused")
    assert "the rest resumes" in caught.value.remedy


def test_prefects_refresh_cache_is_honoured(server: None, tmp_path: Path) -> None:
    from prefect import flow

    from flows.session import session_of
    from profiles.load import load
    from tasks.download import download
    from tasks.stage.session import open_session

    profile = load("smoke", [*SETTINGS, f"runtime.store={tmp_path / 'store'}"])

    @flow
    def one_task(refresh: bool) -> str:
        task = download.task.with_options(refresh_cache=refresh)
        return str(task(profile.download, return_state=True).name)

    with open_session(session_of(profile)):
        states = [one_task(refresh) for refresh in (False, False, True)]
    assert states == ["Completed", "Cached", "Completed"]


def test_a_page_changes_in_place_and_no_oftener_than_it_may(server: None) -> None:
    from prefect import flow, task

    from flows.pages.progress import PrefectObserver

    written: list[str] = []

    def write() -> str:
        written.append(f"# Step {len(written) + 1}")
        return written[-1]

    observer = PrefectObserver()
    observer.paged("pretrain", "live", write, last=False)
    assert not written, "there is no task to show it in"

    @task
    def training() -> None:
        for _ in range(3):
            observer.paged("pretrain", "live", write, last=False)
        observer.paged("pretrain", "live", write, last=True)

    @flow
    def one_task() -> None:
        training()

    one_task()
    assert written == ["# Step 1", "# Step 2"]
    assert asyncio.run(versions("pretrain-live")) == ["# Step 2"]


def test_the_deployments_are_a_paused_schedule_and_two_by_hand() -> None:
    declared = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert [deployment["name"] for deployment in declared] == ["nightly", "by-hand", "one-stage"]
    (schedule,) = declared[0]["schedules"]
    assert schedule["active"] is False
    assert "cron" in schedule


async def versions(key: str) -> list[str]:
    """What each version of an artifact says."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    async with get_client() as client:
        found = await client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
        newest = await client.read_latest_artifacts()
    assert [artifact.data for artifact in newest if artifact.key == key] == [found[0].data]
    return [str(artifact.data) for artifact in found]


def began(task: TaskRun) -> datetime:
    moment = task.start_time or task.created
    assert moment is not None
    return moment


async def seen() -> tuple[list[dict[str, str]], set[str]]:
    """The states of all task runs, a run after the other, and the keys of all artifacts."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    async with get_client() as client:
        runs = await client.read_flow_runs(sort=FlowRunSort.START_TIME_ASC)
        states = []
        for run in runs:
            from prefect.client.schemas.filters import FlowRunFilter

            tasks = await client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [run.id]}))
            ordered = sorted(tasks, key=began)
            states.append({task.name: str(task.state_name) for task in ordered})
        artifacts = await client.read_latest_artifacts()
    return states, {str(artifact.key) for artifact in artifacts}
