"""Errors that a user can act on.

Every error that Gristmill raises on purpose says two things: what is wrong, naming the thing, and what to do.
The command line prints both and exits with 1; anything else is a defect and keeps its traceback.
"""

from __future__ import annotations

from typing import Any


class GristmillError(Exception):
    """Something named is wrong, and `remedy` says what to do about it. `facts` are JSON for whoever acts on it."""

    def __init__(self, message: str, remedy: str = "", **facts: Any) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class ConfigError(GristmillError):
    """A profile or an option holds a wrong key or value."""


class SourceError(GristmillError):
    """Data from outside is missing, empty or unreadable."""


class BadDocument(GristmillError):
    """One document can't be used; it is quarantined and counted."""


class StoreError(GristmillError):
    """The store, or an artifact in it, is not what it should be."""


class DamagedArtifact(StoreError):
    """A file of an artifact is missing or its bytes changed."""


class AccountingError(GristmillError):
    """Documents in are not documents kept + removed + quarantined (law 2)."""


class EmptyOutput(GristmillError):
    """A stage made nothing where something was expected (law 3)."""


class TokenizerMismatch(GristmillError):
    """Two things that must share one tokenizer do not (law 6)."""


class TrainingError(GristmillError):
    """A training run ended without a usable model."""


class Divergence(TrainingError):
    """A training loss or gradient is no number, or the loss left its course."""


class OutOfMemory(TrainingError):
    """A training process asked for more memory than there is."""


class LostProcess(TrainingError):
    """A training process died without a word, or gives no sign of life."""


class ParityError(GristmillError):
    """An export does not behave like the checkpoint it came from (law 7)."""
