"""Estimates of a plan: laws, corrected by measurements, less what the store and checkpoints have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.estimates.arithmetic import gpu_of, training_work
from flows.estimates.laws import LAWS, in_words
from flows.estimates.plan_notes import accuracy_notes, compile_notes, resume_notes, room_of
from flows.estimates.sources import rows_of
from flows.estimates.stages import estimates, resumes_at
from flows.plan import plan
from flows.session import session_of
from profiles.load import load
from profiles.schema import Profile
from storage import refs
from storage.digests import list_files, tree_digest
from storage.keys import KeyPayload
from storage.manifest import Manifest
from storage.runs import history
from storage.runs.record import Estimate, RunRecord, StageRecord
from storage.store import Store
from storage.units import size_of
from tasks.download import DownloadConfig, download
from tasks.download.config import FileSource
from tasks.stage.decorator import STAGES
from tasks.stage.environment import environment
from tasks.stage.session import open_session
from tasks.training.checkpoint_marker import CheckpointMarker
from tests.flows.commands.test_cli import gristmill
from tests.flows.commands.test_runs import profile_of


def publish(
    store: Store,
    stage: str,
    config: dict[str, Any],
    ref: str = "",
    *,
    version: int = 1,
    inputs: Mapping[str, str] | None = None,
    **told: Any,
) -> str:
    """An artifact of a stage with this config, counts and facts."""
    payload = KeyPayload(stage=stage, version=version, config=config, inputs=dict(inputs or {}))
    folder = store.workspace(stage, payload.key()) / "out"
    folder.mkdir()
    for name in told.pop("names", ["a"]):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"some bytes")
    files = list_files(folder)
    made = told.pop("created", "2026-11-24T12:00:00.000000+00:00")
    manifest = Manifest(
        key=payload.key(),
        payload=payload,
        digest=tree_digest(files),
        files=files,
        created=made,
        **{"environment": environment(), **told},
    )
    artifact = store.publish(folder, manifest)
    if ref:
        refs.move(store, ref, artifact.location, artifact.digest)
    return artifact.location


def expected(profile: Profile, device: str | None = None) -> dict[str, Estimate]:
    """As `gristmill plan` has them."""
    store, gpu = session_of(profile).store, gpu_of(profile.runtime, device)
    work = training_work(profile, cuda=gpu is not None)
    return estimates(profile, store, plan(profile), work, gpu, elsewhere=device is not None)


def at(tmp_path: Path) -> str:
    """The setting of a store."""
    return f"runtime.store={tmp_path / 'store'}"


def pretrained(profile: Profile, seconds: float) -> dict[str, Any]:
    """Counts and facts of a pretraining of this profile that took so long."""
    work = training_work(profile, cuda=False)
    assert profile.pretrain is not None
    assert work is not None
    tokens = profile.pretrain.samples(work.steps) * work.context
    counts = {"tokens_seen": tokens, "parameters": work.parameters, "vocab_size": profile.tokenizer.vocab_size}
    return {"counts": counts, "facts": {"seconds": seconds, "device": "cpu"}}


def test_a_machine_without_a_compiled_kernel_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    lines = plan(profile_of(tmp_path))
    assert len(list(compile_notes(lines))) == 1
    assert list(compile_notes([line for line in lines if line.name in ("sft", "export")])) == []
    (tmp_path / "kernels.nbi").touch()
    assert list(compile_notes(lines)) == []


def test_without_any_run_all_stages_of_known_size_are_expected_to_take_the_usual_time(tmp_path: Path) -> None:
    profile = load("tiny", [at(tmp_path)])
    found = expected(profile)
    assert set(profile.stage_names) <= set(found)
    assert all(one.source.endswith("usual rates") for one in found.values())
    assert found["pretrain"].seconds > found["filter"].seconds > found["tokenize"].seconds > 0
    assert all(0 < one.fixed <= one.seconds for one in found.values())
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("settings", "stage", "ratio"),
    [
        (["pretrain.steps=3600"], "pretrain", 2),
        (["pretrain.global_batch=16"], "pretrain", 2),
        (["sft.epochs=2"], "sft", 1.9),
        (["evaluate.max_items=100"], "evaluate", 0.6),
        (["dpo=null"], "evaluate", 2 / 3),
        (["export.formats=[safetensors, int8, int4]"], "export", 0.5),
        (["filter.toxicity=null"], "filter", 0.85),
        (["tokenizer.sample_bytes_per_source=1000000"], "tokenizer", 0.2),
    ],
)
def test_what_grows_with_a_setting_grows_in_the_plan(
    settings: list[str], stage: str, ratio: float, tmp_path: Path
) -> None:
    before, now = (expected(load("tiny", [at(tmp_path), *more]))[stage] for more in ([], settings))
    grown = (now.seconds - now.fixed) / (before.seconds - before.fixed)
    assert grown == pytest.approx(ratio, rel=0.15)


def test_answers_and_merges_have_a_time(tmp_path: Path) -> None:
    def seconds(stage: str, *settings: str) -> float:
        chained = ["best_of_n={n: 4}", "merge={models: [{link: sft}, {link: dpo}]}"]
        found = expected(load("tiny", [at(tmp_path), *chained, *settings]))[stage]
        return found.seconds - found.fixed

    assert seconds("best_of_n", "best_of_n.n=8") == pytest.approx(2 * seconds("best_of_n"))
    assert seconds("best_of_n", "best_of_n.prompts=1") < seconds("best_of_n") / 100
    more = "merge.models=[{link: sft}, {link: dpo}, {link: base}]"
    assert seconds("merge", more) == pytest.approx(5 / 4 * seconds("merge"))


def test_data_stages_grow_with_the_files_of_their_sources(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    rows = [json.dumps({"text": "A word of some notes. " * 40})] * 2000
    small = expected(profile)
    (tmp_path / "notes.jsonl").write_text("\n".join(rows) + "\n")
    large = expected(profile)
    assert rows_of(profile.download)["documents"].number == pytest.approx(2000, rel=0.02)
    for stage in ("dedup", "filter", "tokenize"):
        assert large[stage].seconds - large[stage].fixed > 20 * (small[stage].seconds - small[stage].fixed)


def test_sources_of_every_form_are_measured_without_being_read(tmp_path: Path) -> None:
    texts = [f"Document {number} says something about rivers. " * (number % 30 + 1) for number in range(900)]
    size, lines = sum(map(len, texts)), [json.dumps({"text": text}) + "\n" for text in texts]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    pq.write_table(pa.table({"n": list(range(900)), "text": texts}), tmp_path / "c.parquet")
    (tmp_path / "d.csv").write_text("id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(texts)))
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.md").write_text(text)
    for pattern, within in (("a.jsonl", 0.2), ("b.jsonl.gz", 0.2), ("c.parquet", 0.2), ("d.csv", 0.2), ("*.md", 0.01)):
        source = FileSource(name="mine", paths=[str(tmp_path / pattern)])
        found = rows_of(DownloadConfig(sources=[source]))["documents"]
        assert found.number == pytest.approx(900, rel=within), pattern
        assert found.text == pytest.approx(size, rel=within), pattern
    limited = FileSource(name="mine", paths=[str(tmp_path / "a.jsonl")], limit=90)
    assert rows_of(DownloadConfig(sources=[limited]))["documents"].number == 90


def test_what_had_like_work_here_takes_as_long_again(tmp_path: Path) -> None:
    profile = load("smoke", [at(tmp_path)])
    store = session_of(profile).store
    assert profile.pretrain is not None
    made = publish(store, "pretrain", profile.pretrain.model_dump(mode="json"), **pretrained(profile, 77.0))
    found = expected(profile)["pretrain"]
    assert found.seconds == pytest.approx(77)
    assert found.source.endswith(f", {made[:17]}")
    assert "GFLOP" in found.source


def test_a_machine_that_is_slow_in_one_stage_is_slow_in_others(tmp_path: Path) -> None:
    profile = load("smoke", [at(tmp_path)])
    usual, store = expected(profile), session_of(profile).store
    assert profile.pretrain is not None
    took = 3 * usual["pretrain"].seconds
    publish(store, "pretrain", profile.pretrain.model_dump(mode="json"), **pretrained(profile, took))
    found = expected(profile)
    assert found["export"].seconds == pytest.approx(3 * usual["export"].seconds)
    assert found["export"].source.endswith("this machine's rates")
    elsewhere = {**environment(), "cpu": "another"}
    there = load("smoke", [f"runtime.store={tmp_path / 'other'}"])
    told = pretrained(profile, took)
    publish(
        session_of(there).store, "pretrain", profile.pretrain.model_dump(mode="json"), environment=elsewhere, **told
    )
    assert expected(there)["export"].seconds == usual["export"].seconds, "another machine says nothing of this one"


def test_on_a_gpu_training_goes_by_its_data_sheet_and_no_run_on_a_cpu(tmp_path: Path) -> None:
    profile = load("gpu", [at(tmp_path)])
    before = expected(profile, "h100")
    tiny = load("smoke", [at(tmp_path)])
    assert tiny.pretrain is not None
    publish(session_of(tiny).store, "pretrain", tiny.pretrain.model_dump(mode="json"), **pretrained(tiny, 1e4))
    found = expected(profile, "h100")
    assert found["pretrain"].seconds == before["pretrain"].seconds < 3 * 3600
    assert found["download"].seconds > 600, "three million documents"
    assert "sft" not in found, "nobody says how many rows its source has"
    slower = expected(profile, "a100")["pretrain"]
    assert 3.4 < (slower.seconds - slower.fixed) / (found["pretrain"].seconds - found["pretrain"].fixed) < 3.7


def test_parts_in_the_store_cost_nothing_and_what_another_setting_measured_does(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    with open_session(session_of(profile)) as session:
        download.materialize(profile.download, [])
    assert profile.dedup is not None
    lines = {line.name: line for line in plan(profile)}
    payload = lines["dedup"].payload
    assert payload is not None
    whole = expected(profile)["dedup"].seconds
    sketch = profile.dedup.sketch.model_dump(mode="json")
    told: dict[str, Any] = {"facts": {"seconds": 7.0}, "inputs": payload.inputs}
    publish(session.store, "sketches", sketch, version=STAGES["sketches"].version, **told)
    found = expected(profile)["dedup"]
    assert found.seconds < whole
    assert found.source.endswith("the rest from the store")
    assert "store" not in expected(profile_of(tmp_path, "dedup.sketch.ngram=4"))["dedup"].source
    (tmp_path / "notes.jsonl").write_text('{"text": "A word of some notes."}\n')
    assert "store" not in expected(profile)["dedup"].source, "of other documents nothing is there"


def test_a_checkpoint_is_seen_and_only_the_rest_priced(tmp_path: Path) -> None:
    left_out = [f"{name}=null" for name in ("dedup", "filter", "sft", "dpo", "evaluate", "export")]
    profile = profile_of(tmp_path, *left_out)
    store = session_of(profile).store
    (line,) = [line for line in plan(profile) if line.name == "pretrain"]
    payload = KeyPayload(stage="pretrain", version=1, config={}, inputs={})
    line = line.__class__(**{**line.__dict__, "payload": payload})  # as if its inputs were there
    assert resumes_at(store, line) == 0
    folder = store.workspace("pretrain", payload.key()) / "scratch" / "checkpoints" / "step-000000020"
    folder.mkdir(parents=True)
    assert resumes_at(store, line) == 0, "it is not whole"
    whole = expected(profile)["pretrain"]
    CheckpointMarker(identity="", step=20, files={}).write(folder)
    assert resumes_at(store, line) == 20
    found = estimates(profile, store, [line], training_work(profile, cuda=False))["pretrain"]
    assert found.seconds == pytest.approx(whole.fixed + (whole.seconds - whole.fixed) / 3), "ten of thirty steps"
    assert found.source.endswith("from step 20 of 30")
    assert list(resume_notes(store, [line], 30)) == ["pretrain resumes at step 20 of 30."]


def test_the_last_estimates_are_told_beside_what_came(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    assert list(accuracy_notes(store, "tiny")) == []
    stages = {
        "dedup": StageRecord(location="dedup/a", cached=False, seconds=52),
        "filter": StageRecord(location="filter/a", cached=True, seconds=0),
    }
    estimated = {name: Estimate(seconds=40, source="") for name in stages}
    record = RunRecord(
        id="2026-11-24T12-00-00-abcdef",
        profile="tiny",
        config={},
        host="",
        process=1,
        stages=stages,
        started="2026-11-24T12:00:00+00:00",
        estimates=estimated,
    )
    history.write(store, record)
    error = "Half of the estimates of 1 stage so far were right within a factor of 1.30."
    assert list(accuracy_notes(store, "tiny")) == ["Last time: estimated 40.0 s, took 52.0 s (dedup).", error]
    assert list(accuracy_notes(store, "smoke")) == [error]


def test_a_plan_tells_of_time_and_disk_for_people_and_for_programs(tmp_path: Path) -> None:
    store = f"--store={tmp_path / 'store'}"
    told = gristmill("plan", "smoke", store).stdout
    assert "Disk: about" in told
    assert "usual rates" in told
    found = json.loads(gristmill("plan", "smoke", store, "--json").stdout)
    stages = {stage["stage"]: stage for stage in found["stages"]}
    assert stages["dedup"]["estimate"]["seconds"] > stages["dedup"]["estimate"]["fixed"] > 0
    assert found["disk"]["free"] > found["disk"]["needed"] >= found["disk"]["checkpoints"] > 0
    profile = load("smoke", [at(tmp_path)])
    assert room_of(session_of(profile).store, plan(profile), {}, None).checkpoints == 0


def test_the_tables_of_a_training_agree_with_its_line(tmp_path: Path) -> None:
    told = gristmill("plan", "tiny", f"--store={tmp_path / 'store'}").stdout
    (line,) = [row for row in told.splitlines() if row.startswith("pretrain ")]
    (below,) = [row for row in told.splitlines() if row.startswith("time ")]
    assert f"~{below.split('time')[1].split(' on ')[0].strip()} " in line


def test_work_is_told_in_units_of_people() -> None:
    assert in_words({"GFLOP": 40_600.0}) == "40.6 TFLOP"
    assert in_words({"GFLOP": 8.16e12}) == "8.16 ZFLOP"
    assert in_words({"MB of text": 25.9}) == "25.9 MB of text"
    assert in_words({"formats": 1.0}) == "1 format"
    assert all(law.seconds({}) == law.fixed for law in LAWS.values())


def test_a_base_that_is_an_artifact_is_planned_by_its_parameters(tmp_path: Path) -> None:
    smoke = load("smoke", [at(tmp_path)])
    assert smoke.pretrain is not None
    config = smoke.pretrain.model_dump(mode="json")
    publish(session_of(smoke).store, "pretrain", config, "smoke/pretrain", names=["model/w"], **pretrained(smoke, 9))
    based = load("finetune", [at(tmp_path), "base={artifact: smoke/pretrain@1}", "export.licences={}"])
    found, work = expected(based), training_work(smoke, cuda=False)
    assert work is not None
    assert found["base"].source.startswith(f"{size_of(work.parameters * 4)} of weights")
    assert found["sft"].seconds > found["sft"].fixed


def test_what_would_take_longer_than_a_record_can_tell_is_no_fault(tmp_path: Path) -> None:
    assert expected(load("cluster", [at(tmp_path)]), "cpu")["pretrain"].seconds == 1e10


def test_of_a_source_without_a_limit_on_the_hub_nothing_is_said(tmp_path: Path) -> None:
    sources = "[{kind: hub, name: web, dataset: a/b, revision: 'a123456789'}]"
    found = expected(load("tiny", [at(tmp_path), f"download.sources={sources}", "sft=null", "dpo=null"]))
    assert not {"download", "dedup", "filter", "tokenizer", "tokenize"} & set(found)
    assert found["pretrain"].seconds > 60, "its steps are known"
