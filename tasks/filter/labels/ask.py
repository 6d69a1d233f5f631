"""Labels from an OpenAI-compatible endpoint: one yes-or-no question per text.

The prompt is the user's own file with `{text}` in place of the excerpt. Answers are kept in a transcript beside the
labels, so that a run that continues doesn't pay for an answer twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from storage.errors import ConfigError
from tasks.endpoint.client import Asked, Endpoint
from tasks.endpoint.config import EndpointConfig
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.reply import Reply
from tasks.filter.labels.file import Label
from tasks.filter.labels.sample import Item
from tasks.stage.runtime import EndpointRuntime

PLACE = "{text}"
TOKENS = 512  # maximum of an answer, which may give reasons first
AT_ONCE = 32  # texts per line of progress
ANSWER = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


def read_prompt(path: Path) -> str:
    """Read the prompt. Raises ConfigError for a file that can't be read or lacks a place for the text."""
    try:
        prompt = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompt {path} can't be read: {error}.", "Use a text file in UTF-8.") from error
    if PLACE not in prompt:
        raise ConfigError(f"The prompt {path} lacks {PLACE}.", f"Write {PLACE} in the place of the excerpt.")
    return prompt


class Labeller:
    """An endpoint that labels."""

    def __init__(self, config: EndpointConfig, prompt: str, transcript: Path, runtime: EndpointRuntime) -> None:
        self.prompt = prompt
        self.paid = PaidAnswers(transcript)
        self.endpoint = Endpoint(config, Asked(TOKENS, 0.0, 0, "--endpoint"), runtime, self.paid)

    def label(self, items: Sequence[Item]) -> Iterator[tuple[Item, Label, Reply]]:
        """Yield each excerpt with its label and the answer, in order, with several requests at once. Raises SourceError
        if the endpoint fails. Earlier answers are in the transcript."""
        for start in range(0, len(items), AT_ONCE):
            part = items[start : start + AT_ONCE]
            requests = [[{"role": "user", "content": self.prompt.replace(PLACE, item.text)}] for item in part]
            for item, reply in zip(part, self.endpoint.say(requests), strict=True):
                yield item, label_in(reply), reply


def label_in(reply: Reply) -> Label:
    """The last yes or no of an answer, since reasons come before it, or skip if it lacks one or was cut off."""
    words = ANSWER.findall(reply.text)
    return "skip" if reply.fault or not words else "yes" if words[-1].lower() == "yes" else "no"
