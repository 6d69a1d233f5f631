"""Duplicates among pairs are dropped before training, and accounted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from tasks.posttrain.config import Deduplicate
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.rows.duplicates import drop_duplicates
from tasks.stage.output import Output
from tests.tasks.posttrain.uneven import output
from tests.tasks.tiny_model import ANIMALS, PLACES, answer, make_model, question, write_rows

POEM = "The river runs past the mill and the wheel turns slowly all day long while the miller sings an old song " * 2


def conversation(id: str, asked: str, said: str) -> dict[str, Any]:
    return {
        "id": id,
        "source": "test",
        "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}],
    }


ROWS = [
    conversation("first", "Who wrote it?", "André Gide"),
    conversation("decomposed", "Who  wrote it?\n", "Andre\u0301 Gide "),
    conversation("other case", "who wrote it?", "André Gide"),
    conversation("other answer", "Who wrote it?", "Nobody knows."),
    conversation("poem", "A poem!", POEM),  # the longer of the two is kept
    conversation("other poem", "A poem!", POEM.replace("slowly", "slowly on", 1)),
    conversation("first again", "Who wrote it?", "André Gide"),
]


@pytest.mark.parametrize(
    ("which", "kept", "counted"),
    [
        ("none", ["first", "decomposed", "other case", "other answer", "poem", "other poem", "first again"], {}),
        ("exact", ["first", "other case", "other answer", "poem", "other poem"], {"exact_duplicate": 2}),
        ("near", ["first", "other answer", "other poem"], {"exact_duplicate": 2, "near_duplicate": 2}),
    ],
)
def test_one_of_equal_or_similar_pairs_is_kept(
    which: Deduplicate, kept: list[str], counted: dict[str, int], tmp_path: Path
) -> None:
    write_rows(tmp_path / "a.jsonl", ROWS[:4])
    write_rows(tmp_path / "b.jsonl", ROWS[4:])
    files, dropped = drop_duplicates([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], which, Output.at(tmp_path))
    left = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [row["id"] for row in left] == kept
    assert all(row in ROWS for row in left), "unchanged"
    assert dict(dropped) == counted


def test_preferences_are_equal_if_both_answers_are(tmp_path: Path) -> None:
    pair = {"id": "1", "prompt": question("fox"), "chosen": [answer("wood")], "rejected": [answer("hive")]}
    turned = {"id": "2", "prompt": question("fox"), "chosen": [answer("hive")], "rejected": [answer("wood")]}
    folder = write_rows(tmp_path / "a.jsonl", [pair, turned, {**pair, "id": "3"}])
    (file,), dropped = drop_duplicates([folder / "a.jsonl"], "exact", Output.at(tmp_path))
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ["1", "2"]
    assert dropped == {"exact_duplicate": 1}


def test_an_answer_that_is_labelled_both_ways_says_nothing(tmp_path: Path) -> None:
    rows = [
        {"id": str(number), "prompt": question("fox"), "completion": [answer(place)], "label": label}
        for number, (place, label) in enumerate((("wood", True), ("hive", True), ("wood", False), ("hive", True)))
    ]
    folder = write_rows(tmp_path / "a.jsonl", rows)
    (file,), dropped = drop_duplicates([folder / "a.jsonl"], "exact", Output.at(tmp_path))
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ["1"]
    assert dropped == {"labelled_both_ways": 2, "exact_duplicate": 1}


@pytest.mark.soak
def test_no_pair_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    """Copies with other ids, so that some would be held out."""
    rows = [
        {"id": f"{animal} {copy}", "source": "test", "messages": [*question(animal), answer(PLACES[0])]}
        for copy in range(6)
        for animal in ANIMALS
    ]
    model = Artifact.at(make_model(tmp_path / "model"))
    out = output(tmp_path, "sft")
    config = SftConfig(epochs=1, global_batch=4, validation_share=0.3, max_dropped_share=0.0)
    sft.function(config, model, Artifact.at(write_rows(tmp_path / "pairs" / "all.jsonl", rows)), out)
    counted = {"in": 96, "kept": 16, "removed": {"exact_duplicate": 80}, "quarantined": 0}
    assert out.counts["documents"] == counted
    assert out.counts["steps"] == 3, "eleven or twelve pairs to train on"
