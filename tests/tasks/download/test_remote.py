"""Web archives at addresses: a server that refuses, cuts, redirects or changes costs time or ends the run by name."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from storage.errors import ConfigError, SourceError
from storage.shards.documents import read_documents
from tasks.download import DownloadConfig, download
from tasks.download.config import WebSource
from tasks.download.sources import remote
from tasks.download.sources.remote import Politeness, look, open_address
from tasks.download.web.archives import fingerprint
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.s3_server import s3_server
from tests.tasks.download.archives import html, http, packed, page, warc
from tests.tasks.download.file_server import Behaviour, serve_files

ARCHIVE = packed(*(warc(f"https://example.org/{number}", http(html(f"{number}"))) for number in range(40)))
PATIENT = Politeness(2, 1.0)


@pytest.fixture
def behaviour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Behaviour:
    monkeypatch.setattr(remote, "BLOCK", 1000)
    monkeypatch.setattr(remote, "LONGEST_PAUSE", 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Behaviour({"a.warc.gz": ARCHIVE})


@pytest.fixture
def root(behaviour: Behaviour) -> Iterator[str]:
    with serve_files(behaviour) as url:
        yield url


def source(*paths: str, **more: Any) -> WebSource:
    values = {"name": "web", "extractor": "resiliparse", **({"paths": list(paths)} if paths else {}), **more}
    return WebSource.model_validate(values)


def run(folder: Path, one: WebSource, workers: int = 1, **more: Any) -> Output:
    config = DownloadConfig.model_validate({"sources": [one.model_dump()], "benchmarks": [], **more})
    out = Output.at(folder, stage="download", runtime=runtime_of(workers=workers, connections=1))
    download.function(config, out)
    return out


def shards(out: Output) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.path.glob("documents/*"))}


TROUBLE: dict[str, dict[str, Any]] = {
    "sound": {},
    "whole files only": {"parts": False},
    "refused": {"refusals": [0, 403, 503, 429, 500, 408] * 3},
    "refused, whole files only": {"refusals": [0, 403, 503], "parts": False},
    "refused at first": {"refusals": [0, 403]},
    "asked to wait": {"refusals": [0, 429], "wait": "0"},
    "each connection dies": {"cut": 300},
    "each part is short": {"short": 300},
    "without versions": {"versioned": False},
}


@pytest.mark.parametrize("name", TROUBLE)
def test_what_arrives_is_the_file(name: str, behaviour: Behaviour, root: str, tmp_path: Path) -> None:
    behaviour.__dict__.update(TROUBLE[name])
    with open_address(look(f"{root}/moved/a.warc.gz"), tmp_path, PATIENT) as file:
        assert file.read() == ARCHIVE
        assert (file.seek(-50, 2), file.read()) == (len(ARCHIVE) - 50, ARCHIVE[-50:])
        assert (file.seek(1500), file.read(700)) == (1500, ARCHIVE[1500:2200])
    assert not behaviour.refusals


def test_a_server_that_cuts_whole_files_is_asked_until_patience_ends(
    behaviour: Behaviour, root: str, tmp_path: Path
) -> None:
    behaviour.parts, behaviour.cut = False, 300
    with pytest.raises(SourceError, match=r"a\.warc\.gz can't be read: RemoteProtocolError"):
        open_address(look(f"{root}/a.warc.gz"), tmp_path, Politeness(2, 0.001))


def test_a_server_whose_parts_are_empty_is_asked_until_patience_ends(
    behaviour: Behaviour, root: str, tmp_path: Path
) -> None:
    behaviour.short = 0
    with (
        open_address(look(f"{root}/a.warc.gz"), tmp_path, Politeness(2, 0.001)) as file,
        pytest.raises(SourceError, match=r"a\.warc\.gz can't be read: its server sent less than was asked for"),
    ):
        file.read()


def test_what_time_does_not_mend_ends_by_name(behaviour: Behaviour, root: str, tmp_path: Path) -> None:
    behaviour.files |= {"empty.warc.gz": b"", "a.part": ARCHIVE}
    with pytest.raises(SourceError, match=r"none\.warc\.gz can't be read: its server answered 404"):
        look(f"{root}/none.warc.gz")
    with pytest.raises(SourceError, match="redirects"):
        look(f"{root}/circle")
    with pytest.raises(ConfigError, match="holds a password"):
        look(root.replace("://", "://me:secret@") + "/a.warc.gz")
    with pytest.raises(SourceError, match="unknown extension"):
        run(tmp_path / "1", source(f"{root}/a.warc.gz", f"{root}/a.part"))
    with pytest.raises(SourceError, match="it is empty"):
        run(tmp_path / "2", source(f"{root}/empty.warc.gz"))
    behaviour.refusals = [403] * 1000
    with pytest.raises(SourceError, match="its server answered 403"):
        look(f"{root}/a.warc.gz", Politeness(2, 0.001))


def test_a_file_that_changes_while_it_is_read_ends_the_run(behaviour: Behaviour, root: str, tmp_path: Path) -> None:
    address = look(f"{root}/a.warc.gz")
    before = fingerprint(source(address.url))
    behaviour.version = '"2"'
    with pytest.raises(SourceError, match="isn't the file that the run began with"):
        open_address(address, tmp_path, PATIENT).read()
    assert fingerprint(source(address.url)) != before


@pytest.mark.parametrize("name", ["refused at first", "each connection dies", "whole files only"])
def test_a_run_over_http_writes_the_shards_of_one_on_files(
    name: str, behaviour: Behaviour, root: str, tmp_path: Path
) -> None:
    """The same shards, also from workers that divide the archive."""
    behaviour.__dict__.update(TROUBLE[name])
    (tmp_path / "a.warc.gz").write_bytes(ARCHIVE)
    few = {"shard_bytes": 2000}
    mine = run(tmp_path / "local", source(str(tmp_path / "a.warc.gz")), **few)
    over = run(tmp_path / "http", source(f"{root}/a.warc.gz"), workers=2, **few)
    assert over.counts["documents"]["kept"] == 40
    if behaviour.parts:  # else it isn't divided
        assert shards(over) == shards(mine)
    assert over.facts["source_bytes"] == {"web": len(ARCHIVE)}


def test_archives_in_a_bucket_are_those_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "BLOCK", 5000)
    few = {"shard_bytes": 2000}
    with s3_server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        bucket = fsspec.filesystem("s3")
        bucket.mkdir("crawl")
        for name in ("a", "b"):
            bucket.pipe(f"crawl/{name}.warc.gz", ARCHIVE)
            (tmp_path / f"{name}.warc.gz").write_bytes(ARCHIVE)
        over = run(tmp_path / "bucket", source("s3://crawl/*.warc.gz"), **few)
        assert shards(over) == shards(run(tmp_path / "files", source(str(tmp_path / "*.warc.gz")), **few))
        for path, said in (("none*.warc.gz", "No file matches"), ("none.warc.gz", "can't be read")):
            with pytest.raises(SourceError, match=said):
                run(tmp_path / "none", source(f"s3://crawl/{path}"))


def test_a_machine_makes_few_requests_to_a_host_at_a_time(behaviour: Behaviour) -> None:
    running, most = Counter[str](), Counter[str]()

    def ask(host: str) -> None:
        with remote._turn(f"https://{host}/{random.random()}", 2):
            running[host] += 1
            most[host] = max(most[host], running[host])
            time.sleep(0.02)
            running[host] -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, ["a.example", "b.example"] * 8))
    assert most == {"a.example": 2, "b.example": 2}


def test_archives_of_a_crawl_are_selected_from_its_list(behaviour: Behaviour, root: str, tmp_path: Path) -> None:
    names = [f"crawl-data/CC-MAIN-2026-30/segments/{number}/w.warc.gz" for number in range(6)]
    behaviour.files |= {name: packed(page(f"p{number}")) for number, name in enumerate(names)}
    listed = "\n".join(names).encode()
    behaviour.files["crawl-data/CC-MAIN-2026-30/warc.paths.gz"] = gzip.compress(listed)
    (tmp_path / "some.paths").write_bytes(listed)

    def found(**crawl: Any) -> set[str]:
        out = run(tmp_path / f"run{len(list(tmp_path.iterdir()))}", source(crawl={"root": root, **crawl}))
        assert out.facts["files"] == out.counts["documents"]["kept"]
        texts = (document for path in out.path.glob("documents/*") for document in read_documents(path))
        return {json.loads(document.metadata)["url"] for document in texts}

    whole, two = found(id="CC-MAIN-2026-30"), found(id="CC-MAIN-2026-30", files=2)
    three = found(path_list=str(tmp_path / "some.paths"), files=3)
    assert (len(whole), len(three), len(two)) == (6, 3, 2)
    assert whole > three > two
    (tmp_path / "some.paths").write_text("../../etc/passwd\n")
    with pytest.raises(SourceError, match="isn't a list of paths"):
        found(path_list=str(tmp_path / "some.paths"))
    with pytest.raises(SourceError, match="404"):
        found(id="CC-MAIN-2027-01")
