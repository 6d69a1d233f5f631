"""Conversations through a chat template.

turns.py    how a template ends an answer, found by rendering a made-up conversation
control.py  keeps any part of a user's text from becoming a control token
render.py   the ids of a conversation, and which of them are the answers'
"""

from models.conversation.render import (
    answer_text,
    apply_chat_template,
    broken_messages,
    closed,
    render,
    render_answers,
    special_ids,
    special_tokens,
    without_breaks,
)
from models.conversation.turns import (
    NOT_A_PREFIX,
    REFUSED,
    Messages,
    TemplateFaultError,
    Turns,
    begins_with,
    generation_ends,
    turns_of,
)

__all__ = [
    "NOT_A_PREFIX",
    "REFUSED",
    "Messages",
    "TemplateFaultError",
    "Turns",
    "answer_text",
    "apply_chat_template",
    "begins_with",
    "broken_messages",
    "closed",
    "generation_ends",
    "render",
    "render_answers",
    "special_ids",
    "special_tokens",
    "turns_of",
    "without_breaks",
]
