"""What a base's chat template makes of turns, as the page of the stage shows it: what is learned, and what ends it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from models.conversation import Messages, TemplateFaultError, render_answers, turns_of
from models.tokenizer import begins_with_bos

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ASKED = [
    {"role": "user", "content": "Where does the fox live?"},
    {"role": "assistant", "content": "In the wood."},
    {"role": "user", "content": "And the hen?"},
    {"role": "assistant", "content": "In the yard."},
]
EXAMPLES: dict[str, Messages] = {
    "a question": ASKED[:2],
    "two questions": ASKED,
    "with a system prompt": [{"role": "system", "content": "You know the animals."}, *ASKED[:2]],
}
ENDS = {  # by how a template ends its turns
    "itself": "{end}, behind every answer",
    "conversation": "{end}, behind the last answer of a conversation alone",
    "next": "{end}, which opens the next turn; training puts it behind the last answer",
    "nothing": "no token of the template; training puts {end} behind the last answer",
}


TURN = "a turn ends with"


def turns_told(tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """What a text begins with, and what ends a turn."""
    turns = turns_of(tokenizer)
    return {
        "a text begins with": str(tokenizer.bos_token) if begins_with_bos(tokenizer) else "nothing but its words",
        TURN: ENDS[turns.by].format(end=tokenizer.decode([turns.end])),
    }


def learned_told(tokenizer: PreTrainedTokenizerFast) -> list[dict[str, str]]:
    """A row for each example: the tokens that bear loss, each answer's in clear."""
    return [{"conversation": name, "learned": _learned(tokenizer, messages)} for name, messages in EXAMPLES.items()]


def _learned(tokenizer: PreTrainedTokenizerFast, messages: Messages) -> str:
    try:
        ids, learned = render_answers(tokenizer, messages)
    except TemplateFaultError as fault:
        return f"none: {str(fault).replace('_', ' ')}"
    spans = groupby(zip(ids, learned, strict=True), key=lambda pair: pair[1])
    texts = [tokenizer.decode([id for id, _ in span]) for known, span in spans if known]
    return " … ".join(text.replace("\n", "⏎") for text in texts) or "nothing"
