"""A wsd training that begins from the branch of a shorter one ends with the bytes of one that doesn't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.maintain import collect, find_garbage
from storage.manifest import Manifest
from storage.store import Store
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.check import check_runtime
from tasks.pretrain.checkpoints.branches import branch_identity
from tasks.stage.session import Session, open_session
from tests.notes import Notes
from tests.runtimes import runtime_of
from tests.tasks.pretrain.tiny_training import MODEL, make_spec

BASE: dict[str, Any] = {
    "model": MODEL,
    "global_batch": 8,
    "schedule": "wsd",
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "validation_every": 3,
    "sample_tokens": 4,
}
ALL: dict[str, Any] = {  # whatever depends on the step
    "mixture": {"even": 1, "odd": 3},
    "curriculum": [{"from_step": 5, "mixture": {"even": 1}}],
    "isolate_documents": True,
    "batch_warmup_steps": 4,
    "batch_warmup_parts": 2,
    "context_warmup_steps": 4,
    "context_warmup_parts": 4,
    "snapshot_every": 3,
    "ema_decay": 0.9,
    "average": {"last": 2, "every": 2},
    "final_weights": "ema",
}


def trained(
    steps: int,
    data: tuple[Artifact, Artifact],
    store: Store,
    *,
    branches: bool = True,
    runtime: dict[str, Any] | None = None,
    refresh: bool = False,
    **choices: Any,
) -> tuple[Manifest, Notes]:
    """The manifest of a training that the store gets, and what it said. Its config may have further `choices`."""
    config = PretrainConfig.model_validate({**BASE, "steps": steps, **choices})
    settings = {"threads": 1, "device": "cpu", "checkpoint_every": 3, "log_every": 1, **(runtime or {})}
    noted = Notes()
    with open_session(Session(store, runtime_of(branches=branches, **settings), observer=noted)):
        artifact, _ = pretrain.materialize(config, data, refresh=refresh)
    assert artifact.manifest is not None
    return artifact.manifest, noted


@pytest.fixture
def alone(tmp_path: Path) -> Store:
    """The store of trainings that don't branch."""
    return Store(str(tmp_path / "alone"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The store of those that do."""
    return Store(str(tmp_path / "store"))


def branches_of(store: Store) -> list[str]:
    return sorted(path.name for path in (store.local / "branches").glob("pretrain/*/*"))


def test_from_the_branch_of_a_shorter_training_come_the_same_bytes_and_log(
    data: tuple[Artifact, Artifact], alone: Store, store: Store
) -> None:
    expected, _ = trained(20, data, alone, **ALL, branches=False)
    shorter, _ = trained(10, data, store, **ALL, decay_share=0.3, decay_shape="linear")
    assert branches_of(store) == ["step-000000007"]
    branched, noted = trained(20, data, store, **ALL)
    assert branched.facts["resumed_from_step"] == 7
    assert "the first 7 steps are those of a shorter training: beginning from its branch" in noted.said
    assert shorter.facts["resumed_from_step"] == expected.facts["resumed_from_step"] == 0
    assert branched.files["log.jsonl"] == expected.files["log.jsonl"]
    assert (branched.digest, branched.counts) == (expected.digest, expected.counts)
    assert branches_of(store) == ["step-000000007", "step-000000016"]


def test_the_garbage_collection_takes_branches_that_no_training_uses(
    data: tuple[Artifact, Artifact], store: Store
) -> None:
    made, _ = trained(5, data, store)
    refs.move(store, "mine/pretrain", f"pretrain/{made.key}", made.digest)
    (folder,) = (store.local / "branches" / "pretrain").iterdir()
    with store.branches("pretrain", folder.name):
        assert folder not in find_garbage(store, 1).workspaces
    garbage = find_garbage(store, 1)
    assert garbage.workspaces[folder] > 100_000
    assert not garbage.artifacts
    with store.branches("pretrain", folder.name):
        collect(store, garbage)
        assert folder.exists()
    collect(store, garbage)
    assert not folder.exists()
    trained(5, data, store, refresh=True)
    assert not folder.exists()  # a refresh takes nothing over, and leaves nothing


@pytest.mark.soak
def test_the_decisions_of_healing_come_along_unless_the_decay_needed_them(
    data: tuple[Artifact, Artifact], alone: Store, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    healing: dict[str, Any] = {"healing": {"skip_batches": 2}}
    monkeypatch.setenv("GRISTMILL_FAULTS", "nan@4")
    expected, _ = trained(12, data, alone, **healing, branches=False)
    assert expected.counts["skipped_batches"] == 1  # from the checkpoint of step 3 on
    trained(9, data, store, **healing)
    monkeypatch.delenv("GRISTMILL_FAULTS")
    branched, _ = trained(12, data, store, **healing)
    assert branched.facts["resumed_from_step"] == 7
    assert (branched.digest, branched.counts) == (expected.digest, expected.counts)
    assert [event["step"] for event in branched.facts["events"]] == [4]
    monkeypatch.setenv("GRISTMILL_FAULTS", "nan@11")
    late, _ = trained(13, data, alone, **healing)
    assert late.counts["skipped_batches"] == 2
    (branch,) = (alone.local / "branches").glob("pretrain/*/*")
    assert branch.name == "step-000000010"
    assert not (branch / "beside" / "healing.json").exists()  # it is from before
    monkeypatch.setenv("GRISTMILL_FAULTS", "nan@9")
    trained(14, data, alone, **healing, seed=1)
    assert branches_of(alone) == ["step-000000010"]  # a spike at the end would be judged by steps of the decay


def test_a_damaged_branch_is_not_used(data: tuple[Artifact, Artifact], alone: Store, store: Store) -> None:
    expected, _ = trained(10, data, alone, branches=False)
    for steps in (8, 5):
        made, _ = trained(steps, data, store)
        assert made.facts["resumed_from_step"] == 0  # a branch of step 6 is beyond the start of the decay of 5 steps
    later = max((store.local / "branches").glob("pretrain/*/*"))
    log = later / "beside" / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b"loss", b"lost", 1))
    branched, noted = trained(10, data, store)
    assert "the branch of step 6 is damaged (beside/log.jsonl has changed bytes): it isn't used" in noted.said
    assert branched.facts["resumed_from_step"] == 4
    assert (branched.digest, branched.counts) == (expected.digest, expected.counts)
    assert branches_of(store) == ["step-000000004", "step-000000008"]


@pytest.mark.soak
@pytest.mark.parametrize(
    "runtime",
    [
        {"engine": "ddp", "processes": 2},
        {"engine": "fsdp", "processes": 2, "async_checkpoints": "on"},
        *({"engine": "deepspeed", "zero_stage": stage, "processes": 2} for stage in (0, 1, 2, 3)),
    ],
    ids=str,
)
def test_every_engine_leaves_branches_that_it_begins_from(
    runtime: dict[str, Any], data: tuple[Artifact, Artifact], alone: Store, store: Store
) -> None:
    expected, _ = trained(10, data, alone, branches=False, runtime=runtime)
    trained(5, data, store, runtime=runtime)
    branched, _ = trained(10, data, store, runtime=runtime)
    assert branched.facts["resumed_from_step"] == 4
    assert branched.digest == expected.digest


def test_what_shapes_the_stable_part_tells_branches_apart(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, schedule="wsd", steps=10)

    def identity(source: str = "source", runtime: dict[str, Any] | None = None, **config: Any) -> str:
        chosen = make_spec(tmp_path, runtime=runtime, **{"schedule": "wsd", "steps": 10, **config})
        return branch_identity(chosen, source)

    same = branch_identity(spec, "source")
    for end in (
        {"steps": 50, "decay_share": 0.5, "decay_shape": "linear", "final_share": 0.0},
        {"steps": None, "tokens": 5000},
        {"average": {"last": 2, "every": 1}, "final_weights": "mean"},
        {"sample_prompts": ["So"], "sample_tokens": 9, "max_epochs": 90},
        {"runtime": {"preflight": "always", "async_checkpoints": "on", "log_every": 7, "checkpoint_every": 3}},
    ):
        assert identity(**end) == same, end
    others = [
        identity(**change)
        for change in (
            {"source": "other"},
            {"seed": 1},
            {"learning_rate": 1e-4},
            {"warmup_steps": 3},
            {"validation_every": 9},
            {"ema_decay": 0.9},
            {"snapshot_every": 3},
            {"runtime": {"threads": 2}},
            {"runtime": {"engine": "fsdp"}},
            {"runtime": {"micro_batch": 1}},
        )
    ]
    assert len({same, *others}) == 1 + len(others)
    assert spec.common_steps == 8
    average = make_spec(tmp_path, schedule="wsd", steps=10, average={"last": 3, "every": 2})
    assert average.common_steps == 5  # the mean is of steps 6, 8 and 10


@pytest.mark.parametrize(
    ("config", "store", "named"), [("cosine", "store", "schedule cosine"), ("wsd", "s3://bucket", "not a folder")]
)
def test_branches_are_refused_where_there_are_none(config: str, store: str, named: str) -> None:
    runtime = runtime_of(branches=True).model_copy(update={"store": store})
    with pytest.raises(ConfigError, match=named):
        check_runtime(PretrainConfig.model_validate({**BASE, "schedule": config, "steps": 10}), runtime)
