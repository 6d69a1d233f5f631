"""The number of workers, who they are, and whether two runs share a store, changes no byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pipeline.runs import DATA_STAGES, SMALL, digests, finish, fork, start

TRAINED = ("repair", "quality_model", "quality", "perplexity_model", "perplexity")  # when a profile asks for them
# Several shards, so that workers have something to share out
SHARDED = (
    "download.sources=[{kind: embedded, corpora: [encyclopedia, packages], limit: 80, instructions: 9}]",
    "download.shard_documents=40",
    "filter.repair={}",
    "filter.quality={min_score: null, measure: {model: {positive: [encyclopedia-en]}}}",
    "filter.perplexity={measure: {model: {sources: [encyclopedia-en]}}}",
)


@pytest.mark.soak
@pytest.mark.parametrize("numbers", [(1, 3), (1, 2, 8)], ids=str)
def test_the_number_of_workers_changes_no_byte(numbers: tuple[int, ...], tmp_path: Path) -> None:
    stores = {workers: tmp_path / str(workers) for workers in numbers}
    codes, said = fork(
        *(
            {"store": str(store), "overrides": [*SHARDED, f"runtime.data.workers={workers}"], "to": "tokenize"}
            for workers, store in stores.items()
        )
    )
    assert codes == [0] * len(numbers), said
    alone, *others = (digests(store) for store in stores.values())
    assert all(other == alone for other in others)
    assert {location.split("/")[0] for location in alone} == {*DATA_STAGES, *TRAINED}


@pytest.mark.soak
@pytest.mark.parametrize("executor", ["process", "thread", "dask", "ray"])
def test_who_the_workers_are_changes_no_byte(executor: str, tmp_path: Path) -> None:
    asked = {"auto": tmp_path / "auto", executor: tmp_path / executor}
    for name, store in asked.items():
        sets = (*SHARDED, "runtime.data.workers=2", f"runtime.data.executor={name}")
        finish(start(store, "--to=tokenize", sets=sets))
    assert digests(asked[executor]) == digests(asked["auto"])


@pytest.mark.soak
def test_two_runs_at_once_make_each_stage_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    runs = [start(store, "--to=tokenize", sets=(SMALL,)) for _ in range(2)]
    said = "".join(finish(run) for run in runs)
    for stage in ("download", "dedup", "filter", "tokenizer", "tokenize"):
        assert len(re.findall(rf"{stage} .*made in .* {stage}/", said)) == 1, stage
        assert len(re.findall(rf"{stage} .*cached", said)) == 1, stage
        assert len(digests(store, stage)) == 1
