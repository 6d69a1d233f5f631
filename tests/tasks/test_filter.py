"""Signals first, decisions after: what each rule removes, what is redacted, and that a threshold measures nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage.artifact import Artifact
from storage.documents import Document, read_documents, read_ledger, shard_name, write_documents
from storage.errors import DamagedArtifact, EmptyOutput
from storage.store import Store
from tasks.config import Runtime
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.heuristics import measure_form
from tasks.filter.language import identify
from tasks.filter.pii import find_pii, redact
from tasks.filter.signals import read_signals
from tasks.output import Output
from tasks.session import Session, open_session

GOOD = (
    "The river begins in the hills and flows to the sea. People have lived along it since the first farms were made, "
    "and the towns that stand there now still take their water from it. In the spring it is high and brown."
)
FRENCH = (
    "La rivière commence dans les collines et coule vers la mer. Les gens vivent le long de ses rives depuis que les "
    "premières fermes y furent établies, et les villes prennent encore leur eau dans la rivière au printemps."
)
BAD = {
    "language": FRENCH,
    "quality.min_words": "The river is to be of the sea.",
    "quality.max_symbol_ratio": GOOD.replace(" the ", " the#") + " #" * 3,
    "quality.max_bullet_lines": "\n".join(f"- {sentence}." for sentence in GOOD.split(". ")) + "\n- and to the end",
    "quality.max_curly_brackets": GOOD + " { } { }",
    "quality.lorem_ipsum": GOOD + " Lorem ipsum is here.",
    "repetition.max_duplicate_lines": "\n".join([GOOD] + ["The boats go to the sea and come back with fish."] * 3),
}


def run(folder: Path, texts: Sequence[str], **config: object) -> Output:
    documents = [Document.new(text, "test") for text in texts]
    for number in range(2):
        write_documents(folder / "in" / shard_name(number), documents[number::2])
    out = Output.at(folder, stage="filter", runtime=Runtime(workers=1))
    filter_documents.function(FilterConfig.model_validate(config), Artifact.at(folder / "in"), out)
    return out


def kept(out: Output) -> list[str]:
    return [document.text for path in sorted(out.path.glob("documents/*")) for document in read_documents(path)]


def test_each_rule_removes_its_document_with_value_and_threshold(tmp_path: Path) -> None:
    out = run(tmp_path, [GOOD, *BAD.values()])
    assert kept(out) == [GOOD]
    ledger = {verdict.id: verdict for path in out.path.glob("ledger/*") for verdict in read_ledger(path)}
    for reason, text in BAD.items():
        verdict = ledger[Document.new(text, "test").id]
        assert verdict.reason == reason
        assert verdict.value is not None
        assert (verdict.threshold is None) == (reason == "language")
    removed = [document for path in out.path.glob("removed/*") for document in read_documents(path)]
    assert {document.text for document in removed} == set(BAD.values()), "what was removed can be read"
    assert out.counts["documents"]["removed"] == dict.fromkeys(sorted(BAD), 1)


def test_personal_data_is_redacted_under_the_same_id_and_noted(tmp_path: Path) -> None:
    text = f"{GOOD} Write to jane.doe@example.com or call +1 212-555-0187."
    out = run(tmp_path, [text])
    (document,) = [document for path in out.path.glob("documents/*") for document in read_documents(path)]
    assert document.text == f"{GOOD} Write to <EMAIL_ADDRESS> or call <PHONE_NUMBER>."
    assert document.id == Document.new(text, "test").id
    (verdict,) = [verdict for path in out.path.glob("ledger/*") for verdict in read_ledger(path)]
    assert (verdict.verdict, verdict.reason, verdict.value) == ("changed", "pii", 2.0)
    dropped = run(tmp_path / "drop", [text, GOOD], pii={"email_address": "drop"})
    assert kept(dropped) == [GOOD]
    assert kept(run(tmp_path / "keep", [text], pii={"email_address": "keep", "phone_number": "keep"})) == [text]


def test_a_changed_threshold_decides_again_and_measures_nothing(tmp_path: Path) -> None:
    write_documents(tmp_path / "in" / shard_name(0), [Document.new(GOOD, "test"), Document.new(FRENCH, "test")])
    documents = Artifact.at(tmp_path / "in")
    store = Store(str(tmp_path / "store"))
    with open_session(Session(store, Runtime(workers=1))):
        first, _ = filter_documents.materialize(FilterConfig(), [documents])
        loose = FilterConfig.model_validate({"toxicity": {"max_score": 0.5}})
        second, cached = filter_documents.materialize(loose, [documents])
    assert not cached
    assert len(list(store.locations("signals"))) == 1
    assert len(list(store.locations("filter"))) == 2
    assert first.manifest is not None
    assert second.manifest is not None
    assert first.manifest.uses == second.manifest.uses


def test_signals_of_other_documents_are_refused(tmp_path: Path) -> None:
    out = run(tmp_path, [GOOD])
    side_file = next(path for path in out.scratch.rglob("signals/**/out/*.parquet") if pq.read_metadata(path).num_rows)
    assert read_signals(side_file, [Document.new(GOOD, "test")])[0]["language"] == "en"
    with pytest.raises(DamagedArtifact, match="not of these documents"):
        read_signals(side_file, [Document.new(FRENCH, "test")])


def test_a_filter_that_keeps_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(EmptyOutput, match="kept none"):
        run(tmp_path, [FRENCH])


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("Mail a.b+c@mail.example.org now", ["EMAIL_ADDRESS"]),
        ("Card 4111 1111 1111 1111 is fine", ["CREDIT_CARD"]),
        ("Card 4111 1111 1111 1112 fails its checksum", []),
        ("IBAN DE89 3704 0044 0532 0130 00 here", ["IBAN_CODE"]),
        ("The server at 93.184.216.34 answered", ["IP_ADDRESS"]),
        ("Version 1.2.3.4 and v3.11.0.1", []),
        ("std::vector and 127.0.0.1 and 10.0.0.1", []),
        ("From 1640 to 1688, pages 120-134, ISBN", []),
        ("In 2019 there were 1,234,567 people", []),
    ],
)
def test_what_is_personal_data_and_what_only_looks_like_it(text: str, entities: list[str]) -> None:
    assert [finding.entity for finding in find_pii(text, 60)] == entities


def test_a_window_around_a_candidate_finds_what_the_whole_text_would(shared_data: Callable[[str], Path]) -> None:
    rows = json.loads((shared_data("filters/pii_presidio_synth") / "generated_small.json").read_text())[:200]
    text = "\n\n".join(row["full_text"] for row in rows)
    whole = {(f.entity, f.start, f.end) for f in find_pii(text, len(text))}
    windowed = {(f.entity, f.start, f.end) for f in find_pii(text, 60)}
    assert len(whole) > 20
    assert len(whole & windowed) >= 0.98 * len(whole)
    redacted, taken = redact(text, find_pii(text, 60))
    emails = [s["entity_value"] for row in rows for s in row["spans"] if s["entity_type"] == "EMAIL_ADDRESS"]
    assert emails
    assert taken
    assert not [email for email in emails if email in redacted]


def test_languages_are_told_apart_by_their_first_bytes(shared_data: Callable[[str], Path]) -> None:
    assert identify(GOOD, 2000).code == "en"
    assert identify(FRENCH, 2000).code == "fr"
    assert identify("12345 67890", 2000).score < 0.65 or identify("12345", 2000).code != "en"


def test_measures_of_form_are_what_a_hand_would_count() -> None:
    form = measure_form("# One two.\n- a b a b\n\n- a b a b\nend…")
    assert (form.words, form.stop_words) == (14, 0)
    assert form.bullet_lines == pytest.approx(2 / 4)
    assert form.ellipsis_lines == pytest.approx(1 / 4)
    assert form.duplicate_lines == pytest.approx(1 / 4)
    assert form.symbol_ratio == pytest.approx(2 / 14)
    assert form.alphabetic_words == pytest.approx(11 / 14)
    assert measure_form("").words == 0
