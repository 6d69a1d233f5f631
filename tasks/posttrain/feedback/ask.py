"""The requests to criticise, revise and compare answers. Their wording determines the artifact's content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Message = Mapping[str, str]


def critique(principle: str) -> dict[str, str]:
    """The turn after an answer that asks how to improve it."""
    return _user(
        f"Here is a principle for good answers: {principle}\nSay in one or two sentences how your last answer could "
        "follow it better."
    )


def revision(principle: str) -> dict[str, str]:
    """The turn after a critique that asks for a better answer."""
    return _user(f"Write your answer again so that it follows the principle: {principle}\nWrite the answer alone.")


def comparison(prompt: Sequence[Message], first: str, second: str, principle: str) -> list[dict[str, str]]:
    """The conversation that asks which of two answers is better, to be answered with A or B."""
    turns = "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
    return [
        _user(
            f"Here is a conversation:\n{turns}\n\nAnswer A: {first}\n\nAnswer B: {second}\n\nPrinciple: {principle}\n"
            "Which answer follows the principle better? Reply with A or B."
        )
    ]


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
