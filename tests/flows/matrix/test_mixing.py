"""Swarms on real text: a proposal is checked, and runs are used again after a source was added."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from storage.store import Store
from tests.flows.commands.test_cli import gristmill
from tests.flows.small import SMALL
from tests.pipeline.runs import finish, start

SETS = (
    *SMALL,
    "filter=null",
    "tokenize.validation_share=0.4",
    "pretrain.global_batch=2",
    "pretrain.learning_rate=1e-3",
    "runtime.compute.threads=1",
)
PROXY = ("--proxy", "pretrain.steps=2", "--jobs", "2")


@pytest.mark.soak
def test_runs_are_used_again_after_a_source_was_added(tmp_path: Path) -> None:
    store = tmp_path / "store"
    noise = [" ".join(random.Random(number).choices("bdfgklmnprst", k=200)) for number in range(60)]
    (tmp_path / "noise.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in noise))
    sources = yaml.safe_load(SMALL[0].partition("=")[2])
    added = [*sources, {"kind": "files", "name": "noise", "paths": [str(tmp_path / "noise.jsonl")]}]
    wider = (f"download.sources={json.dumps(added)}", *SETS[1:])

    def trained() -> int:
        return sum(location.startswith("pretrain/") for location in Store(str(store)).locations())

    two = ("--sources", "encyclopedia-en,encyclopedia-fr", "--runs", "4", "--seeds", "0")
    planned = gristmill(
        "mix", "smoke", *PROXY, *two, "--plan", *(f"--set={one}" for one in (*SETS, f"runtime.store={store}"))
    )
    assert "4 mixtures of 2 sources" in planned.stdout
    finish(start(store, *PROXY, *two, sets=SETS, command="mix"))
    assert trained() == 4
    said = finish(start(store, *PROXY, "--runs", "8", "--seeds", "1", sets=SETS, command="mix"))
    assert "4 runs of an earlier swarm are used again" in said
    assert trained() == 8 + 3, "of eight mixtures four are there, and three runs check the proposal"
    assert "Result: " in said
    said = finish(start(store, *PROXY, "--runs", "14", "--seeds", "0", sets=wider, command="mix"))
    assert "8 runs of an earlier swarm are used again" in said
    assert trained() == 11 + 7, "the first of the eight was made anew: its tokens differ"
    found = [json.loads(path.read_text()) for path in (store / "artifacts/mix").glob("*/mix.json")]
    assert sorted(len(one["swarm"]) for one in found) == [4, 8, 15]
    assert sum(one["mixture"].get("noise", 0) > 0 for one in max(found, key=len)["swarm"]) <= 6
