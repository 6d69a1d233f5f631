"""Hostile texts: every signal family measures them or says null. None crashes, invents a number or takes forever."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest

from storage.artifact import Artifact
from storage.shards.documents import Document, document_id, read_documents, read_ledger, shard_name, write_documents
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.families import FAMILIES
from tasks.filter.repair.stage import repair
from tasks.filter.repair.text import RepairConfig
from tasks.filter.side_files import read_signals
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.filter.linear import linear_time
from tests.tasks.tiny_model import write_rows

PLAIN = (
    "The river begins in the hills and flows to the sea. People have lived along it since the first farms were made, "
    "and the towns that stand there now still take their water from it. In the spring it is high and brown."
)
HOSTILE = {
    "empty": "",
    "blank": " \n\t\n \u3000 \n",
    "one word of 10 MB": "a" * 10_000_000,
    "Chinese": "河流从山上流向大海，人们自古以来就住在河边。" * 2000,
    "Japanese": "川は山から海へ流れ、昔から人々はその岸辺に住んでいます。" * 2000,
    "Thai": "แม่น้ำไหลจากภูเขาลงสู่ทะเล" * 2000,
    "right to left": "הנהר זורם מן ההרים אל הים.\nيجري النهر من الجبال إلى البحر.\n" * 500,
    "emoji": "👩‍👩‍👧🏳️‍🌈🔥❤️🏴󠁧󠁢󠁳󠁣󠁴󠁿" * 2000,
    "equal lines": "the same line once more\n" * 100_000,
    "empty lines": "\n" * 1_000_000,
    "mojibake": "Der FluÃŸ flieÃŸt â€“ wie man weiÃŸ â€“ ins Meer. " * 2000,
    "NUL": "\0" * 100_000 + "between\0the\0words",
    "controls": "".join(map(chr, range(1, 32))) * 1000,
    "combining marks": "\u0301\u0327\u0483\u0f39" * 20_000,
    "marks on one letter": "e" + "\u0301" * 100_000,
    "joiners": "\u200d\u200c\u200b\ufeff" * 20_000,
    "noncharacters": "\uffff\ufdd0\U0010ffff\ue000" * 1000,
    "at signs": "@" * 1_000_000,
    "digits": "1" * 1_000_000,
    "digits and blanks": "4111 1111 " * 50_000,
    "addresses": "a@b.c" * 100_000,
    "colons and dots": "::1.1.1." * 100_000,
    "braces": "{" * 1_000_000,
    "ellipses": "…" * 100_000,
    "hashes": "#" * 100_000,
    "bullets": "-\n" * 100_000,
    "capitals": "Anna Maria " * 10_000,
    "letters and blanks": "a " * 300_000,
}
# The settings of each family
SETTINGS: dict[str, dict[str, Any]] = {
    "form": {},
    "language": {},
    "pii": {},
    "toxicity": {},
    "quality": {"model": {"positive": ["good"], "training": {"min_count": 1, "buckets": 10_000}}},
    "perplexity": {},
    "contamination": {},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hostile/ (the texts, in two shards), ordinary/ (documents to train on), benchmarks/ (questions of all kinds)."""
    folder = tmp_path_factory.mktemp("bad_input")
    hostile = [Document.new(text, "hostile") for text in HOSTILE.values()]
    for number in range(2):
        write_documents(folder / "hostile" / shard_name(number), hostile[number::2])
    draw = random.Random(1)
    words = PLAIN.replace(".", "").split()
    ordinary = [
        Document.new(" ".join(draw.choices(words[start : start + 20], k=60)), source)
        for _ in range(150)
        for start, source in ((0, "good"), (18, "ordinary"))
    ]
    write_documents(folder / "ordinary" / shard_name(0), ordinary)
    queries = [PLAIN, "", "@" * 100, HOSTILE["Chinese"][:100], "the same line once more " * 5]
    rows = [{"id": str(i), "query": query, "choices": [" a", " b"], "gold": 0} for i, query in enumerate(queries)]
    write_rows(folder / "benchmarks" / "hostile.jsonl", rows)
    return folder


def measure(family: str, documents: Path, folder: Path, scratch: Path) -> Path:
    """The side files of a family, after training its model, if any."""
    stages: Any = next(each for each in FAMILIES if each.name == family)
    signals, model = stages.signals, stages.model
    config = get_type_hints(signals.function)["config"].model_validate(SETTINGS[family])
    inputs: list[Artifact | None] = [Artifact.at(documents)]
    if model is not None:
        trained = Output.at(folder / family, stage=f"{family}_model", runtime=runtime_of(workers=1))
        if not any(trained.path.iterdir()):
            model.function(config.model, Artifact.at(folder / "ordinary"), trained)
        inputs.append(Artifact.at(trained.path))
    if "benchmarks" in signals.input_names:
        inputs.append(Artifact.at(folder / "benchmarks"))
    if "passed" in signals.input_names:
        inputs.append(None)  # for all documents
    out = Output.at(scratch, stage=family, runtime=runtime_of(workers=1))
    signals.function(config, *inputs, out)
    return out.path


def numbers(column: pa.Array) -> Iterator[float]:
    """The floats of a column, including those in lists and structs, without nulls."""
    if pa.types.is_floating(column.type):
        yield from column.drop_null().to_pylist()
    elif pa.types.is_list(column.type):
        yield from numbers(column.flatten())
    elif pa.types.is_struct(column.type):
        for part in column.flatten():
            yield from numbers(part)


@pytest.mark.soak_but("form", "pii", "quality")
@pytest.mark.parametrize("family", SETTINGS)
def test_hostile_texts_are_measured_or_null(family: str, folder: Path, tmp_path: Path) -> None:
    measure(family, folder / "ordinary", folder, tmp_path / "warm")  # compiles, loads, trains
    with linear_time():
        side_files = measure(family, folder / "hostile", folder, tmp_path / "hostile")
    for number in range(2):
        batches = list(read_signals(side_files / shard_name(number)))
        assert sum(batch.num_rows for batch in batches) == len(HOSTILE) // 2
        for batch in batches:
            assert batch.schema == batches[0].schema
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                assert all(map(math.isfinite, numbers(column))), name


def test_every_hostile_text_is_kept_removed_or_quarantined(folder: Path, tmp_path: Path) -> None:
    texts = [*HOSTILE.values(), PLAIN]
    write_documents(tmp_path / "in" / shard_name(0), [Document.new(text, "hostile") for text in texts])
    out = Output.at(tmp_path, stage="filter", runtime=runtime_of(workers=1))
    # Without most rules of form, so that hostile texts reach the later ones
    config = FilterConfig.model_validate(
        {
            "language": {"allowed": ["en", "zh"]},
            "max_quarantined_share": 1.0,
            "gopher_quality": None,
            "c4": None,
            "fineweb": None,
        }
    )
    filter_documents.function(config, Artifact.at(tmp_path / "in"), Artifact.at(folder / "benchmarks"), out)
    documents = out.counts["documents"]
    assert documents["in"] == len(texts)
    ledger = [
        verdict.id for verdict in read_ledger(out.path / "ledger" / shard_name(0)) if verdict.verdict != "changed"
    ]
    kept = [document.id for document in read_documents(out.path / "documents" / shard_name(0))]
    assert sorted(ledger + kept) == sorted(map(document_id, texts))
    assert documents["quarantined"], "what has no letter has no language"


def test_hostile_texts_are_repaired_and_accounted_for(folder: Path, tmp_path: Path) -> None:
    out = Output.at(tmp_path, stage="repair", runtime=runtime_of(workers=1))
    config = RepairConfig(html_entities=True, line_breaks=True)
    with linear_time():
        repair.function(config, Artifact.at(folder / "hostile"), out)
    ledger = [verdict for path in out.path.glob("ledger/*") for verdict in read_ledger(path)]
    names = {document_id(text): name for name, text in HOSTILE.items()}
    emptied = {names[verdict.id] for verdict in ledger if verdict.verdict == "removed"}
    assert emptied == {"blank", "empty lines", "controls", "joiners"}, "nothing else, not even what came empty"
    assert out.counts["documents"]["kept"] == len(HOSTILE) - len(emptied)
    left = {
        names[document.id]: document.text for path in out.path.glob("documents/*") for document in read_documents(path)
    }
    assert left["mojibake"].startswith("Der Fluß fließt – wie man weiß – ins Meer.")
    assert left["NUL"] == "betweenthewords"
    same = {name for name, text in left.items() if text == HOSTILE[name]}
    assert {"empty", "one word of 10 MB", "Chinese", "Japanese", "Thai", "right to left", "emoji", "braces"} <= same
