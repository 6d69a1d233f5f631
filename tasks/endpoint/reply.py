"""The reply of a model to a request, whether it runs here or behind an endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from storage.errors import EmptyOutput

Fault = Literal["", "empty", "unfinished", "overlong", "refused", "unclear"]


@dataclass(frozen=True)
class Reply:
    """The text of a reply, and its fault if it is useless: empty, cut at the maximum tokens, a prompt that was too
    long, refused by the server, or neither A nor B."""

    text: str
    fault: Fault = ""

    @classmethod
    def of(cls, text: str, *, finished: bool) -> Reply:
        """The reply with this text. One that was cut is useless: it would teach a model to stop mid-sentence."""
        text = text.strip()
        return cls(text, "" if text and finished else "unfinished" if text else "empty")


def counted(faults: Iterable[str], section: str) -> dict[str, int]:
    """The number of answers with each fault, by name. Raises EmptyOutput if none has text. `section` is that of the
    profile with the endpoint."""
    counts = Counter(faults)
    if counts and counts["empty"] + counts["refused"] == counts.total():
        raise EmptyOutput(
            f"None of {counts.total():,} answers of the endpoint has text: {counts['empty']:,} are empty, "
            f"{counts['refused']:,} were refused.",
            f"Check {section}: its model and its fields. A model that reasons first needs more tokens for an answer.",
        )
    return {fault: number for fault, number in sorted(counts.items()) if fault}
