"""Which tokens of a conversation bear loss, and how one that is too long is split between its turns."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError
from trl.chat_template_utils import llama3_chat_template

from models.kernels.cross_entropy import IGNORED
from models.tokenizer import CHAT_TEMPLATE_PATH, SPECIAL_TOKENS
from storage.errors import EmptyOutput
from tasks.posttrain.methods.sft import SftConfig
from tasks.posttrain.rows.instruction import LossOn, instructions, render_instruction
from tasks.posttrain.rows.prepare import prepare
from tests.tasks.foreign import CHATML, SPECIAL, make_foreign_tokenizer

SYSTEM = {"role": "system", "content": "You know the animals."}
TURNS = [
    {"role": role, "content": content}
    for asked, answered in (
        ("Where does the fox live?", "It lives in the wood."),
        ("And the hen?", "In the yard.\nNobody has seen it since."),
        ("assistant", "user"),
        ("Is the owl old?", "They say so!"),
        ("Thanks.", "The bee thanks you."),
    )
    for role, content in (("user", asked), ("assistant", answered))
]
LLAMA3 = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TEMPLATES = {  # the template, its special tokens, and an answer in its text
    "ours": (CHAT_TEMPLATE_PATH.read_text(), list(SPECIAL_TOKENS), r"<\|assistant\|>(.*?<\|end\|>)"),
    "chatml": (CHATML, SPECIAL, r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)"),
    "llama 3": (llama3_chat_template, LLAMA3, r">assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)"),
}


def tokenizer_of(template: str) -> Any:
    text, special, _ = TEMPLATES[template]
    return make_foreign_tokenizer(template=text, special=special, eos=special[0], bos_token=special[0])


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("loss_on", ["all", "last"])
def test_each_token_of_five_turns_bears_loss_or_none(template: str, loss_on: LossOn) -> None:
    tokenizer = tokenizer_of(template)
    messages = [SYSTEM, *TURNS]
    rendered = render_instruction({"id": "1", "messages": messages}, tokenizer, 1000, loss_on=loss_on)
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    spans = [match.span(1) for match in re.finditer(TEMPLATES[template][2], text, re.DOTALL)]
    assert len(spans) == 5
    learned = spans if loss_on == "all" else spans[-1:]
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert rendered["input_ids"] == encoded["input_ids"]
    expected = [
        id if any(begin <= start and end <= stop for begin, stop in learned) else IGNORED
        for id, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]
    assert rendered["labels"] == expected


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("system", [[SYSTEM], []], ids=["system", "no system"])
def test_a_long_conversation_is_split_between_turns_and_each_answer_is_learned_once(
    template: str, system: list[dict[str, str]]
) -> None:
    tokenizer = tokenizer_of(template)
    render = instructions("all", "split").render
    row = {"id": "1", "messages": [*system, *TURNS]}
    whole = render(row, tokenizer, 1000)
    assert isinstance(whole, dict), "it is not split if it fits"
    assert whole == render_instruction(row, tokenizer, 1000)
    length = len(tokenizer.apply_chat_template([*system, *TURNS[:4]])["input_ids"])
    parts = render(row, tokenizer, length)
    assert isinstance(parts, list)
    assert len(parts) > 1
    answers: list[str] = []
    for part in parts:
        assert len(part["input_ids"]) <= length
        text = tokenizer.decode(part["input_ids"])
        begins = tokenizer.apply_chat_template([*system, TURNS[2 * len(answers)]], tokenize=False)
        assert text.startswith(begins)
        found = re.findall(TEMPLATES[template][2], text, re.DOTALL)
        assert text.rstrip().endswith(found[-1])
        assert tokenizer.decode([label for label in part["labels"] if label != IGNORED]) == "".join(found)
        answers += found
    assert [re.sub(r"<\|.*", "", answer) for answer in answers] == [message["content"] for message in TURNS[1::2]]


def test_parts_are_counted_and_what_no_part_can_hold_is_dropped() -> None:
    tokenizer = tokenizer_of("chatml")
    long = {"role": "assistant", "content": "wood " * 200}
    rows = [
        {"id": "split", "messages": TURNS},
        {"id": "short", "messages": TURNS[:2]},
        {"id": "hopeless", "messages": [*TURNS[:3], long]},
    ]
    split: Counter[str] = Counter()

    def run(overlong: Any, **settings: Any) -> Any:
        form = instructions("all", overlong)
        render = lambda row, length: form.render(row, tokenizer, length)  # noqa: E731
        return prepare(rows, render, 64, validation_share=0.0, max_dropped_share=0.5, **settings)

    train, held_out, dropped = run("split", split=split)
    assert dropped == {"overlong": 1}
    assert split == {"rows": 1, "parts": len(train) - 1}
    assert not held_out
    with pytest.raises(EmptyOutput, match="2 of 3 instructions can't be used"):
        run("drop", what="instructions")


def test_settings_that_contradict_each_other_are_refused_and_defaults_are_in_no_key() -> None:
    with pytest.raises(ValidationError, match="loss_on last would leave all parts of a split conversation but one"):
        SftConfig(loss_on="last", overlong="split")
    assert not {"loss_on", "overlong", "neftune_alpha"} & SftConfig().model_dump().keys()
    changed = SftConfig(loss_on="last", neftune_alpha=5.0)
    assert changed.model_dump().keys() - SftConfig().model_dump().keys() == {"loss_on", "neftune_alpha"}
