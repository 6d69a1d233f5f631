"""The profile of the page on getting text in, from a dump of Wikipedia to documents that can be explained."""

from __future__ import annotations

import bz2
import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import gristmill as gm
from flows.commands.documents.explain import explain_document, list_removed
from storage.shards.documents import read_documents
from tests.docs.pages import blocks
from tests.docs.test_tutorials import merged
from tests.tasks.download.articles import ARTICLES
from tests.tasks.download.made import HEAD, TAIL, page

NAME = "dumps/xywiki-20260101-pages-articles-multistream1.xml-p1p41242.bz2"


def test_a_dump_becomes_documents_and_every_page_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (one for one in blocks("yaml") if one.text.startswith("# wiki.yaml\n"))
    profile = merged(yaml.safe_load(block.text), {"name": "wiki", "download": {"benchmarks": []}})
    Path("wiki.yaml").write_text(yaml.safe_dump(profile))
    redirect = page("Mill", "#REDIRECT [[Aldbrook]]", more='    <redirect title="Aldbrook" />\n')
    pages = [redirect, *(page(article.title, article.markup) for article in ARTICLES)]
    Path("dumps").mkdir()
    Path(NAME).write_bytes(b"".join(bz2.compress(part.encode()) for part in (HEAD, "".join(pages), TAIL)))
    store = str(tmp_path / "store")
    assert gm.plan("wiki.yaml", store=store) is not None
    made = gm.run("wiki.yaml", store=store, to="download", progress=False)["download"]
    assert made.counts["documents"]["removed"] == {"no_text": 1, "redirect": 1}
    (shard,) = (made.path / "documents").glob("*")
    documents = list(read_documents(shard))
    assert [document.text for document in documents] == [article.text for article in ARTICLES if article.text]
    said = io.StringIO()
    console = Console(file=said, width=500)
    overrides = [f"runtime.store={store}"]
    list_removed(console, "redirect", "wiki.yaml", overrides, None, 10)
    assert f"{NAME} offset {len(bz2.compress(HEAD.encode()))}: Mill" in said.getvalue()
    explain_document(console, documents[0].id, "wiki.yaml", overrides)
    assert '"url": "https://en.wikipedia.org/wiki/Aldbrook"' in said.getvalue()
