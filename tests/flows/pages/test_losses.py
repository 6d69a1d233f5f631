"""A run's notes on sources that lost many of their documents."""

from __future__ import annotations

from pathlib import Path

from flows.pages.losses import TABLES, loss_notes
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.keys import KeyPayload
from storage.manifest import Manifest
from storage.shards.documents import Verdict, write_ledger


def artifact(folder: Path, stage: str, kept: dict[str, int], removed: dict[str, dict[str, int]]) -> Artifact:
    """An artifact that counts this many documents of each source, with a ledger of removals by source and reason."""
    verdicts = [
        Verdict(f"{n:032x}", source, "removed", reason)
        for source, reasons in removed.items()
        for reason, count in reasons.items()
        for n in range(count)
    ]
    (folder / "ledger").mkdir(parents=True)
    write_ledger(folder / "ledger" / "00000.parquet", [*verdicts, Verdict("f" * 32, "wiki", "changed", "pii")])
    title, column = TABLES.get(stage, ("Sources", "documents"))
    rows = [
        {"source": name, column: kept.get(name, 0) + sum(removed.get(name, {}).values()), "kept": kept.get(name, 0)}
        for name in sorted({*kept, *removed})
    ]
    payload, files = KeyPayload(stage=stage, version=1, config={}, inputs={}), list_files(folder)
    digest, counts = tree_digest(files), {"tables": {title: rows}}
    manifest = Manifest(key=payload.key(), payload=payload, digest=digest, files=files, counts=counts, created="")
    return Artifact(folder, digest, manifest)


def test_a_source_that_lost_much_is_told_with_its_rules_and_what_to_do(tmp_path: Path) -> None:
    rules = {"c4.min_c4_sentences": 30, "gopher_quality.min_words": 20, "language": 9, "toxicity": 1}
    made = {
        "download": artifact(tmp_path / "raw", "download", {"wiki": 100, "mail": 10}, {}),
        "dedup": artifact(tmp_path / "unique", "dedup", {"wiki": 80, "mail": 10}, {"wiki": {"near_duplicate": 20}}),
        "filter": artifact(
            tmp_path / "clean", "filter", {"wiki": 40, "mail": 8}, {"wiki": rules, "mail": {"language": 2}}
        ),
    }
    lost, how, web = loss_notes(made, "my store")
    assert lost.endswith(
        "filter removed 60 of 100 documents (60%) of wiki[/]: c4.min_c4_sentences 30, gopher_quality.min_words 20, "
        "language 9, and 1 by 1 others."
    )
    assert how.endswith("gristmill explain --removed-by c4.min_c4_sentences --store 'my store'")
    assert "`filter: {preset: clean}`" in web


def test_where_no_rule_of_the_web_did_it_none_is_named(tmp_path: Path) -> None:
    made = {"filter": artifact(tmp_path, "filter", {"en": 10}, {"fr": {"language": 10}})}
    lost, how = loss_notes(made, "store")
    assert "10 of 10 documents (100%) of fr" in lost
    assert how.endswith("--removed-by language")
    assert (
        list(loss_notes({"filter": artifact(tmp_path / "b", "filter", {"en": 80}, {"en": {"language": 20}})}, "tiny"))
        == []
    )
