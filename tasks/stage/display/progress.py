"""The observer of a running stage: a person at a terminal, or Prefect.

Stages call `Output.progress`, and the observer decides what to show. The default one is silent, so that a stage runs in
a test or a notebook with nothing around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from storage.artifact import Artifact


@dataclass(frozen=True)
class Progress:
    """How far a stage is: `done` of `total` in `unit` (documents, steps, …), with a remark such as the loss."""

    stage: str
    done: float
    total: float
    unit: str
    note: str = ""


class Observer:
    """The silent observer. Subclasses show what interests them."""

    def started(self, stage: str, why: str) -> None:
        """A stage starts to work, because of `why`."""

    def progressed(self, progress: Progress) -> None:
        """A stage got further."""

    def paged(self, stage: str, name: str, write: Callable[[], str], *, last: bool) -> None:
        """A stage's page changed. `write` makes it, as Markdown. See `Output.page`."""

    def noted(self, stage: str, message: str) -> None:
        """Something worth a line that isn't an error."""

    def warned(self, stage: str, message: str) -> None:
        """Something that is or may be wrong and doesn't end the run."""
        self.noted(stage, message)

    def waiting(self, stage: str, what: str) -> None:
        """A stage waits for another run, or for a person."""
        self.noted(stage, f"waiting for {what}")

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float) -> None:
        """A stage has its artifact: stored before (`cached`) or made now, in `seconds` without waits for other runs."""

    def gathered(self, stage: str, *, made: int, cached: int, seconds: float) -> None:
        """A stage has all artifacts that it makes together: `made` of them now, `cached` of them from the store."""

    def failed(self, error: str) -> None:
        """The run has ended with an error, given as a sentence."""


class Renamed(Observer):
    """Passes reports on under another name: of a stage that makes several artifacts, which one."""

    def __init__(self, observer: Observer, names: Mapping[str, str]) -> None:
        self.observer, self.names = observer, names

    def _named(self, stage: str) -> str:
        return self.names.get(stage, stage)

    def started(self, stage: str, why: str) -> None:
        """See the base."""
        self.observer.started(self._named(stage), why)

    def progressed(self, progress: Progress) -> None:
        """See the base."""
        self.observer.progressed(replace(progress, stage=self._named(progress.stage)))

    def paged(self, stage: str, name: str, write: Callable[[], str], *, last: bool) -> None:
        """See the base."""
        self.observer.paged(self._named(stage), name, write, last=last)

    def noted(self, stage: str, message: str) -> None:
        """See the base."""
        self.observer.noted(self._named(stage), message)

    def warned(self, stage: str, message: str) -> None:
        """See the base."""
        self.observer.warned(self._named(stage), message)

    def waiting(self, stage: str, what: str) -> None:
        """See the base."""
        self.observer.waiting(self._named(stage), what)

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float) -> None:
        """See the base."""
        self.observer.finished(self._named(stage), artifact, cached=cached, seconds=seconds)

    def gathered(self, stage: str, *, made: int, cached: int, seconds: float) -> None:
        """See the base."""
        self.observer.gathered(self._named(stage), made=made, cached=cached, seconds=seconds)

    def failed(self, error: str) -> None:
        """See the base."""
        self.observer.failed(error)
