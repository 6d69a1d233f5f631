"""A run of the whole pipeline is one run in each tracker that the runtime names, even if it fails."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from flows.records.recorder import Asked, Recorder
from flows.records.track import metrics_of, settings_of, words_of
from flows.session import session_of
from storage.errors import ConfigError, TrainingError
from storage.runs import history
from storage.runs.record import RunRecord
from tests.flows.commands.test_runs import profile_of, run_stages

TRACKERS = ("tensorboard", "wandb", "mlflow")


def tracked(folder: Path, tracker: str) -> RunRecord:
    return run_stages(profile_of(folder, f"runtime.tracking.pipeline=[{tracker}]"), "download", "filter=null")


def test_settings_metrics_and_words_are_those_of_the_record(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    record = run_stages(profile, "download", "pretrain.steps=7", "filter=null")
    settings = settings_of(record)
    assert (settings["set.pretrain.steps"], settings["set.filter"], settings["to"]) == ("7", "null", "download")
    assert settings["pretrain.model.depth"] == 2
    assert "runtime.store" not in settings
    metrics = metrics_of(record)
    assert metrics["download/documents.kept"] == 1
    assert metrics["download/seconds"] > 0
    words = words_of(record, session_of(profile).store)
    assert words["artifact.download"].endswith(record.stages["download"].location)
    assert words["state"] == "completed"


def test_a_tracker_that_is_missing_is_named_before_anything_starts(tmp_path: Path) -> None:
    missing = [name for name in TRACKERS if find_spec(name) is None]
    if not missing:
        pytest.skip("all trackers are installed")
    with pytest.raises(ConfigError, match=f"runtime.tracking.pipeline names {missing[0]}, which is not installed"):
        tracked(tmp_path, missing[0])
    assert not (tmp_path / "store").exists()


def test_tensorboard_has_a_folder_for_each_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = tracked(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "store" / "tracking" / "tensorboard" / record.id)).Reload()
    assert [event.value for event in events.Scalars("download/documents.kept")] == [1.0]
    assert "artifact.download/text_summary" in events.Tags()["tensors"]


def test_wandb_keeps_the_run_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    record = tracked(tmp_path, "wandb")
    (file,) = (tmp_path / "store" / "tracking" / "wandb" / record.id).rglob("*.wandb")
    assert "offline-run" in str(file)
    assert b"documents.kept" in file.read_bytes()


def test_mlflow_has_all_runs_of_a_store_in_one_experiment(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    from mlflow.tracking import MlflowClient

    first = tracked(tmp_path, "mlflow")
    profile = profile_of(tmp_path, "runtime.tracking.pipeline=[mlflow]")
    with pytest.raises(TrainingError), Recorder(profile, session_of(profile), Asked("smoke")):
        raise TrainingError("The loss is not finite.")
    second = history.find(session_of(profile).store, "last")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'store' / 'tracking' / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("gristmill")
    runs = {run.data.tags["run"]: run.data for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {first.id, second.id}
    assert runs[first.id].metrics["download/documents.kept"] == 1
    assert runs[first.id].params["pretrain.model.depth"] == "2"
    assert runs[first.id].tags["artifact.download"].endswith(first.stages["download"].location)
    assert runs[second.id].tags["error"] == "The loss is not finite."
