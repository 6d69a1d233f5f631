"""A conversation through a chat template: its ids, and which of them are the answers'.

An answer's tokens are what it adds to the prompt: the ids of the conversation with it begin with those of the
conversation before it, rendered with the generation prompt, and go on with the answer. So any template will do, whether
or not it marks answers by `{% generation %}`, and one whose prompts are not what stands before their answers is found
out: what it would teach is never asked for at inference.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Messages = Sequence[Mapping[str, str]]
NOT_A_PREFIX, REFUSED = "prompt_not_a_prefix", "refused_by_template"


class TemplateFaultError(ValueError):
    """A conversation that a chat template can't render for training; the message is the reason in one word."""


def render(tokenizer: PreTrainedTokenizerFast, messages: Messages, **options: Any) -> dict[str, list[int]]:
    """What `apply_chat_template` returns. Raises TemplateFaultError for what the template refuses, such as a system
    prompt, or fails at: it is a program, and what it raises is its own affair."""
    from jinja2.exceptions import TemplateError

    try:
        conversation = [dict(message) for message in messages]
        return dict(tokenizer.apply_chat_template(conversation, return_dict=True, **options))
    except (
        TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError
    ) as error:  # fmt: skip
        raise TemplateFaultError(REFUSED) from error


def render_answers(
    tokenizer: PreTrainedTokenizerFast, messages: Messages, *, last: bool = False
) -> tuple[list[int], list[bool]]:
    """The ids of a conversation, and for each whether it belongs to an answer of the assistant, or to the last one.

    An answer ends with the last special token that it adds, where it adds one: what a template puts behind, such as a
    line feed, comes after generation has ended. Where the template marks its answers, only what it marks counts. Raises
    TemplateFaultError.
    """
    marked = bool(re.search(r"\{%-?\s*generation\s*-?%\}", str(tokenizer.chat_template)))
    rendered = render(tokenizer, messages, return_assistant_tokens_mask=marked)
    ids, special = rendered["input_ids"], special_ids(tokenizer)
    learned = [False] * len(ids)
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    for number in answers[-1:] if last else answers:
        prompt = render(tokenizer, messages[:number], add_generation_prompt=True)["input_ids"]
        whole = ids if number == len(messages) - 1 else render(tokenizer, messages[: number + 1])["input_ids"]
        if not begins_with(whole, prompt) or not begins_with(ids, whole):
            raise TemplateFaultError(NOT_A_PREFIX)
        ends = [place for place in range(len(prompt), len(whole)) if whole[place] in special]
        for place in range(len(prompt), ends[-1] + 1 if ends else len(whole)):
            learned[place] = True
    if marked:
        masks = rendered["assistant_masks"]
        learned = [both and bool(mask) for both, mask in zip(learned, masks, strict=True)]
    return ids, learned


def begins_with(ids: Sequence[int], prefix: Sequence[int]) -> bool:
    """Whether the ids of a prompt stand at the beginning of those of its conversation."""
    return len(ids) >= len(prefix) and list(ids[: len(prefix)]) == list(prefix)


def turn_end(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """The id of the special token that ends an answer; None where a template ends it with none."""
    ids, learned = render_answers(tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}])
    last = max((place for place, known in enumerate(learned) if known), default=None)
    return ids[last] if last is not None and ids[last] in special_ids(tokenizer) else None


@functools.lru_cache(maxsize=4)
def _special(tokenizer: PreTrainedTokenizerFast) -> Mapping[int, str]:
    added = {id: token.content for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))


def special_ids(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """The ids of all special tokens, those that only the vocabulary marks as such included."""
    return frozenset(_special(tokenizer))


def special_tokens(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The texts of all special tokens, those that only the vocabulary marks as such included."""
    return list(_special(tokenizer).values())
