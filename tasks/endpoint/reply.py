"""What somebody who was asked has answered, whether a model here or an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fault = Literal["", "empty", "unfinished", "overlong", "refused", "unclear"]


@dataclass(frozen=True)
class Reply:
    """What was said, and why it is of no use: nothing, cut at the most tokens, too long a prompt, refused by the
    server, or neither A nor B."""

    text: str
    fault: Fault = ""

    @classmethod
    def of(cls, text: str, *, finished: bool) -> Reply:
        """One that was cut is of no use: it would teach to stop in the middle of a sentence."""
        text = text.strip()
        return cls(text, "" if text and finished else "unfinished" if text else "empty")
