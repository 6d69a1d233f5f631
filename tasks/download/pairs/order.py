"""The order of turns: a system prompt or none, then the user and the assistant in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tasks.download.pairs.form import Message, bad


def check_order(turns: Sequence[Message]) -> None:
    """Raises BadDocument for turns in any other order."""
    start = 1 if turns and turns[0]["role"] == "system" else 0
    roles = [turn["role"] for turn in turns[start:]]
    if "system" in roles:
        raise bad(
            "late_system", f"turn {start + roles.index('system') + 1} is a system prompt, which can only come first"
        )
    if not roles or roles[0] != "user":
        raise bad("no_question", "the first turn is not the user's")
    for number, (role, following) in enumerate(pairwise(roles), start + 1):
        if role == following:
            raise bad("two_in_a_row", f"turns {number} and {number + 1} are both the {role}'s")


def ends_with_answer(turns: Sequence[Message], key: str) -> None:
    """Raises BadDocument unless the last turn is the assistant's."""
    if not turns or turns[-1]["role"] != "assistant":
        raise bad("no_answer", f"{key} does not end with the assistant's turn")
