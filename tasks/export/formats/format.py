"""What a format of a release is: how it is written, opened, judged and loaded by its users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tasks.export.tolerance import Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


class Format(Protocol):
    """One format. Modules of formats import torch in functions only: profiles read the table without it."""

    @property
    def tolerance(self) -> Tolerance:
        """How far it may be from the checkpoint, where the profile doesn't say."""
        ...

    @property
    def usual(self) -> bool:
        """Whether a release holds it unless the profile says otherwise."""
        ...

    @property
    def chat_rank(self) -> int:
        """Where a release holds several, `gristmill chat` takes that of the lowest rank."""
        ...

    @property
    def loading(self) -> str:
        """How to load it, as Markdown for the model card."""
        ...

    def path(self, release: Path) -> Path:
        """Its folder or file in a release."""
        ...

    def check(self, model: Path) -> None:
        """Raises ConfigError for the model of a folder that the format can't hold. Reads its config and its tokenizer,
        and no weights."""

    def write(self, model: Path, release: Path) -> None:
        """Write the model of a folder into a release. Raises ConfigError for a model that the format can't hold."""
        ...

    def open(self, release: Path, threads: int) -> ModelRuntime:
        """Open what was written in the runtime that it is meant for. Raises RuntimeFault."""
        ...
