"""A filter family is one folder and one row in a table. Nothing else in the filter knows a family by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import Field

import tasks.filter
from storage.artifact import Artifact
from storage.shards.arrays import Bool
from storage.shards.documents import Document
from storage.store import Store
from tasks.filter import FilterConfig, families, filter_documents
from tasks.filter.decide import KEPT, decide
from tasks.filter.family import Change, Family, measuring_half
from tasks.filter.form.config import FormConfig
from tasks.filter.repair.text import RepairConfig
from tasks.filter.rules import Bound, Rule, Section, Turn, bounds
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.decorator import STAGES
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.filter.test_filter import GOOD, RULES, ledger_of, questions, texts_in, write

FOLDER = Path(tasks.filter.__file__).parent
ROOT = FOLDER.parents[1]


class ShoutConfig(StageConfig):
    """Nothing to choose."""


class ShoutRules(Section):
    """How many words may be in capitals, and whether those that are there become quiet."""

    measure: ShoutConfig = Field(default_factory=ShoutConfig, description="how it is measured")
    max_words: int = Field(1, description="words in capitals")
    trusted: list[str] = Field(["toy"], description="a field that names sources")

    def named_sources(self) -> dict[str, list[str]]:
        """See the base."""
        return {"trusted": self.trusted}


class WithShouts(FilterConfig):
    """The filter's config with one family more."""

    shout: ShoutRules | None = Field(default_factory=ShoutRules, description="capitals")


def measure_shouts(texts: pa.Array) -> pa.RecordBatch:
    """Words in capitals of each text."""
    counts = [sum(word.isupper() and len(word) > 1 for word in text.split()) for text in texts.to_pylist()]
    return pa.record_batch({"shout_words": pa.array(counts, pa.int64())})


@dataclass(frozen=True)
class Quiet:
    """Puts words in capitals into small letters."""

    turn: Turn = Turn.USUAL
    column: str = "text"

    def touches(self, signals: pa.RecordBatch) -> Bool:
        """Where there is one."""
        return np.asarray(signals["shout_words"]) > 0

    def mend(self, text: str, signals: pa.RecordBatch, row: int) -> Change:
        """Without them."""
        count = signals["shout_words"][row].as_py()
        quiet = " ".join(word.lower() if word.isupper() and len(word) > 1 else word for word in text.split(" "))
        return Change(quiet, "shout", count, "quiet now")


def shout_rules(shout: ShoutRules | None) -> Iterator[Rule]:
    yield from bounds("shout", shout, "shout_")


def note_shouts(shout: ShoutRules, measured: Artifact, out: Output) -> None:
    (out.path / "shouts.txt").write_text(f"{len(measured.files('*.parquet'))} shards\n")


@pytest.fixture
def shouting(monkeypatch: pytest.MonkeyPatch) -> Family:
    """The toy family in the table, for one test."""
    known = dict(STAGES)

    @stage(version=1, name="shout")
    def shout_signals(config: ShoutConfig, documents: Artifact, out: Output) -> None:
        """Count words in capitals."""
        write_signals(measure_shouts, documents, out)

    STAGES.pop("shout")
    assert known == STAGES
    family = Family(
        ("shout",),
        shout_signals,
        measuring_half,
        shout_rules,
        fingerprints=lambda shout: {"shout": "digest"},
        mender=lambda shout: Quiet() if shout else None,
        redact=lambda shout, texts: [text.replace("SECRET", "<hidden>") for text in texts],
        finish=note_shouts,
    )
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, family))
    return family


def test_a_family_that_is_added_to_the_table_is_measured_judged_mended_and_reported(
    shouting: Family, tmp_path: Path
) -> None:
    loud, half_loud = f"SECRET THINGS stand HERE. {GOOD}", f"{GOOD} And a SHIP."
    config = WithShouts.model_validate({**RULES, "max_quarantined_share": 1.0})
    out = Output.at(tmp_path, stage="filter", runtime=runtime_of(workers=1))
    inputs = [write(tmp_path / "in", [GOOD, loud, half_loud]), questions(tmp_path / "benchmarks")]
    filter_documents.function(config, *inputs, out)
    assert sorted(texts_in(out)) == sorted([GOOD, f"{GOOD} And a ship."])
    verdicts = {verdict.id: verdict for verdict in ledger_of(out)}
    removed, changed = (verdicts[Document.new(text, "test").id] for text in (loud, half_loud))
    assert (removed.reason, removed.value, removed.threshold) == ("shout.max_words", 3.0, 1.0)
    assert (changed.verdict, changed.reason, changed.value, changed.detail) == ("changed", "shout", 1.0, "quiet now")
    assert out.counts["documents"]["removed"] == {"shout.max_words": 1}
    report = (out.path / "report.md").read_text()
    assert "| shout.max_words |" in report
    assert "<hidden> THINGS" in report
    assert "SECRET" not in report
    assert (out.path / "shouts.txt").read_text() == "2 shards\n"
    assert config.named_sources() == {"shout.trusted": ["toy"]}


def test_a_family_that_is_added_measures_only_itself_and_enters_the_key(shouting: Family, tmp_path: Path) -> None:
    inputs = [write(tmp_path / "in", [GOOD, f"{GOOD} Now."]), questions(tmp_path / "benchmarks")]
    store = Store(str(tmp_path / "store"))

    def made(config: FilterConfig) -> set[str]:
        before = set(store.locations())
        filter_documents.materialize(config, inputs)
        return {location.partition("/")[0] for location in set(store.locations()) - before}

    with open_session(Session(store, runtime_of(workers=1))):
        off = WithShouts.model_validate({**RULES, "shout": None})
        assert "shout" not in made(off)
        assert made(WithShouts.model_validate(RULES)) == {"shout", "passed", "filter"}
    assert filter_documents.payload(off, inputs).inputs["source:shout"] == "digest"


def test_the_table_holds_each_folder_and_each_field_of_the_config() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/family.py")}
    assert {*(family.name for family in families.FAMILIES), "signals"} == folders
    fields = [field for family in families.FAMILIES for field in family.fields]
    fields.remove("pii")  # its actions are those for metadata too
    fields.remove("form")  # mathematics asks whether formulas are counted
    assert len(fields) == len(set(fields)), "a section belongs to one family"
    own = {name for name, field in FilterConfig.model_fields.items() if field.annotation not in (bool, int, float)}
    assert own - {"repair", "preset", "pairs", "signals", "measures", "measured_last"} == set(fields)
    assert isinstance(FilterConfig().form, FormConfig)
    assert FilterConfig.model_fields["repair"].annotation == RepairConfig | None


def test_no_module_of_the_filter_names_a_family_but_the_table_and_the_config() -> None:
    names = {family.name for family in families.FAMILIES}
    for path in FOLDER.glob("*.py"):
        if path.name in ("families.py", "config.py"):
            continue
        for module in imported(path):
            assert module.removeprefix("tasks.filter.").split(".")[0] not in names, f"{path.name} imports {module}"


def test_no_modules_of_the_filter_import_each_other_in_a_circle() -> None:
    """Imports in functions and for type checkers counted."""
    modules = {module_name(path): path for path in FOLDER.rglob("*.py")}
    graph = {name: {module for module in imported(path) if module in modules} for name, path in modules.items()}
    assert list(TopologicalSorter(graph).static_order()), "raises CycleError, which names the circle"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """The modules that a file imports. `from package import module` counts as the module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if is_module(name)}
            found |= modules or {node.module}
    return found


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_the_first_rule_that_a_document_fails_is_its_reason_and_what_was_not_measured_is_told() -> None:
    signals = pa.record_batch({"words": [1.0, 5.0, 5.0, None, 4.0], "lines": [9.0, 9.0, 1.0, 9.0, 4.0]})
    found = decide(signals, [Bound("words.max", "words", "max", 4.0), Bound("lines.max", "lines", "max", 4.0)])
    assert found.rule.tolist() == [1, 0, 0, 0, KEPT]
    np.testing.assert_array_equal(found.values, [9.0, 5.0, 5.0, np.nan, 0.0])
    assert found.unmeasured.tolist() == [False, False, False, True, False]
    assert found.kept.tolist() == [False, False, False, False, True]
