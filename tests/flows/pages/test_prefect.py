"""A run on a Prefect server: a task a stage, Cached if it came from the store, tables and the report."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.flows.running_ui import served, speaking_to, until

if TYPE_CHECKING:  # prefect is imported by the tests that need it
    from prefect.client.schemas.objects import TaskRun

ROOT = Path(__file__).parents[3]
SETTINGS = ["download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 40}]", "download.benchmarks=[arc_easy]"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with (
        served(tmp_path_factory.mktemp("prefect")) as environment,
        speaking_to(environment),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield


def test_prefects_script_for_hooks_finds_our_modules(tmp_path: Path) -> None:
    """It runs from a folder that has a storage.py: each run that was cancelled or had crashed told of that, by a
    traceback."""
    (tmp_path / "storage.py").write_text("raise SystemExit('this was taken for our package')")
    (tmp_path / "script.py").write_text("import flows.flow")
    began = "import tasks, subprocess, sys; sys.exit(subprocess.run([sys.executable, sys.argv[1]]).returncode)"
    command = [sys.executable, "-c", began, str(tmp_path / "script.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_failed_stage_leaves_its_parts_to_the_next_run_and_what_is_cached_says_so(
    server: None, tmp_path: Path
) -> None:
    from flows.flow import pipeline
    from storage.errors import AccountingError, SourceError

    missing = "download.sources=[{kind: files, name: mine, paths: [nowhere.jsonl]}]"
    with pytest.raises(SourceError, match="no file matches"):
        pipeline("smoke", [missing, f"runtime.store={tmp_path / 'store'}"], to="download")
    overrides = [*SETTINGS, f"runtime.store={tmp_path / 'store'}"]
    with pytest.raises(AccountingError, match="max_removed_share_per_source"):
        pipeline("smoke", [*overrides, "filter.max_removed_share_per_source=0"], to="filter")
    first, again = (pipeline("smoke", overrides, to="filter") for _ in range(2))
    assert first == again
    states, keys = seen()
    missed, failed, made, cached = states
    assert missed == {"download": "Failed"}
    assert {**dict.fromkeys(("download", "dedup", "sketches", "form"), "Completed"), "filter": "Failed"}.items() <= (
        failed.items()
    ), "parts are tasks of their own"
    assert (made["dedup"], made["form"], made["filter"]) == ("Cached", "Cached", "Completed")
    assert cached == {"download": "Cached", "dedup": "Cached", "filter": "Cached"}
    assert {"stage-download", "stage-dedup", "stage-filter", "stage-form", "run-report"} <= keys
    (page,) = {*asyncio.run(failed_reports())}  # a request that a busy server answered late was sent twice
    assert page.startswith("# smoke: failed in filter")
    assert "max\\_removed\\_share\\_per\\_source" in page


def test_progress_ends_at_all_of_it_or_says_where_it_stopped(server: None) -> None:
    from prefect import flow

    from flows.pages.progress import PrefectObserver
    from tasks.stage.display.progress import Progress

    observer = PrefectObserver()

    @flow
    def watched() -> None:
        from prefect import task

        @task
        def work() -> None:
            for done in (1, 2):
                observer.shown = 0.0
                observer.progressed(Progress("ends", done, 4, "shards"))
                observer.shown = 0.0
                observer.progressed(Progress("stops", done, 4, "shards"))

        work()
        observer.gathered("ends", made=4, cached=0, seconds=2)
        observer.failed("No room is left.")

    watched()
    assert asyncio.run(versions("progress-ends")) == ["100"]
    assert asyncio.run(versions("progress-stops")) == ["50"]


def test_a_server_that_a_user_named_and_that_goes_away_is_told_in_a_sentence(server: None) -> None:
    import httpx
    from prefect.settings import PREFECT_API_URL

    from flows.server import named_server
    from flows.stop import Stop
    from storage.errors import ServerError

    address = PREFECT_API_URL.value()
    assert address is not None
    with named_server(address, Stop()):
        pass
    gone = pytest.raises(ServerError, match=f"server at {address} is gone during the run: refused")
    with gone as caught, named_server(address, Stop()):
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


def test_no_schedule_is_on_by_itself() -> None:
    declared = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    schedules = [schedule for deployment in declared for schedule in deployment.get("schedules", [])]
    assert [schedule["active"] for schedule in schedules] == [False, False]


async def failed_reports() -> list[str]:
    """The pages of the runs to the filter that failed, which have the profile as their tag."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey

    async with get_client() as client:
        named = [run for run in await client.read_flow_runs() if run.name.startswith("smoke to filter")]
        runs = [run for run in named if run.state_name == "Failed"]
        assert all(run.tags == ["smoke"] for run in runs)
        mine = ArtifactFilter(
            key=ArtifactFilterKey(any_=["run-report"]),
            flow_run_id=ArtifactFilterFlowRunId(any_=[run.id for run in runs]),
        )
        return [str(page.data) for page in await client.read_artifacts(artifact_filter=mine)]


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


def seen() -> tuple[list[dict[str, str]], set[str]]:
    """The states of all task runs, a run after the other, and the keys of all artifacts: once the server has them, as a
    run does not wait until its tasks' last events are written."""
    found = []

    def ended() -> bool:
        found.append(asyncio.run(read()))
        return not {"Running", "Pending"} & {state for run in found[-1][0] for state in run.values()}

    until("a task of a run that is over never ends", ended)
    return found[-1]


async def read() -> tuple[list[dict[str, str]], set[str]]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    async with get_client() as client:
        runs = await client.read_flow_runs(sort=FlowRunSort.START_TIME_ASC)
        states = []
        for run in runs:
            from prefect.client.schemas.filters import FlowRunFilter

            tasks = await client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [run.id]}))
            ordered = sorted(tasks, key=began)
            states.append({task.name.split()[1]: str(task.state_name) for task in ordered if " " in task.name})
        artifacts = await client.read_latest_artifacts()
    return states, {str(artifact.key) for artifact in artifacts}
