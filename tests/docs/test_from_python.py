"""The page and the notebook on the Python API run, in a process that has an event loop, as a notebook does."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from storage.shards.lines import write_json_lines
from tasks.download.config import EmbeddedSource
from tasks.download.sources import embedded
from tests.docs.pages import ROOT, blocks

NOTEBOOK = ROOT / "docs" / "first-half-hour.ipynb"


def execute(sources: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Run named sources one after the other in one namespace, within a running event loop; the namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}

    async def cells() -> None:
        for name, source in sources:
            code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            assert asyncio.get_running_loop()
            if inspect.isawaitable(found := eval(code, names)):
                await found

    asyncio.run(cells())
    return names


def test_the_blocks_of_the_page_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    leads = embedded.documents(EmbeddedSource(corpora=["encyclopedia"], limit=150))
    write_json_lines(tmp_path / "corpus" / "leads.jsonl", ({"text": lead.text} for lead in leads))
    taught = [block for block in blocks("python") if block.page.name == "from-python.md"]
    assert len([block for block in taught if block.needs]) == 1
    for block in taught:
        ast.parse(block.text)
    names = execute((str(block.page), "\n" * block.line + block.text) for block in taught if not block.needs)
    assert names["result"].kept == names["result"].documents().num_rows > 10


def test_the_notebook_has_no_outputs_and_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names = execute((cell["id"], "".join(cell["source"])) for cell in cells)
    assert len(names["kept"]) + len(names["removed"]) == len(names["texts"])
    assert list(names["run"]) == ["download", "dedup", "filter", "tokenizer", "tokenize"]
