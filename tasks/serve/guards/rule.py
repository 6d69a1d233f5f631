"""The common parts of a guard's rules: a finding's mark, and the steps in which a text is read.

A text is read in steps that depend only on the text, never on how it was cut into chunks: a word with the character
that ends it, a character of a script without spaces, or 256 characters of a run that doesn't end. Each rule decides at
the end of a step, so equal texts get equal marks.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from tasks.serve.guards.config import Action
from tasks.text.characters import UNSPACED

CONTEXT = 640  # characters before a position that a rule may read
PIECE = 256  # characters of a run without an end that are a step
ENDS = r'\s",<>，。、！？；：（）' + "".join(f"{chr(block.start)}-{chr(block.stop - 1)}" for block in UNSPACED)
END = re.compile(f"[{ENDS}]")
STEP = re.compile(f"[^{ENDS}]{{0,{PIECE - 1}}}+[{ENDS}]|[^{ENDS}]{{{PIECE}}}")


class Mark(NamedTuple):
    """A finding at [start:end] of a text. `continues` another one, which was too long to wait for its end."""

    start: int
    end: int
    rule: str
    action: Action
    label: str
    continues: bool = False


class Search(Protocol):
    """A rule's state in one text. Positions count from the text's beginning."""

    done: int  # up to here nothing more can be found

    def advance(self, text: str, base: int, step: int, final: bool) -> list[Mark]:
        """Read a step: the last `step` characters of `text`, which begins at `base`. With `final` nothing follows, so
        that `done` becomes the end. Returns the marks found, which end before `done`."""
        ...

    def sure(self, part: str) -> int:
        """Up to where nothing more can be found if the next step begins with `part`, which isn't empty. It is `done` or
        more."""
        ...


class Rule(Protocol):
    """A rule, shared by all texts."""

    def search(self) -> Search:
        """The state for a new text."""
        ...
