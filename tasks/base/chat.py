"""Reports how a base's chat template renders turns, for the stage's page: what is learned, and what ends a turn."""

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
    "itself": "{end}, after every answer",
    "conversation": "{end}, only after the last answer of a conversation",
    "next": "{end}, which opens the next turn. Training puts it after the last answer",
    "nothing": "no token of the template. Training puts {end} after the last answer",
}


TURN = "a turn ends with"


def turn_rows(tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """How a text begins, and how a turn ends."""
    turns = turns_of(tokenizer)
    return {
        "a text begins with": str(tokenizer.bos_token) if begins_with_bos(tokenizer) else "nothing but its words",
        TURN: ENDS[turns.by].format(end=tokenizer.decode([turns.end])),
    }


def learned_rows(tokenizer: PreTrainedTokenizerFast) -> list[dict[str, str]]:
    """A row for each example, with the text of the tokens that bear loss."""
    return [{"conversation": name, "learned": _learned(tokenizer, messages)} for name, messages in EXAMPLES.items()]


def _learned(tokenizer: PreTrainedTokenizerFast, messages: Messages) -> str:
    try:
        ids, learned = render_answers(tokenizer, messages)
    except TemplateFaultError as fault:
        return f"none: {str(fault).replace('_', ' ')}"
    spans = groupby(zip(ids, learned, strict=True), key=lambda pair: pair[1])
    texts = [tokenizer.decode([id for id, _ in span]) for known, span in spans if known]
    return " … ".join(text.replace("\n", "⏎") for text in texts) or "nothing"
