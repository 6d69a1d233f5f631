"""Records of runs: each run leaves one however it ends, and they can be listed, shown and compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from flows.commands.runs.compare import stage_rows
from flows.commands.runs.listing import with_present_state
from flows.pipeline import stages
from flows.records.figures import stage_record
from flows.records.recorder import Asked, Recorder
from flows.session import handed_on, recorded, session_of, start
from profiles.load import load
from profiles.schema import Profile
from storage import maintain
from storage.artifact import Artifact
from storage.errors import StoreError, TrainingError
from storage.runs import history
from storage.runs.alive import alive, state_of
from storage.runs.record import RunRecord, StageRecord, new_id
from storage.store import Store
from tasks.stage.config import StageConfig
from tasks.stage.display.progress import Observer
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.session import Step
from tests.file_systems import small
from tests.flows.commands.test_cli import gristmill


def profile_of(folder: Path, *settings: str) -> Profile:
    """A profile of one small document and no pairs, whose store lies in the folder."""
    notes = folder / "notes.jsonl"
    notes.write_text('{"text": "A note of some words."}\n')
    source = f"download.sources=[{{kind: files, name: notes, paths: ['{notes}']}}]"
    alone = ["download.benchmarks=[arc_easy]", "sft=null", "dpo=null"]
    return load("smoke", [source, *alone, f"runtime.store={folder / 'store'}", *settings])


def run_stages(profile: Profile, to: str, *overrides: str) -> RunRecord:
    """Run without Prefect, with a record. Returns the record."""

    def work(stage: AnyStage, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
        return stage.materialize(config, inputs)[0]

    session = replace(session_of(profile, to), call=work)
    with recorded(profile, session, Asked("smoke", overrides, to)) as run, handed_on(run), start("", (), None, ()):
        stages(profile)
    return history.find(session.store, "last")


def test_a_run_leaves_a_record_of_what_it_made_and_a_cached_one_of_what_it_took(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    made = run_stages(profile, "download")
    assert (made.state, made.made, made.to) == ("completed", ["download"], "download")
    stage = made.stages["download"]
    assert stage.why == "never made before"
    assert stage.figures["documents.kept"] == 1
    assert stage.peak_memory_bytes is not None
    assert made.config["download"]["benchmarks"] == ["arc_easy"]
    assert "runtime" not in made.config
    assert made.runtime["store"] == str(tmp_path / "store")
    cached = run_stages(profile, "download")
    assert (cached.state, cached.made) == ("completed", [])
    assert cached.stages["download"].location == stage.location
    assert cached.id != made.id
    assert list((tmp_path / "store" / "leases").iterdir()) == []


def test_a_run_of_the_terminal_that_finds_everything_is_recorded_without_prefect(tmp_path: Path) -> None:
    run_stages(profile_of(tmp_path), "download")
    settings = ["--store", str(tmp_path / "store")]
    record = history.find(Store(str(tmp_path / "store")), "last")
    sources = json.dumps(record.config["download"]["sources"])
    said = gristmill(
        "run",
        "smoke",
        "--to",
        "download",
        *settings,
        "--set",
        f"download.sources={sources}",
        "--set",
        "download.benchmarks=[arc_easy]",
    )
    assert said.returncode == 0, said.stderr
    newest = history.find(Store(str(tmp_path / "store")), "last")
    assert newest.id != record.id
    assert (newest.state, newest.asked, newest.made) == ("completed", "smoke", [])
    assert newest.overrides[-1].startswith("runtime.store=")


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (
            TrainingError("The loss is not finite.", "Lower the rate."),
            "failed",
            "The loss is not finite. Lower the rate.",
        ),
        (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), "stopped", ""),
        (SystemExit(143), "stopped", ""),
    ],
)
def test_a_record_says_how_a_run_ended(error: BaseException, state: str, said: str, tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    session = session_of(profile)
    session.store.begin()
    recorder = Recorder(profile, session, Asked("smoke"))
    recorder.record = recorder.record.model_copy(update={"working": "pretrain"})
    with pytest.raises(type(error)), recorder:
        raise error
    found = history.find(session.store, "last")
    assert (found.state, found.error, found.working) == (state, said, "pretrain")
    assert found.seconds is not None


def test_a_run_that_is_refused_creates_no_store(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    session = session_of(profile)
    with pytest.raises(StoreError), Recorder(profile, session, Asked("smoke")):
        raise StoreError("It is refused.", "Ask again.")
    assert not (tmp_path / "store").exists()


def test_no_secret_of_an_error_gets_into_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame-open-sesame")
    profile = profile_of(tmp_path)
    session = session_of(profile)
    session.store.begin()
    with pytest.raises(ValueError, match="sesame"), Recorder(profile, session, Asked("smoke")):
        raise ValueError("refused: sesame-open-sesame")
    assert "sesame" not in (tmp_path / "store" / history.file_of(history.ids(session.store)[0])).read_text()


def test_a_killed_run_has_crashed_and_a_running_one_runs(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    session_of(profile).store.begin()
    script = (
        "import os, sys; from pathlib import Path; from flows.records.recorder import Asked, Recorder;"
        "from flows.session import session_of; from tests.flows.commands.test_runs import profile_of;"
        "profile = profile_of(Path(sys.argv[1]));"
        "Recorder(profile, session_of(profile), Asked('smoke')).__enter__();"
        "print('begun', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    root, pipe = Path(__file__).parents[3], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=root) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        store = session_of(profile).store
        record = history.find(store, "last")
        assert record.process == child.pid
        assert state_of(store, record) == "running"
        os.kill(child.pid, signal.SIGKILL)
    assert state_of(store, record) == "crashed"
    said = gristmill("runs", "--store", store.url, "--state", "crashed")
    assert record.id in said.stdout
    assert "No run matches." in gristmill("runs", "--store", store.url, "--state", "running").stdout


def test_a_run_of_another_machine_is_believed_where_nothing_tells_that_it_died(tmp_path: Path) -> None:
    store = Store(f"memory://{tmp_path.name}", cache=tmp_path)
    fields = {"profile": "tiny", "config": {}, "process": 1, "started": "2026-11-24T00:00:00+00:00"}
    elsewhere = RunRecord(id=new_id(), host="elsewhere", **fields)
    here = RunRecord(id=new_id(), host=os.uname().nodename, **fields)
    assert state_of(store, elsewhere) == "running"
    assert state_of(store, here) == "crashed"
    with alive(store, here.id) as seen:
        assert not seen
        assert state_of(store, here) == "running"


def test_a_record_that_cant_be_written_ends_no_run(tmp_path: Path) -> None:
    noted: list[str] = []

    class Listening(Observer):
        def noted(self, stage: str, message: str) -> None:
            noted.append(message)

    profile = profile_of(tmp_path)
    session = replace(session_of(profile), observer=Listening())
    session.store.begin()
    (tmp_path / "store" / "runs").write_text("in the way")
    with Recorder(profile, session, Asked("smoke")):
        pass
    assert len(noted) == 1
    assert "leaves no record" in noted[0]


def test_a_full_disk_leaves_a_record_that_is_true_or_none(tmp_path: Path) -> None:
    with small(tmp_path / "store", size="256k"):
        profile = profile_of(tmp_path)
        session = session_of(profile)
        recorder = Recorder(profile, session, Asked("smoke"))
        with suppress(TrainingError), recorder:
            recorder.working("download")
            (tmp_path / "store" / "fill").write_bytes(bytes(_free(tmp_path / "store")))
            raise TrainingError("The loss is no number.", "Lower the rate.")
        states = [record.state for record in history.records(session.store) if isinstance(record, RunRecord)]
        assert states in (["failed"], [])  # there may be no room for the error's text
        again = Recorder(profile, session, Asked("smoke"))
        with again:
            again.working("download")
        left = [path.name for path in (tmp_path / "store" / "runs").iterdir()]
        assert not [name for name in left if ".json." in name], "half a record keeps its room"


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def test_a_run_that_waits_for_a_person_is_waiting_until_it_goes_on_or_nobody_came(tmp_path: Path) -> None:
    from prefect.client.schemas.objects import State
    from prefect.exceptions import Pause
    from prefect.states import Suspended

    profile = profile_of(tmp_path, "runtime.approve_hours=1")
    session = session_of(profile)
    suspended: State[None] = Suspended(timeout_seconds=3600)
    suspended.message = "download must be made. Resume goes on, Cancel ends the run."
    recorder = Recorder(profile, session, Asked("smoke"))
    with suppress(Pause), recorder:
        recorder.working("download")
        raise Pause(state=suspended)
    record = history.find(session.store, "last")
    assert (record.state, record.error) == ("waiting", suspended.message)
    assert gristmill("runs", "--state", "waiting", "--store", str(tmp_path / "store")).stdout.count("waiting") == 1
    late = record.model_copy(update={"ended": "2020-01-01T00:00:00Z", "flow_run": "one"})
    assert (with_present_state(session.store, late).state, state_of(session.store, late)) == ("failed", "failed")
    assert with_present_state(session.store, late).error == "Nobody approved it in time."
    history.write(session.store, late)
    assert history.waiting(session.store, "another") is None
    assert history.waiting(session.store, "one") == late


def test_a_run_that_goes_on_has_made_what_it_made_before_it_waited(tmp_path: Path) -> None:
    first = run_stages(profile_of(tmp_path), "download")
    waited = first.model_copy(update={"state": "waiting", "ended": first.started, "earlier_seconds": 7.0})
    later = run_stages(profile_of(tmp_path), "download").going_on_from(waited)
    assert later.stages == first.stages
    assert not later.stages["download"].cached
    assert later.seconds is not None
    assert later.seconds > later.earlier_seconds == 7.0
    anew = later.stages["download"].model_copy(update={"location": "download/another"})
    assert later.model_copy(update={"stages": {"download": anew}}).going_on_from(waited).stages["download"] == anew


def test_a_clock_that_was_put_back_makes_no_run_shorter_than_nothing(tmp_path: Path) -> None:
    record = run_stages(profile_of(tmp_path), "download")
    assert record.model_copy(update={"ended": "1970-01-01T00:00:00Z"}).seconds == 0.0


def test_runs_are_listed_filtered_shown_and_compared(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    first = run_stages(profile_of(tmp_path), "download")
    second = run_stages(profile_of(tmp_path, "download.benchmarks=[piqa]"), "download", "download.benchmarks=[piqa]")
    listed = [row["id"] for row in json.loads(gristmill("runs", "--store", store, "--json").stdout)]
    assert listed == sorted([first.id, second.id], reverse=True)
    assert json.loads(gristmill("runs", "--store", store, "--json", "--limit", "1").stdout)[0]["id"] == listed[0]
    most = gristmill("runs", "--store", store, "--json", "--limit", "9223372036854775807")
    assert len(json.loads(most.stdout)) == 2
    assert "Older runs" in gristmill("runs", "--store", store, "--limit", "1").stdout
    assert "No run matches." in gristmill("runs", "--store", store, "--made", "pretrain").stdout
    assert "No run matches." in gristmill("runs", "--store", store, "--profile", "tiny").stdout
    assert first.id in gristmill("runs", "--store", store, "--since", "1h").stdout
    assert gristmill("runs", "--store", store, "--since", "soon").returncode == 1
    shown = gristmill("runs", "show", first.id[:-1], "--store", store).stdout
    assert "never made before" in shown
    assert "completed in" in shown
    assert json.loads(gristmill("runs", "show", "last", "--store", store, "--json").stdout)["id"] == listed[0]
    told = gristmill("runs", "compare", first.id, second.id, "--store", store).stdout
    assert "download.benchmarks" in told
    assert "other bytes" in told
    as_json = json.loads(gristmill("runs", "compare", first.id, second.id, "--store", store, "--json").stdout)
    assert [field["field"] for field in as_json["profile"]] == ["download.benchmarks"]
    assert as_json["stages"][0]["result"] == "other bytes"
    missing = gristmill("runs", "show", "2020", "--store", store)
    assert (missing.returncode, "Run 2020 is not in the store" in missing.stderr) == (1, True)


def test_a_damaged_record_is_named_and_hides_no_other(tmp_path: Path) -> None:
    record = run_stages(profile_of(tmp_path), "download")
    store = str(tmp_path / "store")
    (tmp_path / "store" / "runs" / "2026-01-01T00-00-00-abcdef.json").write_text("{")
    said = gristmill("runs", "--store", store)
    assert record.id in said.stdout
    assert "The record of the run 2026-01-01T00-00-00-abcdef is damaged" in said.stdout
    assert "No readable run matches." in gristmill("runs", "--state", "failed", "--store", store).stdout
    told = gristmill("runs", "--json", "--store", store)
    assert [row["id"] for row in json.loads(told.stdout)] == [record.id]
    assert "The record of the run 2026-01-01T00-00-00-abcdef is damaged" in told.stderr


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"started":"2', '"started":"x'),
        ('"ended":"2', '"ended":"2p'),
        ('"seconds":', '"seconds":-'),
        ('"id":"2', '"id":"1'),
    ],
)
def test_a_changed_record_is_damaged_and_hides_no_other(was: str, becomes: str, tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    changed, sound = run_stages(profile, "download"), run_stages(profile, "download")
    file = tmp_path / "store" / history.file_of(changed.id)
    text = file.read_text()
    assert was in text
    file.write_text(text.replace(was, becomes))
    said = gristmill("runs", "--store", str(tmp_path / "store"))
    assert sound.id in said.stdout
    assert f"The record of the run {changed.id} is damaged" in said.stdout


def test_a_record_names_the_stage_that_is_made_from_its_beginning_on(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    session = session_of(profile, "download")
    with recorded(profile, session, Asked("smoke")) as run:
        for stage in ("download", "dedup"):
            run.session.observer.started(stage, "never made before")
        assert history.find(session.store, "last").working == "dedup"


def test_a_stage_that_there_is_not_is_no_filter(tmp_path: Path) -> None:
    run_stages(profile_of(tmp_path), "download")
    said = gristmill("runs", "--made", "pretrian", "--store", str(tmp_path / "store"))
    assert "Did you mean pretrain?" in said.stderr


def test_a_collection_keeps_the_newest_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run_stages(profile_of(tmp_path), "download")
    store = Store(str(tmp_path / "store"))
    for day in (1, 2, 3):
        history.write(store, record.model_copy(update={"id": f"2026-01-0{day}T00-00-00-abcdef"}))
    assert maintain.find_garbage(store, 1).records == {}
    monkeypatch.setattr(history.oldest, "__defaults__", (2,))
    garbage = maintain.find_garbage(store, 1)
    assert list(garbage.records) == ["2026-01-02T00-00-00-abcdef", "2026-01-01T00-00-00-abcdef"]
    maintain.collect(store, garbage)
    assert history.ids(store) == [record.id, "2026-01-03T00-00-00-abcdef"]
    with pytest.raises(StoreError, match="Run 2026-01-01 is not in the store"):
        history.find(store, "2026-01-01")


def test_a_look_that_finds_nothing_leaves_no_record(tmp_path: Path) -> None:
    from prefect.client.schemas.objects import State

    from flows.deployed.on_new_data import on_new_data

    profile = profile_of(tmp_path)
    record = run_stages(profile, "download")
    sources = json.dumps(record.config["download"]["sources"])
    settings = [f"download.sources={sources}", "download.benchmarks=[arc_easy]", f"runtime.store={tmp_path / 'store'}"]
    state = on_new_data.fn("smoke", settings, "download")
    assert isinstance(state, State)
    assert state.name == "Unchanged"
    assert history.ids(Store(str(tmp_path / "store"))) == [record.id]
    assert list((tmp_path / "store" / "leases").iterdir()) == []


def test_parts_of_a_stage_that_one_run_took_from_the_store_are_not_only_in_the_other(tmp_path: Path) -> None:
    made, cached = run_stages(profile_of(tmp_path), "dedup"), run_stages(profile_of(tmp_path), "dedup")
    assert "sketches" not in cached.stages
    for pair in ((made, cached), (cached, made)):
        results = {name: result for name, result, _, _ in stage_rows(*pair)}
        assert results["sketches"] == "not needed by one: dedup was stored"
    below = StageRecord(location="part/a", cached=False, seconds=1, part_of="sketches")
    deeper = made.model_copy(update={"stages": {**made.stages, "below": below}})
    assert {name: result for name, result, _, _ in stage_rows(deeper, cached)}["below"].endswith("dedup was stored")


def test_what_a_stage_waited_is_not_what_it_took(tmp_path: Path) -> None:
    record = stage_record(Step(Artifact.at(tmp_path), False, "never made before", seconds=10.0, waited=4.0))
    assert (record.seconds, record.waited) == (6.0, 4.0)
