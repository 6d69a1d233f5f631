"""The trees of OpenAssistant: a prompt, replies to it, replies to these. A tree becomes one conversation.

At each turn the best-ranked reply is taken, as for Guanaco (Dettmers et al. 2023): rank 0 is best, a reply without a
rank comes last, and of equals the first wins. Deleted replies and those that reviewers rejected are left out. So are
questions that nobody answered, which have nothing to learn from.
"""

from __future__ import annotations

from typing import Any

from tasks.download.pairs.form import Form, Message, Values, bad
from tasks.download.pairs.texts import assistant, kind_of, text_of, user

SPEAKERS = {"prompter": user, "assistant": assistant}


def best_path(row: Values) -> list[Message]:
    """The turns from the prompt of a tree along its best-ranked replies."""
    node, key = row["prompt"], "prompt"
    if isinstance(node, dict) and not _accepted(node):
        raise bad("rejected_by_review", "prompt was deleted or rejected by reviewers")
    turns: list[Message] = []
    while node is not None:
        if not isinstance(node, dict):
            raise bad("no_messages", f"{key} is {kind_of(node)}, not a message")
        role = node.get("role")
        speaker = SPEAKERS.get(role) if isinstance(role, str) else None
        if speaker is None:
            raise bad("unknown_role", f"{key}.role is neither prompter nor assistant")
        turns.append(speaker(text_of(node.get("text"), f"{key}.text")))
        node, key = _best(node.get("replies"), f"{key}.replies")
    return turns


def _best(replies: Any, key: str) -> tuple[Any, str]:
    """The best reply and its key. None if no reply can be taken."""
    if replies is None:
        return None, key
    if not isinstance(replies, list):
        raise bad("no_messages", f"{key} is {kind_of(replies)}, not a list")
    ranked = [
        (_rank(reply, f"{key}[{number}]"), number)
        for number, reply in enumerate(replies)
        if not isinstance(reply, dict) or (_accepted(reply) and not _unanswered(reply))
    ]
    if not ranked:
        return None, key
    _, number = min(ranked)
    return replies[number], f"{key}[{number}]"


def _rank(reply: Any, key: str) -> float:
    rank = reply.get("rank") if isinstance(reply, dict) else None
    if rank is not None and not isinstance(rank, int | float):
        raise bad("no_rank", f"{key}.rank is {kind_of(rank)}, not a number")
    return float("inf") if rank is None or rank != rank else rank


def _accepted(node: Values) -> bool:
    return node.get("deleted") is not True and node.get("review_result") is not False


def _unanswered(reply: Values) -> bool:
    return reply.get("role") == "prompter" and not reply.get("replies")


OASST = Form("oasst", (("message_tree_id", "prompt"),), best_path)
