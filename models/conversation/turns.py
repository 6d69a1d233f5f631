"""Finds how a chat template ends an answer, which decides what is learned and what ends a generation.

A template is a program, so a made-up conversation is rendered, and the text after an answer is examined: at the end of
a conversation (the tail), and before the next question (between).

itself        an end token follows every answer: ChatML, Llama 3, Gemma, Zephyr
conversation  an end token follows only the last answer, as when `eos_token` closes the whole text
next          the token that opens the next turn ends the answer, as in GLM-4
nothing       turns differ by plain text: training ends the last answer with the tokenizer's EOS

Text that follows the end of only the last answer, such as Phi-3's `<|endoftext|>`, is not part of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Messages = Sequence[Mapping[str, str]]
NOT_A_PREFIX, REFUSED = "prompt_not_a_prefix", "refused_by_template"
NOT_WRITTEN = "answer_not_written"
WORDS = ("qxone", "qxtwo", "qxthree", "qxfour")  # contents of turns, which templates don't write themselves


class TemplateFaultError(ValueError):
    """A conversation that a chat template can't render for training. The message is the reason in one word."""


@dataclass(frozen=True)
class Turns:
    """How an answer ends: `end` is the id that ends it, `by` what writes it. If a conversation ends with an answer,
    training leaves its last ids, `trailer`, without loss, and puts `appended` after it."""

    end: int
    by: Literal["itself", "conversation", "next", "nothing"]
    trailer: tuple[int, ...] = ()
    appended: tuple[int, ...] = ()

    def stop(self, whole: Sequence[int], ids: Sequence[int], start: int) -> int:
        """The place after the last learned token of the answer that begins at `start` of `ids`. `whole` are the ids of
        the conversation up to that answer. Some templates write an answer differently once others follow, as Qwen 3
        leaves out its thoughts. Then the place is `start`: the answer isn't learned."""
        same = _shared(whole, ids)
        if self.by in ("next", "nothing"):
            follows = tuple(ids[same : same + len(self.appended)])
            return same + len(follows) if same == len(whole) and follows == self.appended else same
        body = len(whole) - len(self.trailer) if ends_with(whole, self.trailer) else len(whole)
        end = next((place for place in range(body - 1, start - 1, -1) if whole[place] == self.end), None)
        if end is not None and end < same:
            return end + 1
        return same if end is None or self.by == "conversation" else start


def turns_of(tokenizer: PreTrainedTokenizerFast) -> Turns:
    """How the tokenizer's chat template ends an answer. Raises TemplateFaultError for a template that refuses a
    question and its answer, leaves the answer out, or writes a different prompt once the answer follows."""
    return _turns(tokenizer, str(tokenizer.chat_template))


def generation_ends(tokenizer: PreTrainedTokenizerFast, known: Iterable[int | None] = ()) -> list[int]:
    """The ids that end a generation: `known` ones, a text's end, and an answer's. Raises TemplateFaultError."""
    ends = [*known, tokenizer.eos_token_id, turns_of(tokenizer).end]
    return [id for id in dict.fromkeys(ends) if id is not None]


def apply(tokenizer: PreTrainedTokenizerFast, messages: Messages, **options: Any) -> Any:
    """The result of `apply_chat_template`. Raises TemplateFaultError for messages that the template refuses, such as a
    system prompt, or fails at, with any exception."""
    from jinja2.exceptions import TemplateError

    try:
        # The class's method: a tokenizer that was loaded here has one of its own, which calls this function (render.py)
        return type(tokenizer).apply_chat_template(tokenizer, [dict(message) for message in messages], **options)
    except (
        TemplateError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        raise TemplateFaultError(REFUSED) from error


def control_pattern(tokenizer: PreTrainedTokenizerFast) -> re.Pattern[str]:
    """A pattern of any token that is matched in text before it is encoded, special or not, except white space."""
    known = {token.content for token in tokenizer.added_tokens_decoder.values()} | {*tokenizer.all_special_tokens}
    return pattern_of(token for token in known if not token.isspace())


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern of any of these texts, the longest first. It never matches if they are empty."""
    return re.compile("|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or "(?!)")


def made_up(turns: int, system: bool = False) -> list[dict[str, str]]:
    """A conversation of `turns` turns whose contents are WORDS. With `system` the first is a system prompt."""
    roles = ["system", "user", "assistant", "user"] if system else ["user", "assistant"] * 2
    return [{"role": role, "content": word} for role, word in zip(roles[:turns], WORDS, strict=False)]


def written_around(text: str, turns: int) -> list[str]:
    """The texts that a template writes before, between and after the contents of a made-up conversation. A template may
    change their case. Raises TemplateFaultError for a template that leaves a content out."""
    places = [(0, 0)]
    for word in WORDS[:turns]:
        match = re.compile(re.escape(word), re.IGNORECASE).search(text, places[-1][1])
        if match is None:
            raise TemplateFaultError(NOT_WRITTEN)
        places.append(match.span())
    return [text[before[1] : after[0]] for before, after in pairwise([*places, (len(text), len(text))])]


def begins_with(ids: Sequence[int], prefix: Sequence[int]) -> bool:
    """Whether the ids of a conversation begin with those of its prompt."""
    return len(ids) >= len(prefix) and list(ids[: len(prefix)]) == list(prefix)


def ends_with(ids: Sequence[int], suffix: Sequence[int]) -> bool:
    """Whether these ids are the last ones."""
    return begins_with(ids[::-1], suffix[::-1])


@functools.lru_cache(maxsize=8)
def _turns(tokenizer: PreTrainedTokenizerFast, template: str) -> Turns:
    """As `turns_of`. `template` is only a part of the cache's key."""
    prompt, one = _ids(tokenizer, 1, add_generation_prompt=True), _ids(tokenizer, 2)
    if not begins_with(one, prompt):
        raise TemplateFaultError(NOT_A_PREFIX)
    tail = written_around(apply(tokenizer, made_up(2), tokenize=False), 2)[-1]
    try:
        between = written_around(apply(tokenizer, made_up(4), tokenize=False), 4)[2]
        four = _ids(tokenizer, 4)
    except TemplateFaultError:  # it takes a single question
        between, four = tail, one
    shared, pattern = _shared(tail, between), control_pattern(tokenizer)
    ends = [*pattern.finditer(tail)]
    own = [match for match in ends if match.end() <= shared]
    if own:
        rest = next((match.start() for match in ends if match.end() > shared), len(tail))
        trailer = tuple(tokenizer.encode(tail[rest:], add_special_tokens=False)) if rest < len(tail) else ()
        return Turns(_id(tokenizer, own[-1]), "itself", trailer if ends_with(one, trailer) else ())
    if ends:
        return Turns(_id(tokenizer, ends[0]), "conversation")
    opening = pattern.search(between)
    if opening is None:
        return Turns(tokenizer.eos_token_id, "nothing", appended=(tokenizer.eos_token_id,))
    end = _id(tokenizer, opening)
    added = four[len(one) : four.index(end, len(one)) + 1] if begins_with(four, one) else [end]
    return Turns(end, "next", appended=tuple(added))


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of two sequences' common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _ids(tokenizer: PreTrainedTokenizerFast, turns: int, **options: Any) -> list[int]:
    ids: list[int] = apply(tokenizer, made_up(turns), return_dict=True, **options)["input_ids"]
    return ids


def _id(tokenizer: PreTrainedTokenizerFast, match: re.Match[str]) -> int:
    id: int = tokenizer.convert_tokens_to_ids(match[0])
    return id
