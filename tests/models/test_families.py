"""Chat templates of well-known models: which tokens are learned, what ends an answer, what a text can't spell."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest

from models.conversation import TemplateFaultError, generation_ends, render, render_answers, turns_of
from models.conversation.control import BREAK
from tasks.posttrain.rows.preference import render_preference
from tests.models.families import CHAT, FAMILIES, SYSTEM, Family

EACH = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def spans(tokenizer: Any, ids: list[int], mask: list[bool]) -> list[str]:
    pairs = groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
    return [tokenizer.decode([id for id, _ in span]) for known, span in pairs if known]


@EACH
def test_answers_are_learned_with_what_ends_them_and_the_ids_are_those_of_transformers(family: Family) -> None:
    tokenizer = family.tokenizer()
    ids, mask = render_answers(tokenizer, CHAT)
    assert spans(tokenizer, ids, mask) == family.learned
    turns = turns_of(tokenizer)
    assert (tokenizer.decode(turns.end), turns.by) == (family.end, family.by)
    assert generation_ends(tokenizer) == [*dict.fromkeys([tokenizer.eos_token_id, turns.end])]
    assert ids == [*tokenizer.apply_chat_template(CHAT)["input_ids"], *turns.appended]
    for messages in (CHAT[:1], CHAT[:3], [SYSTEM, *CHAT[:1]] if family.system else CHAT[:1]):
        asked = render(tokenizer, messages, add_generation_prompt=True)["input_ids"]
        assert asked == tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    row = {"id": "1", "prompt": CHAT[:1], "chosen": [CHAT[1]], "rejected": [CHAT[3]]}
    pair = render_preference(row, tokenizer, 128)
    assert tokenizer.decode(pair["rejected_ids"]).rstrip("\n") == family.learned[-1]


@EACH
@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_no_text_of_a_message_is_a_control_token_or_opens_a_turn(family: Family, role: str) -> None:
    """The content spells a whole conversation as the template writes it, from the end of one text to the next's."""
    if role == "system" and not family.system:
        pytest.skip("the template takes no system prompt")
    tokenizer = family.tokenizer()
    forged = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}, *CHAT[1:]], tokenize=False)
    forged = forged[max(0, forged.lower().find("hi")) :]
    said = {"system": SYSTEM, "user": CHAT[2], "assistant": CHAT[1]}[role]
    harmless, spelt = (
        [{**message, "content": text} if message == said else message for message in messages]
        for text in ("hi", f"{forged} {''.join(tokenizer.added_tokens_encoder)} {forged.lower()}")
        for messages in [[*([SYSTEM] if role == "system" else []), *CHAT[:3]]]
    )
    rendered = render(tokenizer, spelt, add_generation_prompt=True)["input_ids"]
    expected = tokenizer.apply_chat_template(harmless, add_generation_prompt=True)["input_ids"]
    free = {"<think>", "</think>"} if role == "assistant" and "<think>" in family.unmarked else set()
    control = set(tokenizer.convert_tokens_to_ids([*{*tokenizer.added_tokens_encoder} - free]))
    assert Counter(id for id in rendered if id in control) == Counter(id for id in expected if id in control)
    assert rendered != tokenizer.apply_chat_template(spelt, add_generation_prompt=True)["input_ids"]
    whole = tokenizer.apply_chat_template(spelt, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(rendered) == whole, "it says the same"


def test_what_an_answer_thinks_is_its_own_and_what_a_user_says_is_not() -> None:
    tokenizer = FAMILIES["qwen 3"].tokenizer()
    thought = {"role": "assistant", "content": "<think>\nWell.\n</think>\n\nIn the wood."}
    ids, mask = render_answers(tokenizer, [CHAT[0], thought])
    assert ids == tokenizer.apply_chat_template([CHAT[0], thought])["input_ids"]
    assert spans(tokenizer, ids, mask) == [f"{thought['content']}<|im_end|>"]
    asked = render(tokenizer, [{**thought, "role": "user"}])["input_ids"]
    assert not {*tokenizer.convert_tokens_to_ids(["<think>", "</think>"])} & {*asked}


def test_a_break_that_a_text_holds_itself_is_left_out() -> None:
    tokenizer = FAMILIES["chatml"].tokenizer()
    text = f"hi{BREAK}<|im_end|>"
    ids = render(tokenizer, [{"role": "user", "content": text}])["input_ids"]
    assert tokenizer.decode(ids) == "<|im_start|>user\nhi<|im_end|><|im_end|>\n"
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "answer_not_written"),
        ("{{ raise_exception('no') }}", "refused_by_template"),
        ("{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}", "prompt_not_a_prefix"),
    ],
)
def test_a_template_that_cant_be_learned_from_is_refused_by_the_reason(template: str, reason: str) -> None:
    tokenizer = FAMILIES["chatml"].tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(TemplateFaultError, match=reason):
        turns_of(tokenizer)
