"""Personal data is measured only for documents that the other rules keep. The result is the same, and a moved threshold
costs only the documents that it lets in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, EmptyOutput
from storage.shards.documents import DOCUMENT_SCHEMA, Document, shard_name, write_documents
from storage.store import Store
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.families import FAMILIES, rules
from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.measure import pii_signals
from tasks.filter.pii_metadata.measure import MetadataConfig, metadata_signals
from tasks.filter.side_files import IDS, IdDigest
from tasks.stage.display.progress import Observer
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.filter.test_filter import BAD, FRENCH, GOOD, RULES, ledger_of, questions

MAIL, PHONE = "Write to jane.doe@corp.com.", "Call +1 212-664-7665."
TEXTS = [
    GOOD,
    f"{GOOD} {MAIL}",
    f"{GOOD} {MAIL} {PHONE} Write to john.roe@corp.com too.",
    f"{FRENCH} {MAIL}",
    f"{BAD['contamination.max_ngrams']} {MAIL}",
    f"{GOOD.replace('hills', '{hills}')} {MAIL}",
    "12345 67890 + 5",
    "",
    *BAD.values(),
    *(f"{GOOD} {PHONE} {number}" for number in range(4)),
]
ALL: list[str] = []


def write(folder: Path, texts: Sequence[str], shards: int = 2) -> Artifact:
    documents = [
        Document.new(
            text,
            "test",
            author=f"author{number % 3}@corp.com" if number % 5 == 4 else "",
            phone="212 664 7665" if number % 5 == 3 else "",
        )
        for number, text in enumerate(texts)
    ]
    for number in range(shards):
        write_documents(folder / shard_name(number), documents[number::shards])
    return Artifact.at(folder)


def run(folder: Path, texts: Sequence[str], workers: int = 1, **config: Any) -> Output:
    out = Output.at(folder, stage="filter", runtime=runtime_of(workers=workers))
    inputs = write(folder / "in", texts, 3), questions(folder / "benchmarks")
    filter_documents.function(FilterConfig.model_validate({**RULES, "toxicity": None, **config}), *inputs, out)
    return out


@pytest.mark.soak_but("config0", "config4")
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"repair": {}},
        {"pii": None},
        {"pii_metadata": []},
        {"pii": {"action": "drop"}},
        {"pii": {"actions": {"EMAIL_ADDRESS": "surrogate"}, "max_findings": 2}},
        {"pii": {"max_findings": 0}, "contamination": {"max_ngrams": None}},
        {"pii": {"max_findings": 2}, "mathematics": {}, "language": None, "c4": None},
    ],
)
def test_the_filter_leaves_the_same_bytes_as_if_all_had_been_measured(config: dict[str, Any], tmp_path: Path) -> None:
    last, every = run(tmp_path / "last", TEXTS, **config), run(tmp_path / "all", TEXTS, **config, measured_last=ALL)
    assert Artifact.at(last.path).digest == Artifact.at(every.path).digest
    assert last.counts == every.counts


@pytest.mark.parametrize("family", ["pii", "pii_metadata"])
def test_one_family_may_be_measured_last_and_the_other_first(family: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"pii": {"actions": {"EMAIL_ADDRESS": "drop"}}}
    every, one = (run(tmp_path / str(len(last)), TEXTS, **config, measured_last=last) for last in ([], [family]))
    documents = (Artifact.at(out.path).part("documents").digest for out in (every, one))
    assert len(set(documents)) == 1


@pytest.mark.parametrize("workers", [2, 8])
def test_the_bytes_are_the_same_with_any_number_of_workers(workers: int, tmp_path: Path) -> None:
    one, many = run(tmp_path / "one", TEXTS), run(tmp_path / "many", TEXTS, workers=workers)
    for path in ("out", "scratch/passed/out", "scratch/pii/out", "scratch/pii_metadata/out"):
        assert Artifact.at(tmp_path / "one" / path).digest == Artifact.at(tmp_path / "many" / path).digest
    assert one.counts == many.counts


def test_only_what_the_other_rules_keep_is_measured(tmp_path: Path) -> None:
    out = run(tmp_path, TEXTS, pii={"actions": {"EMAIL_ADDRESS": "drop"}})
    lost = {verdict.id for verdict in ledger_of(out) if verdict.verdict != "changed"}
    dropped = {verdict.id for verdict in ledger_of(out) if verdict.reason.startswith("pii") and verdict.id in lost}
    assert dropped
    asked = 0
    for number in range(3):
        ids = pq.read_table(tmp_path / "in" / shard_name(number))["id"].to_pylist()
        signals = pq.read_table(tmp_path / "scratch" / "pii" / "out" / f"{number:05d}.parquet").to_pylist()
        for identity, row in zip(ids, signals, strict=True):
            measured = identity not in lost or identity in dropped
            assert (row["pii"] is not None, row["pii_findings"] is not None) == (measured, measured)
            asked += measured
    assert 0 < asked < len(TEXTS)


def test_rules_over_what_is_measured_last_are_tried_last_and_quarantine_nobody(tmp_path: Path) -> None:
    pii = {"max_findings": 0, "actions": {"PHONE_NUMBER": "drop"}}
    config: dict[str, Any] = {"pii": pii, "max_quarantined_share": 0}
    names = [rule.name for rule in rules(FilterConfig.model_validate(config))]
    assert names[-3:] == ["pii.max_findings", "pii.phone_number", "pii_metadata.phone_number"]
    assert names == [rule.name for rule in rules(FilterConfig.model_validate({**config, "measured_last": ALL}))]
    texts = [text for text in TEXTS if any(letter.isalpha() for letter in text)]
    assert run(tmp_path, texts, **config).counts["documents"]["quarantined"] == 0


def test_where_nothing_passes_it_is_said_as_ever(tmp_path: Path) -> None:
    with pytest.raises(EmptyOutput, match="kept none of 2"):
        run(tmp_path, [FRENCH, f"{FRENCH} {MAIL}"])


def test_what_can_be_measured_last_is_what_the_families_say() -> None:
    (known,) = get_args(FilterConfig.model_fields["measured_last"].annotation)
    assert set(get_args(known)) == {family.name for family in FAMILIES if family.can_be_last}


class Noting(Observer):
    """Keeps what stages note."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, stage: str, message: str) -> None:
        """See the base."""
        self.notes.append(f"{stage}: {message}")


def measure_stores(folder: Path, *thresholds: int) -> tuple[Store, list[Artifact], Noting]:
    """A store, the artifact of `pii` for each threshold in turn, and what was noted."""
    store, watching, found = Store(str(folder / "store")), Noting(), []
    texts = [f"{GOOD} {MAIL} {'The sea is wide. ' * number}" for number in range(12)]
    inputs = [write(folder / "in", texts), questions(folder / "benchmarks")]
    with open_session(Session(store, runtime_of(workers=1), observer=watching)):
        for threshold in thresholds:
            rule = {"gopher_quality": {"min_words": threshold}, "gopher_repetition": None, "toxicity": None}
            made, _ = filter_documents.materialize(FilterConfig.model_validate(rule), inputs)
            assert made.manifest is not None
            found.append(store.get(made.manifest.uses["pii"].location))
    return store, found, watching


def facts_of(artifact: Artifact) -> tuple[int, int]:
    assert artifact.manifest is not None
    return artifact.manifest.counts["measured"], artifact.manifest.facts["documents_reused"]


def test_a_moved_threshold_measures_only_what_it_lets_in(tmp_path: Path) -> None:
    _, (strict, loose, stricter), watching = measure_stores(tmp_path / "moved", 90, 80, 100)
    _, (anew,), _ = measure_stores(tmp_path / "anew", 80)
    assert loose.digest == anew.digest
    (few, none), (more, taken), (least, all_taken) = facts_of(strict), facts_of(loose), facts_of(stricter)
    assert none == 0 < few == taken < more
    assert least == all_taken < few
    assert f"pii: {few} of {more} documents taken from {strict.location}" in watching.notes


def test_an_earlier_artifact_with_other_bytes_is_measured_anew(tmp_path: Path) -> None:
    _, (strict,), _ = measure_stores(tmp_path, 90)
    damaged = strict.path / "00000.parquet"
    content = damaged.read_bytes()
    damaged.chmod(0o644)
    damaged.unlink()
    damaged.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    (strict.path / "00001.parquet").chmod(0o644)
    _, (loose,), watching = measure_stores(tmp_path, 80)
    _, (anew,), _ = measure_stores(tmp_path / "anew", 80)
    assert loose.digest == anew.digest
    assert 0 < facts_of(loose)[1] < facts_of(strict)[0], "the other shard is taken"
    assert any("changed bytes: made again" in note for note in watching.notes)
    assert damaged.read_bytes() != content, "nothing is mended there"
    assert list((tmp_path / "store").rglob("earlier.parquet")) == []


def marks(folder: Path, documents: Artifact, marked: Sequence[bool]) -> Artifact:
    """Marks of documents in shards with row groups of three, as `passed` writes them."""
    folder.mkdir(parents=True)
    left = list(marked)
    for path in documents.files("*.parquet"):
        ids = pq.read_table(path)["id"]
        column, left = left[: len(ids)], left[len(ids) :]
        digest = IdDigest()
        digest.update(ids)
        with pq.ParquetWriter(folder / path.name, schema := pa.schema([("passed", pa.bool_())])) as writer:
            for start in range(0, len(column), 3):
                writer.write_batch(pa.record_batch([pa.array(column[start : start + 3])], schema))
            writer.add_key_value_metadata({IDS: digest.hex()})
    return Artifact.at(folder)


ROWS = 16


def grouped(folder: Path) -> Artifact:
    """Documents in two shards with row groups of three."""
    folder.mkdir()
    documents = [
        Document.new(
            f"{number} {MAIL if number % 2 else ''} {PHONE if number % 3 else ''}", "test", a=f"a{number}@b.com"
        )
        for number in range(ROWS)
    ]
    for number in range(2):
        rows = [document._asdict() for document in documents[number * 10 : number * 10 + 10]]
        pq.write_table(pa.Table.from_pylist(rows, DOCUMENT_SCHEMA), folder / shard_name(number), row_group_size=3)
    return Artifact.at(folder)


Marks = st.one_of(st.none(), st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))


@given(first=Marks, then=Marks)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_taken_is_what_would_have_been_measured(
    first: list[bool] | None, then: list[bool] | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    documents = grouped(folder / "in")
    chosen = [
        None if each is None else marks(folder / name, documents, each) for name, each in (("a", first), ("b", then))
    ]
    for stage, config in ((pii_signals, PiiConfig()), (metadata_signals, MetadataConfig())):
        with open_session(Session(Store(str(folder / "store")), runtime_of(workers=1))):
            stage.materialize(config, [documents, chosen[0]])
            after, cached = stage.materialize(config, [documents, chosen[1]])
        with open_session(Session(Store(str(folder / "other")), runtime_of(workers=1))):
            anew, _ = stage.materialize(config, [documents, chosen[1]])
        assert after.digest == anew.digest
        asked = [np.ones(ROWS, bool) if each is None else np.array(each) for each in (first, then)]
        if not cached:
            assert facts_of(after) == (asked[1].sum(), (asked[0] & asked[1]).sum())


def test_marks_of_other_documents_are_refused(tmp_path: Path) -> None:
    documents, other = write(tmp_path / "in", TEXTS), write(tmp_path / "other", TEXTS[::-1])
    wrong = marks(tmp_path / "marks", other, [True] * len(TEXTS))
    out = Output.at(tmp_path / "run", stage="pii", runtime=runtime_of(workers=1))
    with pytest.raises(DamagedArtifact, match="don't belong to these documents"):
        pii_signals.function(PiiConfig(), documents, wrong, out)
