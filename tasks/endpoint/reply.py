"""What somebody who was asked has answered, whether a model here or an endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from storage.errors import EmptyOutput

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


def counted(faults: Iterable[str], section: str) -> dict[str, int]:
    """How many answers have each fault, by name. Raises EmptyOutput where none of them holds text; `section` of the
    profile has the endpoint."""
    found = Counter(faults)
    if found and found["empty"] + found["refused"] == found.total():
        raise EmptyOutput(
            f"Of {found.total():,} answers of the endpoint none holds text: {found['empty']:,} are empty, "
            f"{found['refused']:,} were refused.",
            f"Check {section}: its model and its fields. A model that thinks first needs more tokens for an answer.",
        )
    return {fault: number for fault, number in sorted(found.items()) if fault}
