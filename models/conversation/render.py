"""A conversation through a chat template: its ids, and which of them are the answers'.

An answer's tokens are those that it adds to the prompt: the ids of the conversation with it begin with those of the
conversation before it, rendered with the generation prompt, and go on with the answer. So any template works, whether
or not it marks answers by `{% generation %}`. A template whose prompts differ from the text before their answers is
refused: it would teach answers to prompts that never occur at inference.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from models.conversation.control import BREAK, Controls, controls_of, has_break, kept_places
from models.conversation.turns import (
    NOT_A_PREFIX,
    Messages,
    TemplateFaultError,
    apply,
    begins_with,
    ends_with,
    turns_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def render(tokenizer: PreTrainedTokenizerFast, messages: Messages, **options: Any) -> dict[str, list[int]]:
    """Like `apply_chat_template`, except that text of a message or a tool never becomes a control token. Raises
    TemplateFaultError for messages that the template refuses, such as a system prompt, or fails at."""
    broken, is_broken = broken_messages(tokenizer, messages)
    if tools := options.get("tools"):
        options["tools"] = _controls(tokenizer, str(tokenizer.chat_template)).within(tools, "user")
        is_broken = is_broken or has_break(options["tools"])
    rendered: dict[str, list[int]] = dict(apply(tokenizer, broken, return_dict=True, **options))
    if is_broken:
        options.pop("return_assistant_tokens_mask", None)
        text = str(apply(tokenizer, broken, tokenize=False, **options))
        try:
            kept = _kept_places(tokenizer, rendered["input_ids"], text.count(BREAK))
            rendered = {name: [values[place] for place in kept] for name, values in rendered.items()}
        except TemplateFaultError:
            if "assistant_masks" in rendered:
                raise
            ids = _in_pieces(tokenizer, text)
            rendered = {name: ids if name == "input_ids" else [1] * len(ids) for name in rendered}
    return rendered


def _in_pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The ids of the pieces between breaks, each encoded separately, for a vocabulary that merges a BREAK with other
    characters."""
    return [id for piece in text.split(BREAK) for id in tokenizer.encode(piece, add_special_tokens=False)]


def apply_chat_template(
    tokenizer: PreTrainedTokenizerFast, conversation: Any, *, return_tensors: Any = None, **options: Any
) -> Any:
    """Replaces transformers' method of a tokenizer, by `render` if possible, for callers that get a tokenizer. Anything
    but the ids of one conversation of texts is rendered as by transformers."""
    plain = isinstance(conversation, list) and all(
        isinstance(message, dict) and all(isinstance(text, str) for text in message.values())
        for message in conversation
    )
    if not plain or return_tensors is not None or options.get("tokenize") is False or options.get("padding"):
        options = {**options, "return_tensors": return_tensors}
        return type(tokenizer).apply_chat_template(tokenizer, conversation, **options)
    from transformers import BatchEncoding

    return_dict = options.pop("return_dict", True)
    rendered = render(tokenizer, conversation, **options)
    return BatchEncoding(rendered) if return_dict else rendered["input_ids"]


def broken_messages(tokenizer: PreTrainedTokenizerFast, messages: Messages) -> tuple[list[dict[str, Any]], bool]:
    """The messages with a BREAK in each control token that one spells, and whether any was put in: for callers that
    render a text and encode it later."""
    return _controls(tokenizer, str(tokenizer.chat_template)).broken(messages)


def without_breaks(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], text: str) -> list[int]:
    """The ids of a rendered text without those of its breaks."""
    number = text.count(BREAK)
    if not number:
        return list(ids)
    try:
        return [ids[place] for place in _kept_places(tokenizer, ids, number)]
    except TemplateFaultError:
        return _in_pieces(tokenizer, text)


def render_answers(
    tokenizer: PreTrainedTokenizerFast, messages: Messages, *, last: bool = False
) -> tuple[list[int], list[bool]]:
    """The ids of a conversation, and for each whether it belongs to an answer of the assistant, or with `last` to the
    last one.

    An answer ends with its end token (see `Turns`): text that a template puts after it, such as a line feed, comes
    after generation has ended. If answers would end with nothing, an end is put after the last one. If the template
    marks its answers, only marked tokens count. Raises TemplateFaultError.
    """
    marked = bool(re.search(r"\{%-?\s*generation\s*-?%\}", str(tokenizer.chat_template)))
    rendered = render(tokenizer, messages, return_assistant_tokens_mask=marked)
    ids, turns = rendered["input_ids"], turns_of(tokenizer)
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    added = turns.appended if answers and answers[-1] == len(messages) - 1 else ()
    ids = [*ids, *added]
    learned = [False] * len(ids)
    for number in answers[-1:] if last else answers:
        prompt = render(tokenizer, messages[:number], add_generation_prompt=True)["input_ids"]
        whole = ids if number == len(messages) - 1 else render(tokenizer, messages[: number + 1])["input_ids"]
        if not begins_with(ids, prompt):
            raise TemplateFaultError(NOT_A_PREFIX)
        for place in range(len(prompt), turns.stop(whole, ids, len(prompt))):
            learned[place] = True
    if marked:
        masks = [*rendered["assistant_masks"], *(1 for _ in added)]
        learned = [both and bool(mask) for both, mask in zip(learned, masks, strict=True)]
    return ids, learned


def closed(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> list[int]:
    """The ids of a conversation that ends with an answer, up to the answer's end: without the trailer of the whole, and
    with the end that the template leaves out."""
    turns = turns_of(tokenizer)
    kept = len(ids) - len(turns.trailer) if ends_with(ids, turns.trailer) else len(ids)
    return [*ids[:kept], *turns.appended]


def answer_text(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], ends: Container[int]) -> str:
    """The text of a generated answer, without the token that ends it, which need not be a special one."""
    body = ids[:-1] if ids and ids[-1] in ends else ids
    return str(tokenizer.decode(body, skip_special_tokens=True))


def _kept_places(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], number: int) -> list[int]:
    plain, broken = (tokenizer.encode(text, add_special_tokens=False) for text in ("a", f"a{BREAK}"))
    return kept_places(ids, broken[len(plain) :], number)


@functools.lru_cache(maxsize=8)
def _controls(tokenizer: PreTrainedTokenizerFast, template: str) -> Controls:
    special = special_tokens(tokenizer)
    added = {token.content: False for token in tokenizer.added_tokens_decoder.values()} | dict.fromkeys(special, True)
    return controls_of(
        added, template, lambda messages: str(apply(tokenizer, messages, tokenize=False, add_generation_prompt=True))
    )


@functools.lru_cache(maxsize=4)
def _special(tokenizer: PreTrainedTokenizerFast) -> Mapping[int, str]:
    added = {id: token.content for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))


def special_ids(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """The ids of all special tokens, including those that only the vocabulary marks as special."""
    return frozenset(_special(tokenizer))


def special_tokens(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The texts of all special tokens, including those that only the vocabulary marks as special."""
    return list(_special(tokenizer).values())
