"""The profile of the page on getting text in, from a folder of documents."""

from __future__ import annotations

import io
import shutil
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
from tests.tasks.download.archives import html
from tests.tasks.download.papers import SCAN, column, docx, paragraph, pdf

SMALL: dict[str, Any] = {
    "name": "papers",
    "download": {"benchmarks": []},
    "filter": None,
    "evaluate": None,
    "export": None,
}


def test_a_folder_of_documents_becomes_rows_and_each_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (one for one in blocks("yaml") if one.text.startswith("# papers.yaml\n"))
    Path("papers.yaml").write_text(yaml.safe_dump(merged(yaml.safe_load(block.text), SMALL)))
    Path("papers/old").mkdir(parents=True)
    Path("papers/mill.pdf").write_bytes(pdf(column(["The mill of the valley has turned for two hundred years."])))
    Path("papers/old/scan.pdf").write_bytes(pdf([SCAN], [SCAN]))
    Path("papers/word.docx").write_bytes(docx(paragraph("The wheel was made of oak.")))
    shutil.copy("papers/mill.pdf", "papers/old/mill.pdf")
    Path("papers/page.html").write_bytes(html("wheel"))
    store = str(tmp_path / "store")
    planned = gm.plan("papers.yaml", store=store)
    made = gm.run("papers.yaml", store=store, to="download", progress=False)["download"]
    assert planned is not None
    assert made.counts["documents"]["kept"] == 4
    assert made.counts["documents"]["removed"] == {"scanned": 1}
    said = io.StringIO()
    console = Console(file=said, width=200)
    overrides = [f"runtime.store={store}"]
    list_removed(console, "scanned", "papers.yaml", overrides, None, 10)
    assert "papers/old/scan.pdf: 2 of 2 pages" in said.getvalue()
    (path,) = (made.path / "documents").glob("*")
    named = {document.text.split(" ", 2)[1]: document.id for document in read_documents(path)}
    explain_document(console, named["wheel"], "papers.yaml", overrides)
    assert '"format": "docx"' in said.getvalue()
    assert '"path": "word.docx"' in said.getvalue()
