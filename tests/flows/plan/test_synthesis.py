"""Text that a model writes passes all that other text does, goes with its original, and is in plans and cards."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.commands.documents.explain import explain_document, list_removed
from flows.commands.plan import show_plan
from flows.pipeline import stages
from flows.records.recorder import Asked
from flows.session import session_of
from profiles.load import load
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.documents import Document, document_id, read_documents, read_ledger
from storage.shards.lines import read_json_lines
from tasks.stage.session import open_session
from tests.tasks.endpoint.completions import Body, Said, serve

WORDS = [f"{first}{rest}" for first in "bdfglmrst" for rest in ("ank", "oat", "ill", "ean", "ood")]
COPIED, QUESTION, REFUSED, TAKEN_DOWN, DOCUMENTS = 3, 4, 5, 6, 30


def words(seed: int, number: int = 90) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=number))


TEXTS = [words(seed) for seed in range(DOCUMENTS)]


def profile(folder: Path, url: str, **download: Any) -> str:
    (folder / "texts.jsonl").write_text(
        "".join(
            json.dumps({"text": text, "url": f"https://x.org/{number}", "license": "CC-BY-SA-4.0"}) + "\n"
            for number, text in enumerate(TEXTS)
        )
    )
    path = folder / "synth.yaml"
    source = {"kind": "files", "name": "mine", "paths": [str(folder / "texts.jsonl")]}
    given: dict[str, Any] = {
        "extends": "tiny",
        "name": "synth",
        **dict.fromkeys(("sft", "dpo", "evaluate", "export")),
        "synthesise": {"model": "writer", "prompts": [{"name": "rewrite"}, {"name": "summary", "share": 0.2}]},
        "dedup": {"threshold": 0.5},
        "filter": {"preset": "clean", "language": None, "pii": None, "toxicity": None, "contamination": {}},
        "download": {"benchmarks": ["arc_easy"], "benchmark_items": 50, "sources": [source], **download},
        "runtime": {
            "store": str(folder / "store"),
            "data": {"workers": 1},
            "synthesise": {"url": url, "price": {"input": 2.5, "output": 10}},
            "endpoint": {"backoff_seconds": 0.001},
        },
    }
    path.write_text(json.dumps(given))
    return str(path)


def run(name: str, to: str) -> dict[str, Artifact]:
    """The artifacts of a run without Prefect."""
    chosen = load(name, [])
    made: dict[str, Artifact] = {}

    def call(stage: Any, config: Any, inputs: Sequence[Any]) -> Artifact:
        made[stage.name] = stage.materialize(config, inputs)[0]
        return made[stage.name]

    session = replace(session_of(chosen, to), call=call)
    with open_session(session):
        stages(chosen)
    return made


def documents(artifact: Artifact) -> Iterator[Document]:
    return (one for path in artifact.part("documents").files("*.parquet") for one in read_documents(path))


def made_from(artifact: Artifact) -> set[str]:
    return {json.loads(one.metadata).get("made_from", "") for one in documents(artifact)} - {""}


def reasons(artifact: Artifact) -> dict[str, str]:
    return {row.id: row.reason for path in artifact.part("ledger").files("*.parquet") for row in read_ledger(path)}


def said(tell: Any, *arguments: object) -> str:
    console = Console(file=io.StringIO(), width=300)
    tell(console, *arguments)
    found: str = console.file.getvalue()  # type: ignore[attr-defined]
    return found


def test_what_a_model_writes_passes_what_all_text_does(tmp_path: Path) -> None:
    ids = [document_id(text) for text in TEXTS]
    copied = " ".join([*TEXTS[COPIED].split()[:80], *words(99, 30).split()])
    questions: list[str] = []

    def answer(body: Body) -> Said:
        text = str(body["messages"][0]["content"]).rpartition("Text:\n\n")[2]
        number = TEXTS.index(text)
        if number == REFUSED:
            return Said("I'm sorry, but I can't help with that.")
        if "encyclopedia" in body["messages"][0]["content"] and number in (COPIED, QUESTION):
            return Said(copied if number == COPIED else questions[0])
        return Said(words(body["seed"]))

    with serve(answer) as server:
        name = profile(tmp_path, server.url)
        planned = said(show_plan, Asked(name, [], None, []))
        assert f"synthesise sends documents to {server.url}. How many requests" in planned
        raw = run(name, "download")["download"]
        rows = (row for path in raw.part("benchmarks").files("*.jsonl") for row in read_json_lines(path))
        questions += [row["query"] for row in rows if len(row["query"].split()) > 25][:1]
        planned = said(show_plan, Asked(name, [], None, []))
        assert f"new requests, and 0 that are answered already, on {DOCUMENTS} documents" in planned
        assert "by runtime.synthesise.price" in planned
        made = run(name, "filter")
        total = len(server.asked)
        assert DOCUMENTS + 2 < total < DOCUMENTS + 15
        assert f"{total} new requests" in planned
        assert reasons(made["synthesise"]) == {ids[REFUSED]: "model_refuses"}
        assert reasons(made["dedup"]) == {document_id(copied): "near_duplicate"}
        assert reasons(made["filter"])[document_id(questions[0])].startswith("contamination")
        assert ids[TAKEN_DOWN] in made_from(made["filter"])
        assert "removed: model_refuses, the answer to rewrite" in said(explain_document, ids[REFUSED], name, [])
        assert "kept" in said(explain_document, document_id(words(server.asked[-1]["seed"])), name, [])
        assert "synthesise removed 1 by model_refuses" in said(list_removed, "model_refuses", name, [], None, 5)
        gone = profile(tmp_path, server.url, exclude=["https://x.org/6"])
        after = run(gone, "filter")
        assert len(server.asked) == total, "a takedown asks nothing"
        assert made_from(made["filter"]) - made_from(after["filter"]) == {ids[TAKEN_DOWN]}


def test_of_many_shards_a_plan_reads_some(tmp_path: Path) -> None:
    name = profile(tmp_path, "http://127.0.0.1:9/v1", shard_documents=1)
    run(name, "download")
    few = said(show_plan, Asked(name, ["synthesise.limit=10", "synthesise.prompts=[{name: rewrite}]"], None, []))
    assert "about 10 new requests, and 0 that are answered already, on 10 documents" in few
    every = said(show_plan, Asked(name, ["synthesise.prompts=[{name: rewrite}]"], None, []))
    assert f"about {DOCUMENTS} new requests" in every


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["runtime.synthesise.url=null"], "runtime.synthesise.url is missing"),
        (["synthesise.sources=[other]"], "synthesise.sources names other"),
        (["pretrain.mixture={mine: 0.5, synthetic/other: 0.5}"], "names synthetic/other"),
        (["synthesise.prompts=[{name: mine}]"], "none of ours"),
        (
            ["pretrain=null", "base={repository: a/b, revision: c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff}"],
            "synthesise makes documents to pretrain on",
        ),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(profile(tmp_path, "http://127.0.0.1:9/v1"), overrides)
    assert message in str(error.value)


def test_mixtures_may_name_what_a_model_writes(tmp_path: Path) -> None:
    path = profile(tmp_path, "http://127.0.0.1:9/v1")
    chosen = load(path, ["pretrain.mixture={mine: 0.7, synthetic/rewrite: 0.3}"])
    assert chosen.stage_names[:3] == ("download", "synthesise", "dedup")
    assert "synthesise" not in load("tiny").stage_names
