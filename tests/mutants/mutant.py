"""What a planted defect is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A text of a source file, which stands there once, and the wrong one in its place.

    `about` says what is broken, `rule N` first where it is one of the ten of docs/design.md. `fails` are the tests that
    must notice, as pytest names them, the cheapest first; a file alone where any of its tests may.
    """

    name: str
    about: str
    path: str
    before: str
    after: str
    fails: tuple[str, ...]
