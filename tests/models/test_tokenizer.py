"""One tokenizer and one chat template: what is learned, what a prompt is, and how a mismatch is detected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.conversation import render
from models.tokenizer import ASSISTANT, END, EOS, SPECIAL_TOKENS, USER, load_tokenizer, text_ids, tokenizer_digest
from storage.errors import TokenizerMismatch
from tasks.training.model_folder import check_tokenizer
from tests.tasks.tiny_model import make_model

CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Where does the fox live?"},
    {"role": "assistant", "content": "It lives in the wood."},
    {"role": "user", "content": "And the hen?"},
    {"role": "assistant", "content": "In the yard."},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "model")


def test_the_mask_is_on_the_assistants_words_and_the_mark_that_ends_them(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    rendered = tokenizer.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
    learned = [i for i, m in zip(rendered["input_ids"], rendered["assistant_masks"], strict=True) if m]
    assert tokenizer.decode(learned) == f"It lives in the wood.{END}In the yard.{END}"


def test_a_prompt_is_a_prefix_of_its_conversation(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    whole = tokenizer.apply_chat_template(CHAT, tokenize=False)
    for turns in (2, 4):
        prompt = tokenizer.apply_chat_template(CHAT[:turns], tokenize=False, add_generation_prompt=True)
        assert whole.startswith(prompt)
        assert prompt.endswith(ASSISTANT)


@given(st.text("\n\t \r.a1<|>", max_size=8), st.text("\n\t \r.a1<|>", max_size=8))
def test_no_text_merges_with_what_our_template_writes(model: Path, question: str, answer: str) -> None:
    tokenizer = load_tokenizer(model)
    user, assistant, end = tokenizer.convert_tokens_to_ids([USER, ASSISTANT, END])
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    asked, answered = (text_ids(tokenizer, text) for text in (question, answer))
    assert render(tokenizer, chat)["input_ids"] == [user, *asked, end, assistant, *answered, end]


def test_special_tokens_have_the_first_ids_and_generation_stops_at_the_end_of_an_answer(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    generation = json.loads((model / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.convert_tokens_to_ids([EOS, END])


def test_a_changed_tokenizer_or_template_is_noticed_at_the_next_join(model: Path, tmp_path: Path) -> None:
    digest = tokenizer_digest(model)
    assert check_tokenizer(model) == digest
    with pytest.raises(TokenizerMismatch, match="that of the data"):
        check_tokenizer(model, expected="0" * 64)
    changed = shutil.copytree(model, tmp_path / "changed")
    (changed / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(TokenizerMismatch, match="weights were trained with"):
        check_tokenizer(changed)


def test_a_saved_model_is_the_same_byte_for_byte(model: Path, tmp_path: Path) -> None:
    again = make_model(tmp_path / "again")
    for path in model.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name
