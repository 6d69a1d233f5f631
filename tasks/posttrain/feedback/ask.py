"""What the model is asked of its own answers. The words are part of what makes an artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Message = Mapping[str, str]


def critique(principle: str) -> dict[str, str]:
    """The turn after an answer that asks what is wrong with it."""
    return _user(
        f"Here is a principle for good answers: {principle}\nSay in one or two sentences how your last answer could "
        "follow it better."
    )


def revision(principle: str) -> dict[str, str]:
    """The turn after a critique that asks for a better answer."""
    return _user(f"Write your answer again so that it follows the principle: {principle}\nWrite the answer alone.")


def comparison(prompt: Sequence[Message], first: str, second: str, principle: str) -> list[dict[str, str]]:
    """The conversation that asks which of two answers is better; it is answered by A or B."""
    said = "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
    return [
        _user(
            f"Here is a conversation:\n{said}\n\nAnswer A: {first}\n\nAnswer B: {second}\n\nPrinciple: {principle}\n"
            "Which answer follows the principle better? Reply with A or B."
        )
    ]


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
