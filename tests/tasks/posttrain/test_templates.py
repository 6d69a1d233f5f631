"""Third-party chat templates: rows that they refuse are dropped, counted, and reported with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from models.kernels.cross_entropy import IGNORED
from storage.errors import EmptyOutput
from tasks.posttrain.rows.form import Dropped
from tasks.posttrain.rows.instruction import render_instruction
from tasks.posttrain.rows.preference import render_preference
from tasks.posttrain.rows.prepare import prepare
from tests.tasks.foreign import CHATML, make_foreign_tokenizer
from tests.tasks.tiny_model import answer, question

NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('none') }}{% endif %}" + CHATML
THINKS = CHATML.replace("assistant\n", "assistant\n<think>")  # the prompt, but not the conversation
TURNS = [*question("fox"), answer("wood")]


def prepared(template: str, *conversations: list[dict[str, str]]) -> Any:
    tokenizer = make_foreign_tokenizer(template=template)
    rows = [{"id": str(number), "messages": messages} for number, messages in enumerate(conversations)]
    render = lambda row, length: render_instruction(row, tokenizer, length)  # noqa: E731
    return prepare(rows, render, 128, validation_share=0.0, max_dropped_share=0.5)


def test_an_answer_is_learned_with_what_ends_it_though_the_template_marks_nothing() -> None:
    tokenizer = make_foreign_tokenizer()
    labels = render_instruction({"id": "1", "messages": TURNS}, tokenizer, 128)["labels"]
    assert tokenizer.decode([label for label in labels if label != IGNORED]) == "It lives in the wood.<|im_end|>"


def test_a_refused_system_prompt_costs_its_row_alone() -> None:
    system = {"role": "system", "content": "Be brief."}
    train, _, dropped = prepared(NO_SYSTEM, TURNS, [system, *TURNS])
    assert len(train) == 1
    assert dropped == {"refused_by_template": 1}
    with pytest.raises(EmptyOutput, match="2 refused by template") as caught:
        prepared(NO_SYSTEM, [system, *TURNS], [system, *TURNS])
    assert "some allow no system prompt" in caught.value.remedy


def test_a_prompt_that_is_rendered_otherwise_before_its_answer_is_told_as_such() -> None:
    with pytest.raises(EmptyOutput, match="1 prompt not a prefix") as caught:
        prepared(THINKS, TURNS)
    assert caught.value.remedy.startswith("Correct the chat template")
    pair = {"id": "1", "prompt": question("fox"), "chosen": [answer("wood")], "rejected": [answer("yard")]}
    with pytest.raises(Dropped, match="prompt_not_a_prefix"):
        render_preference(pair, make_foreign_tokenizer(template=THINKS), 128)
