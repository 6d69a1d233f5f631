"""`plan --scale`: the cost of more text, from a store's manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.commands.plan import show_plan
from flows.commands.scale import corpus_bytes, costs, in_corpus, measured, sizes_of
from flows.plan import plan
from flows.records.recorder import Asked
from flows.session import session_of
from models.growth import TOKEN
from profiles.load import load
from storage.errors import ConfigError
from storage.keys import KeyPayload
from storage.manifest import InputRef, Manifest
from storage.shards.documents import Document, text_bytes, write_documents
from storage.store import Store
from tasks.stage.session import open_session

TEXTS = [
    f"The owl of page {number} flies over the old house in the wood, and nobody sees it. " for number in range(400)
]

DIGEST = "0" * 64


def test_sizes_are_read_as_they_are_said() -> None:
    assert sizes_of(["360MB", "1TB", "1.5PB"]) == [360 * 10**6, 10**12, 1500 * 10**12]
    for wrong in ("1", "TB", "-1TB", "1 tb", "0GB", "1e3TB"):
        with pytest.raises(ConfigError, match="--scale"):
            sizes_of([wrong])


def test_text_is_counted_from_the_footer(tmp_path: Path) -> None:
    texts = [text * (1 + number % 7) for number, text in enumerate(TEXTS)]
    write_documents(tmp_path / "00000.parquet", (Document.new(text, "words") for text in texts))
    assert text_bytes(tmp_path / "00000.parquet") == pytest.approx(sum(len(text) for text in texts), rel=0.02)


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """A finished download of plain text."""
    (tmp_path / "text.txt").write_text("".join(TEXTS))
    asked = [
        f"download.sources=[{{kind: files, name: words, paths: ['{tmp_path / 'text.txt'}']}}]",
        "download.benchmarks=[]",
        "sft=null",
        "dpo=null",
        f"runtime.store={tmp_path / 'store'}",
        "runtime.data.workers=1",
    ]
    profile = load("tiny", asked)
    with open_session(session_of(profile)):
        from tasks.download import download

        download.materialize(profile.download, ())
    return asked


def test_what_was_measured_is_scaled_and_what_was_not_is_named(settings: list[str], tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    (manifest,) = (manifest for _, manifest in store.manifests("download"))
    text = corpus_bytes(manifest, {})
    assert text == pytest.approx(sum(map(len, TEXTS)), rel=0.02)
    assert manifest.facts["cpu_seconds"] > 0
    assert manifest.facts["peak_memory_bytes"] > 10**7
    profile = load("tiny", settings)
    (cost,) = costs(profile, store, plan(profile), 10**12)
    assert (cost.stage, cost.growth.law) == ("download", "n")
    assert 3600 * cost.core_hours == pytest.approx(manifest.facts["cpu_seconds"] * 10**12 / text)
    assert cost.disk == pytest.approx(manifest.size * 10**12 / text)
    console = Console(width=200)
    with console.capture() as captured:
        show_plan(console, Asked("tiny", settings), scale=["1TB"], workers=1000)
    told = captured.get()
    assert "1.0 TB of text" in told
    assert "dedup, filter, tokenizer, tokenize: no run in this store has measured them" in told
    assert "on 1000 workers" in told
    assert "most of it download (100%)" in told
    assert "Measure a larger one before you trust it" in told


def test_what_a_stage_read_is_told_and_scaled(settings: list[str], tmp_path: Path) -> None:
    profile = load("tiny", settings)
    with open_session(session_of(profile)):
        from tasks.dedup import dedup
        from tasks.download import download

        raw = download.materialize(profile.download, ())[0]
        assert profile.dedup is not None
        unique = dedup.materialize(profile.dedup, (raw.part("documents"),))[0]
    assert raw.manifest is not None
    assert unique.manifest is not None
    text = raw.manifest.facts["text_bytes"]
    assert "bytes_in" not in raw.manifest.facts
    assert unique.manifest.facts["bytes_in"] == text
    found = {one.stage: one for one in costs(profile, Store(str(tmp_path / "store")), plan(profile), 1000 * text)}
    assert found["dedup"].bytes_in == pytest.approx(1000 * text)
    of_half = unique.manifest.model_copy(update={"facts": {"bytes_in": text / 2}})
    assert in_corpus(100.0, text, of_half) == 200, "a stage that gets half of the corpus"


def test_the_tokens_of_a_vocabulary_count_in_the_stages_that_load_it() -> None:
    def made(stage: str, **fields: Any) -> Manifest:
        facts = {"bytes_in": 50, "cpu_seconds": 1.0}
        payload = KeyPayload(stage=stage, version=1, config={}, inputs={})
        filled = {"facts": facts, **fields}
        return Manifest(key="k", payload=payload, digest=DIGEST, files={}, created="", **filled)

    learned = made("tokenizer", counts={"vocab_size": 1000})
    encoded = made("tokenize", origins={"tokenizer": InputRef(location="tokenizer/k")})
    plain = made("filter", counts={"vocab_size": 1000})
    manifests = {"tokenizer/k": learned, "tokenize/k": encoded}
    for one, token in ((learned, TOKEN["tokenizer"]), (encoded, TOKEN["tokenize"]), (plain, 0)):
        assert measured((100, one), (100, one), manifests) == (100, 1.0, 2 * 1000 * token)
    more = made("filter", facts={"bytes_in": 150, "cpu_seconds": 2.0})
    assert measured((300, plain), (200, more), manifests) == (67, 1.0, 0), "a third of what the largest corpus left"


def test_what_took_over_shards_tells_nothing_of_the_work(settings: list[str], tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))

    def dedup_costs(text: int, *more: str) -> float:
        profile = load("tiny", [*settings, "download.shard_documents=1", *more])
        with open_session(session_of(profile)):
            from tasks.dedup import dedup
            from tasks.download import download

            raw = download.materialize(profile.download, ())[0]
            assert profile.dedup is not None
            dedup.materialize(profile.dedup, (raw.part("documents"),))
        return {one.stage: one.core_hours for one in costs(profile, store, plan(profile), text)}["dedup"]

    first = dedup_costs(10**9)
    (tmp_path / "more.txt").write_text("A word more.")
    paths = [str(tmp_path / name) for name in ("text.txt", "more.txt")]
    assert dedup_costs(10**9, f"download.sources=[{{kind: files, name: words, paths: {json.dumps(paths)}}}]") == first
    shares = {manifest.facts["share_reused"] for _, manifest in store.manifests("sketches")}
    assert shares == {0.0, 0.5}


def test_a_plan_for_programs(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(Console(), Asked("tiny", settings), scale=["1TB", "2TB"], workers=10, json_wanted=True)
    told = json.loads(capsys.readouterr().out)
    stages = {stage["stage"]: stage for stage in told["stages"]}
    assert stages["download"]["hit"]
    assert not stages["dedup"]["hit"]
    first, second = told["scale"]
    assert (first["text_bytes"], second["text_bytes"]) == (10**12, 2 * 10**12)
    assert first["not_measured"] == ["dedup", "filter", "tokenizer", "tokenize"]
    (download,) = first["stages"]
    assert download["memory_bytes"] > 10**7
    assert download["bytes_in"] == 10**12
    assert second["core_hours"] == pytest.approx(2 * first["core_hours"])
    assert first["hours"] == pytest.approx(first["core_hours"] / 10)
