"""What a run says of sources that lost much of their documents."""

from __future__ import annotations

from pathlib import Path

from flows.pages.losses import told_losses
from storage.artifact import Artifact
from storage.shards.documents import Document, Verdict, write_documents, write_ledger


def artifact(folder: Path, kept: dict[str, int], removed: dict[str, dict[str, int]]) -> Artifact:
    """Documents of each source, and a ledger with so many removed by each reason."""
    documents = [Document.new(f"{source} {n}", source) for source, count in kept.items() for n in range(count)]
    verdicts = [
        Verdict(f"{n:032x}", source, "removed", reason)
        for source, reasons in removed.items()
        for reason, count in reasons.items()
        for n in range(count)
    ]
    changed = [Verdict(documents[0].id, documents[0].source, "changed", "pii")] if documents else []
    for part in ("documents", "ledger"):
        (folder / part).mkdir(parents=True)
    write_documents(folder / "documents" / "00000.parquet", documents)
    write_ledger(folder / "ledger" / "00000.parquet", [*verdicts, *changed])
    return Artifact.at(folder)


def test_a_source_that_lost_much_is_told_with_its_rules_and_what_to_do(tmp_path: Path) -> None:
    rules = {"c4.min_c4_sentences": 30, "gopher_quality.min_words": 20, "language": 9, "toxicity": 1}
    made = {
        "download": artifact(tmp_path / "raw", {"wiki": 100, "mail": 10}, {}),
        "dedup": artifact(tmp_path / "unique", {"wiki": 80, "mail": 10}, {"wiki": {"near_duplicate": 20}}),
        "filter": artifact(tmp_path / "clean", {"wiki": 40, "mail": 8}, {"wiki": rules, "mail": {"language": 2}}),
    }
    lost, how, web = told_losses(made, "mine")
    assert lost.endswith(
        "filter removed 60 of 100 documents (60%) of wiki[/]: c4.min_c4_sentences 30, gopher_quality.min_words 20, "
        "language 9, and 1 by 1 others."
    )
    assert how.endswith("gristmill explain --removed-by c4.min_c4_sentences mine")
    assert "`filter: {preset: clean}`" in web


def test_where_no_rule_of_the_web_did_it_none_is_named(tmp_path: Path) -> None:
    made = {"filter": artifact(tmp_path, {"en": 10}, {"fr": {"language": 10}})}
    lost, how = told_losses(made, "tiny")
    assert "10 of 10 documents (100%) of fr" in lost
    assert how.endswith("--removed-by language tiny")
    assert list(told_losses({"filter": artifact(tmp_path / "b", {"en": 80}, {"en": {"language": 20}})}, "tiny")) == []
