"""Parquet of the hub is read where it is: what arrives is what lies there, whatever the servers do."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from storage.errors import ConfigError, SourceError
from storage.shards.documents import read_documents
from tasks.download import DownloadConfig, download
from tasks.download.config import HubSource
from tasks.download.earlier import RECORD
from tasks.download.sources import hub, remote
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.download.file_server import Behaviour, Repository, serve_files
from tests.tasks.download.test_earlier import Place

FILES, GROUPS, ROWS = 2, 3, 10
COMMITS = (f"{number:040x}" for number in itertools.count(1))
CARD = """---
configs:
- config_name: prose
  data_files: [{split: train, path: "prose/train-*.parquet"}, {split: test, path: "prose/test.parquet"}]
- {config_name: other, data_files: "prose/train-*.parquet"}
---
"""


def parquet(file: int, words: int = 300) -> bytes:
    """A file of several groups, with a column that is larger than the text."""
    out = io.BytesIO()
    places = range(file * GROUPS * ROWS, (file + 1) * GROUPS * ROWS)
    texts = [f"Document {place} of the hub says something of its own." for place in places]
    other = [f"{place} " * words for place in places]
    table = pa.table({"id": [*places], "other": other, "text": texts})
    pq.write_table(table, out, row_group_size=ROWS, compression="none", use_dictionary=False, write_page_checksum=True)
    return out.getvalue()


DATA = {f"prose/train-{number}.parquet": parquet(number) for number in range(FILES)}
VERSE = b"".join(json.dumps({"text": f"A verse, the {number}th."}).encode() + b"\n" for number in range(4))


class Hub(NamedTuple):
    """A hub, and the store in which its large files lie."""

    front: Behaviour
    store: Behaviour
    repository: Repository

    def source(self, **more: Any) -> HubSource:
        of_hub = {"dataset": self.repository.dataset, "revision": self.repository.commit}
        return HubSource.model_validate({"name": "hub", "subset": "prose", **of_hub, **more})


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(remote, "LONGEST_PAUSE", 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    repository = Repository("owner/texts", next(COMMITS))
    files = {"README.md": CARD.encode(), "verse/a.jsonl": VERSE, "prose/test.parquet": parquet(7), **DATA}
    front, store = Behaviour(files, hub=repository), Behaviour(dict(files), version='"of the store"')
    with serve_files(front) as url, serve_files(store) as elsewhere:
        repository.elsewhere = elsewhere
        for module, name, value in (
            (constants, "ENDPOINT", url),
            (constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"),
            (constants, "HF_HUB_OFFLINE", False),
            (datasets.config, "HF_ENDPOINT", url),
            (datasets.config, "HUB_DATASETS_URL", url + "/datasets/{repo_id}/resolve/{revision}/{path}"),
            (datasets.config, "HF_HUB_OFFLINE", False),
        ):
            monkeypatch.setattr(module, name, value)
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield Hub(front, store, repository)


def run(folder: Path, *sources: Any, workers: int = 1, **more: Any) -> Output:
    values = {"sources": [one.model_dump() for one in sources], "benchmarks": [], "shard_bytes": 2000, **more}
    out = Output.at(folder, stage="download", runtime=runtime_of(workers=workers, connections=2, patience_minutes=0.02))
    download.function(DownloadConfig.model_validate(values), out)
    return out


def rows(out: Output) -> list[tuple[str, dict[str, Any]]]:
    shards = [read_documents(path) for path in sorted(out.path.glob("documents/*"))]
    return [(document.text, json.loads(document.metadata)) for shard in shards for document in shard]


def expected(*columns: str) -> list[tuple[str, dict[str, Any]]]:
    found = [row for data in DATA.values() for row in pq.read_table(io.BytesIO(data)).to_pylist()]
    return [(row["text"], {name: row[name] for name in columns}) for row in found]


TROUBLE: dict[str, tuple[dict[str, Any], list[int], list[str] | None]] = {
    "sound": ({}, [], ["text", "id"]),
    "the store refuses": ({"refusals": [503, 0, 429, 500, 0, 403] * 2}, [], None),
    "the store refuses, two columns": ({"refusals": [0, 429, 500, 0, 403] * 2, "wait": "0"}, [], ["text", "id"]),
    "each connection dies": ({"cut": 7000}, [], None),
    "whole files only, refused": ({"parts": False, "refusals": [0, 503, 500]}, [], None),
    "the hub refuses": ({}, [500, 429, 503] + [0] * 4 + [429, 500, 0, 503] * 2, None),
}


@pytest.mark.parametrize("name", TROUBLE)
def test_what_arrives_is_the_data_set(name: str, there: Hub, tmp_path: Path) -> None:
    trouble, refusals, columns = TROUBLE[name]
    there.store.__dict__.update(trouble)
    there.repository.refusals.extend(refusals)
    made = run(tmp_path / "made", there.source(columns=columns))
    assert rows(made) == expected("id", *([] if columns else ["other"]))
    assert not there.store.refusals
    assert not there.repository.refusals


def test_small_files_lie_on_the_hub_itself_with_the_digest_of_git(there: Hub, tmp_path: Path) -> None:
    there.repository.elsewhere = ""
    there.front.files["prose/train-1 %2f.parquet"] = there.front.files.pop("prose/train-1.parquet")
    assert rows(run(tmp_path / "made", there.source(), shard_bytes=100_000)) == expected("id", "other")
    assert not there.store.asked


def test_two_columns_cost_their_bytes(there: Hub, tmp_path: Path) -> None:
    large = parquet(0, 10_000)
    for server in (there.front, there.store):
        server.files[min(DATA)] = large
    run(tmp_path / "made", there.source(columns=["text"]), shard_bytes=100_000)
    ranges = [asked.removeprefix("bytes=").split("-") for _, asked, _ in there.store.asked]
    received = sum(int(end) - int(start) + 1 for start, end in ranges)
    assert received < len(large) / 2


def test_workers_share_the_groups_of_a_file(there: Hub, tmp_path: Path) -> None:
    one, two = (run(tmp_path / f"{workers}", there.source(), workers=workers) for workers in (1, 2))
    shards = [[path.read_bytes() for path in sorted(out.path.glob("documents/*"))] for out in (one, two)]
    assert shards[0] == shards[1]
    assert len(shards[0]) >= FILES * GROUPS
    assert rows(one) == expected("id", "other")


def test_a_run_goes_on_with_the_first_unfinished_group(there: Hub, tmp_path: Path) -> None:
    last = max(DATA)
    held = there.store.files.pop(last)
    with pytest.raises(SourceError, match=f"{last} can't be read: its server answered 404"):
        run(tmp_path / "made", there.source())
    there.store.files[last] = held
    there.store.asked.clear()
    assert rows(run(tmp_path / "made", there.source())) == expected("id", "other")
    asked = {path.lstrip("/") for path, _, _ in there.store.asked}
    assert asked == {min(DATA), last}, "the first rows are looked at again"


def test_another_revision_costs_the_files_that_changed(there: Hub, tmp_path: Path) -> None:
    place, fresh = Place(tmp_path / "place"), Place(tmp_path / "fresh")

    def config() -> DownloadConfig:
        values = {"sources": [there.source().model_dump()], "benchmarks": [], "shard_bytes": 500}
        return DownloadConfig.model_validate(values)

    every = len(place.run(config()).file(RECORD).read_text().splitlines())
    there.repository.commit = next(COMMITS)
    for served in (there.front, there.store):
        served.files["prose/train-1.parquet"] = parquet(5)
    second = place.run(config())
    assert second.manifest is not None
    assert every // 3 < second.manifest.facts["shards_reused"] < every
    assert second.digest == fresh.run(config()).digest


def test_a_limit_is_of_rows_and_the_rest_is_not_fetched(there: Hub, tmp_path: Path) -> None:
    made = run(tmp_path / "made", there.source(limit=ROWS + 3))
    assert rows(made) == expected("id", "other")[: ROWS + 3]
    assert {path.lstrip("/") for path, _, _ in there.store.asked} == {min(DATA)}


def test_lies_end_the_run_by_name(there: Hub, tmp_path: Path) -> None:
    first = min(DATA)
    there.repository.lists[first] = {"lfs": {"oid": "f" * 64, "size": len(DATA[first]), "pointerSize": 130}}
    with pytest.raises(SourceError, match=f"{first} isn't the file that the hub lists"):
        run(tmp_path / "digest", there.source())
    there.repository.lists.clear()
    there.store.files[first] += b"more"
    with pytest.raises(SourceError, match=f"{first} isn't the file that the hub lists"):
        run(tmp_path / "size", there.source(subset="other"))


def test_other_bytes_end_the_run_or_cost_their_group(there: Hub, tmp_path: Path) -> None:
    last = max(DATA)
    data = bytearray(DATA[last])
    place = data.index(b"Document 55 ")
    data[place] ^= 1
    there.store.files[last] = bytes(data)
    with pytest.raises(SourceError, match=f"{last} has other bytes than the hub lists"):
        run(tmp_path / "whole", there.source(), shard_bytes=100_000)
    made = run(tmp_path / "parts", there.source(), max_quarantined_share=0.2)
    assert made.counts["documents"]["quarantined"] == ROWS
    assert len(rows(made)) == (FILES * GROUPS - 1) * ROWS


def test_a_token_of_the_environment_goes_to_the_hub_and_nowhere_else(
    there: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.repository.token = "hf_secret"
    with pytest.raises(SourceError) as caught:
        run(tmp_path / "1", there.source())
    assert "HF_TOKEN" in caught.value.remedy
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert len(rows(run(tmp_path / "2", there.source()))) == FILES * GROUPS * ROWS
    assert {token for _, _, token in there.store.asked} == {""}


def test_what_is_not_parquet_is_streamed(there: Hub, tmp_path: Path) -> None:
    there.front.files["README.md"] = b"---\nconfigs:\n- {config_name: verse, data_files: verse/*.jsonl}\n---\n"
    made = run(tmp_path / "made", there.source(subset="verse"))
    assert [text for text, _ in rows(made)] == [json.loads(line)["text"] for line in VERSE.splitlines()]
    with pytest.raises(ConfigError, match="columns can't be chosen of owner/texts"):
        run(tmp_path / "2", there.source(subset="verse", columns=["text"]))


def test_rows_are_those_that_datasets_gives(there: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns: dict[str, list[Any]] = {
        "content": [{"text": f"The text {number}.", "place": number} for number in range(20)],
        "score": [None, 1.5] * 10,
        "day": [datetime(2020, 1, 1, 3)] * 20,
        "tags": [["a", "b"], None] * 10,
        "kept": [True, None] * 10,
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=5)
    for server in (there.front, there.store):
        server.files |= dict.fromkeys(DATA, out.getvalue())
    source = there.source(text_column="content.text")
    mine = rows(run(tmp_path / "mine", source, shard_bytes=100))
    monkeypatch.setattr(hub, "find_parquet", lambda *_: None)
    assert mine == rows(run(tmp_path / "theirs", source))
    assert len(mine) == 20 * FILES


def test_columns_have_the_text(there: Hub, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="lacks text, the column of the text"):
        there.source(columns=["id"])
    assert there.source(columns=["content"], text_column="content.text").columns == ["content"]
    with pytest.raises(SourceError, match="lacks the column url") as caught:
        run(tmp_path / "made", there.source(columns=["text", "url"]))
    assert "it has id, other, text" in caught.value.remedy


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"split": "none"}, "Bad split: none"),
        ({"subset": "none"}, "'none' not found. Available: "),
        ({"revision": "e" * 40}, "Revision 'e+' doesn't exist .* Check the name and the revision"),
    ],
)
def test_what_is_not_there_is_named(wrong: dict[str, str], said: str, there: Hub, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=said):
        run(tmp_path / "2", there.source(**wrong))


def test_pairs_are_read_by_the_same_reader(there: Hub, tmp_path: Path) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"instruction": ["Is it?"] * 3, "output": ["It is."] * 3}), out)
    for server in (there.front, there.store):
        server.files |= {"prose/test.parquet": out.getvalue()}
    there.store.refusals = [500, 429]
    made = run(tmp_path / "made", there.source(split="test", role="instructions", limit=2))
    assert made.counts["instructions"] == 2
