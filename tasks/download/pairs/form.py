"""A form of rows: a name, the keys that identify it, and the function that reads a row's turns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from storage.errors import BadDocument

Values = dict[str, Any]
Message = dict[str, str]  # {"role": "system", "user" or "assistant", "content": text}
InstructionForm = Literal["messages", "sharegpt", "alpaca", "dolly", "prompt_completion", "oasst"]
PreferenceForm = Literal["explicit_prompt", "implicit_prompt", "alpaca_preference", "sharegpt_preference"]
LabelledForm = Literal["labelled_completion", "labelled_messages", "labelled_sharegpt", "labelled_alpaca"]
FormName = Literal[InstructionForm, PreferenceForm, LabelledForm]
Taken = TypeVar("Taken")


class Answers(NamedTuple):
    """A preference: the prompt and both answers."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]


class Labelled(NamedTuple):
    """A prompt, an answer, and whether it is desirable."""

    prompt: list[Message]
    completion: list[Message]
    label: bool


@dataclass(frozen=True)
class Form(Generic[Taken]):
    """A row has the form if it has all keys of one of the sets `keys`, and none of `without`.

    `take(row)` gives its turns, in any order. Raises BadDocument.
    """

    name: FormName
    keys: tuple[tuple[str, ...], ...]
    take: Callable[[Values], Taken]
    without: tuple[str, ...] = ()

    def fits(self, present: Collection[str]) -> tuple[str, ...] | None:
        """The set of keys by which a row with these keys has the form. None if it doesn't."""
        if any(key in present for key in self.without):
            return None
        return next((keys for keys in self.keys if all(key in present for key in keys)), None)

    def __str__(self) -> str:
        return f"{self.name} ({' | '.join(', '.join(keys) for keys in self.keys)})"


def bad(reason: str, why: str) -> BadDocument:
    """The error for a row: a word to count it by, and a sentence that names the key but quotes no text."""
    return BadDocument(reason, why=why)
