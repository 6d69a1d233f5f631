"""An observer that remembers what a stage said."""

from __future__ import annotations

from tasks.stage.display.progress import Observer


class Notes(Observer):
    """Notes and warnings, in their order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def noted(self, stage: str, message: str) -> None:
        self.said.append(message)

    def warned(self, stage: str, message: str) -> None:
        self.said.append(message)
