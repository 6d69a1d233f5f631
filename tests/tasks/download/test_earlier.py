"""A file that is added, changed or gone costs its own portions, and the artifact is that of a store without a past."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.manifest import Manifest
from storage.shards.documents import read_documents, read_ledger
from storage.store import Store
from tasks.download import DownloadConfig, download
from tasks.download.earlier import RECORD
from tasks.stage.session import Session, open_session
from tests.notes import Notes
from tests.runtimes import runtime_of
from tests.tasks.download.archives import html, http, packed, page, warc

ROWS = 40
LICENCES = ("MIT", "https://creativecommons.org/licenses/by-sa/4.0/deed.de")


class Place:
    """A store, and runs of `download` on it."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.store, self.notes = Store(url or str(folder / "store"), cache=folder / "cache"), Notes()

    def run(self, config: DownloadConfig, workers: int = 1) -> Artifact:
        with open_session(Session(self.store, runtime_of(workers=workers), observer=self.notes)):
            made, cached = download.materialize(config, ())
        assert not cached
        return made


def write(folder: Path, number: int, text: str = "") -> None:
    """A file of lines, of which one is broken."""
    rows = [
        json.dumps({"text": f"{text} {number}: line {row} of a file about mills", "license": LICENCES[row % 2]})
        for row in range(ROWS)
    ]
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.jsonl").write_text("\n".join([*rows, "{"]) + "\n")


def config_of(*sources: dict[str, Any], **more: Any) -> DownloadConfig:
    values = {"sources": list(sources), "benchmarks": [], "max_quarantined_share": 0.1, "shard_bytes": 700, **more}
    return DownloadConfig.model_validate(values)


def lines(folder: Path) -> dict[str, Any]:
    return {"kind": "files", "name": "lines", "paths": [str(folder / "*.jsonl")]}


def manifest(made: Artifact) -> Manifest:
    assert made.manifest is not None
    return made.manifest


def taken(made: Artifact) -> tuple[int, int]:
    """Portions that were taken, and all."""
    facts = manifest(made).facts
    return facts["shards_reused"], round(facts["shards_reused"] / facts["share_reused"]) if facts[
        "shards_reused"
    ] else 0


@pytest.mark.parametrize(("workers", "url"), [(1, ""), (2, ""), (1, "memory://portions")])
def test_a_file_costs_its_own_portions(workers: int, url: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    for number in (1, 3, 5):
        write(files, number)
    config = config_of(lines(files))
    place = Place(tmp_path / "place", url and f"{url}-{tmp_path.name}")
    first = place.run(config, workers)
    each = len((first.file(RECORD)).read_text().splitlines())
    write(files, 2)  # added
    write(files, 5, "changed")
    (files / "3.jsonl").unlink()
    second = place.run(config, workers)
    fresh = Place(tmp_path / "fresh").run(config)
    assert manifest(first).facts["shards_reused"] == 0
    assert taken(second) == (each // 3, each)
    assert second.digest == fresh.digest
    assert manifest(second).key == manifest(fresh).key
    assert manifest(second).counts == manifest(fresh).counts
    assert f"{each // 3} of {each} portions of files taken from {first.location}" in place.notes.said
    ledger = [row for path in second.part("ledger").files("*.parquet") for row in read_ledger(path)]
    assert [row.detail.rpartition("/")[2] for row in ledger] == [f"{number}.jsonl:{ROWS + 1}" for number in (1, 2, 5)]


def test_pages_are_extracted_once(tmp_path: Path) -> None:
    gone = warc("https://x.org/gone", http(b"", status="404 No"))
    for number in range(2):
        (tmp_path / f"{number}.warc.gz").write_bytes(packed(*(page(f"{number}-{one}") for one in range(9)), gone))
    web = {"kind": "web", "name": "web", "extractor": "resiliparse", "paths": [str(tmp_path / "*.gz")]}
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("nobody.example\n")
    place = Place(tmp_path / "place")
    config = config_of(web | {"exclude_host_files": [str(hosts)]})
    place.run(config)
    (tmp_path / "2.warc.gz").write_bytes(packed(page("new"), gone, gone))
    second = place.run(config)
    assert taken(second)[0] >= 2
    assert second.digest == Place(tmp_path / "fresh").run(config).digest
    hosts.write_text("x.org\n")  # a list that says what is read isn't read as pages are
    assert taken(place.run(config)) == (0, 0)


def ids(made: Artifact, number: int) -> list[str]:
    """Ids of documents of a file of lines."""
    documents = (one for path in made.part("documents").files("*.parquet") for one in read_documents(path))
    return [document.id for document in documents if f" {number}: line" in document.text]


def test_a_takedown_costs_the_shards_that_it_touches(tmp_path: Path) -> None:
    """Each change of what is excluded gives the artifact of an empty store."""
    for number in range(3):
        write(tmp_path / "files", number)
    (tmp_path / "web.warc.gz").write_bytes(
        packed(*(page(f"p{number}") for number in range(4)), warc("https://x.org/", http(html("x"))))
    )
    web = {"kind": "web", "name": "web", "extractor": "resiliparse", "paths": [str(tmp_path / "*.gz")]}
    sources = [lines(tmp_path / "files"), web]
    place = Place(tmp_path / "place")
    first = place.run(config_of(*sources))
    one, other = ids(first, 1)[3], ids(first, 2)[0]
    lists = tmp_path / "takedowns.txt"
    lists.write_text(f"# by letter\nhttps://example.org/p2\n{other}\n")

    def rerun(name: str, **more: Any) -> Artifact:
        made = place.run(config_of(*sources, **more))
        fresh = Place(tmp_path / name).run(config_of(*sources, **more))
        assert made.digest == fresh.digest
        assert manifest(made).counts == manifest(fresh).counts
        assert manifest(made).facts["share_reused"] == 1
        return made

    second = rerun("1", exclude=[one], exclude_files=[str(lists)])
    assert manifest(second).counts["documents"]["removed"] == {"excluded": 3}
    licences = [tuple(row.values()) for row in manifest(second).counts["tables"]["Documents by licence"]]
    assert licences == [("lines", "CC-BY-SA-4.0", 59), ("lines", "MIT", 59), ("web", "not stated", 4)]
    shards = manifest(first).files.keys() & manifest(second).files.keys()
    changed = {name for name in shards if manifest(first).files[name].sha256 != manifest(second).files[name].sha256}
    assert len([name for name in changed if name.startswith("documents/")]) == 3
    gone = {row.id for path in second.part("ledger").files("*.parquet") for row in read_ledger(path) if not row.detail}
    assert {one, other} < gone
    lists.write_text(f"https://example.org/p2\n{other}\nEXAMPLE.org\n")
    third = rerun("2", exclude=[one], exclude_files=[str(lists)])
    assert manifest(third).counts["documents"]["removed"] == {"excluded": 6}
    rerun("3", exclude=[one])  # taken from the first, as the others lack more
    write(tmp_path / "files", 3)
    more = place.run(config_of(*sources, exclude=ids(place.run(config_of(*sources)), 3)[:1]))
    assert manifest(more).facts["share_reused"] == 1


def test_documents_of_the_packages_can_be_excluded_and_other_words_are_refused(tmp_path: Path) -> None:
    embedded = {"kind": "embedded", "corpora": ["speeches"], "limit": 3}
    place = Place(tmp_path / "place")
    first = place.run(config_of(embedded, shard_bytes=4_000_000))
    (path,) = first.part("documents").files("*.parquet")
    gone = next(read_documents(path))
    second = place.run(config_of(embedded, shard_bytes=4_000_000, exclude=[sha256(gone.text.encode()).hexdigest()]))
    assert manifest(second).counts["documents"]["removed"] == {"excluded": 1}
    with pytest.raises(ValidationError, match="neither an id"):
        config_of(embedded, exclude=["my document"])
    (tmp_path / "list").write_text("# fine\nnot a host\n")
    with pytest.raises(SourceError, match="list:2 is neither"):
        place.run(config_of(embedded, exclude_files=[str(tmp_path / "list")]))


@pytest.mark.parametrize("damage", ["documents/00000.parquet", "ledger/00000.parquet", RECORD])
def test_what_has_changed_is_read_again(damage: str, tmp_path: Path) -> None:
    write(tmp_path / "files", 1)
    config = config_of(lines(tmp_path / "files"))
    place = Place(tmp_path / "place")
    first = place.run(config)
    write(tmp_path / "files", 2)
    path = first.path / damage
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    second = place.run(config)
    assert second.digest == Place(tmp_path / "fresh").run(config).digest
    assert any(damage in note for note in place.notes.said)


def test_only_how_a_source_is_read_matters(tmp_path: Path) -> None:
    """Another source, a further pattern or another limit on losses costs no portion. What changes its text does."""
    for name in ("files", "more"):
        write(tmp_path / name, 1)
    (tmp_path / "documents/deep").mkdir(parents=True)
    (tmp_path / "documents/deep/LICENSE").write_text("SPDX-License-Identifier: MIT")
    (tmp_path / "documents/deep/a.md").write_text("A page of some words.")
    of_lines, more = lines(tmp_path / "files"), lines(tmp_path / "more") | {"name": "more"}
    deep = {"kind": "documents", "name": "deep", "paths": [str(tmp_path / "documents/**/*.md")]}
    place, first = Place(tmp_path / "place"), config_of(of_lines, deep)
    every = len(place.run(first).file(RECORD).read_text().splitlines())
    of_deep = 1

    def reused(config: DownloadConfig) -> int:
        made = place.run(config)
        assert made.digest == Place(tmp_path / f"fresh-{made.digest}").run(config).digest
        number: int = manifest(made).facts["shards_reused"]
        return number

    assert reused(config_of(more, of_lines, deep)) == every
    assert reused(config_of(deep, of_lines, max_quarantined_share=0.5, benchmarks=["piqa"])) == every
    wider = of_lines | {"paths": [*of_lines["paths"], str(tmp_path / "files/1.jsonl")]}
    assert reused(config_of(wider, deep)) == every
    assert reused(config_of(of_lines | {"quotes": False}, deep)) == of_deep
    assert reused(config_of(of_lines | {"limit": 2}, deep)) == of_deep
    assert reused(config_of(of_lines | {"name": "renamed"}, deep)) == of_deep
    nearer = deep | {"paths": [str(tmp_path / "documents/deep/*.md")]}
    assert reused(config_of(of_lines, nearer)) == every - of_deep, "the path in the metadata is another"
    assert reused(config_of(of_lines, deep | {"extractor": "resiliparse"})) == every - of_deep
    assert reused(config_of(of_lines, deep, max_document_bytes=1000)) == 0
