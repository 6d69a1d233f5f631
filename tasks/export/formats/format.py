"""What a format of a release is: how it is written, opened, judged and loaded by its users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from storage.shards.arrays import Float32
from tasks.export.formats.source import Adapted, Source
from tasks.export.tolerance import Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime
    from models.runtimes.speculative import Guessing, Speculative


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
    def calibrated(self) -> bool:
        """Whether it is fitted to text: without any it is written worse, or not at all."""
        return False

    @property
    def needs_text(self) -> bool:
        """Whether it can't be written without text to fit it to."""
        return False

    @property
    def askable(self) -> bool:
        """Whether transformers or llama.cpp opens it, so that an evaluation can ask it."""
        return True

    @property
    def chat_rank(self) -> int:
        """Where a release holds several, `gristmill chat` takes that of the lowest rank."""
        ...

    @property
    def loading(self) -> str:
        """How to load it, as Markdown for the model card."""
        ...

    def needs(self) -> str | None:
        """What this machine lacks to write and to prove it, with the remedy as one sentence; None where it has all."""
        return None

    @property
    def needs_base(self) -> bool:
        """Whether it holds what was trained beside a base, and is no model without that."""
        return False

    def over(self, adapted: Adapted | None) -> Self:
        """The format as it opens a release over a base; itself, where it needs none."""
        return self

    def path(self, release: Path) -> Path:
        """Its folder or file in a release. That of plain weights is the release itself: see `files`."""
        ...

    def tolerance_of(self, dtype: str) -> Tolerance:
        """Its tolerance where plain weights of the release are of this dtype: that of all formats which are written
        from the checkpoint, whatever the plain weights are of."""
        return self.tolerance

    def files(self, release: Path) -> list[Path]:
        """What it wrote into a release; nothing where the release doesn't hold it."""
        written = self.path(release)
        return [written] if written.is_file() else sorted(file for file in written.rglob("*") if file.is_file())

    def check(self, model: Path) -> None:
        """Raises ConfigError for the model of a folder that the format can't hold. Reads its config and its tokenizer,
        and no weights."""

    def remark(self, model: Path) -> str | None:
        """Where the format is not all that its name says for the model of a folder, or not for everyone: half a
        sentence for whoever loads it. Reads what `check` does."""
        return None

    def write(self, source: Source, release: Path) -> None:
        """Write a model into a release. Raises ConfigError for a model that the format can't hold."""
        ...

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        """Open what was written in the runtime that it is meant for, on a device if that runs it there. Raises
        RuntimeFault."""
        ...

    def settings(self, model: Path, release: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the file says is to be computed, and what it should say for the checkpoint in `model`; by name. Of a
        folder it is the config.json beside the weights, and what else lies there."""
        from models.pretrained import load_config
        from tasks.export.formats.beside import beside
        from tasks.export.formats.config import portable_config

        path = self.path(release)
        folder = path if path.is_dir() else path.parent
        if not (folder / "config.json").is_file():
            return {}, {}
        found, expected = (portable_config(load_config(where).to_dict()) for where in (folder, model))
        said, wanted = beside(folder, model)
        return found | said, expected | wanted

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        """The matrices as they were written, dequantized, under the names of the checkpoint in `model`; what a format
        merges or leaves out is not among them."""
        ...


@runtime_checkable
class GuessedFormat(Format, Protocol):
    """A format whose runtime decodes speculatively."""

    def draft(self, release: Path) -> Path:
        """The draft in a release, as the runtime takes it."""
        ...

    def write_draft(self, source: Source, release: Path) -> None:
        """Write a draft there."""
        ...

    def speculative(self, release: Path, threads: int, device: str, guessing: Guessing | None) -> Speculative:
        """Open it to be continued with guesses, or for None without. Raises RuntimeFault."""
        ...
