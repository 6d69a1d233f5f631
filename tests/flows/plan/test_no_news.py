"""A crawl without new documents ends successfully after dedup, and says so."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from flows.commands.documents.explain import explain_document
from flows.commands.plan import show_plan, show_why
from flows.early import NO_NEWS
from flows.pipeline import stages
from flows.plan import plan
from flows.records.recorder import Asked
from flows.session import session_of
from profiles.load import load
from storage.artifact import Artifact
from storage.errors import AccountingError
from storage.shards.documents import read_documents, read_ledger
from tasks.stage.session import open_session

WORDS = [f"{first}{rest}" for first in "bdfglmrst" for rest in ("ank", "oat", "ill", "ean")]
TEXTS = [" ".join(random.Random(seed).choices(WORDS, k=90)) for seed in range(12)]
CHANGED = TEXTS[3] + " and on"


def profile(folder: Path, texts: Sequence[str], against: Sequence[str] = ()) -> str:
    """A profile that reads these texts, always of one name."""
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    path = folder / "crawl.yaml"
    path.write_text(
        json.dumps(
            {
                "extends": "tiny",
                "name": "crawl",
                "sft": None,
                "dpo": None,
                "evaluate": None,
                "export": None,
                "dedup": {"against": [*against], "threshold": 0.7},
                "download": {
                    "benchmarks": [],
                    "sources": [{"kind": "files", "name": "mine", "paths": [str(folder / "texts.jsonl")]}],
                },
                "runtime": {"store": str(folder / "store"), "data": {"workers": 1}},
            }
        )
    )
    return str(path)


def run(name: str, to: str | None = None) -> Artifact:
    """The pipeline without Prefect."""
    chosen = load(name, [])
    session = replace(session_of(chosen, to), call=lambda stage, config, inputs: stage.materialize(config, inputs)[0])
    with open_session(session):
        return stages(chosen)


def documents(artifact: Artifact) -> list[str]:
    return [one.text for path in sorted(artifact.files("documents/*.parquet")) for one in read_documents(path)]


def said(tell: object, *arguments: object) -> str:
    console = Console(file=io.StringIO(), width=300)
    tell(console, *arguments)  # type: ignore[operator]
    found: str = console.file.getvalue()  # type: ignore[attr-defined]
    return found


def test_a_crawl_without_news_ends_after_dedup_and_the_next_goes_on(tmp_path: Path) -> None:
    old = run(profile(tmp_path, TEXTS), "dedup")
    assert len(documents(old)) == len(TEXTS)
    again = profile(tmp_path, [*TEXTS[:5], CHANGED], ["crawl/dedup@1"])
    waiting = [line.name for line in plan(load(again, []))]
    assert waiting[-1] == "pretrain", "before dedup is made nobody can know"
    empty = run(again)
    assert empty.manifest is not None
    assert (empty.location.partition("/")[0], documents(empty)) == ("dedup", [])
    assert empty.manifest.counts["documents"]["kept"] == 0
    assert [line.name for line in plan(load(again, []))] == ["download", "dedup"]
    assert NO_NEWS in said(show_plan, Asked(again, [], None, []))
    assert said(show_why, "filter", again, []) == f"filter: not reached. {NO_NEWS}\n"
    (copy,) = [
        one.id
        for path in empty.files("ledger/*.parquet")
        for one in read_ledger(path)
        if one.reason != "exact_duplicate"
    ]
    told = said(explain_document, copy, again, [])
    assert "removed: near_duplicate" in told
    assert "in crawl/dedup@1, from mine" in told
    assert TEXTS[3][:200] in told
    # An artifact without documents is one to compare with; with news the run goes on
    news = run(profile(tmp_path, [*TEXTS[:5], "Something else. " * 20], ["crawl/dedup@1", "crawl/dedup@2"]), "dedup")
    assert documents(news) == ["Something else. " * 20]


def test_without_earlier_runs_a_source_that_loses_nearly_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AccountingError, match="too much of a source: mine lost 11 of 12"):
        run(profile(tmp_path, [TEXTS[0]] * 12), "dedup")
