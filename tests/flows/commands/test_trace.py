"""A document is found wherever it is held or was learned from, and after a takedown nowhere in the new lineage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profiles.load import load
from storage.shards.documents import document_id
from tests.flows.commands.test_cli import gristmill
from tests.flows.commands.test_runs import run_stages
from tests.tasks.tiny_model import texts

SENTENCES = list(texts())[:60]
GONE = SENTENCES[7]


def traced(store: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """What is found, by stage."""
    said = gristmill("trace", *arguments, "--store", str(store), "--json")
    return {one["location"].partition("/")[0]: one for one in json.loads(said.stdout)}


def test_a_document_is_traced_and_after_a_takedown_its_new_lineage_is_free_of_it(tmp_path: Path) -> None:
    rows = (json.dumps({"text": text, "meta": {"url": f"https://x.org/{n}"}}) for n, text in enumerate(SENTENCES))
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    store = tmp_path / "store"

    def run(*more: str) -> None:
        source = f"download.sources=[{{kind: files, name: notes, paths: ['{tmp_path}/a.jsonl']}}]"
        few = [
            "download.benchmarks=[]",
            "dedup=null",
            "filter=null",
            "tokenizer.vocab_size=300",
            "sft=null",
            "dpo=null",
        ]
        run_stages(load("smoke", [source, *few, f"runtime.store={store}", *more]), "tokenize")

    run()
    found = traced(store, document_id(GONE))
    assert {stage: one["how"] for stage, one in found.items()} == {
        "download": "holds it",
        "tokenizer": "learned from it",
        "tokenize": "learned from it",
    }
    assert found["download"]["copies"] == 1
    assert found["tokenize"]["names"] == ["smoke/tokenize@1"]
    assert traced(store, "https://x.org/7").keys() == found.keys()
    assert traced(store, "x.org")["download"]["copies"] == len(SENTENCES)
    assert traced(store, document_id("another")) == {}
    run("download.exclude=[https://x.org/7]")
    assert traced(store, document_id(GONE), "--of", "smoke/tokenize@2") == {}
    assert traced(store, document_id(GONE), "--of", "smoke/tokenize@1") == found
    assert "neither an id" in gristmill("trace", "1f38", "--store", str(store)).stderr
