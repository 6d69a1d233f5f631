"""The held-out rows: a share of the prompts, each on one side only."""

from __future__ import annotations

from typing import Any

import pytest

from storage.errors import EmptyOutput
from tasks.posttrain.rows.prepare import is_held_out, prepare
from tests.tasks.tiny_model import ANIMALS, PLACES, answer, question


def rows_of(prompts: int, answers: int) -> list[dict[str, Any]]:
    return [
        {"id": f"{animal} {number} {place}", "messages": [*question(f"{animal} {number}"), answer(place)]}
        for number in range(prompts // len(ANIMALS) + 1)
        for animal in ANIMALS
        for place in PLACES[:answers]
    ]


def test_all_rows_with_a_prompt_are_on_one_side() -> None:
    train, held_out, _ = prepare(rows_of(200, 3), lambda row, _: row, 128, validation_share=0.3, max_dropped_share=0)
    asked, kept = ({row["messages"][0]["content"] for row in side} for side in (train, held_out))
    assert asked
    assert kept
    assert not asked & kept
    assert len(held_out) == 3 * len(kept)
    assert 0.2 < len(held_out) / (len(train) + len(held_out)) < 0.4


def test_where_no_prompt_comes_twice_the_hash_of_the_id_decides() -> None:
    rows = rows_of(200, 1)
    _, held_out, _ = prepare(rows, lambda row, _: row, 128, validation_share=0.3, max_dropped_share=0)
    assert [row["id"] for row in held_out] == [row["id"] for row in rows if is_held_out(row["id"], 0.3)]


def test_rows_that_are_all_held_out_are_told_of_as_what_they_are() -> None:
    (row,) = [row for row in rows_of(50, 1) if is_held_out(row["id"], 0.2)][:1]
    with pytest.raises(EmptyOutput, match="All of 1 pairs are held out") as told:
        prepare([row], lambda row, _: row, 128, validation_share=0.2, max_dropped_share=0.5)
    assert "Lower validation_share" in told.value.remedy
