"""A user's own function as a signal: measured in processes, judged by bounds, and named when it fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import AccountingError, ConfigError, GristmillError, SourceError
from storage.shards.documents import Document, read_documents, read_ledger, shard_name, write_documents
from storage.store import Store
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.families import rules
from tasks.filter.side_files import read_signals
from tasks.filter.signals.config import PythonSignalConfig
from tasks.filter.signals.functions import measure_with
from tasks.filter.signals.stage import signals
from tasks.stage.display.progress import Observer, Progress
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tasks.stage.user_function import fingerprints
from tests.runtimes import runtime_of
from tests.tasks.filter.test_filter import questions

SHOUTING = """
def measure(texts):
    return {"capitals": [sum(c.isupper() for c in text) / max(1, len(text)) for text in texts],
            "long": [len(text) > 20 for text in texts]}
"""
OFF: dict[str, Any] = {
    "language": {"allowed": ["en", "und"], "min_score": None},
    "gopher_quality": None,
    "gopher_repetition": None,
    "c4": None,
    "fineweb": None,
    "toxicity": None,
    "pii": {"action": "keep"},
    "pii_metadata": [],
}
QUIET = "The river begins in the hills and flows to the sea."
LOUD = "THE RIVER BEGINS IN THE HILLS and flows to the sea."


def corpus(folder: Path, texts: list[str], number: int = 2) -> Artifact:
    documents = [Document.new(text, "test", n=place) for place, text in enumerate(texts)]
    for shard in range(number):
        write_documents(folder / shard_name(shard), documents[shard::number])
    return Artifact.at(folder)


def written(folder: Path, source: str) -> str:
    (folder / "rules.py").write_text(source)
    return str(folder / "rules.py")


def values(out: Output, *columns: str) -> list[Any]:
    batches = [batch for path in sorted(out.path.glob("*.parquet")) for batch in read_signals(path)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [tuple(row[column] for column in columns) if len(columns) > 1 else row[columns[0]] for row in rows]


def measured(folder: Path, documents: Artifact, *, workers: int = 1, **config: Any) -> Output:
    out = Output.at(folder, stage="signals", runtime=runtime_of(workers=workers))
    signals.function(PythonSignalConfig.model_validate(config), documents, None, out)
    return out


def test_a_function_removes_what_its_bounds_say_and_the_ledger_says_by_which(tmp_path: Path) -> None:
    file = written(tmp_path, SHOUTING)
    config = FilterConfig.model_validate(
        {
            **OFF,
            "signals": {
                "shouting": {
                    "measure": {"kind": "python", "file": file, "columns": ["capitals", "long"]},
                    "max": {"capitals": 0.2},
                    "min": {"long": 1},
                }
            },
        }
    )
    assert [rule.name for rule in rules(config)][-2:] == ["signals.shouting.min_long", "signals.shouting.max_capitals"]
    store = Store(str(tmp_path / "store"))
    inputs = [corpus(tmp_path / "in", [QUIET, LOUD, f"{QUIET} Now."]), questions(tmp_path / "benchmarks")]

    def made(config: FilterConfig) -> set[str]:
        before = set(store.locations())
        filter_documents.materialize(config, inputs)
        return {location.partition("/")[0] for location in set(store.locations()) - before}

    with open_session(Session(store, runtime_of(workers=1))):
        assert {"signals", "filter"} <= made(config)
        kept, _ = filter_documents.materialize(config, inputs)
        texts = {doc.text for path in kept.path.glob("documents/*") for doc in read_documents(path)}
        assert texts == {QUIET, f"{QUIET} Now."}
        assert kept.manifest is not None
        assert kept.manifest.counts["documents"]["removed"] == {"signals.shouting.max_capitals": 1}
        assert "signals.shouting" in kept.manifest.uses
        looser = config.model_dump()
        looser["signals"]["shouting"]["max"]["capitals"] = 0.9
        told = "a threshold measures personal data alone, for what passes now"
        assert made(FilterConfig.model_validate(looser)) == {"passed", "pii", "filter"}, told
        looser["signals"]["loud"] = looser["signals"].pop("shouting")
        assert made(FilterConfig.model_validate(looser)) == {"passed", "filter"}, "nor does another name"
    written(tmp_path, SHOUTING.replace("20", "30"))
    with open_session(Session(store, runtime_of(workers=1))):
        assert made(config) == {"signals", "filter"}, "another source does"


def test_a_file_of_equal_size_and_age_is_run_as_it_is_now(tmp_path: Path) -> None:
    documents = corpus(tmp_path / "in", [QUIET], 1)
    for number in (1, 2):
        file = written(tmp_path, f"def measure(texts):\n    return {{'score': [{number}.0] * len(texts)}}\n")
        assert values(measured(tmp_path / str(number), documents, file=file), "score") == [number]
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.soak
def test_workers_and_shards_change_no_byte(tmp_path: Path) -> None:
    file = written(tmp_path, SHOUTING)
    texts = [f"{QUIET if n % 3 else LOUD} {n}" for n in range(60)]
    documents = corpus(tmp_path / "in", texts, 5)
    digests = set()
    for workers in (1, 2, 8):
        out = measured(tmp_path / str(workers), documents, workers=workers, file=file, columns=["capitals", "long"])
        found = b"".join(path.read_bytes() for path in sorted(out.path.glob("*.parquet")))
        digests.add(hashlib.sha256(found).hexdigest())
    assert len(digests) == 1


def test_documents_come_with_their_metadata(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "def mine(documents):\n"
        "    return {'score': [d['metadata']['n'] + len(d['text']) + (d['source'] == 'test') for d in documents]}\n",
    )
    out = measured(
        tmp_path / "out", corpus(tmp_path / "in", ["a", "bb", "ccc"], 1), file=file, function="mine", gets="documents"
    )
    assert values(out, "score", "error") == [(2.0, None), (4.0, None), (6.0, None)]


FAILING = """
import math
def measure(texts):
    for text in texts:
        if "bad" in text:
            raise KeyError("no such word")
    return {"score": [math.nan if "odd" in text else None if "none" in text else 1 for text in texts]}
"""


def test_a_document_that_the_function_fails_on_is_quarantined_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, FAILING)
    texts = [f"{QUIET} {end}" for end in ("good", "A bad one.", "An odd one.", "And none.", *map(str, range(96)))]
    documents = corpus(tmp_path / "in", texts, 1)
    out = measured(tmp_path / "out", documents, file=file)
    rows = values(out, "score", "error")
    assert rows[:4] == [(1.0, None), (None, "KeyError: 'no such word'"), (None, "score is nan"), (None, None)]
    assert set(rows[4:]) == {(1.0, None)}
    assert out.counts["failed"] == 2
    shown = out.counts["tables"]["Documents that the function failed on"]
    assert {row["document"] for row in shown} == {Document.new(text, "test").id for text in texts[1:3]}

    config = {**OFF, "signals": {"mine": {"measure": {"kind": "python", "file": file}, "min": {"score": 1}}}}
    whole = Output.at(tmp_path / "whole", stage="filter", runtime=runtime_of(workers=1))
    filter_documents.function(FilterConfig.model_validate(config), documents, questions(tmp_path / "b"), whole)
    assert whole.counts["documents"] == {"in": 100, "kept": 97, "removed": {}, "quarantined": 3}
    said = {verdict.id: verdict for path in whole.path.glob("ledger/*") for verdict in read_ledger(path)}
    bad = said[Document.new(texts[1], "test").id]
    assert (bad.verdict, bad.reason) == ("quarantined", "unmeasured signals.mine.min_score")
    assert bad.detail == "KeyError: 'no such word'"
    strict = FilterConfig.model_validate({**config, "max_quarantined_share": 0.01})
    out = Output.at(tmp_path / "strict", stage="filter", runtime=runtime_of(workers=1))
    with pytest.raises(AccountingError, match=r"could not be measured: 3 by signals\.mine\.min_score"):
        filter_documents.function(strict, documents, questions(tmp_path / "b"), out)


FIRST = Document.new("text 0", "test").id
BROKEN = {
    "len(texts)": r"rules.py:measure returns a int for the batch that begins with document",
    "{'other': texts}": r"returns the columns other for the batch",
    "{'score': [1.0]}": rf"returns 1 values as score for 20 documents, the first of them {FIRST}",
    "{'score': texts}": rf"returns a str as score of document {FIRST}",
    "{'score': 'a' * 20}": r"returns a str as score for the batch",
    "{'score': 1.0}": r"returns a float as score for the batch",
    "{'score': [[1]] * 20}": r"returns a list as score of document",
    "{'score': [len(texts)] * len(texts)}": r"gives document \w+ 20.0 as score in its batch, but 1.0 by itself",
    "1 / 0": rf"fails on each of 20 documents, the first of them {FIRST}: ZeroDivisionError: division by zero",
    "exit(0)": r"fails on each of 20 documents.*SystemExit: 0",
    "measure.nothing": r"fails on each of 20 documents.*AttributeError",
}


@pytest.mark.parametrize("returned", BROKEN)
def test_a_function_that_breaks_its_promise_is_named(returned: str, tmp_path: Path) -> None:
    config = PythonSignalConfig(file=written(tmp_path, f"def measure(texts):\n    return {returned}\n"))
    with pytest.raises(SourceError, match=BROKEN[returned]):
        measure_here(config, [f"text {n}" for n in range(20)])


def measure_here(config: PythonSignalConfig, texts: list[str]) -> list[Any]:
    columns = zip(*(Document.new(text, "test") for text in texts), strict=True)
    ids, texts_, sources, metadata = (pa.array(column, pa.string()) for column in columns)
    found = measure_with(config, json.dumps(fingerprints(config)), texts_, ids, sources, metadata)
    return [row["score"] for row in found.to_pylist()]


def test_numbers_of_numpy_and_of_any_size_are_taken(tmp_path: Path) -> None:
    start = "import numpy as np\ndef measure(texts):\n    return "
    file = written(tmp_path, start + "{'score': np.array([len(text) for text in texts], np.int8)}\n")
    assert measure_here(PythonSignalConfig(file=file), ["a", "bb"]) == [1.0, 2.0]
    (tmp_path / "two").mkdir()
    file = written(tmp_path / "two", start + "{'score': [np.float32(0.5), True, 10**400][-len(texts):]}\n")
    assert measure_here(PythonSignalConfig(file=file), ["a", "b", "c"]) == [0.5, 1.0, None]


def test_an_entry_point_is_known_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_signals").mkdir()
    module = tmp_path / "my_signals" / "words.py"
    (tmp_path / "my_signals" / "__init__.py").write_text("")
    module.write_text("def count(texts):\n    return {'score': [len(text.split()) for text in texts]}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = PythonSignalConfig(entry_point="my_signals.words:count")
    before = fingerprints(config)
    assert measure_here(config, ["one", "two words"]) == [1.0, 2.0]
    module.write_text(module.read_text() + "\n# changed\n")
    assert fingerprints(config) != before
    assert "package pyarrow" in fingerprints(PythonSignalConfig(entry_point="pyarrow.compute:match_like"))


def refused(call: Callable[[], Any], kind: type[GristmillError], match: str) -> None:
    with pytest.raises(kind, match=match):
        call()


def test_what_is_not_there_is_found_before_a_run(tmp_path: Path) -> None:
    def ask(**config: Any) -> Callable[[], Any]:
        given = {"signals": {"mine": {"measure": {"kind": "python", **config}}}}
        checked = FilterConfig.model_validate(given)
        return lambda: filter_documents.check_here(checked, runtime_of(workers=1))

    refused(ask(file=str(tmp_path / "none.py")), SourceError, r"none\.py does not exist\.")
    refused(ask(entry_point="nowhere.at_all:f"), SourceError, "nowhere.at_all does not exist: ModuleNotFoundError")
    refused(ask(entry_point="math:sqrt"), SourceError, r"module math lacks Python source")
    file = written(tmp_path, SHOUTING)
    refused(ask(file=file, reads=[str(tmp_path / "words.txt")]), SourceError, r"words.txt does not exist")
    ask(file=file)()


def test_what_can_not_be_loaded_says_why(tmp_path: Path) -> None:
    def use(source: str, function: str = "measure") -> Callable[[], Any]:
        config = PythonSignalConfig(file=written(tmp_path, source), function=function)
        return lambda: measure_here(config, ["text"])

    refused(use("def measure(texts:\n"), SourceError, r"rules.py can't be run: SyntaxError")
    refused(use("import nothing_like_it\n"), SourceError, r"can't be run: ModuleNotFoundError: No module named")
    refused(use(SHOUTING, "mesure"), SourceError, r"lacks the function mesure\. It has measure\.")
    config = PythonSignalConfig(file=written(tmp_path, SHOUTING), columns=["capitals", "long"])
    told = fingerprints(config)
    written(tmp_path, SHOUTING + "\n")
    one = pa.array(["x"])
    refused(
        lambda: measure_with(config, json.dumps(told), one, one, one, one), ConfigError, r"A worker reads another .*py"
    )


@pytest.mark.parametrize(
    ("signal", "why"),
    [
        ({"measure": {"kind": "python"}}, "set one of them: a file, or an entry_point"),
        (
            {"measure": {"kind": "python", "file": "a.py"}, "max": {"speed": 1}},
            "unknown column speed: choose from score",
        ),
        ({"measure": {"kind": "python", "file": "a.py"}, "max": {"score": 1}, "min": {"score": 2}}, "no document can"),
        ({"measure": {"kind": "python", "file": "a.py", "columns": ["error"]}}, "don't use error, which is taken"),
        ({"measure": {"kind": "python", "file": "a.py", "columns": ["a", "a"]}}, "write each once"),
    ],
)
def test_a_profile_that_can_not_be_meant_is_refused(signal: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        FilterConfig.model_validate({"signals": {"mine": signal}})


def test_a_name_with_a_dot_is_refused() -> None:
    with pytest.raises(ValidationError, match="lower-case letters"):
        FilterConfig.model_validate({"signals": {"my.own": {"measure": {"kind": "python", "file": "a.py"}}}})


class Watching(Observer):
    """Keeps the names of stages that start and finish."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def started(self, stage: str, why: str) -> None:
        """See the base."""
        self.told.append(f"{stage} starts")

    def progressed(self, progress: Progress) -> None:
        """See the base."""
        if progress.unit == "shards":
            self.told.append(f"{progress.stage} works")

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float) -> None:
        """See the base."""
        self.told.append(f"{stage} ends")


def test_who_watches_is_told_of_each_signal_by_its_name(tmp_path: Path) -> None:
    file = written(tmp_path, SHOUTING)
    measure = {"kind": "python", "file": file, "columns": ["capitals", "long"]}
    config = FilterConfig.model_validate(
        {**OFF, "signals": {name: {"measure": measure | {"function": "measure"}} for name in ("loud", "wide")}}
    )
    inputs = [corpus(tmp_path / "in", [QUIET]), questions(tmp_path / "benchmarks")]
    watching = Watching()
    with open_session(Session(Store(str(tmp_path / "store")), runtime_of(workers=1), observer=watching)):
        filter_documents.materialize(config, inputs)
    told = [line for line in dict.fromkeys(watching.told) if line.startswith("signals")]
    assert told == [*(f"signals.loud {what}" for what in ("starts", "works", "ends")), "signals.wide ends"], (
        "the second is the artifact of the first"
    )
