"""A file that is added to a source costs one portion and, in every stage that works by shards, its shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.estimates.plan_notes import reuse_notes
from flows.plan import plan
from flows.session import session_of
from profiles.load import load
from profiles.schema import Profile
from storage.store import Store
from tasks.download.earlier import RECORD
from tests.flows.commands.test_runs import run_stages
from tests.tasks.tiny_model import texts

SENTENCES = list(texts())


def write(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = (json.dumps({"text": f"{text} In book {number} as well."}) for text in SENTENCES[number::5])
    (folder / f"{number}.jsonl").write_text("\n".join(rows) + "\n")


def reused(store: Store, seen: set[str]) -> dict[str, int]:
    """By stage, the shards that were taken, of the artifacts that weren't `seen`, which are now."""
    found = {}
    for stage in ("download", "sketches", "form", "language", "tokenize"):
        for location, made in store.manifests(stage):
            if location not in seen and "shards_reused" in made.facts:
                found[stage] = made.facts["shards_reused"]
            seen.add(location)
    return found


@pytest.mark.soak_but("download")
@pytest.mark.parametrize("to", ["download", "tokenize"])
def test_one_more_file_costs_its_own_shards_and_a_plan_says_so(to: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    for number in range(3):
        write(files, number)
    size = min(path.stat().st_size for path in files.iterdir())
    store = Store(str(tmp_path / "store"))

    def profile(*more: str) -> Profile:
        source = f"download.sources=[{{kind: files, name: books, paths: ['{files}/*.jsonl']}}]"
        divided = ["download.benchmarks=[]", f"download.shard_bytes={size // 8}"]
        small = ["dedup.threshold=0.99", "filter.preset=clean", "tokenizer.vocab_size=300", "sft=null", "dpo=null"]
        return load("smoke", [source, *divided, *small, f"runtime.store={tmp_path / 'store'}", *more])

    def notes(of: Profile) -> list[str]:
        return list(reuse_notes(store, plan(of, session_of(of, to))))

    def portions() -> int:
        (location,) = {location for location, _ in store.manifests("download")} - before
        return len(store.get(location).file(RECORD).read_text().splitlines())

    seen, before = set[str](), set[str]()
    assert notes(profile()) == []
    run_stages(profile(), to)
    assert {*reused(store, seen).values()} == {0}
    first = portions()
    before = {location for location, _ in store.manifests("download")}
    (location,) = before
    shards = len(store.get(location).part("documents").names("*.parquet"))
    write(files, 3)
    keeps = profile("tokenizer.keep=smoke/tokenizer@1") if to == "tokenize" else profile()
    (said,) = notes(keeps)
    run_stages(keeps, to)
    whole = portions()
    assert said.startswith(f"Of {whole} portions of files {whole - first} are read, and the others taken")
    found = reused(store, seen)
    assert found.pop("download") == first
    assert set(found.values()) == ({shards} if to == "tokenize" else set())
