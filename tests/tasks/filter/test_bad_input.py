"""Hostile texts: every signal family measures them or says null; none crashes, invents a number or takes for ever."""

from __future__ import annotations

import importlib
import importlib.util
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.artifact import Artifact
from storage.documents import Document, document_id, read_documents, read_ledger, shard_name, write_documents
from tasks.config import Runtime
from tasks.filter.repair.config import RepairConfig
from tasks.filter.repair.stage import repair
from tasks.filter.side_files import read_signals
from tasks.output import Output
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
# How each family is asked; its package names all the rest
FAMILIES: dict[str, dict[str, Any]] = {
    "form": {},
    "language": {},
    "pii": {},
    "toxicity": {},
    "quality": {"model": {"positive": ["good"], "training": {"min_count": 1, "buckets": 10_000}}},
    "perplexity": {},
    "contamination": {},
}
SECONDS = 5  # of CPU for 23 MB, a worker's start-up left out; what takes quadratic time takes hours


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hostile/: the texts, in two shards; ordinary/: documents to train on; benchmarks/: questions of all kinds."""
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


def families() -> list[str]:
    """The families whose code is there."""
    return [name for name in FAMILIES if importlib.util.find_spec(f"tasks.filter.{name}.measure")]


def measure(family: str, documents: Path, folder: Path, scratch: Path) -> Path:
    """The side files of a family, with its model trained first where it has one."""
    stages = importlib.import_module(f"tasks.filter.{family}.stage")
    configs = importlib.import_module(f"tasks.filter.{family}.config")
    config = getattr(configs, f"{family.capitalize()}Config").model_validate(FAMILIES[family])
    signals = getattr(stages, f"{family}_signals")
    inputs = [Artifact.at(documents)]
    if "model" in signals.input_names:
        trained = Output.at(folder / family, stage=f"{family}_model", runtime=Runtime(workers=1))
        if not any(trained.path.iterdir()):
            getattr(stages, f"{family}_model").function(config.model, Artifact.at(folder / "ordinary"), trained)
        inputs.append(Artifact.at(trained.path))
    if "benchmarks" in signals.input_names:
        inputs.append(Artifact.at(folder / "benchmarks"))
    out = Output.at(scratch, stage=family, runtime=Runtime(workers=1))
    signals.function(config, *inputs, out)
    return out.path


def numbers(column: pa.Array) -> Iterator[float]:
    """The floats of a column, those within lists and structs too; nulls left out."""
    if pa.types.is_floating(column.type):
        yield from column.drop_null().to_pylist()
    elif pa.types.is_list(column.type):
        yield from numbers(column.flatten())
    elif pa.types.is_struct(column.type):
        for part in column.flatten():
            yield from numbers(part)


@pytest.mark.parametrize("family", families())
def test_hostile_texts_are_measured_or_null(family: str, folder: Path, tmp_path: Path) -> None:
    measure(family, folder / "ordinary", folder, tmp_path / "warm")  # compiles, loads, trains
    started = time.process_time()
    side_files = measure(family, folder / "hostile", folder, tmp_path / "hostile")
    seconds = time.process_time() - started
    for number in range(2):
        batches = list(read_signals(side_files / shard_name(number)))
        assert sum(batch.num_rows for batch in batches) == len(HOSTILE) // 2
        for batch in batches:
            assert batch.schema == batches[0].schema
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                assert all(map(math.isfinite, numbers(column))), name
    assert seconds < SECONDS


def test_hostile_texts_are_repaired_and_accounted_for(folder: Path, tmp_path: Path) -> None:
    out = Output.at(tmp_path, stage="repair", runtime=Runtime(workers=1))
    started = time.process_time()
    config = RepairConfig(html_entities=True, line_breaks=True)
    repair.function(config, Artifact.at(folder / "hostile"), out)
    assert time.process_time() - started < SECONDS
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
