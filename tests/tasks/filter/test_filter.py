"""Signals first, decisions after: what each rule removes, what is replaced, that every document is accounted for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import AccountingError, DamagedArtifact, EmptyOutput
from storage.shards.documents import Document, Verdict, read_documents, read_ledger, shard_name, write_documents
from storage.store import Store
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.measure import measure
from tasks.filter.run import filter_shards
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of

GOOD = (
    "The river begins in the hills and flows to the sea. People have lived along it since the first farms were made. "
    "The towns that stand there now still take their water from it. In the spring it is high and brown. "
    "In the summer the boats go down to the harbour with wool and corn, and come back with salt and iron."
)
FRENCH = (
    "La rivière commence dans les collines et coule vers la mer. Les gens vivent le long de ses rives depuis que les "
    "premières fermes y furent établies, et les villes prennent encore leur eau dans la rivière au printemps."
)
QUESTION = "Where does the old wooden ship that carried salt and iron down to the harbour of the town lie now?"
BAD = {
    "language": FRENCH,
    "gopher_quality.min_words": "The river is to be of the sea.",
    "gopher_quality.max_hashes_per_word": GOOD.replace(" the ", " the# ") + " #" * 8,
    "gopher_quality.max_bullet_lines": "\n".join(f"- {line}." for line in GOOD.split(". ")) + "\n- and that of the end",
    "c4.max_c4_curly_bracket_lines": GOOD.replace("hills", "{hills}"),
    "c4.max_c4_lorem_ipsum_lines": GOOD + " Lorem ipsum is here.",
    "gopher_repetition.max_duplicate_lines": "\n".join(
        [GOOD] + ["The boats go to the sea and come back with fish."] * 3
    ),
    "contamination.max_ngrams": f"{GOOD} {QUESTION}",
}
RULES = {"gopher_quality": {"min_words": 20}, "max_quarantined_share": 1.0}


def questions(folder: Path) -> Artifact:
    folder.mkdir(parents=True, exist_ok=True)
    row = {"id": "ship", "query": QUESTION, "choices": [" here", " there"], "gold": 0}
    (folder / "ships.jsonl").write_text(json.dumps(row) + "\n")
    return Artifact.at(folder)


def write(folder: Path, texts: Sequence[str], sources: Sequence[str] = ("test",)) -> Artifact:
    documents = [Document.new(text, sources[number % len(sources)]) for number, text in enumerate(texts)]
    for number in range(2):
        write_documents(folder / shard_name(number), documents[number::2])
    return Artifact.at(folder)


def run(folder: Path, texts: Sequence[str], sources: Sequence[str] = ("test",), **config: object) -> Output:
    out = Output.at(folder, stage="filter", runtime=runtime_of(workers=1))
    chosen = FilterConfig.model_validate({**RULES, **config})
    filter_documents.function(chosen, write(folder / "in", texts, sources), questions(folder / "benchmarks"), out)
    return out


def texts_in(out: Output, part: str = "documents") -> list[str]:
    return [document.text for path in sorted(out.path.glob(f"{part}/*")) for document in read_documents(path)]


def ledger_of(out: Output) -> list[Verdict]:
    return [verdict for path in sorted(out.path.glob("ledger/*")) for verdict in read_ledger(path)]


def test_each_rule_removes_its_document_with_value_and_threshold(tmp_path: Path) -> None:
    out = run(tmp_path, [GOOD, *BAD.values()])
    assert texts_in(out) == [GOOD]
    ledger = {verdict.id: verdict for verdict in ledger_of(out)}
    for reason, text in BAD.items():
        verdict = ledger[Document.new(text, "test").id]
        assert verdict.reason == reason
        assert verdict.value is not None
        assert (verdict.threshold is None) == (reason == "language")
    assert ledger[Document.new(FRENCH, "test").id].detail == "fr"
    assert set(texts_in(out, "removed")) == set(BAD.values()), "what was removed can be read"
    assert out.counts["documents"]["removed"] == dict.fromkeys(sorted(BAD), 1)


@given(
    texts=st.lists(
        st.one_of(
            st.sampled_from([GOOD, "", " \n\n ", "12 34", "🙂 🙂", "word", *BAD.values()]),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
        ),
        max_size=30,
    )
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_comes_in_is_kept_removed_or_quarantined(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    texts = [GOOD, *texts]
    out = run(tmp_path_factory.mktemp("run"), texts, pii={"action": "keep"}, repair={})
    documents = out.counts["documents"]
    assert (
        documents["in"]
        == len(texts)
        == documents["kept"] + sum(documents["removed"].values()) + documents["quarantined"]
    )
    kept = [document.id for path in out.path.glob("documents/*") for document in read_documents(path)]
    gone = [verdict.id for verdict in ledger_of(out) if verdict.verdict != "changed"]
    assert Counter(kept + gone) == Counter(Document.new(text, "test").id for text in texts)
    reasons = Counter(verdict.reason for verdict in ledger_of(out) if verdict.verdict == "removed")
    assert reasons == documents["removed"]


def test_what_cannot_be_measured_is_quarantined_up_to_a_share(tmp_path: Path) -> None:
    out = run(tmp_path, [GOOD, "12345 67890 + 5", ""])
    (verdict,) = [verdict for verdict in ledger_of(out) if verdict.verdict == "quarantined"]
    assert (verdict.reason, verdict.value) == ("unmeasured language", None)
    assert out.counts["documents"]["quarantined"] == 1
    assert out.counts["documents"]["removed"] == {"empty": 1}
    with pytest.raises(AccountingError, match="could not be measured: 1 by language"):
        run(tmp_path / "strict", [GOOD, "12345 67890 + 5"], max_quarantined_share=0.1)


def test_personal_data_is_replaced_under_the_same_id_and_noted(tmp_path: Path) -> None:
    text = f"{GOOD} Write to jane.doe@corp.com or call +1 212-664-7665."
    out = run(tmp_path, [text])
    (document,) = [document for path in out.path.glob("documents/*") for document in read_documents(path)]
    assert document.text == f"{GOOD} Write to <EMAIL_ADDRESS> or call <PHONE_NUMBER>."
    assert document.id == Document.new(text, "test").id
    (verdict,) = ledger_of(out)
    assert (verdict.verdict, verdict.reason, verdict.value) == ("changed", "pii", 2.0)
    assert verdict.detail == "1 EMAIL_ADDRESS, 1 PHONE_NUMBER"
    surrogates = run(tmp_path / "surrogate", [text, f"{text} Now."], pii={"action": "surrogate"})
    first, second = texts_in(surrogates)
    assert "jane.doe" not in first
    assert "<" not in first
    assert second == f"{first} Now.", "the same value has the same surrogate"
    dropped = run(tmp_path / "drop", [text, GOOD], pii={"actions": {"EMAIL_ADDRESS": "drop"}})
    assert texts_in(dropped) == [GOOD]
    assert dropped.counts["documents"]["removed"] == {"pii.email_address": 1}
    assert texts_in(run(tmp_path / "keep", [text], pii={"action": "keep"})) == [text]


def test_lines_that_c4_drops_go_from_what_is_kept_when_asked(tmp_path: Path) -> None:
    text = GOOD.replace(". ", ".\n") + "\nHome | About | Contact"
    assert texts_in(run(tmp_path, [text])) == [text]
    out = run(tmp_path / "lines", [text], c4={"remove_lines": True})
    assert texts_in(out) == [GOOD.replace(". ", ".\n")]
    (verdict,) = ledger_of(out)
    assert (verdict.verdict, verdict.reason, verdict.value) == ("changed", "c4.lines", 1.0)


def test_repair_comes_before_measuring_and_stands_in_the_ledger(tmp_path: Path) -> None:
    broken = GOOD.replace("river", "cafÃ© river", 1) + "\r\n\u200b"
    out = run(tmp_path, [broken, "\u200b\ufeff"], repair={})
    assert texts_in(out)[0].startswith("The café river")
    assert sorted((verdict.verdict, verdict.reason) for verdict in ledger_of(out)) == [
        ("changed", "repair"),
        ("removed", "repair.empty"),
    ]
    assert out.counts["documents"] == {"in": 2, "kept": 1, "removed": {"repair.empty": 1}, "quarantined": 0}


def test_contaminated_text_goes_or_its_questions_are_marked(tmp_path: Path) -> None:
    dirty = BAD["contamination.max_ngrams"]
    removed = run(tmp_path, [GOOD, dirty])
    marked = run(tmp_path / "marked", [GOOD, dirty], contamination={"max_ngrams": None})
    assert texts_in(removed) == [GOOD]
    assert sorted(texts_in(marked)) == sorted([GOOD, dirty])
    found = [
        json.loads((out.path / "contamination" / "questions.jsonl").read_text())["found"] for out in (removed, marked)
    ]
    assert found[0] == 0
    assert found[1] > 0


def test_the_report_shows_a_funnel_and_examples_without_personal_data(tmp_path: Path) -> None:
    secret = f"Write to jane.doe@corp.com. {FRENCH}"
    out = run(tmp_path, [GOOD, secret, *BAD.values()])
    funnel = out.counts["tables"]["Funnel"]
    assert funnel[0]["documents left"] == len(BAD) + 2
    assert funnel[-1]["documents left"] == 1
    assert sum(row["removed"] for row in funnel[1:]) == len(BAD) + 1
    report = (out.path / "report.md").read_text()
    assert "jane.doe" not in report
    assert "<EMAIL_ADDRESS>" in report
    for reason in BAD:
        assert f"| {reason} |" in report


@pytest.mark.soak
def test_what_was_removed_is_for_its_owner_only_or_kept_nowhere(tmp_path: Path) -> None:
    secret = f"Write to jane.doe@corp.com. {FRENCH}"
    kept = run(tmp_path / "kept", [GOOD, secret])
    assert texts_in(kept, "removed") == [secret]
    assert oct((kept.path / "removed").stat().st_mode)[-3:] == "700"
    assert {oct(path.stat().st_mode)[-3:] for path in (kept.path / "removed").iterdir()} == {"600"}
    gone = run(tmp_path / "gone", [GOOD, secret], keep_removed=False)
    assert not (gone.path / "removed").exists()
    assert not list(gone.scratch.rglob("removed*"))
    assert [verdict.reason for verdict in ledger_of(gone)] == ["language"]
    assert gone.counts["documents"] == kept.counts["documents"]


def test_a_source_that_loses_too_much_ends_the_run(tmp_path: Path) -> None:
    texts, sources = [GOOD, FRENCH], ["english", "french"]
    run(tmp_path, texts, sources)
    with pytest.raises(AccountingError, match=r"removes 100.0% of french"):
        run(tmp_path / "alarm", texts, sources, max_removed_share_per_source=0.9)
    with pytest.raises(EmptyOutput, match="kept none"):
        run(tmp_path / "nothing", [FRENCH])


def test_a_changed_threshold_measures_nothing_and_a_new_family_only_itself(tmp_path: Path) -> None:
    texts = [GOOD, FRENCH, *(f"{GOOD} {number}" for number in range(20))]
    inputs = [write(tmp_path / "in", texts), questions(tmp_path / "benchmarks")]
    store = Store(str(tmp_path / "store"))

    def made(**config: object) -> set[str]:
        before = set(store.locations())
        filter_documents.materialize(FilterConfig.model_validate({**RULES, **config}), inputs)
        return {location.partition("/")[0] for location in set(store.locations()) - before}

    with open_session(Session(store, runtime_of(workers=1))):
        families = {"form", "language", "pii", "pii_metadata", "contamination", "toxicity_model", "toxicity"}
        assert made() == {*families, "passed", "filter"}
        assert made(pii={"action": "surrogate"}) == {"filter"}
        assert made(toxicity={"max_score": 0.5}) == {"passed", "filter"}, "the same documents pass"
        assert made(perplexity={"measure": {"model": {"order": 2}}}) == {
            "perplexity_model",
            "perplexity",
            "passed",
            "filter",
        }


def test_signals_of_other_documents_are_refused(tmp_path: Path) -> None:
    config = FilterConfig.model_validate(RULES)
    out = Output.at(tmp_path, stage="filter", runtime=runtime_of(workers=1))
    benchmarks = questions(tmp_path / "benchmarks")
    measured = measure(config, write(tmp_path / "in", [GOOD, FRENCH]), benchmarks, out)
    other = write(tmp_path / "other", [FRENCH, GOOD])
    with pytest.raises(DamagedArtifact, match="don't belong to these documents"):
        filter_shards(config, other, None, measured, out)


def test_removed_rows_stand_in_full_row_groups(tmp_path: Path) -> None:
    out = run(tmp_path, [GOOD, *[f"{FRENCH} {number}" for number in range(3000)]])
    groups = [pq.ParquetFile(path).num_row_groups for path in sorted(out.path.glob("removed/*"))]
    assert groups == [2, 2]


def test_the_run_holds_no_texts_of_its_shards(tmp_path: Path) -> None:
    out = run(tmp_path, [GOOD, *BAD.values()])
    results = [path.read_text() for path in out.scratch.glob("decide/*/result.json")]
    assert results
    assert not any(text[:20] in said for said in results for text in BAD.values())
