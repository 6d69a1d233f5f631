"""Rows of instructions and preferences: one of each form to the exact messages, and what is refused."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pydantic import ValidationError

from storage.errors import BadDocument
from tasks.download.config import FileSource
from tasks.download.pairs import Converted, instruction, labelled, preference
from tasks.download.pairs.choose import FORMS
from tasks.download.pairs.form import FormName

S, U, A = "system", "user", "assistant"
Turns = list[tuple[str, str]]


def turns(messages: list[dict[str, str]]) -> Turns:
    assert all(message.keys() == {"role", "content"} for message in messages)
    return [(message["role"], message["content"]) for message in messages]


def chat(*said: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in said]


def share(*said: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": role, "value": text} for role, text in said]


TREE: dict[str, Any] = {
    "text": "Q",
    "role": "prompter",
    "replies": [
        {"text": "second", "role": "assistant", "rank": 1, "replies": []},
        {
            "text": "first",
            "role": "assistant",
            "rank": 0,
            "replies": [
                {"text": "unanswered", "role": "prompter", "rank": 0, "replies": []},
                {
                    "text": "And?",
                    "role": "prompter",
                    "replies": [
                        {"text": "no rank", "role": "assistant"},
                        {"text": "spam", "role": "assistant", "rank": 0, "review_result": False},
                        {"text": "gone", "role": "assistant", "rank": 0, "deleted": True},
                        {"text": "ranked", "role": "assistant", "rank": 3, "replies": None},
                    ],
                },
            ],
        },
    ],
}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
GOLDEN: dict[str, list[tuple[dict[str, Any], Turns]]] = {
    "alpaca": [
        ({"instruction": "Add", "input": "1 2", "output": "3", "text": "left out"}, [(U, "Add\n1 2"), (A, "3")]),
        ({"instruction": "Hi", "input": "", "output": " Hello\n"}, [(U, "Hi"), (A, " Hello\n")]),
        ({"input": "Hi", "output": "Hello"}, [(U, "Hi"), (A, "Hello")]),
        (
            {"instruction": "Now", "output": "A", "system": "Be", "history": [["Q1", "A1"], ["Q2", "A2"]]},
            [(S, "Be"), (U, "Q1"), (A, "A1"), (U, "Q2"), (A, "A2"), (U, "Now"), (A, "A")],
        ),
    ],
    "sharegpt": [
        ({"conversations": share(("human", "Hi"), ("gpt", "Hello"))}, [(U, "Hi"), (A, "Hello")]),
        ({"conversations": share((S, "Be"), (U, "Hi"), (A, "Yo"))}, [(S, "Be"), (U, "Hi"), (A, "Yo")]),
        ({"conversations": chat((U, "Hi"), (A, "Yo")), "system": "Be"}, [(S, "Be"), (U, "Hi"), (A, "Yo")]),
        (
            {
                "conversations": share(
                    ("human", "1+1"), ("function_call", '{"name": "add"}'), ("observation", "2"), ("gpt", "Two")
                ),
                "tools": '[{"name": "add"}]',
            },
            [
                (S, '<tools>\n{"name": "add"}\n</tools>'),
                (U, "1+1"),
                (A, '<tool_call>\n{"name": "add"}\n</tool_call>'),
                (U, "<tool_response>\n2\n</tool_response>"),
                (A, "Two"),
            ],
        ),
    ],
    "messages": [
        ({"messages": chat((S, "Be"), (U, "Hi"), (A, "Hello")), "prompt": "Hi"}, [(S, "Be"), (U, "Hi"), (A, "Hello")]),
        (
            {
                "messages": [
                    {
                        "role": "developer",
                        "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}],
                    },
                    {"role": U, "content": "1+1, 2+2", "name": "left out"},
                    {"role": A, "content": None, "tool_calls": [CALL, CALL]},
                    {"role": "tool", "content": "2", "tool_call_id": "1"},
                    {"role": "tool", "content": [{"type": "text", "text": "4"}]},
                    {"role": A, "content": "2 and 4", "tool_calls": []},
                ]
            },
            [
                (S, "Be\nbrief"),
                (U, "1+1, 2+2"),
                (A, f"{CALLED}\n{CALLED}"),
                (U, "<tool_response>\n2\n</tool_response>\n<tool_response>\n4\n</tool_response>"),
                (A, "2 and 4"),
            ],
        ),
        (
            {"messages": [*chat((U, "Hi")), {"role": A, "content": "Wait", "function_call": CALL["function"]}]},
            [(U, "Hi"), (A, f"Wait\n{CALLED}")],
        ),
    ],
    "dolly": [
        (
            {"instruction": "Who?", "context": "Ann came.", "response": "Ann", "category": "closed_qa"},
            [(U, "Who?\nAnn came."), (A, "Ann")],
        ),
        ({"instruction": "Who?", "context": "", "response": "Ann", "category": "open_qa"}, [(U, "Who?"), (A, "Ann")]),
    ],
    "prompt_completion": [
        ({"prompt": "Hi", "completion": "Hello"}, [(U, "Hi"), (A, "Hello")]),
        ({"prompt": chat((S, "Be"), (U, "Hi")), "completion": chat((A, "Yo"))}, [(S, "Be"), (U, "Hi"), (A, "Yo")]),
        ({"prompt": chat((U, "Hi")), "completion": chat((U, "Hi"), (A, "Yo"))}, [(U, "Hi"), (A, "Yo")]),
    ],
    "oasst": [
        (
            {"message_tree_id": "1", "tree_state": "ready_for_export", "prompt": TREE},
            [(U, "Q"), (A, "first"), (U, "And?"), (A, "ranked")],
        )
    ],
}
HH = "\n\nHuman: Hi\n\nAssistant: Hello, you:\n\n1. Human\n\nHuman: And?\n\nAssistant:"
ASKED: Turns = [(U, "Hi"), (A, "Hello, you:\n\n1. Human"), (U, "And?")]
GOLDEN_PREFERENCES: dict[str, list[tuple[dict[str, Any], tuple[Turns, Turns, Turns]]]] = {
    "implicit_prompt": [
        ({"chosen": f"{HH} Yes.", "rejected": f"{HH} No. "}, (ASKED, [(A, "Yes.")], [(A, "No.")])),
        ({"chosen": chat((U, "Hi"), (A, "Yo")), "rejected": chat((U, "Hi"), (A, "No"), (U, "Oh"), (A, "Ah"))},
         ([(U, "Hi")], [(A, "Yo")], [(A, "No"), (U, "Oh"), (A, "Ah")])),
    ],
    "explicit_prompt": [
        ({"prompt": "Hi", "chosen": "Yo", "rejected": "No"}, ([(U, "Hi")], [(A, "Yo")], [(A, "No")])),
        (  # UltraFeedback, as binarized by HuggingFaceH4
            {"prompt": "Hi", "prompt_id": "1", "messages": chat((U, "Hi"), (A, "Yo")), "score_chosen": 9.0,
             "chosen": chat((U, "Hi"), (A, "Yo")), "rejected": chat((U, "Hi"), (A, "No")), "score_rejected": 1.0},
            ([(U, "Hi")], [(A, "Yo")], [(A, "No")]),
        ),
        ({"prompt": "Hi", "chosen": chat((S, "Be"), (U, "Hi "), (A, "Yo")),
          "rejected": chat((S, "Be"), (U, "Hi "), (A, "No"))}, ([(S, "Be"), (U, "Hi ")], [(A, "Yo")], [(A, "No")])),
        ({"prompt": HH, "chosen": " Yes.", "rejected": " No.", "system": "Be"},
         ([(S, "Be"), *ASKED], [(A, " Yes.")], [(A, " No.")])),
    ],
    "alpaca_preference": [
        ({"instruction": "Add", "input": "1 2", "output": "left out", "chosen": "3", "rejected": "4"},
         ([(U, "Add\n1 2")], [(A, "3")], [(A, "4")])),
    ],
    "sharegpt_preference": [
        ({"conversations": share(("human", "Hi")), "chosen": {"from": "gpt", "value": "Yo"},
          "rejected": {"from": "gpt", "value": "No"}}, ([(U, "Hi")], [(A, "Yo")], [(A, "No")])),
    ],
}  # fmt: skip

GOLDEN_LABELLED: dict[str, list[tuple[dict[str, Any], tuple[Turns, Turns, bool]]]] = {
    "labelled_completion": [
        ({"prompt": "Hi", "completion": "Yo", "label": True}, ([(U, "Hi")], [(A, "Yo")], True)),
        (
            {"prompt": chat((U, "Hi")), "completion": chat((A, "No")), "label": False},  # trl-lib/kto-mix-14k
            ([(U, "Hi")], [(A, "No")], False),
        ),
        (
            {"prompt": HH, "completion": " Yes.", "kto_tag": 1, "system": "Be"},
            ([(S, "Be"), *ASKED], [(A, " Yes.")], True),
        ),
    ],
    "labelled_messages": [
        (
            {"messages": chat((U, "Hi"), (A, "Yo"), (U, "So"), (A, "No")), "label": 0},
            ([(U, "Hi"), (A, "Yo"), (U, "So")], [(A, "No")], False),
        ),
        ({"messages": chat((U, "Hi"), (A, "Yo")), "kto_tag": True, "label": None}, ([(U, "Hi")], [(A, "Yo")], True)),
    ],
    "labelled_sharegpt": [
        (
            {"conversations": share(("human", "Hi"), ("gpt", "Yo")), "kto_tag": False},  # LLaMA-Factory
            ([(U, "Hi")], [(A, "Yo")], False),
        )
    ],
    "labelled_alpaca": [
        ({"instruction": "Add", "input": "1 2", "output": "3", "kto_tag": True}, ([(U, "Add\n1 2")], [(A, "3")], True))
    ],
}


@pytest.mark.parametrize(
    ("form", "row", "expected"), [(form, *case) for form, cases in GOLDEN.items() for case in cases]
)
def test_every_form_of_instructions_becomes_exactly_these_messages(
    form: FormName, row: dict[str, Any], expected: Turns
) -> None:
    for named in (None, form):
        pair, cut = instruction(row, "mine", named)
        assert (turns(pair["messages"]), pair["source"], cut) == (expected, "mine", "")


@pytest.mark.parametrize(
    ("form", "row", "expected"), [(form, *case) for form, cases in GOLDEN_PREFERENCES.items() for case in cases]
)
def test_every_form_of_preferences_becomes_exactly_these_messages(
    form: FormName, row: dict[str, Any], expected: tuple[Turns, Turns, Turns]
) -> None:
    for named in (None, form):
        pair, _ = preference(row, "mine", named)
        assert (turns(pair["prompt"]), turns(pair["chosen"]), turns(pair["rejected"])) == expected


@pytest.mark.parametrize(
    ("form", "row", "expected"), [(form, *case) for form, cases in GOLDEN_LABELLED.items() for case in cases]
)
def test_every_form_of_labelled_rows_becomes_exactly_this(
    form: FormName, row: dict[str, Any], expected: tuple[Turns, Turns, bool]
) -> None:
    for named in (None, form):
        pair, _ = labelled(row, "mine", named)
        assert (turns(pair["prompt"]), turns(pair["completion"]), pair["label"]) == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "Hi", "completion": "Yo"}, "unknown_form"),
        ({"prompt": "Hi", "completion": "Yo", "label": "true"}, "no_label"),
        ({"prompt": "Hi", "completion": "Yo", "label": None}, "no_label"),
        ({"prompt": "Hi", "completion": "Yo", "label": 2}, "no_label"),
        ({"prompt": "Hi", "completion": "Yo", "label": True, "kto_tag": False}, "no_label"),
        ({"messages": chat((U, "Hi")), "label": True}, "no_answer"),
        ({"messages": [], "prompt": "Hi", "completion": "Yo", "label": True}, "ambiguous_form"),
        ({"prompt": "Hi", "chosen": "Yo", "rejected": "No"}, "unknown_form"),
    ],
)
def test_a_labelled_row_without_a_label_or_an_answer_is_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadDocument) as caught:
        labelled(row, "mine")
    assert caught.value.message == reason


def test_the_same_answer_with_another_label_is_another_row() -> None:
    both = [labelled({"prompt": "Hi", "completion": "Yo", "label": label}, "mine").pair for label in (True, False)]
    assert both[0]["id"] != both[1]["id"]


def test_every_form_has_a_golden_row() -> None:
    golden: dict[str, Iterable[str]] = {
        "instructions": GOLDEN,
        "preferences": GOLDEN_PREFERENCES,
        "labelled": GOLDEN_LABELLED,
    }
    assert {role: {form.name for form in forms} for role, forms in FORMS.items()} == {
        role: set(rows) for role, rows in golden.items()
    }


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([(A, "Hello"), (U, "Hi"), (A, "Yo")], "no_question"),
        ([(A, "Hello")], "no_question"),
        ([(S, "Be")], "no_question"),
        ([(U, "Hi")], "no_answer"),
        ([(S, "Be"), (U, "Hi")], "no_answer"),
        ([(U, "Hi"), (S, "Be"), (A, "Yo")], "late_system"),
        ([(S, "Be"), (S, "Be"), (U, "Hi"), (A, "Yo")], "late_system"),
        ([(U, "Hi"), (U, "Ho"), (A, "Yo")], "two_in_a_row"),
        ([(U, "Hi"), (A, "Yo"), (A, "Yo")], "two_in_a_row"),
        ([(U, "Hi"), (A, " ")], "empty"),
        ([(U, "Hi"), ("bot", "Yo")], "unknown_role"),
        ([(U, "Hi"), ("tool", "2"), (A, "Yo")], "two_in_a_row"),
    ],
)
def test_turns_in_another_order_are_refused_in_both_styles(said: Turns, reason: str) -> None:
    for row in ({"messages": chat(*said)}, {"conversations": share(*said)}):
        with pytest.raises(BadDocument) as caught:
            instruction(row, "mine")
        assert caught.value.message == reason
        assert caught.value.facts["why"]


def test_a_last_turn_of_the_users_is_cut_and_said() -> None:
    pair, cut = instruction({"messages": chat((U, "Hi"), (A, "Yo"), (U, "And?"))}, "mine")
    assert (turns(pair["messages"]), cut) == ([(U, "Hi"), (A, "Yo")], "trailing_user_turn")
    assert pair == instruction({"messages": chat((U, "Hi"), (A, "Yo"))}, "mine").pair


def test_a_form_that_is_named_settles_which_keys_are_read() -> None:
    row = {"messages": chat((U, "Hi"), (A, "Yo")), "instruction": "Add", "output": "3", "label": True}
    for named, expected in (("messages", "Yo"), ("alpaca", "3")):
        assert instruction(row, "mine", named).pair["messages"][-1]["content"] == expected  # type: ignore[arg-type]
    with pytest.raises(BadDocument, match="unknown_form") as caught:
        instruction(row, "mine", "dolly")
    assert "dolly (instruction, response)" in caught.value.facts["why"]


def test_a_column_that_is_null_is_none() -> None:
    """In Parquet every row has the columns of all."""
    row = {
        "messages": None,
        "conversations": None,
        "instruction": "Add",
        "output": "3",
        "kto_tag": None,
        "system": None,
    }
    assert turns(instruction(row, "mine").pair["messages"]) == [(U, "Add"), (A, "3")]
    row = {"prompt": None, "chosen": f"{HH} Yes.", "rejected": f"{HH} No."}
    assert turns(preference(row, "mine").pair["prompt"]) == ASKED


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": U, "content": [{"type": "image_url", "image_url": {}}]}]}, "not_text"),
        ({"messages": chat((U, "Hi"), (A, "Yo")), "images": ["a.png"]}, "not_text"),
        ({"messages": [{**chat((U, "Hi"))[0], "images": ["a.png"]}, *chat((A, "Yo"))]}, "not_text"),
        ({"messages": [*chat((U, "Hi")), {"role": A, "content": "Yo", "weight": 0}]}, "weight"),
        ({"messages": [*chat((U, "Hi")), {"role": A, "content": None, "tool_calls": [{"id": "1"}]}]}, "no_text"),
        ({"messages": [{"role": U, "from": "human", "content": "Hi"}]}, "ambiguous_form"),
        ({"messages": chat((U, "Hi"), (A, "Yo")), "kto_tag": True}, "no_method"),
        ({"message_id": "1", "parent_id": "0", "text": "Hi", "role": "prompter"}, "no_method"),
        ({"instruction": "Hi", "output": "a", "response": "b"}, "ambiguous_form"),
        ({"instruction": "Hi", "output": None}, "no_text"),
        ({"instruction": "Hi", "output": "Yo", "history": [["Q"]]}, "no_messages"),
        ({"message_tree_id": "1", "prompt": {"text": "Q", "role": "prompter", "replies": []}}, "no_answer"),
        ({"message_tree_id": "1", "prompt": {"text": "Q", "role": "prompter", "deleted": True}}, "rejected_by_review"),
        ({"message_tree_id": "1", "prompt": {**TREE, "replies": [{"rank": "0"}]}}, "no_rank"),
    ],
)
def test_what_the_messages_have_no_place_for_is_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadDocument) as caught:
        instruction(row, "mine")
    assert caught.value.message == reason


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"chosen": f"{HH} Yes.", "rejected": f"{HH} Yes. "}, "equal_answers"),
        ({"chosen": f"{HH} Yes.", "rejected": f"{HH}"}, "empty"),
        ({"chosen": "Yes.", "rejected": "No."}, "no_transcript"),
        ({"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: c\n\nAssistant: b"}, "other_prompt"),
        ({"chosen": f"{HH} Yes.\n\nAssistant: Yes.", "rejected": f"{HH} No."}, "two_in_a_row"),
        ({"prompt": "Hi", "chosen": chat((U, "Ho"), (A, "a")), "rejected": chat((U, "Ho"), (A, "b"))}, "other_prompt"),
        ({"prompt": "Hi", "chosen": chat((U, "Hi")), "rejected": "No"}, "no_answer"),
        ({"prompt": chat((U, "Hi"), (A, "Yo")), "chosen": "a", "rejected": "b"}, "two_in_a_row"),
        ({"prompt": "Hi", "instruction": "Hi", "chosen": "a", "rejected": "b"}, "ambiguous_form"),
        ({"prompt": "Hi", "completion": "a", "label": 1}, "no_method"),
        ({"instruction": "Hi", "output": "a"}, "unknown_form"),
    ],
)
def test_a_preference_that_prefers_nothing_is_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadDocument) as caught:
        preference(row, "mine")
    assert caught.value.message == reason


DEEP: Any = "x"
for _ in range(100_000):
    DEEP = [DEEP]
MALFORMED: tuple[Any, ...] = (
    None,
    True,
    7,
    0.5,
    "",
    " ",
    "\0",
    "\ud800",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"role": None},
    {"role": "user"},
    [7],
    [{"role": "bot", "content": "a"}],
    [{"from": ["human"], "value": "a"}],
    [{"role": "user", "content": {"a": None}}],
    [{"role": "assistant", "tool_calls": {"function": 7}}],
    [{"type": "text"}],
    float("nan"),
    "long " * 200_000,
    DEEP,
    b"bytes",
    datetime.date(2026, 1, 1),
    {"text": None, "role": "prompter", "replies": [None, {}, {"replies": 7}]},
)


def _spoiled(value: Any) -> list[Any]:
    """A value with each of its parts, of whatever depth, replaced by each malformed one, or missing."""
    made = list(MALFORMED)
    if isinstance(value, dict):
        for key, part in value.items():
            made += [{**value, key: other} for other in _spoiled(part)]
            made.append({name: kept for name, kept in value.items() if name != key})
    elif isinstance(value, list):
        for number, part in enumerate(value):
            made += [[*value[:number], other, *value[number + 1 :]] for other in _spoiled(part)]
    return made


@pytest.mark.parametrize(
    ("take", "form", "row"),
    [
        *((instruction, form, cases[-1][0]) for form, cases in GOLDEN.items()),
        *((preference, form, cases[0][0]) for form, cases in GOLDEN_PREFERENCES.items()),
        *((labelled, form, cases[0][0]) for form, cases in GOLDEN_LABELLED.items()),
    ],
)
def test_whatever_is_malformed_is_a_pair_in_order_or_refused_in_a_sentence(
    take: Callable[..., Converted], form: FormName, row: dict[str, Any]
) -> None:
    refused: list[str] = []
    for key in (*row, "system", "history", "tools", "images"):
        for value in _spoiled(row.get(key)):
            for named in (None, form):
                try:
                    pair = take({**row, key: value}, "mine", named).pair
                except BadDocument as error:
                    refused.append(error.facts["why"])
                    continue
                parts = [pair.get(part, []) for part in ("messages", "prompt", "chosen", "completion")]
                made = [turn for part in parts for turn in part]
                roles = [role for role, text in turns(made) if text.strip() and "\0" not in text]
                assert roles[roles[0] == S :] == [U, A] * (len(made) // 2)
                json.dumps(pair, ensure_ascii=False).encode()
    assert all(why.isprintable() and len(why) < 500 for why in refused)
    assert len(refused) > 100


def test_a_form_is_one_of_the_sources_role() -> None:
    FileSource(name="a", paths=["a"], role="instructions", form="alpaca")
    for role, form in (("documents", "alpaca"), ("instructions", "implicit_prompt"), ("preferences", "messages")):
        with pytest.raises(ValidationError, match=f"{form} is not a form of {role}"):
            FileSource.model_validate({"name": "a", "paths": ["a"], "role": role, "form": form})
    with pytest.raises(ValidationError, match="Input should be 'messages'"):
        FileSource.model_validate({"name": "a", "paths": ["a"], "role": "instructions", "form": "other"})
