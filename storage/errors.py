"""Errors that a user can act on.

Every error that Gristmill raises on purpose names what is wrong and what to do about it. The command line prints both
and exits with 1. Any other exception is a bug and keeps its traceback. The constructor redacts quotations and removes
control characters: an error puts no credentials into a log, a page or Prefect's database, and can't control a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storage.credentials import redact

REMEDY = "\nWhat to do: "
# Control characters, including those that reorder text (Unicode, UAX #9)
_CODES = (*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
STEERING = {code: "\N{REPLACEMENT CHARACTER}" for code in _CODES if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """Foreign text without control characters, which could control a terminal."""
    return text.translate(STEERING)


class GristmillError(Exception):
    """`message` says what is wrong, `remedy` what to do. `facts` are JSON values for code that handles the error."""

    def __init__(self, message: str, remedy: str = "", **facts: Any) -> None:
        self.message = harmless(redact(message))
        self.remedy = harmless(redact(remedy))
        super().__init__(self.message, self.remedy)
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    @property
    def on_page(self) -> str:
        """Both sentences as the message of a Prefect state, separated by `REMEDY`."""
        return f"{self.message}{REMEDY}{self.remedy}" if self.remedy else self.message


class ConfigError(GristmillError):
    """A profile or an option has an invalid key or value."""


class SourceError(GristmillError):
    """External data is missing, empty or unreadable."""


class BadDocument(GristmillError):
    """One document can't be used. It is quarantined and counted."""


class StoreError(GristmillError):
    """The store, or an artifact in it, is not in a valid state."""


class DamagedArtifact(StoreError):
    """A file of an artifact is missing or its content has changed."""


class SignatureError(GristmillError):
    """A release is not signed, or not by somebody who is trusted."""


class AccountingError(GristmillError):
    """Documents in do not equal documents kept + removed + quarantined (law 2)."""


class EmptyOutput(GristmillError):
    """A stage produced nothing where something was expected (law 3)."""


class TokenizerMismatch(GristmillError):
    """Two things that must share a tokenizer do not (law 6)."""


class TrainingError(GristmillError):
    """A training run ended without a usable model."""


class Divergence(TrainingError):
    """A training loss or gradient is not finite, or the loss diverged."""


class RewardHacking(TrainingError):
    """A policy moved too far from its reference, or earns less on held-out prompts."""


class OutOfMemory(TrainingError):
    """A training process ran out of memory."""


class LostProcess(TrainingError):
    """A training process died without an error message, or stopped responding."""


class LostWorker(GristmillError):
    """A worker process of a stage was killed."""


class ServerError(GristmillError):
    """A Prefect server ended, does not answer, or can't be used."""


class PoolError(GristmillError):
    """A work pool did not make a stage."""


class ApprovalError(GristmillError):
    """A stage that a person must approve was not approved."""


class GateError(GristmillError):
    """A model does not meet a condition that the profile sets for its release."""


class ParityError(GristmillError):
    """An export does not behave like the checkpoint that it was made from (law 7)."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, outermost first, including the errors of several ranks that torch collects."""
    yield from _causes(error, set())


def _causes(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    yield from _causes(error.__cause__ or error.__context__, seen)
    for failure, *_ in getattr(error, "failures", {}).values():  # torch.distributed.checkpoint's, by rank
        yield from _causes(failure, seen)


def no_artifact(location: str, url: str) -> StoreError:
    """The error for a missing artifact."""
    return StoreError(
        f"Artifact {location} is not in the store {url}.",
        "`gristmill store ls` lists the artifacts. A run of its profile makes it again.",
    )


OF_MANY = ("ablate", "mix", "scaling")  # what compares many runs, made by a command of the same name


REBUILD = "Rebuild it: `gristmill run PROFILE"  # how the remedy for one artifact begins


def make_again(*stages: str) -> str:
    """The remedy for a damaged artifact of a stage."""
    if command := next((one for one in OF_MANY if one in stages), None):
        return f"Delete its folder in the store's `artifacts/`, and run the same `gristmill {command}` again."
    options = " ".join(f"--refresh {stage}" for stage in stages)
    return f"{REBUILD} {options}`. `gristmill store verify` prints the whole command."
