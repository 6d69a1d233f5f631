"""Labels by an OpenAI-compatible endpoint: one question a text, yes or no.

The prompt is the user's own file with `{text}` where the excerpt stands. What was answered is kept in a transcript
beside the labels, so that a run that goes on pays for no answer again.
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
TOKENS = 512  # of an answer, which may give reasons first
AT_ONCE = 32  # texts between two lines of progress
ANSWER = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


def read_prompt(path: Path) -> str:
    """The prompt. Raises ConfigError for a file that can't be read or has no place for the text."""
    try:
        prompt = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompt {path} can't be read: {error}.", "Name a text file in UTF-8.") from error
    if PLACE not in prompt:
        raise ConfigError(f"The prompt {path} has no {PLACE}.", f"Write {PLACE} where the excerpt is to stand.")
    return prompt


class Labeller:
    """An endpoint that labels."""

    def __init__(self, config: EndpointConfig, prompt: str, transcript: Path, runtime: EndpointRuntime) -> None:
        self.prompt = prompt
        self.paid = PaidAnswers(transcript)
        self.endpoint = Endpoint(config, Asked(TOKENS, 0.0, 0, "--endpoint"), runtime, self.paid)

    def label(self, items: Sequence[Item]) -> Iterator[tuple[Item, Label, Reply]]:
        """Each excerpt with its label and the answer, in order, some at once. Raises SourceError where the endpoint
        fails; what it answered before is in the transcript."""
        for start in range(0, len(items), AT_ONCE):
            part = items[start : start + AT_ONCE]
            asked = [[{"role": "user", "content": self.prompt.replace(PLACE, item.text)}] for item in part]
            for item, reply in zip(part, self.endpoint.say(asked), strict=True):
                yield item, label_in(reply), reply


def label_in(reply: Reply) -> Label:
    """The last yes or no of an answer, since reasons come before it; skip where there is none or it was cut."""
    found = ANSWER.findall(reply.text)
    return "skip" if reply.fault or not found else "yes" if found[-1].lower() == "yes" else "no"
