"""The profile of the page on getting text in, from a web archive to tokens."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

import gristmill as gm
from flows.commands.documents.explain import explain_document, list_removed
from storage.shards.documents import read_documents
from tests.docs.pages import blocks
from tests.docs.test_tutorials import merged
from tests.tasks.download.archives import http, packed, page, warc

PAGES = 30
SMALL: dict[str, Any] = {
    "name": "web",
    "download": {"benchmarks": []},
    "dedup": {"threshold": 0.99},
    "filter": None,
    "tokenizer": {"vocab_size": 300},
    "tokenize": {"validation_share": 0.2},
    "evaluate": None,
    "export": None,
}


def test_a_web_archive_becomes_tokens_and_every_page_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (one for one in blocks("yaml") if one.text.startswith("# web.yaml\n"))
    Path("web.yaml").write_text(yaml.safe_dump(merged(yaml.safe_load(block.text), SMALL)))
    os.mkdir("crawl")
    gone = warc("https://example.org/gone", http(b"", "text/html", "404 Not Found"))
    ad = warc("https://www.example.com/ad", http(b"<p>Buy flour now, and pay for it next year.</p>"))
    for number in range(2):
        records = (page(f"{word} {number}-{at}") for at in range(PAGES // 2) for word in ("mill",))
        Path(f"crawl/{number}.warc.gz").write_bytes(packed(*records, gone, ad))
    store = str(tmp_path / "store")
    planned = gm.plan("web.yaml", store=store)
    made = gm.run("web.yaml", store=store, to="tokenize", progress=False)
    counts = made["download"].counts
    assert counts["documents"]["in"] == PAGES + 4
    assert counts["documents"]["removed"] == {"excluded_host": 2, "http_status": 2}
    assert made["tokenize"].counts["documents"]["kept"] == PAGES
    assert planned is not None
    said = io.StringIO()
    console = Console(file=said, width=200)
    overrides = [f"runtime.store={store}"]
    list_removed(console, "http_status", "web.yaml", overrides, None, 10)
    assert "download removed 2 by http_status" in said.getvalue()
    assert "0.warc.gz offset" in said.getvalue()
    assert "https://example.org/gone" in said.getvalue()
    (path,) = (made["download"].path / "documents").glob("*")
    identity = next(read_documents(path)).id
    explain_document(console, identity, "web.yaml", overrides)
    assert '"url": "https://example.org/mill 0-0"' in said.getvalue()
