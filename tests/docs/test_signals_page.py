"""The page on signals: its profiles are run with its function and with models made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from storage.artifact import Artifact
from storage.shards.documents import read_documents, read_ledger
from storage.store import Store
from tasks.filter import FilterConfig, filter_documents
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.docs.pages import Block, blocks
from tests.runtimes import runtime_of
from tests.tasks.filter.signals.test_signals import OFF, corpus
from tests.tasks.filter.test_filter import questions
from tests.tasks.filter.tiny_classifier import save_classifier, texts
from tests.tasks.filter.tiny_encoder import save_encoder

PAGE = "signals.md"
CODE = [block for block in blocks("python") if block.page.name == PAGE]
SNIPPETS = [block for block in blocks("yaml") if block.page.name == PAGE]
ALL = {**OFF, "max_quarantined_share": 1.0}
PLAIN = "The river begins in the hills and flows to the sea, where the boats of the old town lie in the harbour"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the profiles name, and documents of two kinds."""
    folder = tmp_path_factory.mktemp("page")
    (code,) = CODE
    (folder / code.text.splitlines()[0].removeprefix("# ")).write_text(code.text)
    save_classifier(folder / "my-classifier")
    save_encoder(folder / "my-encoder")
    rows = [{"text": text, "label": "poor" if n % 2 else "good"} for n, text in enumerate(texts(300, seed=3))]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus(folder / "in", texts(8000), 1)
    questions(folder / "benchmarks")
    return folder


def test_the_function_of_the_page_removes_what_it_should(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    dull, filler = f"{PLAIN}. " + "The river is in the hills. " * 20, f"{PLAIN}. Lorem ipsum."
    documents = corpus(tmp_path / "in", [f"{PLAIN}.", dull, filler], 1)
    out = run(yaml.safe_load(SNIPPETS[0].text)["filter"], documents, place, tmp_path)
    assert [doc.text for path in out.path.glob("documents/*") for doc in read_documents(path)] == [f"{PLAIN}."]
    reasons = {verdict.reason for path in out.path.glob("ledger/*") for verdict in read_ledger(path)}
    assert reasons == {"signals.wording.min_variety", "signals.wording.min_keep"}
    assert len(CODE[0].text.splitlines()) <= 20


@pytest.mark.soak
@pytest.mark.parametrize("block", SNIPPETS[1:], ids=lambda block: block.name)
def test_each_model_of_the_page_is_run(block: Block, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    given = yaml.safe_load(block.text)["filter"]
    inputs = [Artifact.at(place / "in"), Artifact.at(place / "benchmarks")]
    with open_session(Session(Store(str(place / "store")), runtime_of(workers=1, device="cpu"))):
        made, _ = filter_documents.materialize(FilterConfig.model_validate({**ALL, **given}), inputs)
    assert made.manifest is not None
    counts = made.manifest.counts
    removed = {name.rpartition(".")[0] for name in counts["documents"]["removed"]}
    (section,) = given
    assert ("signals.education" if section == "signals" else section) in removed
    measuring = given.get("signals", {}).get("education", {}).get("measure", {})
    figures = {row["figure"]: row["value"] for row in counts.get("tables", {}).get("Models", [])}
    if "labelled" in measuring:
        assert figures["auc"] > 0.8
    if "first" in measuring:
        assert figures["first agreement"] >= 0.97
        assert 0.5 < figures["first settled"] < 1


def run(given: dict[str, Any], documents: Artifact, place: Path, folder: Path) -> Output:
    """The filter with this section and no other rules."""
    out = Output.at(folder, stage="filter", runtime=runtime_of(workers=1, device="cpu"))
    config = FilterConfig.model_validate({**ALL, **given})
    filter_documents.function(config, documents, Artifact.at(place / "benchmarks"), out)
    return out
